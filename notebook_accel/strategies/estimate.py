"""How large a model is, found out without its memory: built on the meta device, run on fakes.

A model is named by a function that makes it (``package.module:function``, ``model.py:function``),
by a class, or by a configuration of transformers or timm. Fake tensors have shapes and types but no
values, so a forward pass costs neither memory nor time, and tells what it would keep.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from notebook_accel.errors import ConfigError, MissingPackage, message_of
from notebook_accel.events.lines import THE_PERSON, US, owner_of, place_of
from notebook_accel.strategies.budget import HALF, Sizes, budgets

_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_CUT = (nn.Linear, nn.Embedding)


def report(
    model_name: str,
    library_name: str | None,
    trust_remote_code: bool,
    input_shape: list[int] | None,
    batch_size: int,
    seq_length: int | None,
    precision: str,
    optimizer: str,
    num_processes: list[int],
) -> dict[str, Any]:
    """Measure a model and tell what training it occupies; plain data in, plain data out.

    Errors: ConfigError for a name that leads to no model, MissingPackage.
    """
    model, config, inputs = build(model_name, library_name, trust_remote_code)
    make = _inputs(model, config, inputs, input_shape, batch_size, seq_length)
    sizes = measure(model, make, precision)
    return {
        "sizes": asdict(sizes),
        "input": _described(make),
        "training": {
            str(ranks): [one.as_data() for one in budgets(sizes, ranks, precision, optimizer)]
            for ranks in num_processes
        },
    }


# ── which model ───────────────────────────────────────────────────────────────────────────────


def build(name: str, library: str | None, trust: bool) -> tuple[nn.Module, Any, Any]:
    """Make the model that ``name`` stands for, on the meta device.

    Gives it with its configuration and example inputs, where there are any.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if library == "timm":
        timm = _library("timm")
        with torch.device("meta"):
            return timm.create_model(name, pretrained=False), None, None
    if library is None:
        factory = _factory(name)
        if factory is not None:
            return (*_made(factory, name),)
    return (*_from_config(name, trust), None)


def _factory(name: str) -> Callable[[], Any] | None:
    """Find the function that ``name`` names; None if it names a configuration."""
    home, _, attribute = name.rpartition(":")
    if home.endswith(".py") or (not home and name.endswith(".py")):
        path = Path(home or name)
        if not path.is_file():
            raise ConfigError(
                f"there is no file {path}",
                "a model is named as file.py:function",
                "check the path; it is taken from the working directory",
            )
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        with _of_the_person(str(path)):
            spec.loader.exec_module(module)
        return _attribute(module, attribute if home else "", str(path))
    if home:
        return _attribute(_imported(home), attribute, home)
    head, _, tail = name.rpartition(".")
    if head and "/" not in name and not Path(name).exists() and _exists(head):
        return _attribute(_imported(head), tail, head)
    return None


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _imported(module: str) -> Any:
    try:
        with _of_the_person(module):
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"there is no module {module}: {error}",
            "a model is named as package.module:function, seen from the working directory",
            "run the command where the package lies, or install it",
        ) from None


def _attribute(module: Any, name: str, home: str) -> Callable[[], Any]:
    found = getattr(module, name, None) if name else None
    if callable(found):
        return found  # type: ignore[no-any-return]
    made_here = [
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__
    ]
    raise ConfigError(
        f"{home} has no function or class {name!r}" if name else f"{home}: which model?",
        f"it has {', '.join(made_here[:8]) or 'none'}",
        f"write {home}:{made_here[0] if made_here else 'function'}, which takes no arguments and "
        "returns the model, or (model, example input)",
    )


