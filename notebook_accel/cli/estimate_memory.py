"""``notebook-accel estimate-memory``: what a model occupies, alone and while it trains."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from notebook_accel.cli.child import call
from notebook_accel.cli.parsing import count
from notebook_accel.config.budget import OPTIMIZERS
from notebook_accel.config.offers import KINDS
from notebook_accel.config.words import counted
from notebook_accel.launch.devices import accelerators

# Bytes of a parameter stored as this.
DTYPES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.5}
_ADAM_COPIES = 4  # weights, gradients and two moments


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument(
        "model_name",
        help="what makes the model (package.module:function, file.py:function), or a configuration "
        "of transformers (a folder, or a name that was downloaded before)",
    )
    parser.add_argument("--library_name", choices=("timm", "transformers"), help="whose name it is")
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=tuple(DTYPES),
        default=["float32", "float16", "int8", "int4"],
        metavar="DTYPE",
        help=f"how weights are stored: {', '.join(DTYPES)}",
    )
    parser.add_argument(
        "--trust_remote_code", action="store_true", help="run code that comes with a configuration"
    )
    train = parser.add_argument_group("training")
    train.add_argument("--batch_size", type=count, default=1, help="of each process (default: 1)")
    train.add_argument(
        "--input_shape",
        type=_shape,
        metavar="N,N,...",
        help="of one sample, as 3,224,224; token numbers if the model begins with an embedding",
    )
    train.add_argument("--seq_length", type=count, help="tokens of a sample (default: 512 at most)")
    train.add_argument(
        "--mixed_precision", choices=("no", "fp16", "bf16"), default="no", help="(default: no)"
    )
    train.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="adamw", help=f"one of {', '.join(OPTIMIZERS)}"
    )
    train.add_argument(
        "--num_processes", type=count, nargs="+", default=[1, 2], help="world sizes (default: 1 2)"
    )
    train.add_argument("--strategy", choices=KINDS, help="tell of this one alone (default: all)")
    parser.add_argument("--json", action="store_true", help="print bytes as JSON")


def run(options: argparse.Namespace) -> int:
    """Measure the model in a child and print what was found."""
    found = call(
        "notebook_accel.strategies.estimate:report",
        model_name=options.model_name,
        library_name=options.library_name,
        trust_remote_code=options.trust_remote_code,
        input_shape=options.input_shape,
        batch_size=options.batch_size,
        seq_length=options.seq_length,
        precision=options.mixed_precision,
        optimizer=options.optimizer,
        num_processes=options.num_processes,
        strategy=options.strategy,
    )
    found["weights"] = {name: _stored(found["sizes"], name) for name in options.dtypes}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(table(found, options.mixed_precision, options.optimizer))
    return 1 if options.input_shape and found["sizes"]["activations"] is None else 0


def table(found: dict[str, Any], precision: str, optimizer: str) -> str:
    """Write what was found in lines of at most 80 columns."""
    sizes = found["sizes"]
    learn = sizes["num_trainable"]
    count = f"{sizes['num_parameters']:,} parameters"
    lines = [
        f"{sizes['name']}: {count}"
        + ("" if learn == sizes["num_parameters"] else f", {learn:,} learn"),
        f"largest layer: '{sizes['layer_name']}', {size(sizes['layer'])}",
        "",
        f"{'weights as':<17}{'largest layer':>14}{'all':>12}{'trained by Adam':>18}",
    ]
    for name, row in found["weights"].items():
        largest, whole, trained = map(size, (row["layer"], row["total"], row["training"]))
        lines.append(f"{name:<17}{largest:>14}{whole:>12}{trained:>18}")
    inputs = f", batch {found['input']}" if found["input"] else ""
    lines += ["", f"training, each process: mixed_precision={precision}, {optimizer}{inputs}"]
    names = ("weights", "gradients", "optimizer", "activations", "other", "total")
    widths = (9, 10, 10, 12, 9, 12)
    head = "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    for ranks, rows in found["training"].items():
        if not rows:  # the strategy that was named is not for so many
            continue
        many = counted(int(ranks), "process", "processes")
        lines += ["", f"{many:<18}{head}"]
        for row in rows:
            unknown = {}
            if sizes["activations"] is None:
                unknown = {"activations": "?", "total": f"{size(row['total'])} + ?"}
            cells = [unknown.get(name, size(row[name])) for name in names]
            cells = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
            lines.append(f"{row['strategy']:<18}{''.join(cells)}")
    if sizes["activations"] is None:
        said = f"?: activations are unknown, and no total has them: {sizes['why']}"
        lines += ["", textwrap.fill(said, 80)]
    lines += ["", "other: buckets, gathered layers, half-precision copies. Not counted: what the"]
    lines += ["device's own libraries take (0.5 to 1 GiB on a GPU) and gaps between tensors."]
    here = [one for one in accelerators() if one.total_bytes]
    if here:
        lines += [f"here: {one.name}, {size(one.total_bytes)}" for one in here[:1]]
    return "\n".join(lines)


def size(num_bytes: float) -> str:
    """Write a number of bytes in three digits: "417 MiB", "1.63 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1000:
            digits = 0 if unit == "B" or num_bytes >= 100 else 1 if num_bytes >= 10 else 2
            return f"{num_bytes:.{digits}f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} TiB"


def _stored(sizes: dict[str, Any], dtype: str) -> dict[str, int]:
    per_number = DTYPES[dtype]
    total = int(sizes["num_parameters"] * per_number)
    layer = int(sizes["layer"] / 4 * per_number)
    return {"layer": layer, "total": total, "training": _ADAM_COPIES * total}


def _shape(text: str) -> list[int]:
    try:
        shape = [int(part) for part in text.replace("x", ",").split(",") if part.strip()]
    except ValueError:
        shape = []
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: write for example 3,224,224")
    return shape
