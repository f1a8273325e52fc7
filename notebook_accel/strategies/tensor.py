"""Layers divided over neighboring ranks, which compute one batch together."""

from __future__ import annotations

import difflib
import fnmatch
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.optim import Optimizer

from notebook_accel.config.wishes import TensorParallel
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.world import World
from notebook_accel.strategies.base import Layout, Parts
from notebook_accel.strategies.fsdp import FSDPEngine
from notebook_accel.strategies.layout import data_axes, mesh_of, num_readers, uneven_heads
from notebook_accel.strategies.precision import Precision

if TYPE_CHECKING:
    from notebook_accel.strategies.inside import Divided

STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "sequence_parallel": SequenceParallel,
}
_DIVIDED = {ColwiseParallel: 0, RowwiseParallel: 1}  # dimension of a linear layer's weight


class TensorEngine(FSDPEngine):
    """Tensor parallelism by torch's ``parallelize_module``, with FSDP among the readers of data."""

    overflows_apart = True

    def __init__(self, wish: TensorParallel, world: World, precision: Precision) -> None:
        # torch warns, at each pass, of views that nobody changes in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
        self._tensor = wish
        super().__init__(wish.data, world, precision)
        readers = tuple(rank // wish.size for rank in range(world.size))
        self.layout = Layout(
            readers[world.rank],
            num_readers(self._whole_mesh),
            readers=readers,
            shard_rank=self._mesh.get_local_rank("dp_shard"),
            tensor_rank=world.rank % wish.size,
        )

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of ranks, those that compute layers together innermost."""
        return self._whole_mesh

    def _lay_out(self) -> DeviceMesh:
        copies = self._tensor.data.num_copies(self.world.placement)
        self._whole_mesh = mesh_of(self.world, copies, self._tensor.size)
        return data_axes(self._whole_mesh)

    def _divide_layers(self, model: nn.Module) -> None:
        plan = plan_of(model, self._tensor.plan)
        divide(model, self._whole_mesh["tp"], plan)

    def _cuts_parameters(self) -> bool:
        """Whether FSDP has anything to do: for one reader of data it would copy for nobody."""
        data = self._tensor.data
        casts = self.precision.name != "no" or data.param_dtype or data.output_dtype
        loads = data.cpu_offload or data.cpu_ram_efficient_loading
        return self._mesh.size() > 1 or bool(casts or loads)

    def wrap(self, parts: Parts, device_placement: bool = True) -> Parts:
        """Divide and cut models up, and let optimizers train what is left on each rank.

        Ranks: all ranks call it with the same parts; models start as rank 0 has them.
        """
        if not self._cuts_parameters():
            for optimizer in parts.optimizers:
                step_one_by_one(optimizer)
        return super().wrap(parts, device_placement)

    def describe(self, model: nn.Module) -> str:
        """Say what became of ``model``."""
        divided = f"layers divided over {self._tensor.size} ranks"
        return f"{divided}; {super().describe(model)}" if self._cuts_parameters() else divided


def step_one_by_one(optimizer: Optimizer) -> None:
    """Let ``optimizer`` take divided parameters and whole ones: in one call torch mixes none."""
    for settings in (optimizer.defaults, *optimizer.param_groups):
        for name in ("foreach", "fused"):
            if settings.get(name):
                settings[name] = False


def plan_of(model: nn.Module, given: Mapping[str, Any] | None) -> dict[str, ParallelStyle]:
    """Give each module that is divided its style, from patterns or from the model's own plan.

    Errors: ConfigError without any plan, for a pattern that names nothing, and an unknown style.
    """
    patterns = given or getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    names = [name for name, one in model.named_modules() if one is not model]
    if not patterns:
        linear = [name for name, one in model.named_modules() if isinstance(one, nn.Linear)]
        raise ConfigError(
            f"TensorParallel() has no plan for {type(model).__name__}",
            "it was given none, and the model has no tp_plan of its own",
            f"pass a plan for pairs of layers that follow each other, like {_example(linear)} (or "
            f"set model.tp_plan); its linear layers are: {', '.join(linear) or 'none'}",
        )
    plan: dict[str, ParallelStyle] = {}
    for pattern, style in patterns.items():
        found = [name for name in names if _fits(name, pattern)]
        if not found and given:
            like = [_any_number(name) for name in names] if "*" in pattern else names
            near = difflib.get_close_matches(pattern, like, n=1)
            raise ConfigError(
                f"the tensor parallel plan names {pattern!r}, which is not in "
                f"{type(model).__name__}",
                "it is the name of a module, with * for one part of it",
                f"write {near[0]!r}" if near else "look at dict(model.named_modules())",
            )
        plan.update({name: _style(style, pattern) for name in found})
    return plan


def divide(model: nn.Module, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle]) -> None:
    """Cut the layers of ``plan`` up over ``mesh``.

    Ranks: all ranks of ``mesh`` call it, with models of equal weights.
    Errors: ConfigError for a layer that cannot be divided, or not evenly.
    Source: torch.distributed.tensor.parallel.parallelize_module.
    """
    _check_heads(model, mesh.size())
    for name, style in plan.items():
        _check_kind(name, model.get_submodule(name), style)
        _check_even(name, model.get_submodule(name), style, mesh.size())
    parallelize_module(model, mesh, dict(plan))


def divided_layers(model: nn.Module, wish: TensorParallel, mesh: DeviceMesh) -> list[Divided]:
    """Say how the layers of a model in stages are divided over ``mesh``.

    Errors: ConfigError for what cannot be divided, or not evenly.
    """
    from notebook_accel.strategies import inside

    _check_heads(model, mesh.size())
    ranks = inside.Ranks(mesh.get_group().group_name, mesh.size(), mesh.get_local_rank())
    found = []
    for name, style in plan_of(model, wish.plan).items():
        layer = model.get_submodule(name)
        _check_even(name, layer, style, mesh.size())
        found.append(inside.divided(name, layer, style, ranks))
    return found


def _example(linear: Sequence[str]) -> str:
    first, second = (*linear, "blocks.*.up", "blocks.*.down")[:2]
    return f"plan={{{first!r}: 'colwise', {second!r}: 'rowwise'}}"


def _fits(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _any_number(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _style(style: Any, pattern: str) -> ParallelStyle:
    if isinstance(style, ParallelStyle):
        return style
    if style not in STYLES:
        raise ConfigError(
            f"the tensor parallel plan says {style!r} for {pattern!r}",
            f"a layer can be divided: {', '.join(STYLES)}",
            "write one of these, or a ParallelStyle of torch.distributed.tensor.parallel",
        )
    made: ParallelStyle = STYLES[style]()
    return made


def _check_kind(name: str, module: nn.Module, style: ParallelStyle) -> None:
    if type(style) not in _DIVIDED or isinstance(module, (nn.Linear, nn.Embedding)):
        return
    inner = [one for one, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    raise ConfigError(
        f"the tensor parallel plan divides {name}, a {type(module).__name__}",
        "linear layers and embeddings have rows and columns to divide by; what else a module like "
        "an adapter computes would not fit parts of them",
        f"name in plan= {name}.{inner[0]} and what fits it, or leave {name} out"
        if inner
        else f"leave {name} out of the plan",
    )


def _check_even(name: str, module: nn.Module, style: ParallelStyle, size: int) -> None:
    dim = _DIVIDED.get(type(style))
    weight = getattr(module, "weight", None)
    if dim is None or weight is None or weight.dim() != 2 or weight.shape[dim] % size == 0:
        return
    raise ConfigError(
        f"{name} has a weight of shape {tuple(weight.shape)}, to be divided over {size} ranks",
        f"{weight.shape[dim]} is not divisible by {size}",
        f"choose a tensor parallel size that divides {weight.shape[dim]}, or leave {name} out",
    )


def _check_heads(model: nn.Module, size: int) -> None:
    config = getattr(model, "config", None)
    for name in ("num_attention_heads", "num_key_value_heads"):
        num = getattr(config, name, None)
        if isinstance(num, int) and num % size:
            raise uneven_heads(f"{type(model).__name__} has {name}={num}", num, size, "tensor")
