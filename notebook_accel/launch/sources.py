"""Where things come from: the source of a function or class, the import of what others wrote.

Cells are files to Python: each run of one has a name of its own, under which ``linecache`` keeps
its text. So the source found here is that of the very object, also after its cell was changed.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import linecache
import symtable
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

_PLAIN = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset, type(None))
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Source:
    """The text of a definition; ``scope`` holds the values of the names in it."""

    name: str
    text: str
    scope: Mapping[str, Any]
    future_annotations: bool = False


def source_of(value: Any, then: Mapping[str, Any] | None = None) -> Source | None:
    """Find the source of a function or class that was written in a cell or script.

    ``then`` is what names in ``__main__`` meant, where that is not what they mean now.
    """
    if isinstance(value, type):
        return _class_source(value, then or {})
    function = inspect.unwrap(value)
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        return None
    code = function.__code__
    node = _definition(code.co_filename, code.co_name, code.co_firstlineno)
    if node is None:
        return None
    scope = _scope(function, then or {})
    if any(_is_decorated(scope.get(name)) for name in code.co_freevars):
        return None  # it came out of a decorator: to write it down would apply that twice
    future = bool(code.co_flags & __future__.annotations.compiler_flag)
    return Source(code.co_name, _text(code.co_filename, node), scope, future)


def _is_decorated(value: Any) -> bool:
    source = source_of(value) if isinstance(value, (FunctionType, type)) else None
    return source is not None and source.text.startswith("@")


def _class_source(cls: type, then: Mapping[str, Any]) -> Source | None:
    methods = [one for one in map(_function_in, vars(cls).values()) if one is not None]
    files = [one.__code__.co_filename for one in methods if one.__qualname__ != one.__name__]
    scope = _meant(vars(sys.modules.get(cls.__module__, ModuleType(""))), then)
    for method in methods:
        scope.update(_scope(method, then))
    scope.pop("__class__", None)
    for filename in [*files, *_cells(cls.__module__)]:
        node = _definition(filename, cls.__name__, getattr(cls, "__firstlineno__", None))
        if isinstance(node, ast.ClassDef):
            return Source(cls.__name__, _text(filename, node), scope)
    return None


def _function_in(attribute: Any) -> FunctionType | None:
    inner = getattr(attribute, "__func__", getattr(attribute, "fget", attribute))
    return inner if isinstance(inner, FunctionType) else None


def _meant(names: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    return {**names, **then} if names.get("__name__") == "__main__" else dict(names)


def _scope(function: FunctionType, then: Mapping[str, Any]) -> dict[str, Any]:
    scope = _meant(function.__globals__, then)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:  # not bound yet: a class that is its own method's __class__
            continue
    return scope


def _cells(module: str) -> Iterator[str]:
    """The files that a class of ``module`` can be in: cells, newest first, and its own."""
    own = getattr(sys.modules.get(module), "__file__", None)
    if own:
        yield own
    for filename in reversed(list(linecache.cache)):
        if "ipykernel" in filename or filename.startswith("<ipython"):
            yield filename


def _definition(filename: str, name: str, first_line: int | None) -> Any:
    """Find the definition of ``name`` that begins in ``first_line``, its first decorator's."""
    try:
        there = _definitions("".join(linecache.getlines(filename)))
    except SyntaxError:
        return None
    found = [node for node in there if node.name == name]
    exact = [node for node in found if _first_line(node) == first_line]
    return exact[-1] if exact else (found[-1] if found and first_line is None else None)


@functools.lru_cache(maxsize=64)  # each launch looks through the same cells
def _definitions(text: str) -> list[Any]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, _DEFINITIONS)]


def _first_line(node: Any) -> int:
    return int(min([node.lineno, *(one.lineno for one in node.decorator_list)]))


def _text(filename: str, node: Any) -> str:
    lines = linecache.getlines(filename)[_first_line(node) - 1 : node.end_lineno]
    return textwrap.dedent("".join(lines)).rstrip()


# ── names ─────────────────────────────────────────────────────────────────────────────────────


def names_in(text: str) -> set[str]:
    """Give the names that ``text``, taken as a module, needs from outside."""
    top = symtable.symtable(text, "<source>", "exec")
    made = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
    made |= {node.name for node in ast.parse(text).body if isinstance(node, _DEFINITIONS)}
    return {name for name in _global_names(top) if name not in made}


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    is_top = table.get_type() == "module"
    for one in table.get_symbols():
        if one.is_referenced() and (is_top or one.is_global()):
            yield one.get_name()
    for inner in table.get_children():
        yield from _global_names(inner)


def names_now(text: str) -> set[str]:
    """Give the names that are needed already when ``text`` is defined: not those in bodies."""
    return names_in(ast.unparse(_Bodiless().visit(ast.parse(text))))


class _Bodiless(ast.NodeTransformer):
    """Takes the bodies of functions out, and leaves what runs at their definition."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Keep decorators, defaults and annotations."""
        node.body = [ast.Pass()]
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Keep decorators, defaults and annotations."""
        node.body = [ast.Pass()]
        return node


# ── imports ───────────────────────────────────────────────────────────────────────────────────


def import_of(name: str, value: Any, texts: list[str]) -> list[str]:
    """Write the statements that import ``value`` as ``name``; none if it cannot be imported.

    ``texts`` are the sources that use it: parts of a module are imported as they name them.
    """
    if isinstance(value, ModuleType):
        return _import_module(name, value, texts)
    if isinstance(value, _PLAIN):
        return []
    for module, attribute in _homes(name, value):
        found = sys.modules.get(module)
        if found is not None and getattr(found, attribute, None) is value:
            as_name = "" if attribute == name else f" as {name}"
            return [f"from {module} import {attribute}{as_name}"]
    return []


def _import_module(name: str, module: ModuleType, texts: list[str]) -> list[str]:
    path = module.__name__
    if path == "__main__" or path not in sys.modules:
        return []
    parts = sorted({part for text in texts for part in _parts(name, path, text)})
    parent, _, last = path.rpartition(".")
    if path == name:
        first = f"import {path}"
    elif parent and last == name:
        first = f"from {parent} import {last}"
    else:
        first = f"import {path} as {name}"
    deep = [one for one in parts if not any(other.startswith(f"{one}.") for other in parts)]
    return [first, *(f"import {part}" for part in deep)]


def _parts(name: str, path: str, text: str) -> Iterator[str]:
    """The modules below ``path`` that ``text`` reaches through ``name``, as torch.utils.data."""
    for node in ast.walk(ast.parse(text)):
        first, dot, rest = _dotted(node).partition(".")
        part = f"{path}.{rest}" if first == name and dot else ""
        if isinstance(sys.modules.get(part), ModuleType):
            yield part


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (inner := _dotted(node.value)):
        return f"{inner}.{node.attr}"
    return ""


def _homes(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Places where ``value`` may be imported from, the shortest path first."""
    own = getattr(value, "__module__", None)
    path = own if isinstance(own, str) else type(value).__module__
    names = dict.fromkeys([getattr(value, "__name__", name), name])
    parts = path.split(".")
    modules = [".".join(parts[: end + 1]) for end in range(len(parts))]
    for module in [*modules, "torch", "numpy", "typing", "collections.abc"]:
        if module not in ("__main__", "builtins"):
            yield from ((module, one) for one in names if isinstance(one, str))
