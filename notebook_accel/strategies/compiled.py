"""Compiled models: which module a compiled one stands for, and how ``prepare`` compiles.

We compile in place (``Module.compile``): the object stays the person's own, its names stay plain,
and unwrapping has nothing to take off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


def uncompiled(model: nn.Module) -> nn.Module:
    """Give the module that a ``torch.compile``d one stands for; any other as it is."""
    inner = model._modules.get("_orig_mod")
    return model if inner is None else inner


def is_compiled_module(model: Any) -> bool:
    """Tell whether calling ``model`` itself runs compiled code, whichever way it was compiled."""
    if not isinstance(model, nn.Module):
        return False
    return "_orig_mod" in model._modules or compiled_in_place(model)


def has_compiled_regions(model: Any) -> bool:
    """Tell whether a part of ``model``, but not the whole, is compiled."""
    if not isinstance(model, nn.Module) or is_compiled_module(model):
        return False
    return any(is_compiled_module(part) for part in model.modules())


def compiled_in_place(model: nn.Module) -> bool:
    """Tell whether ``Module.compile`` was called on ``model``."""
    return model._compiled_call_impl is not None


def compile_model(model: nn.Module, regional: bool, arguments: Mapping[str, Any]) -> nn.Module:
    """Compile ``model`` in place with arguments of ``torch.compile``; give it back.

    ``regional`` compiles the modules of every list of like blocks one by one: they share their
    code, so it is compiled once. A model without such a list is compiled whole.
    """
    blocks = repeated_blocks(model) if regional else []
    for one in blocks or [model]:
        if not is_compiled_module(one):
            one.compile(**arguments)
    return model


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Give the blocks of every list of at least two modules of the same class, outermost first."""
    if isinstance(model, nn.ModuleList):
        children = list(model)
        if len(children) > 1 and len({type(one) for one in children}) == 1:
            return children
    return [block for child in model.children() for block in repeated_blocks(child)]
