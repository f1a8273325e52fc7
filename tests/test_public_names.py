"""The front door: what ``notebook_accel`` offers, and what opening it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import notebook_accel


def loaded_by(statement: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after ``statement``."""
    code = f"{statement}\nimport sys; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


def test_public_names_are_sorted_and_unique() -> None:
    names = notebook_accel.__all__
    assert names == sorted(set(names))


@pytest.mark.parametrize("name", notebook_accel.__all__)
def test_each_public_name_resolves_to_what_its_module_defines(name: str) -> None:
    value = getattr(notebook_accel, name)
    if name in notebook_accel._MODULES:
        assert value.__name__ == f"notebook_accel.{notebook_accel._MODULES[name]}"
    elif name != "__version__":
        assert value.__module__ == f"notebook_accel.{notebook_accel._WHERE[name]}"


def test_dir_lists_the_public_names() -> None:
    assert dir(notebook_accel) == notebook_accel.__all__


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(notebook_accel.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    shown = {
        alias.asname or alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = {name: at.rpartition(".")[0] for name, at in notebook_accel._MODULES.items()}
    rooms = {**notebook_accel._WHERE, **modules}
    assert shown == {name: f"notebook_accel.{at}" for name, at in rooms.items()}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(
        AttributeError, match="'notebook_accel' has no attribute 'notebook_luncher'"
    ):
        _ = notebook_accel.notebook_luncher


def test_importing_the_package_loads_no_torch_and_next_to_nothing() -> None:
    bare = loaded_by("pass")
    ours = loaded_by("import notebook_accel") - bare
    torch = loaded_by("import torch") - bare
    assert "torch" not in ours
    assert len(ours) * 20 < len(torch)


def test_importing_the_launcher_loads_no_torch() -> None:
    assert "torch" not in loaded_by("from notebook_accel import notebook_launcher")
