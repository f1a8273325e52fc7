"""The names of a model's tensors: always those of the person's own module.

Wrappers put their own attribute into every name below them: ``module.`` (data parallel),
``_orig_mod.`` (compiled). Files never carry these, so a file fits the plain module, the wrapped and
the compiled one, on any number of processes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from notebook_accel.errors import CheckpointError
from notebook_accel.ranks.shards import local, part_like

WRAPPERS = ("module", "_orig_mod")


def plain_name(model: nn.Module, name: str) -> str:
    """The name that a tensor of ``model`` has in the person's own module.

    Only what a wrapper added is left out: a submodule that a person called "module" stays.
    """
    kept, here = [], model
    for part in name.split("."):
        if not (part in WRAPPERS and _wraps(here, part)):
            kept.append(part)
        here = here._modules.get(part) if isinstance(here, nn.Module) else None  # type: ignore[assignment]
    return ".".join(kept)


def plain_state(model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Give a state dict of ``model`` with plain names."""
    return {plain_name(model, name): value for name, value in state.items()}


def load_plain(
    model: nn.Module,
    state: Mapping[str, Any],
    strict: bool = True,
    load: Callable[..., Any] | None = None,
) -> list[str]:
    """Load a state dict into ``model``, whichever of the two carries wrappers' names.

    Tied tensors need only be there once. ``load(state, strict)`` stands for the model's own
    ``load_state_dict``. Gives the names that were not there, none when strict.

    Errors: CheckpointError naming what is missing, unknown or of another shape.
    """
    own = {plain_name(model, name): name for name in model.state_dict()}
    given = _matched(state, own)
    _complete_tied(model, given)
    mine = model.state_dict()
    fitting = {
        own.get(name, name): part_like(value, mine[own[name]]) if name in own else value
        for name, value in given.items()
    }
    try:
        result = (load or model.load_state_dict)(fitting, strict=strict)
    except RuntimeError as reason:
        raise CheckpointError(
            f"the saved weights do not fit {type(_innermost(model)).__name__}",
            " ".join(str(reason).split()),
            "build the model as it was when it was saved, or pass strict=False",
        ) from reason
    return list(result.missing_keys)


def _wraps(module: nn.Module | None, attribute: str) -> bool:
    """Whether ``module`` is a wrapper whose only content is called ``attribute``."""
    if module is None:
        return False
    homes = [base.__module__ for base in type(module).__mro__]
    known = any(home.startswith(("torch.nn.parallel", "torch._dynamo")) for home in homes)
    return known and attribute in module._modules


def _innermost(model: nn.Module) -> nn.Module:
    for attribute in WRAPPERS:
        if _wraps(model, attribute):
            return _innermost(getattr(model, attribute))
    return model


def _matched(state: Mapping[str, Any], own: Iterable[str]) -> dict[str, Any]:
    """Name the tensors of ``state`` as the model does, without wrappers' names if need be."""
    known: dict[str, list[str]] = {}
    for name in own:
        known.setdefault(_bare(name), []).append(name)
    renamed = {}
    for name in state:
        alike = known.get(_bare(name), [])
        if name not in alike and len(alike) == 1:
            renamed[name] = alike[0]
    if renamed:
        first, other = next(iter(renamed.items()))
        warnings.warn(
            f"{len(renamed)} saved names carry a wrapper's prefix ({first!r}); "
            f"they were loaded as the module's own ({other!r}).",
            stacklevel=4,
        )
    return {renamed.get(name, name): value for name, value in state.items()}


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _complete_tied(model: nn.Module, given: dict[str, Any]) -> None:
    """Add tensors that are absent because they are the same as one that is there."""
    groups: dict[Any, list[str]] = {}
    state = model.state_dict()
    for name, tensor in state.items():
        if isinstance(tensor, Tensor):
            groups.setdefault(identity(tensor), []).append(plain_name(model, name))
    for names in groups.values():
        present = next((name for name in names if name in given), None)
        if present is not None:
            for name in names:
                given.setdefault(name, given[present])


def identity(tensor: Tensor) -> Any:
    """What two living tensors have in common exactly if they are the same view of one memory."""
    part = local(tensor)
    if part.layout is not torch.strided or part.numel() == 0:
        return id(tensor)
    where = (part.device, part.untyped_storage().data_ptr(), part.storage_offset())
    return (*where, tensor.dtype, tuple(tensor.shape), tensor.stride())
