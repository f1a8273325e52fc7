"""A launched function as a script: its source, that of all it uses, and the call at the end.

What is written down is what the notebook held at the launch: functions and classes by their
source, what others wrote by its import, plain values as they were. Everything else has no source,
and a script that guesses would train something else: it is refused by name.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import math
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from types import FunctionType, SimpleNamespace
from typing import Any

from notebook_accel.config.settings import by_variable
from notebook_accel.config.words import kind_of
from notebook_accel.errors import ConfigError
from notebook_accel.events.discretion import is_secret
from notebook_accel.events.records import Record
from notebook_accel.launch.remembered import Then
from notebook_accel.launch.script_refusals import nothing_to_write, refuse_nameless, refuse_wish
from notebook_accel.launch.script_seeds import unseeded
from notebook_accel.launch.sources import Source, import_of, names_in, names_now, source_of
from notebook_accel.launch.start import Job

MARK = "Exported by notebook_accel"
MAX_LITERAL = 20_000
_LITERALS = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, range)
_NOTEBOOK = {"display", "get_ipython"}  # builtins only there
_OF_A_MODULE = {"__name__", "__file__", "__doc__", "__spec__"}  # a script has its own
_SETTINGS = {
    "mixed_precision": "ACCELERATE_MIXED_PRECISION",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
}
_CARRIED = {*_SETTINGS.values(), "ACCELERATE_USE_FSDP"}  # and all variables of these sections:
_SECTIONS = {"fsdp", "parallelism", "dynamo"}
_PRINTED = """if returned is not None and os.environ.get("RANK", "0") == "0":
    print(returned)"""


def export(job: Job | None, record: Record, path: Path) -> Path:
    """Write ``job`` to the script ``path``, and give its path.

    Errors: ConfigError naming each thing that has no source, or a file that is not ours.
    """
    if job is None:
        raise ConfigError(
            "this result does not know its function any more",
            "it was unpickled, or read from disk, and only what ran was kept there",
            "export from the result that the launch itself gave",
        )
    if path.is_file() and MARK not in path.read_text("utf-8", "replace")[:400]:
        raise ConfigError(
            f"{path} exists, and was not exported from a run",
            "a file of yours is not overwritten",
            'pass another path: run.export_script("train_from_notebook.py")',
        )
    text = text_of(job, record, path.name)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the script cannot be written to {path}",
            f"the system says: {error.strerror or error}",
            'pass a file in a folder that is there and yours: run.export_script("train.py")',
        ) from error
    return path


def text_of(job: Job, record: Record, name: str = "train.py") -> str:
    """Give the text of the script that ``name`` will hold.

    Errors: ConfigError naming each thing that has no source; for a strategy given as an object.
    """
    refuse_wish(record)
    refuse_nameless(job.function, record.about.function)
    then = job.then or Then({}, job.args, job.kwargs)
    gathered = _Gathered(then.names)
    called = gathered.expression(job.function, "the launched function", "main")
    given = [gathered.expression(arg, f"args[{n}]") for n, arg in enumerate(then.args)]
    given += [f"{key}={gathered.expression(arg, key, key)}" for key, arg in then.kwargs.items()]
    gathered.follow()
    if gathered.refused:
        raise nothing_to_write(record.about.function, gathered.refused)
    text = _layout(gathered, f"{called}({', '.join(given)})", record, name)
    compile(text, name, "exec", dont_inherit=True)
    if libraries := unseeded(text):
        print(
            f"note: {name} draws random numbers of {' and '.join(libraries)} that nothing in it "
            "seeds: its losses will be others than the notebook's; call set_seed(...) at the "
            "start of the function"
        )
    return text


class _Gathered:
    """What the script needs so far: definitions and constants by name, and import statements."""

    def __init__(self, then: Mapping[str, Any]) -> None:
        self._then = then
        self.values: dict[str, Any] = {}
        self.texts: dict[str, str] = {}  # name -> its definition, or "name = ..."
        self.imports: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        self.future_annotations = False
        self._open: list[tuple[str, Any, str]] = []

    def need(self, name: str, value: Any, user: str) -> None:
        """Note that ``user`` needs ``value`` under ``name``."""
        if name not in self.values:
            self.values[name] = value
            self._open.append((name, value, user))
        elif self.values[name] is not value:
            same = isinstance(value, (int, float, str)) and self.values[name] == value
            if not same:
                self.refused[name] = f"two different things have this name, the second in {user}"

    def follow(self) -> None:
        """Find everything that was noted, and what that needs in turn."""
        while self._open:
            name, value, user = self._open.pop(0)
            if name == "get_ipython":
                self.refused[name] = f"a magic of the notebook (% or !), used by {user}"
                continue
            if import_of(name, value, []):
                self.imports[name] = value
                continue
            is_definition = isinstance(value, (type, FunctionType)) or hasattr(value, "__wrapped__")
            source = source_of(value, self._then) if is_definition else None
            if source is not None and source.name == name:
                self._define(source)
            elif source is not None:
                self.need(source.name, value, user)
                self.texts[name] = f"{name} = {source.name}"
            else:
                self._constant(name, value, user)

    def _define(self, source: Source) -> None:
        self.texts[source.name] = source.text
        self.future_annotations |= source.future_annotations
        for name in sorted(names_in(source.text)):
            if name in _OF_A_MODULE:
                continue
            if name in source.scope:
                self.need(name, source.scope[name], source.name)
            elif name in _NOTEBOOK and hasattr(builtins, name):
                self.need(name, getattr(builtins, name), source.name)
            elif not hasattr(builtins, name) and not source.future_annotations:
                self.refused.setdefault(name, f"not defined, used by {source.name}")

    def _constant(self, name: str, value: Any, user: str) -> None:
        if is_secret(name) and isinstance(value, str):
            self.refused[name] = f"a secret, used by {user}: read it from os.environ there"
            return
        self.texts[name] = f"{name} = {self.expression(value, name, name, user)}"

    def expression(self, value: Any, what: str, name: str = "", user: str = "") -> str:
        """Write ``value``, known as ``what``, as an expression; refuse it if that cannot be."""
        try:
            return self._write(value, name)
        except _NoSource as reason:
            self.refused[what] = f"{reason}, used by {user}" if user else str(reason)
            return "..."

    def _write(self, value: Any, name: str) -> str:
        if isinstance(value, functools.partial):
            parts = [value.func, *value.args]
            inner = [self._write(one, "") for one in parts]
            inner += [f"{key}={self._write(one, key)}" for key, one in value.keywords.items()]
            return self._made(functools.partial, inner)
        if isinstance(value, (type, FunctionType)) or hasattr(value, "__wrapped__"):
            return self._named(value, name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [one for one in dataclasses.fields(value) if one.init]
            inner = [f"{f.name}={self._write(getattr(value, f.name), f.name)}" for f in fields]
            return self._made(type(value), inner)
        if type(value) in (SimpleNamespace, Namespace):
            inner = [f"{key}={self._write(one, key)}" for key, one in vars(value).items()]
            return self._made(type(value), inner)
        if isinstance(value, enum.Enum):
            return f"{self._made(type(value), None)}.{value.name}"
        if isinstance(value, PurePath):
            return self._made(Path, [repr(str(value))])
        if type(value).__module__ == "torch" and type(value).__name__ in ("device", "dtype"):
            self.need("torch", sys.modules["torch"], "a constant")
            return f"torch.{value!r}" if type(value).__name__ == "device" else repr(value)
        return self._literal(value)

    def _literal(self, value: Any) -> str:
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if type(value) in (list, tuple, set) and value:
            inner = ", ".join(self._write(one, "") for one in value)
            if isinstance(value, tuple):
                return f"({inner},)" if len(value) == 1 else f"({inner})"
            return f"[{inner}]" if isinstance(value, list) else f"{{{inner}}}"
        if type(value) is dict:
            pairs = (f"{self._write(k, '')}: {self._write(v, str(k))}" for k, v in value.items())
            return "{" + ", ".join(pairs) + "}"
        if value is None or value is Ellipsis:
            return repr(value)
        if type(value) in _LITERALS:
            text = repr(value)
            if len(text) > MAX_LITERAL:
                raise _NoSource(f"{len(text):,} characters long as text")
            return text
        raise _NoSource(_kind(value))

    def _named(self, value: Any, name: str) -> str:
        if getattr(value, "__name__", "") == "<lambda>":
            raise _NoSource("a lambda, which has no source of its own: write it as a def")
        own = str(getattr(value, "__name__", name))
        if not import_of(own, value, []) and source_of(value) is None:
            if isinstance(value, FunctionType):
                raise _NoSource("a function without source: of exec(), %%time or a decorator")
            raise _NoSource(f"{_kind(value)} without source")
        self.need(own, value, "the call")
        return own

    def _made(self, cls: Any, inner: list[str] | None) -> str:
        made = self._named(cls, cls.__name__)
        return made if inner is None else f"{made}({', '.join(inner)})"


class _NoSource(Exception):
    """Something that cannot be written down, in words."""


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    size = f" of shape {tuple(shape)}" if isinstance(shape, tuple) else ""
    return f"{kind_of(value)}{size} made in the notebook"


# ── the text ──────────────────────────────────────────────────────────────────────────────────


def _layout(gathered: _Gathered, call: str, record: Record, name: str) -> str:
    texts = gathered.texts
    everything = [*texts.values(), call]
    settings = list(_settings(record))
    imports = {
        "import os",
        *(["import torch"] if any(line.startswith("torch.") for line in settings) else []),
        *(
            line
            for known, value in gathered.imports.items()
            for line in import_of(known, value, everything)
        ),
    }
    order = list(_in_order(texts))
    plain = [one for one in order if not texts[one].startswith(("def ", "class ", "@", "async "))]
    early = [one for one in plain if not names_now(texts[one]) & texts.keys()]
    blocks = [_head(record, name)]
    if gathered.future_annotations:
        blocks.append("from __future__ import annotations")
    blocks += _import_blocks(imports)
    blocks.append("\n".join(texts[one] for one in early))
    head = "\n\n".join(block for block in blocks if block)
    defined = [texts[one] for one in order if one not in early]
    main = [*settings, f"returned = {call}", *_PRINTED.splitlines()]
    body = "\n".join(['if __name__ == "__main__":', *(f"    {line}" for line in main)])
    return "\n\n\n".join([head, *defined, body]) + "\n"


def _head(record: Record, name: str) -> str:
    about = record.about
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(about.started))
    origin = f" of {about.notebook}" if about.notebook else ""
    num, file = about.config.get("num_processes", 1), shlex.quote(name)
    origin = (origin + f", run {about.id}").replace("\\", "/").replace('"', "'")
    return (
        f'"""Train as ``{about.function}`` did{origin}.\n\n'
        f"    notebook-accel launch --num_processes {num} {file}\n"
        f"    torchrun --nproc-per-node {num} {file}\n"
        f"    python {file}\n\n"
        f'{MARK}, {day}.\n"""'
    )


