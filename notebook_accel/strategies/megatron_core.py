"""Models that a person has made of megatron-core's divided layers, trained as they are.

    accelerator = Accelerator(strategy=Megatron(tp_degree=2, layers="core"))   # makes the groups
    model = Net()   # of megatron.core.tensor_parallel's layers, which ask these groups
    model, optimizer = accelerator.prepare(model, optimizer)

The layers compute; what is here is around them: gradients averaged over readers of data, one norm
of all parts, whole states that every other strategy loads.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from notebook_accel.config.megatron import Megatron
from notebook_accel.config.wishes import DDP
from notebook_accel.errors import ConfigError
from notebook_accel.ranks import watch
from notebook_accel.ranks.collectives import map_tensors
from notebook_accel.ranks.world import World
from notebook_accel.strategies.base import Layout, parameters_of
from notebook_accel.strategies.ddp import DDPEngine
from notebook_accel.strategies.precision import Precision


class CoreEngine(DDPEngine):
    """Data parallelism around layers that megatron-core divides over ``tp_degree`` ranks."""

    shares_states = True
    overflows_apart = True

    def __init__(self, wish: Megatron, world: World, precision: Precision) -> None:
        super().__init__(DDP(), world, precision)
        size = wish.tp_degree
        self._group, data = groups(size, world)
        self._arguments["process_group"] = data
        readers = tuple(rank // size for rank in range(world.size))
        self.layout = Layout(
            readers[world.rank],
            world.size // size,
            readers=readers,
            tensor_rank=world.rank % size,
        )

    def place(self, model: nn.Module, device_placement: bool = True) -> nn.Module:
        """Start what every rank has whole from the first rank's, and average gradients.

        Errors: ConfigError for a model without divided layers.
        """
        if not any(map(is_part, model.parameters())):
            raise ConfigError(
                f'{type(model).__name__} under Megatron(layers="core") has no layer of '
                "megatron-core's",
                "that engine divides nothing by itself: every rank would compute all of the model",
                'leave layers="core" out, and torch divides the layers; or make the model of '
                "ColumnParallelLinear, RowParallelLinear, ... after the Accelerator",
            )
        first = dist.get_global_rank(self._group, 0)
        with torch.no_grad():
            for one in [*model.parameters(), *model.buffers()]:
                if not is_part(one):
                    sent = one.detach().to(self.world.device).contiguous()
                    watch.broadcast(sent, first, group=self._group)
                    one.copy_(sent)
        return super().place(model, device_placement)

    def describe(self, model: nn.Module) -> str:
        """Say what became of ``model``."""
        num = dist.get_world_size(self._group)
        return f"layers divided over {num} ranks by megatron-core; {super().describe(model)}"

    # ── gradients ─────────────────────────────────────────────────────────────────────────────

    def has_whole_gradients(self, parameters: Sequence[Tensor]) -> bool:
        """Of divided layers this rank has a part: no."""
        return False

    def grad_norm(self, parameters: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
        """Measure the norm of all gradients together, each part once.

        Ranks: all ranks call it.
        """
        listed = list(parameters)
        parts = super().grad_norm([one for one in listed if is_part(one)], norm_type)
        rest = super().grad_norm([one for one in listed if not is_part(one)], norm_type)
        parts = parts.to(self.world.device)
        every = [torch.zeros_like(parts) for _ in range(dist.get_world_size(self._group))]
        watch.all_gather(every, parts, group=self._group)
        return torch.nn.utils.get_total_norm([*every, rest.to(parts.device)], norm_type)

    def clip_grad_norm(
        self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0
    ) -> Tensor:
        """Scale gradients so that their norm is at most ``max_norm``; give the norm before.

        Ranks: all ranks call it.
        """
        listed = [one for one in parameters if one.grad is not None]
        norm = self.grad_norm(listed, norm_type)
        torch.nn.utils.clip_grads_with_norm_(listed, max_norm, norm)
        return norm

    # ── states ────────────────────────────────────────────────────────────────────────────────

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Give the model's whole state on the first rank of each machine, nothing on others.

        Ranks: all ranks call it.
        """
        state = self.unwrap(model).state_dict(keep_vars=True)
        whole = {
            name: joined(one.detach(), one, self._group)
            for name, one in state.items()
            if isinstance(one, Tensor)  # megatron-core's layers add places for fp8, which are empty
        }
        return whole if self._keeps else {}

    def load_into(self, model: nn.Module, state: dict[str, Any], strict: bool) -> Any:
        """Load a whole state; each rank takes its parts of it.

        Ranks: all ranks call it.
        """
        own = self.unwrap(model).state_dict(keep_vars=True)
        cut = {
            name: own_part(one, own[name], self._group) if name in own else one
            for name, one in state.items()
        }
        empty = {name: one for name, one in own.items() if not isinstance(one, Tensor)}
        return super().load_into(model, {**empty, **cut}, strict)

    def kept_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Give the optimizer's whole state.

        Ranks: all ranks call it.
        """
        state, listed = optimizer.state_dict(), parameters_of(optimizer)
        whole = {
            index: map_tensors(partial(_joined_as, listed[index], self._group), entry)
            for index, entry in sorted(state["state"].items())
        }
        return {**state, "state": whole}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load a whole state; each rank takes its parts of it."""
        listed = parameters_of(optimizer)
        cut = {
            index: map_tensors(partial(_own_part_of, listed[index], self._group), entry)
            for index, entry in state["state"].items()
        }
        super().load_optimizer_state(optimizer, {**state, "state": cut})


