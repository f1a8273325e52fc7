"""Who opened the device: which line, through which package, first reached an accelerator.

Forked workers cannot use an accelerator that the kernel opened, and the line that did it is often
inside an import. ``watch_devices()`` at the top of a notebook remembers it. Four things are
watched, none of which costs a training loop anything: ``torch.cuda`` being initialized, torch
asking the driver for devices, device files opened and the driver loaded by Python code (audit
events of the interpreter), and device files that are open after an import or a cell which were
not before (C code opens them unseen).
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import FrameType
from typing import Any

from notebook_accel.events import lines

DEVICE_FILES = r"^/dev/(nvidia\d|nvidia-uvm$|dri/render|kfd|accel|vfio/\d)"
_DRIVERS = re.compile(r"lib(cuda|amdhip64)\.so|nvcuda\.dll")
_MOST = 20  # remembered: after the first one, hardly anybody reads on
# Frames that say nothing about who: the import system, us, IPython's own open() in cells.
_STEPS = {
    "importlib", "_frozen_importlib", "_frozen_importlib_external", "notebook_accel", "IPython",
}  # fmt: skip


@dataclass(frozen=True)
class Opening:
    """One moment at which something reached for a device.

    what: the fact. packages: whose code was on the way, the one that was called first.
    place: the person's own line, "" if there was none. failed: why nothing was opened, else "".
    """

    what: str
    packages: tuple[str, ...] = ()
    place: str = ""
    imported: bool = False
    failed: str = ""

    def __str__(self) -> str:
        how = ", imported" if self.imported else ""
        through = f" by {' > '.join(self.packages)}{how}" if self.packages else ""
        where = f", at {self.place}" if self.place else ""
        return f"{self.what}{through}{where}{f' (failed: {self.failed})' if self.failed else ''}"


class DeviceWatch:
    """What ``watch_devices`` gives: ``openings``, in the order in which they happened."""

    def __init__(self, files: str = DEVICE_FILES) -> None:
        self.openings: list[Opening] = []
        self._files = re.compile(files)
        self._known = self._open_files()
        self._undo: list[Callable[[], None]] = []
        self._active = True
        for path in self._known:
            self.openings.append(Opening(f"{path} was open before the watch began"))
        sys.addaudithook(self._audit)
        sys.meta_path.insert(0, self)
        self._undo.append(lambda: sys.meta_path.remove(self))
        if "torch.cuda" in sys.modules:
            self._watch_torch()
        events = getattr(lines.ipython(), "events", None)
        if events is not None:
            events.register("post_run_cell", self._after_cell)
            self._undo.append(lambda: events.unregister("post_run_cell", self._after_cell))

    def __repr__(self) -> str:
        found = "\n".join(f"  {opening}" for opening in self.openings)
        return f"DeviceWatch: {found.strip() or 'nothing has opened a device'}"

    @property
    def first(self) -> Opening | None:
        """The first opening that did not fail."""
        return next((one for one in self.openings if not one.failed), None)

    def stop(self) -> None:
        """Watch no more; what was found stays."""
        global _watch
        self._active = False
        while self._undo:
            self._undo.pop()()
        if _watch is self:
            _watch = None

    # ── imports ───────────────────────────────────────────────────────────────────────────────

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Let the other finders find a module, and look around once it has run."""
        if not self._active:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if type(spec.loader) is SourceFileLoader:
                    self._look_after(name, spec.loader)
                return spec
        return None

    def _look_after(self, name: str, loader: Any) -> None:
        def exec_module(module: Any) -> None:
            del loader.exec_module  # the class's own again
            loader.exec_module(module)
            if self._active and name == "torch":
                self._watch_torch()
            self._look(lambda path: f"{path} was opened", extra=name.partition(".")[0])

        loader.exec_module = exec_module

    def _after_cell(self, result: Any = None) -> None:
        number = getattr(result, "execution_count", None)
        place = f"Cell In[{number}]" if number is not None else ""
        for path in self._new_files():
            self._add(Opening(f"{path} was opened by code outside Python", place=place))

    def _look(self, what: Callable[[str], str], extra: str) -> None:
        for path in self._new_files():
            self._record(what(path), extra=extra)

    def _new_files(self) -> list[str]:
        now = self._open_files()
        new = [path for path in now if path not in self._known]
        self._known += new
        return new if self._active else []

    def _open_files(self) -> list[str]:
        found: dict[str, None] = {}
        for path in open_files(os.getpid()):
            if self._files.match(path):
                found[path] = None
        return list(found)

    # ── what Python itself opens ──────────────────────────────────────────────────────────────

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._active or event not in ("open", "ctypes.dlopen"):
            return
        name = args[0]
        if not isinstance(name, (str, bytes)):
            return
        path = os.fsdecode(name)
        if event == "ctypes.dlopen" and _DRIVERS.search(path):
            self._record(f"the driver ({os.path.basename(path)}) was loaded")
        elif event == "open" and path not in self._known and self._files.match(path):
            self._known.append(path)
            self._record(f"{path} was opened")

    # ── torch ─────────────────────────────────────────────────────────────────────────────────

    def _watch_torch(self) -> None:
        cuda = sys.modules["torch.cuda"]
        if cuda.is_initialized():
            self._add(Opening("CUDA was initialized before the watch began"))
            return
        self._wrap("torch.cuda", "_lazy_init", "CUDA was initialized")
        self._wrap("torch._C", "_cuda_getDeviceCount", "the CUDA driver was asked for devices")

    def _wrap(self, module: str, name: str, what: str) -> None:
        """Note the first call that succeeds, and put the function back into all its homes."""
        original = getattr(sys.modules[module], name, None)
        if original is None:  # a torch without CUDA
            return

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                value = original(*args, **kwargs)
            except Exception as error:
                self._record(what, failed=f"{error}".splitlines()[0] if str(error) else repr(error))
                raise
            put(original)
            self._record(what)
            return value

        homes = [
            home
            for key, home in list(sys.modules.items())
            if key.startswith("torch.cuda") or key == module
            if vars(home).get(name) is original
        ]

        def put(function: Any) -> None:
            for home in homes:
                setattr(home, name, function)

        put(watched)
        self._undo.append(lambda: put(original))

    # ── remembering ───────────────────────────────────────────────────────────────────────────

    def _record(self, what: str, extra: str = "", failed: str = "") -> None:
        packages, place, imported = _who(sys._getframe(1))
        if extra and extra not in packages:
            packages = (*packages, extra)
        self._add(Opening(what, packages, place, imported or bool(extra), failed))

    def _add(self, opening: Opening) -> None:
        if self._active and len(self.openings) < _MOST and opening not in self.openings:
            self.openings.append(opening)


