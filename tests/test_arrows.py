"""The import arrows of the design: two lines that meet only at the fork.

Every import statement of the package counts: at the top of a file, inside a function (it is an
arrow when the line runs) and under ``TYPE_CHECKING`` (who names a type depends on its room). The
package's own ``__init__`` is the lazy door of public names: it may point anywhere, and importing a
public name through it counts as importing the room that defines it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import notebook_accel

ROOT = Path(notebook_accel.__file__).parent
BOTH = {"errors", "config", "events"}
KERNEL_SIDE = {
    "errors": set(),
    "config": {"errors"},
    "events": {"errors", "config"},
    "launch": BOTH,
    "ui": {*BOTH, "launch"},
    "cli": {*BOTH, "launch"},
    "__main__": {"cli"},
}
WORKER_SIDE = {
    "ranks": BOTH,
    "strategies": {*BOTH, "ranks"},
    "data": {*BOTH, "ranks"},
    "checkpoint": {*BOTH, "ranks"},
    "runtime": {*BOTH, "ranks", "strategies", "data", "checkpoint"},
}
# A second door of public names, which may point anywhere; nobody may import it.
COMPAT = {"compat": {*KERNEL_SIDE, *WORKER_SIDE} - {"ui", "cli"}}
ALLOWED: dict[str, set[str]] = {**KERNEL_SIDE, **WORKER_SIDE, **COMPAT}


def modules() -> list[tuple[str, Path]]:
    files = [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]
    return [(".".join(path.relative_to(ROOT).with_suffix("").parts), path) for path in files]


def arrows(module: str, source: str) -> Iterator[tuple[str, int]]:
    """Yield (room, line) for everything of ours that ``source`` imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node)
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            package, _, inside = target.partition(".")
            if package == "notebook_accel" and inside:
                room = notebook_accel._WHERE.get(inside, inside).split(".")[0]
                if room != "__version__":
                    yield room, node.lineno


def absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ["notebook_accel", *module.split(".")][: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def forbidden(module: str, source: str) -> list[str]:
    room = module.split(".")[0]
    return [
        f"{module}, line {line}: {room} -> {target}"
        for target, line in arrows(module, source)
        if target != room and target not in ALLOWED[room]
    ]


def test_every_import_follows_an_allowed_arrow() -> None:
    assert [found for name, path in modules() for found in forbidden(name, path.read_text())] == []


def test_every_room_has_its_arrows_written_down() -> None:
    assert {name.split(".")[0] for name, _ in modules()} <= set(ALLOWED)


def test_the_check_sees_each_way_to_write_an_import() -> None:
    for statement in (
        "import notebook_accel.runtime.clock",
        "from notebook_accel.runtime import clock",
        "from notebook_accel import runtime",
        "from notebook_accel import Accelerator",
        "from ..runtime import clock",
        "def f():\n    from notebook_accel.runtime.clock import Clock",
        "if TYPE_CHECKING:\n    from notebook_accel.runtime.clock import Clock",
    ):
        found = forbidden("launch.launcher", statement)
        assert found and found[0].endswith("launch -> runtime"), statement


def test_the_check_lets_allowed_imports_through() -> None:
    for statement in (
        "import torch",
        "from notebook_accel import __version__",
        "from notebook_accel.launch import plan",
        "from . import plan",
        "from notebook_accel.events.model import Failed",
    ):
        assert forbidden("launch.launcher", statement) == [], statement


def test_wishes_and_events_import_no_torch() -> None:
    names = [
        f"notebook_accel.{name.removesuffix('.__init__')}"
        for name, _ in modules()
        if name.split(".")[0] in BOTH
    ]
    code = f"import {', '.join(names)}, sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or "one of them imports torch"
