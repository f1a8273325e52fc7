"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import notebook_accel

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(notebook_accel.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
NAMES = {path: path.relative_to(ROOT).as_posix() for path in FILES}
TREES = {path: ast.parse(path.read_text()) for path in FILES}
REPEATS = {"overload", "setter", "deleter"}
VAGUE = {"helpers", "common", "utils", "util", "manager", "misc"}
# Who may touch the environment: it is no bus for settings between our own parts.
ENVIRONMENT_READERS = {
    "cli/asking.py",  # TERM: what a terminal can draw
    "cli/child.py",  # hands the search path on
    "cli/env.py",  # prints it
    "cli/join.py",  # NOTEBOOK_ACCEL_TOKEN, which the ranks must not inherit
    "cli/launch.py",  # hands it on to a script
    "config/environment.py",  # reads and lends variables for scripts that ask for it
    "config/guards.py",  # NOTEBOOK_ACCEL_GUARDS
    "config/placement.py",  # a launch by torchrun
    "config/places.py",  # where configuration files lie
    "config/resolve.py",  # settings by Accelerate's names, once a launch or Accelerator
    "config/training.py",  # settings from the environment, by their known names
    "errors.py",  # NOTEBOOK_ACCEL_TRACE
    "events/discretion.py",  # which variables may be written down
    "events/shelf.py",  # NOTEBOOK_ACCEL_RUNS
    "events/story.py",  # the notebook's name
    "launch/asked.py",  # the settings of a launch
    "launch/devices.py",  # CUDA_VISIBLE_DEVICES
    "launch/doctor.py",  # what other launchers left in it
    "launch/torch_agent.py",  # tells torch, in a process of its own, to serve no second store
    "launch/failure.py",  # NOTEBOOK_ACCEL_TRACE
    "launch/forkserver.py",  # takes over the kernel's environment
    "launch/inline.py",  # lends the kernel a worker's, and takes it back
    "launch/launcher.py",  # what device listing sees
    "launch/machines.py",  # GLOO_SOCKET_IFNAME and the like, if the person set them
    "launch/run.py",  # OMP_NUM_THREADS
    "launch/scripts/elastic.py",  # LOGLEVEL and TORCH_CPP_LOG_LEVEL, as torch reads them
    "launch/scripts/tie.py",  # which restart this is
    "launch/start.py",  # hands the environment on
    "launch/store.py",  # GLOO_SOCKET_IFNAME, if the person set it
    "launch/worker.py",  # gives a worker its own
    "runtime/uncaught.py",  # NOTEBOOK_ACCEL_TRACE
    "ui/place.py",  # which host this is
}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def num_lines_of_work(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def public_without_docstring(body: list[ast.stmt], inside: str = "") -> Iterator[str]:
    for node in body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None and not repeats_a_name(node):
            yield f"{inside}{node.name}, line {node.lineno}"
        if isinstance(node, ast.ClassDef):
            yield from public_without_docstring(node.body, f"{node.name}.")


def repeats_a_name(node: ast.AST) -> bool:
    """Tell overloads and setters: the docstring stands at the name's other definition."""
    marks = getattr(node, "decorator_list", [])
    return any(getattr(mark, "attr", getattr(mark, "id", "")) in REPEATS for mark in marks)


def silent_handlers(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        broad = node.type is None or (
            isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
        )
        if broad and all(isinstance(line, ast.Pass) for line in node.body):
            yield node.lineno


def reads_environment(tree: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv", "putenv", "unsetenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        for node in ast.walk(tree)
    )


def test_files_have_fewer_than_400_lines() -> None:
    lengths = {name: len(path.read_text().splitlines()) for path, name in NAMES.items()}
    assert {name: length for name, length in lengths.items() if length >= 400} == {}


def test_functions_do_their_work_in_fewer_than_60_lines() -> None:
    """Signature and docstring do not count: they are read by other people than the work is."""
    assert [
        f"{NAMES[path]}, line {node.lineno}: {node.name}"
        for path, tree in TREES.items()
        for node in functions(tree)
        if num_lines_of_work(node) >= 60
    ] == []


def test_everything_public_has_a_docstring() -> None:
    assert [NAMES[path] for path, tree in TREES.items() if ast.get_docstring(tree) is None] == []
    assert [
        f"{NAMES[path]}: {found}"
        for path, tree in TREES.items()
        for found in public_without_docstring(tree.body)
    ] == []


def test_no_broad_handler_swallows_in_silence() -> None:
    assert [
        f"{NAMES[path]}, line {line}"
        for path, tree in TREES.items()
        for line in silent_handlers(tree)
    ] == []


def test_only_named_files_touch_the_environment() -> None:
    touching = {NAMES[path] for path, tree in TREES.items() if reads_environment(tree)}
    assert touching == ENVIRONMENT_READERS


def test_files_are_named_for_their_job() -> None:
    parts = {name: Path(name).with_suffix("").parts for name in NAMES.values()}
    # notebook_accel.utils answers to another library's name: that one name is not ours.
    assert [
        name
        for name, words in parts.items()
        if VAGUE & set(words[2:] if words[:2] == ("compat", "utils") else words)
    ] == []


def explained() -> set[str]:
    """The names of Explained and of all classes that derive from it."""
    names = {"Explained"}
    while True:
        found = {
            node.name
            for tree in TREES.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and any(getattr(base, "id", "") in names for base in node.bases)
        }
        if found <= names:
            return names
        names |= found


def endings(node: ast.AST) -> Iterator[str]:
    """How a text in the code may end, as far as it is written down."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr) and node.values:
        yield from endings(node.values[-1])
    elif isinstance(node, ast.BinOp):
        yield from endings(node.right)
    elif isinstance(node, ast.IfExp):
        yield from endings(node.body)
        yield from endings(node.orelse)


def closing_stops(tree: ast.AST, names: set[str]) -> Iterator[int]:
    """Lines of errors and guard rails one of whose parts ends with a full stop."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        call = ast.unparse(node.func)
        if call != "rails.warn" and call.rpartition(".")[2] not in names:
            continue
        for part in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if any(text.endswith(".") and not text.endswith("...") for text in endings(part)):
                yield part.lineno


def test_no_part_of_an_error_ends_with_a_full_stop() -> None:
    """A part is a phrase on a line of its own, not a sentence."""
    names = explained()
    assert {"ConfigError", "WorkerDied", "CheckpointError"} < names
    assert [
        f"{NAMES[path]}, line {line}"
        for path, tree in TREES.items()
        for line in closing_stops(tree, names)
    ] == []


def test_the_checks_find_what_they_look_for() -> None:
    bad = ast.parse(
        "import os\n"
        "def f():\n    try:\n        os.environ['A']\n    except Exception:\n        pass\n"
        "class C:\n    'Doc.'\n    def g(self): ...\n    @g.setter\n    def g(self, x): ...\n"
    )
    assert list(silent_handlers(bad)) == [5]
    assert reads_environment(bad)
    assert list(public_without_docstring(bad.body)) == ["f, line 2", "C.g, line 9"]
    stops = ast.parse(
        "E('a', f'b {c}.', 'd' if c else 'e.')\nF('a.')\nerrors.E('and so on...', fix='x' + 'y.')"
    )
    assert list(closing_stops(stops, {"E"})) == [1, 1, 3]


# Brought by a declared dependency that cannot do without it.
BROUGHT = {
    "IPython": "ipywidgets",
    "comm": "ipywidgets",
    "numpy": "matplotlib",
    "packaging": "matplotlib",
    "traitlets": "ipywidgets",
}
# Imported only where a person uses them; their absence is explained there.
OPTIONAL = {"deepspeed", "ipykernel", "megatron", "pandas", "shtab"}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]


def test_every_import_is_ours_or_a_declared_dependency() -> None:
    wanted = {name for tree in TREES.values() for name in imported(tree)}
    wanted -= {"notebook_accel", *sys.stdlib_module_names, *BROUGHT, *OPTIONAL}
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=~! ]", line)[0].lower() for line in project["dependencies"]}
    assert set(BROUGHT.values()) <= declared
    homes = packages_distributions()
    assert [
        name
        for name in sorted(wanted)
        if not declared & {home.lower() for home in homes.get(name, [])}
    ] == []
