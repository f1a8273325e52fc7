"""Loading with one copy in memory: rank 0 has the weights, the others a model without memory.

``lift`` takes the weights out of the model, ``pour`` gives every rank its parts of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from notebook_accel.errors import ConfigError
from notebook_accel.ranks.collectives import all_objects, broadcast
from notebook_accel.ranks.world import World


def lift(model: nn.Module, world: World) -> dict[str, Tensor]:
    """Put ``model`` on the meta device on every rank; give its state, which only rank 0 has.

    Ranks: all ranks call it.
    Errors: ConfigError where rank 0 has no weights.
    """
    on_meta = any(one.is_meta for one in model.parameters())
    if all_objects(on_meta, world)[0] and not world.is_fake:
        raise ConfigError(
            "cpu_ram_efficient_loading, but rank 0's model is on the meta device",
            "rank 0 is the one whose weights the others get",
            "load the weights on the main process (if accelerator.is_main_process), and build "
            "the model under torch.device('meta') on the others",
        )
    has_weights = world.rank == 0 and not on_meta
    state = dict(model.state_dict(keep_vars=True)) if has_weights else {}
    state.update(_forgotten_buffers(model) if has_weights else {})
    ties = _ties(model)
    model.to("meta")
    for (owner, name), (home, first) in ties:
        setattr(owner, name, getattr(home, first))
    return {name: one.detach() for name, one in state.items()}


def pour(model: nn.Module, state: dict[str, Tensor], world: World, on_cpu: bool) -> None:
    """Give the parts of ``model``, cut up on the meta device, what rank 0 has in ``state``.

    Ranks: all ranks call it.
    """
    model.to_empty(device="cpu" if on_cpu else world.device)
    if world.is_fake:  # nobody has weights to give
        with torch.no_grad():
            for one in [*model.parameters(), *model.buffers()]:
                one.zero_()
        return
    forgotten = _forgotten_buffers(model)
    saved: dict[str, Any] = {name: one for name, one in state.items() if name not in forgotten}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, saved, options=options)
    with torch.no_grad():
        for name, buffer in forgotten.items():
            buffer.copy_(broadcast(state.get(name, buffer).to(buffer.device), world))


def _forgotten_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Give the buffers that a state dict leaves out."""
    saved = model.state_dict()
    return {name: one for name, one in model.named_buffers() if name not in saved}


def _ties(model: nn.Module) -> list[tuple[tuple[Any, str], tuple[Any, str]]]:
    """Pair each place of a shared parameter with the first: moving devices unties them."""
    first: dict[int, tuple[Any, str]] = {}
    pairs = []
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) in first:
                pairs.append(((module, name), first[id(parameter)]))
            first.setdefault(id(parameter), (module, name))
    return pairs
