"""How values cross between kernel and worker: cloudpickle, with the big parts beside it.

Layout of a file: one header (sizes), the pickle, then every buffer at a multiple of 64 bytes.
Reading maps the file privately, so arrays and storages are used in place: a dataset of 1 GB sent
to eight workers is one GB of memory, and each may write to its own view of it.

Classes of the kernel's ``__main__`` travel back by name and come out as the kernel's own objects
(``isinstance(run[0], Net)`` holds); everything else in ``__main__`` travels by value.
"""

from __future__ import annotations

import ctypes
import functools
import io
import os
import pickle
import struct
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

import cloudpickle

from notebook_accel.errors import LaunchError
from notebook_accel.events import context
from notebook_accel.launch.memory import map_privately

_ALIGN = 64
_NO_FILE = "<dynamic-code>"  # what cloudpickle writes for a file name
_COUNT = struct.Struct("!QQ")  # bytes of the pickle, number of buffers
_SIZE = struct.Struct("!Q")


class _Storage:
    """One storage on its way; the same object for every tensor that shares it."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        size = self.storage.nbytes()
        if size == 0:
            return _storage_from, (b"",)
        address = self.storage.data_ptr()
        return _storage_from, (pickle.PickleBuffer((ctypes.c_char * size).from_address(address)),)


def _storage_from(buffer: Any) -> Any:
    import torch

    if len(buffer) == 0:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _typed(storage: Any, dtype: Any) -> Any:
    import torch

    make: Any = torch.storage.TypedStorage
    return make(wrap_storage=storage, dtype=dtype, _internal=True)


def _same(value: Any) -> Any:
    return value


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


class Encoder(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles one value; keeps storages out of band and notes the ``__main__`` classes it met.

    ``name_of`` says by which name a class of the kernel's ``__main__`` is known on the other
    side, or None: then it travels by value. ``moved`` counts device tensors that became CPU ones.
    """

    def __init__(
        self, name_of: Callable[[type], str | None] = lambda cls: None, keep_main: bool = False
    ) -> None:
        self._file = io.BytesIO()
        self.buffers: list[pickle.PickleBuffer] = []
        self.main_classes: dict[str, type] = {}
        self.moved = 0
        self._keep_main = keep_main
        self._name_of = name_of
        self._storages: dict[tuple[str, int, int], _Storage] = {}
        super().__init__(self._file, protocol=5, buffer_callback=self._keep_buffer)

    def body(self) -> memoryview:
        """The pickle written so far."""
        return self._file.getbuffer()

    def _keep_buffer(self, buffer: pickle.PickleBuffer) -> None:
        self.buffers.append(buffer)

    def persistent_id(self, obj: Any) -> str | None:
        """Name the classes that the other side already has."""
        if isinstance(obj, type) and obj.__module__ == "__main__":
            name = self._name_of(obj)
            if name is None and self._keep_main:
                self.main_classes.setdefault(obj.__qualname__, obj)
            return name
        return None

    def reducer_override(self, obj: Any) -> Any:
        """Replace what must not travel as it is; the rest is cloudpickle's."""
        replace = context.encoders.get(type(obj))
        if replace is not None and (instead := replace(obj)) is not obj:
            return _same, (instead,)
        if isinstance(obj, BaseException):
            return _reduce_exception(obj)
        if isinstance(obj, CodeType):
            return self._reduce_code(obj)
        if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ == "__main__":
            return _cached, (obj.__wrapped__, obj.cache_parameters())  # its own way is by name
        if isinstance(obj, functools.cached_property):  # before Python 3.12 it holds a lock
            return functools.cached_property, (obj.func,), {"attrname": obj.attrname}
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "storage"):
            if isinstance(obj, torch.Tensor):
                return self._reduce_tensor(torch, obj)
            if isinstance(obj, torch.storage.TypedStorage):
                return _typed, (self._carrier(obj._untyped_storage), obj.dtype)
            if isinstance(obj, torch.UntypedStorage):
                return _same, (self._carrier(obj),)
            if type(obj).__name__ == "DistributedDataParallel":
                return _same, (obj.module,)
        return super().reducer_override(obj)

    def _reduce_code(self, code: CodeType) -> Any:
        """Keep the file name, which cloudpickle drops: tracebacks then show the cell's lines."""
        make, parts = self.dispatch_table[CodeType](code)
        return make, tuple(code.co_filename if part == _NO_FILE else part for part in parts)

    def _reduce_tensor(self, torch: Any, tensor: Any) -> Any:
        if type(tensor).__name__ == "DTensor":
            raise pickle.PicklingError(
                "a sharded tensor (DTensor) is only a part of the value: "
                "return accelerator.get_state_dict(model) instead"
            )
        if tensor.requires_grad and not tensor.is_leaf:
            return _same, (tensor.detach(),)
        if type(tensor) is torch.Tensor and tensor.device.type not in ("cpu", "meta"):
            self.moved += 1
            return _same, (tensor.cpu(),)
        return NotImplemented

    def _carrier(self, storage: Any) -> _Storage:
        key = (str(storage.device), storage.data_ptr(), storage.nbytes())
        if key not in self._storages:
            self._storages[key] = _Storage(storage.cpu())
        return self._storages[key]