def _made(factory: Callable[[], Any], name: str) -> tuple[nn.Module, Any, Any]:
    try:
        with torch.device("meta"):
            made = factory()
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise _raised(name, error) from error  # not by the call: by what it calls
        raise ConfigError(
            f"{name} cannot be called without arguments: {error}",
            "the function that makes the model is called as it is",
            f"write one that calls it: def make(): return {name.rpartition(':')[2]}(...)",
        ) from error
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error):
            raise _raised(name, error) from error
        with _of_the_person(name):
            made = factory()  # it looks at values while it builds: then in real memory
    except Exception as error:
        raise _raised(name, error) from error
    model, inputs = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{name} made a {type(model).__name__}",
            "only a torch.nn.Module has parameters to count",
            "return the model, or (model, example input)",
        )
    return model, getattr(model, "config", None), inputs


@contextlib.contextmanager
def _of_the_person(name: str) -> Iterator[None]:
    """Run code of the person's; what it raises is told by its own line."""
    try:
        yield
    except ModuleNotFoundError:
        raise
    except Exception as error:
        raise _raised(name, error) from error


def _raised(name: str, error: Exception) -> ConfigError:
    """Tell what the person's code raised, and in which of its lines; no frame of ours says more."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if owner_of(one.filename) == THE_PERSON]
    others = [one for one in frames if owner_of(one.filename) != US]
    last = next(reversed(own or others), None)
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{place_of(error.filename, error.lineno or 0)}: {(error.text or '').strip()}"
    elif last is not None:
        where = f"{place_of(last.filename, last.lineno or 0)}, in {last.name}: {last.line}"
    return ConfigError(
        f"{name} raised {type(error).__name__}: {message_of(error)}",
        where,
        "mend it; the command only calls it",
    )


def _from_config(name: str, trust: bool) -> tuple[nn.Module, Any]:
    transformers = _library("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(
            name, trust_remote_code=trust, local_files_only=True
        )
    except (OSError, ValueError) as error:
        there = "mend its config.json" if Path(name).exists() else "download it first"
        raise ConfigError(
            f"{name} is no model here: {str(error).splitlines()[0][:200]}",
            "it is no module that can be imported, and was taken for a configuration of "
            "transformers, in a folder or already downloaded",
            f"{there}, or name a function that makes the model: file.py:function",
        ) from error
    wanted = (getattr(config, "architectures", None) or [""])[0]
    known = getattr(transformers, wanted, None) if wanted else None
    with torch.device("meta"):
        if known is not None:
            return known(config), config
        return transformers.AutoModel.from_config(config, trust_remote_code=trust), config


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingPackage(
            f"{name} is not installed",
            "the model was taken for one of its configurations",
            f"pip install {name}; or name a function that makes the model: file.py:function",
        ) from None


# ── what goes in ──────────────────────────────────────────────────────────────────────────────


def _inputs(
    model: nn.Module, config: Any, given: Any, shape: list[int] | None, batch: int, seq: int | None
) -> Callable[[], Any] | None:
    """Give what makes an input for one forward pass; None where nobody said what goes in."""
    if given is not None:
        return lambda: _map(given, _fake)
    if shape is not None:
        return lambda: _first_dtype(model, torch.zeros(batch, *shape))
    main = getattr(model, "main_input_name", None)
    if config is None or main is None:
        return None
    if main == "pixel_values":
        side = getattr(config, "image_size", 224)
        sides = side if isinstance(side, (list, tuple)) else (side, side)
        return lambda: {main: torch.zeros(batch, getattr(config, "num_channels", 3), *sides)}
    longest = getattr(config, "max_position_embeddings", None) or 512
    length = seq or min(512, longest)
    names = [main, *(["decoder_input_ids"] if getattr(config, "is_encoder_decoder", 0) else [])]
    return lambda: {name: torch.zeros(batch, length, dtype=torch.long) for name in names}


def _first_dtype(model: nn.Module, values: Tensor) -> Tensor:
    """Give token numbers to a model that begins with an embedding."""
    first = next((one for one in model.modules() if list(one.parameters(recurse=False))), None)
    return values.long() if isinstance(first, (nn.Embedding, nn.EmbeddingBag)) else values


def _map(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: _map(value, change) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map(value, change) for value in tree)
    return tree


def _described(make: Callable[[], Any] | None) -> str:
    if make is None:
        return ""
    with FakeTensorMode():
        made = make()
    found: list[str] = []
    _map(made, lambda one: found.append(" x ".join(map(str, one.shape))))
    return ", ".join(found)


# ── measuring ─────────────────────────────────────────────────────────────────────────────────


def measure(model: nn.Module, make: Callable[[], Any] | None, precision: str) -> Sizes:
    """Count a model's parameters, and what a forward pass on ``make()`` would keep."""
    parameters = list(model.parameters())
    kept, why = None, "no input was given (--input_shape, or a function that returns one too)"
    name, largest = _largest(model)
    sizes = Sizes(
        name=type(model).__name__,
        num_parameters=sum(one.numel() for one in parameters),
        num_trainable=sum(one.numel() for one in parameters if one.requires_grad),
        weights=_bytes([*parameters, *model.buffers()]),
        trainable=_bytes([one for one in parameters if one.requires_grad]),
        castable=_bytes([one for one in parameters if one.dtype is torch.float32]),
        layer=largest,
        layer_name=name,
        block=_largest_block(model),
        shared=_bytes(
            [
                one
                for module in model.modules()
                if isinstance(module, _CUT)
                for one in module.parameters(recurse=False)
            ]
        ),
    )
    if make is not None:
        kept, why = _activations(model, make, precision)
    return Sizes(**{**asdict(sizes), "activations": kept, "why": why})