_watch: DeviceWatch | None = None


def watch_devices(files: str = DEVICE_FILES) -> DeviceWatch:
    """Remember from now on which line and which package first opens an accelerator in this kernel.

    Call it before the imports: ``import notebook_accel; notebook_accel.watch_devices()``, or write
    ``%load_ext notebook_accel``. ``notebook_accel.doctor()`` and the returned object tell what was
    found. A second call gives the same object.

    ``files`` is a pattern for the paths of device files.
    Ranks: called in the notebook's own process.
    """
    global _watch
    if _watch is None:
        _watch = DeviceWatch(files)
    return _watch


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext notebook_accel``: watch who opens a device."""
    watch_devices()


def watched() -> DeviceWatch | None:
    """Give the watch of this process, if there is one."""
    return _watch


def named(fact: str) -> str:
    """Add who opened a device to ``fact``, if a watch saw it."""
    first = _watch.first if _watch is not None else None
    return fact if first is None else f"{fact}; {first}" if fact else str(first)


def open_files(pid: int) -> list[str]:
    """List the paths of the files that process ``pid`` has open; none where that is not told."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # not Linux, gone, or another person's
        return []
    paths = []
    for name in names:
        try:
            paths.append(os.readlink(f"{folder}/{name}"))
        except OSError:  # closed in between
            continue
    return paths


def _who(frame: FrameType | None) -> tuple[tuple[str, ...], str, bool]:
    """Name the packages on the way to ``frame``, the person's line, and whether it is an import."""
    packages: list[str] = []
    imported = False
    while frame is not None and lines.owner_of(frame.f_code.co_filename) != lines.THE_PERSON:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        imported = imported or root in ("importlib", "_frozen_importlib")
        if root not in packages and root not in _STEPS and root not in sys.stdlib_module_names:
            packages.insert(0, root)
        frame = frame.f_back
    if frame is None:
        return tuple(packages), "", imported
    place = lines.place_of(frame.f_code.co_filename, frame.f_lineno)
    return tuple(packages), place, imported
