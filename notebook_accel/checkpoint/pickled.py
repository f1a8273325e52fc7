"""Reading what torch.save wrote: as plain data unless told otherwise, backed by the file."""

from __future__ import annotations

import pickle
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from notebook_accel.errors import CheckpointError


def load_pickled(path: Path, trusted: bool = False, **load_kwargs: Any) -> Any:
    """Read ``path`` onto the CPU; its tensors are backed by the file until somebody copies them.

    Only plain data is read (tensors, numbers, strings, numpy arrays, containers of them): a file
    cannot run code. ``trusted`` reads any pickle. ``load_kwargs`` are torch.load's and win.

    Errors: CheckpointError for a file that cannot be read.
    """
    is_new = zipfile.is_zipfile(path)  # torch wrote other files before 1.6: they cannot be mapped
    arguments = {
        "map_location": "cpu",
        "mmap": is_new,
        "weights_only": not trusted,
        **load_kwargs,
    }
    try:
        with torch.serialization.safe_globals(_plain()):
            return torch.load(path, **arguments)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as reason:
        words = " ".join(str(reason).split())
        if is_new and isinstance(reason, pickle.UnpicklingError):
            raise CheckpointError(
                f"{path} holds more than plain data, and reading it could run code",
                words.partition("WeightsUnpickler error: ")[2][:150] or words[:150],
                "if you trust its source: torch.load(file, weights_only=False), or "
                'load_state(..., load_kwargs={"weights_only": False})',
            ) from reason
        raise CheckpointError(
            f"{path} cannot be read: {words[:150]}",
            "it is absent, damaged, or was not written by torch.save",
            "load another checkpoint",
        ) from reason


def _plain() -> list[Any]:
    """What may appear in our files and in Accelerate's, beyond what torch allows by itself."""
    allowed: list[Any] = [Counter]
    try:
        import numpy
    except ImportError:  # optional: then no array was ever saved
        return allowed
    rebuild = numpy.array(0).__reduce__()[0]
    allowed += [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    scalar = numpy.float64(0).__reduce__()[0]
    allowed += [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    allowed += [numpy.ndarray, numpy.dtype]
    kinds = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
    return [*allowed, *(type(numpy.dtype(kind)) for kind in kinds.split())]