def _settings(record: Record) -> Iterator[str]:
    """Lines that ask for what the launch asked for, unless the command line asks otherwise."""
    asked = {
        variable: text
        for variable, text in record.about.environment.items()
        if variable in _CARRIED or getattr(by_variable().get(variable), "section", "") in _SECTIONS
    }
    for name, variable in _SETTINGS.items():
        if name in record.config:
            asked[variable] = str(record.config[name])
    if record.about.devices.rpartition(" ")[0].endswith("CPU"):
        asked["ACCELERATE_USE_CPU"] = "true"
    if "seed" in record.config:
        yield f"torch.manual_seed({record.config['seed']})  # as in the notebook at the launch"
    for variable, value in asked.items():
        yield f"os.environ.setdefault({variable!r}, {value!r})".replace("'", '"')


def _in_order(texts: dict[str, str]) -> Iterator[str]:
    """Give the names so that each is defined after what its definition needs at once.

    As far as that leaves a choice, what is used comes before what uses it.
    """
    now = {name: names_now(text) & texts.keys() for name, text in texts.items()}
    late = {name: names_in(text) & texts.keys() for name, text in texts.items()}
    done: dict[str, bool] = {}

    def visit(name: str, edges: Mapping[str, Iterable[str]], into: dict[str, bool]) -> None:
        if name not in into:
            into[name] = False
            for other in sorted(edges[name]):
                visit(other, edges, into)
            into[name] = True
            ordered.append(name)

    ordered: list[str] = []
    for name in reversed(texts):  # the launched function was found first
        visit(name, late, done)
    preferred, ordered, done = ordered, [], {}
    for name in preferred:
        visit(name, now, done)
    yield from ordered


def _import_blocks(lines: Iterable[str]) -> list[str]:
    """Sort imports as people do: the standard library, then the others; one line a module."""
    names: dict[str, set[str]] = {}
    for line in lines:
        module, _, name = line.removeprefix("from ").partition(" import ")
        names.setdefault(module, set()).update([name] if name else [])
    blocks: dict[bool, list[str]] = {True: [], False: []}
    for module in sorted(names, key=lambda one: one.removeprefix("import ").lower()):
        line = f"from {module} import {', '.join(sorted(names[module]))}"
        line = line if names[module] else module
        top = module.removeprefix("import ").partition(".")[0].partition(" ")[0]
        blocks[top in sys.stdlib_module_names].append(line)
    return ["\n".join(block) for block in blocks.values()]
