"""Memory of a device: letting go of it, and trying again with less."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any

import torch

from notebook_accel.errors import RuntimeMisuse

# Libraries that raise a plain RuntimeError say these words when memory is what they lack.
SAID_WHEN_MEMORY_IS_OUT = (
    "out of memory",  # CUDA, HIP, XPU, MPS
    "can't allocate memory",  # torch's allocator for the CPU
    "CUDNN_STATUS_NOT_SUPPORTED",  # cuDNN finds no algorithm that fits
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Allocation failed",  # HPU
)


class BatchArguments(RuntimeMisuse, TypeError):
    """A function for ``find_executable_batch_size`` is called with, or takes, the wrong ones."""


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Give cached memory of the accelerator back to the system, after a garbage collection if so.

    On the CPU, and where no device is open, there is no cache to clear; none is opened for it.
    """
    if garbage_collection:
        gc.collect()
    device = torch.accelerator.current_accelerator()  # of this build of torch: asks no driver
    if device is None:
        return
    module = torch.get_device_module(device)
    is_open = getattr(module, "is_initialized", torch.accelerator.is_available)
    if is_open() and hasattr(module, "empty_cache"):
        module.empty_cache()


def release_memory(*objects: Any) -> list[None]:
    """Collect garbage and clear the device's cache; gives a None for each object.

    Written ``model, optimizer = release_memory(model, optimizer)``: the names must be reassigned,
    or they still hold what was to be released.
    """
    nothing: list[None] = [None] * len(objects)
    del objects
    clear_device_cache(garbage_collection=True)
    return nothing


def should_reduce_batch_size(exception: BaseException) -> bool:
    """Tell whether an exception says that memory is out."""
    if isinstance(exception, (torch.OutOfMemoryError, MemoryError)):
        return True
    if not isinstance(exception, RuntimeError):
        return False
    said = str(exception)
    return any(words in said for words in SAID_WHEN_MEMORY_IS_OUT)


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[int], int] | Callable[[], int] | None = None,
) -> Any:
    """Decorate a function of a batch size to be called again with less, until memory suffices.

    The function takes the batch size first; it is called without it, and each call begins at
    ``starting_batch_size``. The next size is nine tenths of the last, or what
    ``reduce_batch_size_fn`` makes of it. What the function made must be made anew inside it: only
    then is it released between two tries.

    Ranks: each rank finds its own size; when memory may run out on one rank only, let the ranks
    agree on the size inside the function.

    Errors: RuntimeMisuse when not even one sample fits; BatchArguments (a TypeError).
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    less = _reducer(reduce_batch_size_fn)
    training = function

    @functools.wraps(training)
    def search(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(training, args, kwargs)
        size = starting_batch_size
        while size > 0:
            clear_device_cache(garbage_collection=True)
            try:
                return training(size, *args, **kwargs)
            except Exception as error:
                if not should_reduce_batch_size(error):
                    raise
                # Leaving this block drops the traceback, and with it all that its frames hold.
            size = less(size)
        raise RuntimeMisuse(
            f"{_name(training)} ran out of memory at every batch size from {starting_batch_size}",
            "not even one sample fits beside the model and its optimizer",
            "use a smaller model or mixed_precision, or free what an earlier cell still holds",
        )

    return search


def _reducer(given: Callable[..., int] | None) -> Callable[[int], int]:
    if given is None:
        return lambda size: int(size * 0.9)
    if not inspect.signature(given).parameters:
        return lambda size: given()
    return given


def _check_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    names = list(inspect.signature(function).parameters)
    try:
        inspect.signature(function).bind(1, *args, **kwargs)
    except TypeError as error:
        given = ", ".join([*map(repr, args), *(f"{name}=..." for name in kwargs)])
        first = names[0] if names else "batch_size"
        raise BatchArguments(
            f"{_name(function)}({given}) does not fit: {error}",
            f"find_executable_batch_size puts the batch size first, as {first!r}",
            f"write def {_name(function)}(batch_size, ...) and call it without the batch size",
        ) from None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
