"""Compiled models: which module a compiled one stands for, and how ``prepare`` compiles.

We compile in place (``Module.compile``): the object stays the person's own, its names stay plain,
and unwrapping has nothing to take off. It is the person's module that is compiled, inside whatever
an engine wraps it in: what meets other ranks stays outside of graphs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from notebook_accel.config.dynamo import TorchDynamoPlugin
from notebook_accel.errors import ConfigError


def uncompiled(model: nn.Module) -> nn.Module:
    """Give the module that a ``torch.compile``d one stands for; any other as it is."""
    inner = model._modules.get("_orig_mod")
    return model if inner is None else inner


def is_compiled_module(model: Any) -> bool:
    """Tell whether calling ``model`` itself runs compiled code, whichever way it was compiled."""
    if not isinstance(model, nn.Module):
        return False
    if isinstance(model, DistributedDataParallel):
        return compiled_in_place(model) or is_compiled_module(model.module)
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
            if "forward" not in vars(one) and type(one).forward.__module__.startswith("torch."):
                one.forward = _InOurFrame(one.forward)
            one.compile(**arguments)
    return model


class _InOurFrame:
    """The forward of one of torch's own modules, such as nn.Sequential, called from here.

    torch compiles no frames of its own files, and would pass over the whole of it in silence.
    """

    def __init__(self, forward: Any) -> None:
        self.forward = forward
        self.__self__ = forward.__self__
        self.__wrapped__ = forward  # so that inspect.signature sees the arguments

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, "forward")


def known_compiler(plugin: TorchDynamoPlugin) -> TorchDynamoPlugin:
    """Give ``plugin`` back if torch can do what it asks for.

    Errors: ConfigError for a backend or a mode that torch does not have.
    """
    name = plugin.to_dict()["backend"]
    if not plugin.compiles or not isinstance(name, str):
        return plugin
    import torch._dynamo  # takes a moment: only who compiles pays

    if name not in torch._dynamo.list_backends(exclude_tags=()):
        useful = ["eager", "aot_eager", *torch._dynamo.list_backends()]
        near = difflib.get_close_matches(name, useful, n=1)
        raise ConfigError(
            f"torch.compile has no backend {name!r}",
            f"this torch has: {', '.join(useful)}",
            f"write {near[0]!r}" if near else "write 'inductor', or pass a function as backend",
        )
    _check_mode(plugin.mode or "default", name)
    return plugin


def _check_mode(mode: str, backend: str) -> None:
    """Raise ConfigError unless ``backend`` has ``mode``; a stranger's backends judge themselves."""
    modes = ["default"]
    if backend == "inductor":
        modes = [*torch._inductor.list_mode_options()]
    elif not torch._dynamo.lookup_backend(backend).__module__.startswith("torch."):
        return
    if mode not in modes:
        raise ConfigError(
            f"the compiler's mode is {mode!r}, its backend {backend!r}",
            f"{backend} has the modes: {', '.join(modes)}",
            "write one of them, or leave mode out",
        )


def refuse_whole_graph(model: nn.Module, regional: bool, arguments: Mapping[str, Any]) -> None:
    """Refuse one graph of a whole model that is gathered part by part.

    Errors: ConfigError.
    """
    if arguments.get("fullgraph") and not (regional and repeated_blocks(model)):
        raise ConfigError(
            f"fullgraph=True for {type(model).__name__}, which is sharded",
            "each part is gathered from the ranks before it computes, and that is in no graph",
            "write use_regional_compilation=True, which makes a graph of each block of a model "
            "that has a list of like blocks; or leave fullgraph out",
        )


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Give the blocks of every list of at least two modules of the same class, outermost first."""
    if isinstance(model, nn.ModuleList):
        children = list(model)
        if len(children) > 1 and len({type(one) for one in children}) == 1:
            return children
    return [block for child in model.children() for block in repeated_blocks(child)]