def _activations(
    model: nn.Module, make: Callable[[], Any], precision: str
) -> tuple[int | None, str]:
    """Run the model on fake tensors; the weights' own copies do not count."""
    half = _HALVES.get(precision)
    seen: list[Tensor] = []

    def note(one: Tensor) -> Tensor:
        seen.append(one)
        return one

    try:
        with FakeTensorMode():
            model._apply(_fake)  # type: ignore[no-untyped-call]
            model.train()
            given = make()
            keep = torch.autograd.graph.saved_tensors_hooks(note, lambda one: one)
            with keep, torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
                if isinstance(given, Mapping):
                    model(**given)
                elif isinstance(given, (list, tuple)):
                    model(*given)
                else:
                    model(given)
    except Exception as error:  # a model may do anything: then its activations stay unknown
        first = str(error).splitlines()[0] if str(error) else ""
        return (
            None,
            f"its forward pass failed on {_described(make)}: {type(error).__name__}: {first}",
        )
    own = {_storage(one) for one in [*model.parameters(), *model.buffers()]}
    shapes = {tuple(one.shape) for one in model.parameters()}
    shapes |= {shape[::-1] for shape in shapes}
    storages = {
        _storage(one): one.untyped_storage().nbytes()
        for one in seen
        if _storage(one) not in own and not (one.dtype is half and tuple(one.shape) in shapes)
    }
    return sum(storages.values()), ""


def _fake(one: Tensor) -> Tensor:
    return torch.empty(one.shape, dtype=one.dtype)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _largest(model: nn.Module) -> tuple[str, int]:
    sizes = {
        name or type(module).__name__: _bytes(module.parameters(recurse=False))
        for name, module in model.named_modules()
    }
    name = max(sizes, key=lambda key: sizes[key])
    return name, sizes[name]


def _largest_block(model: nn.Module) -> int:
    """The largest of repeated blocks, or what is outside of them: FSDP gathers one at a time."""
    lists = [one for one in model.modules() if isinstance(one, (nn.ModuleList, nn.Sequential))]
    longest = max(lists, key=lambda one: _bytes(one.parameters()), default=None)
    if longest is None or len(longest) < 2:
        return _bytes(model.parameters())
    blocks = [_bytes(block.parameters()) for block in longest]
    return max(*blocks, _bytes(model.parameters()) - sum(blocks))


def _bytes(tensors: Any) -> int:
    return sum(
        one.numel() * one.element_size() for one in {id(one): one for one in tensors}.values()
    )


assert set(_HALVES) == set(HALF)
