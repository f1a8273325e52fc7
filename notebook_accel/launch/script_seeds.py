"""Which random numbers a script draws from generators that it never seeds."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import Any

_SEEDS_ALL = {"set_seed", "seed_everything"}  # of libraries, ours too
# What seeds a library's own generator, and a method of that very generator. torch is always drawn
# from: a script that trains makes a model.
_GENERATORS = {
    "torch": ("manual_seed", "manual_seed"),
    "numpy.random": ("seed", "rand"),
    "random": ("seed", "random"),
}


def unseeded(text: str) -> list[str]:
    """Name the libraries whose own generator a script uses and does not seed.

    Every script that trains draws from torch's. A generator of the person's own is not theirs.
    """
    tree = ast.parse(text)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    meant = _imported(tree)
    drawn, seeded = {"torch"}, set()
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        if id(node) in called and name in _SEEDS_ALL:
            return []
        value = _value(node, meant)
        for library, (seeder, method) in _GENERATORS.items():
            module = sys.modules.get(library)
            if module is None or value is None:
                continue
            if value is getattr(module, seeder):
                seeded |= {library} if id(node) in called else set()
            elif _is_alike(value, getattr(module, method)):
                drawn.add(library)
    return sorted(one.partition(".")[0] for one in drawn - seeded)


def _is_alike(value: Any, method: Any) -> bool:
    """Tell whether ``value`` is a method of the same object as ``method``."""
    own = getattr(method, "__self__", None)
    return own is not None and getattr(value, "__self__", None) is own


def _imported(tree: ast.AST) -> dict[str, Any]:
    """Give what the names that are imported anywhere in ``tree`` mean in this process."""
    return {name: value for node in ast.walk(tree) for name, value in _bindings(node)}


def _bindings(node: ast.AST) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.Import):
        for one in node.names:
            top = one.name.partition(".")[0]
            yield one.asname or top, sys.modules.get(one.name if one.asname else top)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        module = sys.modules.get(node.module or "")
        for one in node.names:
            yield one.asname or one.name, getattr(module, one.name, None)


def _value(node: ast.AST, meant: dict[str, Any]) -> Any:
    """What ``np.random.rand`` means, say; None for what is not reached from an import."""
    if isinstance(node, ast.Name):
        return meant.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, meant), node.attr, None)
    return None