class Decoder(pickle.Unpickler):
    """Reads one value; ``classes`` resolves the names of the kernel's own classes."""

    def __init__(
        self, file: Any, buffers: list[memoryview], classes: Mapping[str, type] | None = None
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._classes = classes or {}

    def persistent_load(self, name: str) -> Any:
        """Give the kernel's own class of that name."""
        head, *rest = name.split(".")
        found: Any = self._classes[head]
        for part in rest:
            found = getattr(found, part)
        return found


def write(fd: int, encoder: Encoder) -> int:
    """Write what ``encoder`` holds to the file behind ``fd``, from its start; return its size."""
    raw = [buffer.raw() for buffer in encoder.buffers]
    body = encoder.body()
    head = _COUNT.pack(len(body), len(raw)) + b"".join(_SIZE.pack(len(part)) for part in raw)
    _write_at(fd, memoryview(head), 0)
    _write_at(fd, body, len(head))
    end = len(head) + len(body)
    for part in raw:
        end += -end % _ALIGN
        _write_at(fd, part, end)
        end += len(part)
    return end


def read(fd: int, classes: Mapping[str, type] | None = None) -> Any:
    """Read the value in the file behind ``fd``, its big parts in place."""
    data = map_privately(fd)
    length, count = _COUNT.unpack_from(data, 0)
    sizes = [_SIZE.unpack_from(data, _COUNT.size + i * _SIZE.size)[0] for i in range(count)]
    start = _COUNT.size + count * _SIZE.size
    body = data[start : start + length]
    end = start + length
    buffers = []
    for size in sizes:
        end += -end % _ALIGN
        buffers.append(data[end : end + size])
        end += size
    return Decoder(io.BytesIO(body), buffers, classes).load()


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    data = data.cast("B") if data.nbytes else memoryview(b"")
    while data:
        written = os.pwrite(fd, data[: 1 << 30], offset)
        data = data[written:]
        offset += written


# ── exceptions ────────────────────────────────────────────────────────────────────────────────


def _reduce_exception(exc: BaseException) -> Any:
    """Reduce an exception without calling its ``__init__``, dropping what cannot travel.

    Exceptions written by users often take other arguments than they pass to ``Exception``, or
    hold an open file: the plain protocol loses them.
    """
    state = {key: value for key, value in vars(exc).items() if travels(value)}
    if isinstance(type(exc).__init__, FunctionType):
        args = tuple(arg if travels(arg) else repr(arg) for arg in exc.args)
        return _exception_from, (type(exc), args, state)
    return type(exc), exc.__reduce__()[1], state or None


def _exception_from(cls: type[BaseException], args: tuple[Any, ...], state: Any) -> BaseException:
    exc = cls.__new__(cls)
    exc.args = args
    vars(exc).update(state)
    return exc


def travels(value: Any) -> bool:
    """True if ``value`` can be pickled."""
    try:
        Encoder().dump(value)
    except Exception:  # whatever the object's own reduction raises means: no
        return False
    return True


# ── finding out what does not travel ──────────────────────────────────────────────────────────


def cannot_travel(parts: Mapping[str, Any], reason: BaseException) -> LaunchError:
    """Explain which of the named ``parts`` cannot be pickled, with its type and size."""
    for name, value in parts.items():
        try:
            Encoder().dump(value)
        except Exception as error:
            return LaunchError(
                f"{name} ({_describe(value)}) cannot travel to a worker: {error}",
                "fresh workers (forkserver, spawn) get a pickled copy of what the function uses",
                f"make {name.split(' ')[-1]} inside the function, or pass start_method='fork'"
                " if no accelerator is open in this kernel",
            )
    return LaunchError(
        f"the function cannot travel to a worker: {reason}",
        "fresh workers (forkserver, spawn) get a pickled copy of what the function uses",
        "make the objects it holds inside the function",
    )


def parts_of(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name everything a call brings along: arguments, captured variables, used globals."""
    parts = {f"argument {position}": value for position, value in enumerate(args)}
    parts |= {f"argument {name}": value for name, value in kwargs.items()}
    inner = getattr(function, "func", function)  # functools.partial
    inner = getattr(inner, "__func__", inner)
    code = getattr(inner, "__code__", None)
    if code is None:
        return {**parts, f"the function's object of type {type(inner).__name__}": inner}
    cells = zip(code.co_freevars, inner.__closure__ or (), strict=True)
    parts |= {f"the captured variable {name}": cell.cell_contents for name, cell in cells}
    used = {name: inner.__globals__[name] for name in code.co_names if name in inner.__globals__}
    return parts | {f"the global variable {name}": value for name, value in used.items()}


def culprit(value: Any, path: str = "") -> tuple[str, Any]:
    """Find the innermost part of ``value`` that cannot be pickled; give its index path and it."""
    parts: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, (tuple, list)):
        parts = list(enumerate(value))
    for key, part in parts:
        if not travels(part):
            return culprit(part, f"{path}[{key!r}]")
    return path, value


def _describe(value: Any) -> str:
    size = getattr(value, "nbytes", None)
    size = sys.getsizeof(value, 0) if not isinstance(size, int) else size
    return f"{type(value).__name__}, {size:,} bytes"