def groups(size: int, world: World) -> tuple[Any, Any]:
    """Let megatron-core know its ranks; gives those of a layer, and the readers of data.

    Ranks: all ranks call it.
    Errors: ConfigError where somebody has let it know others.
    """
    if world.device.type == "cpu":  # where those would not run either
        warnings.filterwarnings("ignore", "(Transformer Engine and )?Apex (is|are) not installed")
    from megatron.core import parallel_state

    if not parallel_state.is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
        world.wait()  # a rank that ended now would break connections that others still make
    there = parallel_state.get_tensor_model_parallel_world_size()
    if there != size:
        raise ConfigError(
            f"Megatron(tp_degree={size}), but megatron-core was told of {there} ranks",
            "its layers ask the groups that were made first",
            f"write tp_degree={there}, or launch again",
        )
    return (
        parallel_state.get_tensor_model_parallel_group(),
        parallel_state.get_data_parallel_group(),
    )


def is_part(tensor: Tensor) -> bool:
    """Whether megatron-core has marked ``tensor`` as one rank's part of a parameter."""
    return bool(getattr(tensor, "tensor_model_parallel", False))


def joined(tensor: Tensor, parameter: Tensor, group: Any) -> Tensor:
    """Put together every rank's part of ``tensor``, which is cut as ``parameter`` is.

    Ranks: all ranks of ``group`` call it.
    """
    if not is_part(parameter) or tensor.shape != parameter.shape:
        return tensor.cpu()
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    watch.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat([one.cpu() for one in parts], dim=parameter.partition_dim)  # type: ignore[attr-defined]


def own_part(full: Any, parameter: Any, group: Any) -> Any:
    """Cut this rank's part out of ``full``; what is no whole of ``parameter`` stays as it is."""
    if not isinstance(full, Tensor) or not isinstance(parameter, Tensor) or not is_part(parameter):
        return full
    size, dim = dist.get_world_size(group), parameter.partition_dim  # type: ignore[attr-defined]
    shape = list(parameter.shape)
    shape[dim] *= size
    return full.chunk(size, dim)[dist.get_rank(group)] if [*full.shape] == shape else full


def _joined_as(parameter: Tensor, group: Any, tensor: Tensor) -> Tensor:
    return joined(tensor, parameter, group)


def _own_part_of(parameter: Tensor, group: Any, full: Tensor) -> Any:
    return own_part(full, parameter, group)
