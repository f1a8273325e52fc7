"""The parts of a model that a sharding strategy gathers one at a time."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from notebook_accel.errors import ConfigError
from notebook_accel.strategies.compiled import repeated_blocks

_WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict)


def find_blocks(
    model: nn.Module, policy: Any, class_names: Collection[str] = (), min_num_params: int = 0
) -> list[nn.Module]:
    """Choose the parts of ``model`` by a policy of ``wishes.FSDP``; inner parts come first.

    Errors: ConfigError for class names that the model does not have, and for no parts where the
    policy needs some.
    """
    if policy == "no_wrap":
        return []
    if callable(policy):
        return [one for one in _inner_first(model) if one is not model and _wants(policy, one)]
    if policy == "size_based_wrap":
        return _large_parts(model, min_num_params)
    if class_names:
        return _of_classes(model, class_names)
    known = getattr(model, "_no_split_modules", None)
    found = _of_classes(model, known, strict=False) if known else repeated_blocks(model)
    if not found and policy == "auto":
        return _of_sequences(model)
    if not found and policy == "transformer_based_wrap":
        raise ConfigError(
            f"auto_wrap_policy='transformer_based_wrap', but no class to wrap is known in "
            f"{type(model).__name__}",
            "it was given no class, the model names none (_no_split_modules), and it has no list "
            "of blocks of one class",
            f"pass transformer_cls_names_to_wrap with some of: {_listed(_class_names(model))}",
        )
    return found


def parts_of(model: nn.Module) -> list[nn.Module]:
    """List the modules that ``model`` itself calls, those in its lists too."""
    found: list[nn.Module] = []
    for one in model.children():
        found += one.children() if isinstance(one, _WITHOUT_FORWARD) else [one]
    return found


def can_be_cut(model: nn.Module) -> bool:
    """Tell whether several modules of ``model`` have weights of their own."""
    return sum(any(True for _ in one.parameters(recurse=False)) for one in model.modules()) > 1


def modules_named(model: nn.Module, wanted: Any, argument: str) -> list[nn.Module]:
    """Give the modules ``wanted``: modules, or a regular expression for their whole names.

    Errors: ConfigError for a pattern that no name fits, and modules of another model.
    """
    if isinstance(wanted, str):
        found = [one for name, one in model.named_modules() if re.fullmatch(wanted, name)]
    else:
        inside = set(map(id, model.modules()))
        found = [one for one in wanted if id(one) in inside]
    if not found:
        raise ConfigError(
            f"{argument}={wanted!r} names nothing in {type(model).__name__}",
            "it is a list of the model's modules, or a regular expression for their names",
            "look at dict(model.named_modules()) for the names",
        )
    return found


def _of_classes(model: nn.Module, names: Collection[str], strict: bool = True) -> list[nn.Module]:
    there = _class_names(model)
    missing = [name for name in names if name not in there]
    if missing and strict:
        near = difflib.get_close_matches(missing[0], there, n=1)
        if not there:
            raise ConfigError(
                f"transformer_cls_names_to_wrap names {missing[0]!r}, and {type(model).__name__} "
                "has no modules inside",
                "what is gathered by itself is a module inside of the model",
                "leave the classes out: such a model is one block",
            )
        raise ConfigError(
            f"transformer_cls_names_to_wrap names {missing[0]!r}, which is not in "
            f"{type(model).__name__}",
            f"the model is made of: {_listed(there)}",
            f"write {near[0]!r}" if near else "name one of these classes",
        )
    return [one for one in _inner_first(model) if type(one).__name__ in names and one is not model]


def _of_sequences(model: nn.Module) -> list[nn.Module]:
    """Give the modules with weights of each outermost ``nn.Sequential`` that has several.

    Those whose weights are elsewhere, too, stay with the rest: a weight has one place.
    """
    everywhere = _places(model)
    found = dict.fromkeys(_in_sequences(model))
    return [one for one in found if _places(one).items() <= everywhere.items()]


def _places(model: nn.Module) -> Counter[int]:
    return Counter(id(one) for _, one in model.named_parameters(remove_duplicate=False))


def _in_sequences(model: nn.Module) -> list[nn.Module]:
    # A class with a forward of its own may use weights without calling the modules that hold them.
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        learned = [one for one in model if any(True for _ in one.parameters())]
        if len(learned) > 1:
            return learned
    return [one for child in model.children() for one in _in_sequences(child)]


def _large_parts(model: nn.Module, least: int) -> list[nn.Module]:
    chosen: list[nn.Module] = []

    def left_of(module: nn.Module) -> int:
        """Count the parameters of ``module`` that are in no chosen part; choose it if enough."""
        own = sum(one.numel() for one in module.parameters(recurse=False))
        left = own + sum(left_of(child) for child in module.children())
        fits = module is not model and not isinstance(module, _WITHOUT_FORWARD)
        if not (fits and left and left >= least):
            return left
        chosen.append(module)
        return 0

    left_of(model)
    return chosen


def _wants(policy: Callable[..., bool], module: nn.Module) -> bool:
    if isinstance(module, _WITHOUT_FORWARD):
        return False
    size = sum(one.numel() for one in module.parameters())
    return policy(module=module, recurse=False, nonwrapped_numel=size)


def _inner_first(model: nn.Module) -> list[nn.Module]:
    return [*reversed(list(model.modules()))]


def _class_names(model: nn.Module) -> list[str]:
    return sorted({type(one).__name__ for one in model.modules() if one is not model})


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "nothing"
