"""What DeepSpeed's ZeRO has in pieces on each rank: gradients, parameters and optimizer states.

Free functions of a DeepSpeed engine, for ours and for a cell. Pieces are made whole one tensor at a
time, by DeepSpeed's own functions, and cut up again by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from notebook_accel.ranks import watch

Engine = Any  # deepspeed.DeepSpeedEngine: a package that may not be there


@dataclass(frozen=True)
class Held:
    """A model in DeepSpeed's hands: its engine, and the optimizer whose numbers count.

    ``given`` is the optimizer that was prepared, ``groups`` are the parameters that it had. Nobody
    trains a model without one; in stage 3 it is in shards all the same.
    """

    engine: Engine
    stage: int
    optimizer: Optimizer | None
    given: Optimizer | None
    groups: tuple[tuple[Any, ...], ...]
    dtypes: dict[str, torch.dtype]


# ── gradients ─────────────────────────────────────────────────────────────────────────────────


def close_window(engine: Engine) -> None:
    """Average what backward passes have added, so that it is what the next step takes.

    Ranks: all ranks call it, once an update.
    """
    engine._running_engine_step = True  # DeepSpeed's name for: this is where a window ends
    if engine.zero_optimization_partition_gradients():
        engine.optimizer.finalize_gradient_accumulation_boundary()
    else:
        engine.allreduce_gradients()


def update(engine: Engine) -> bool:
    """Step after ``close_window``; tell whether parameters changed (an overflow keeps them).

    Ranks: all ranks call it.
    """
    engine._take_model_step({})
    engine._running_engine_step = False
    return not engine.optimizer.overflow


def forget_gradients(engine: Engine) -> None:
    """Drop what backward passes have added since the last step."""
    zero = engine.optimizer
    zero.zero_grad(set_to_none=True)
    if hasattr(zero, "all_grad_tensors"):  # stages 1 and 2
        for kept in (zero.averaged_gradients, zero.all_grad_tensors):
            for key in kept:
                kept[key] = None
        zero._release_preflattened_grad_buffers()
        zero.micro_step_id = -1
        if zero.cpu_offload:
            zero._offload_accumulated_param_ids = set()
            zero.reset_cpu_buffers()
    elif hasattr(zero, "fp16_groups"):  # stage 3
        zero.micro_step_id = 0
        zero._offload_boundary_param_ids = set()
        zero._epilogue_ran_this_backward = False
    engine._running_engine_step = False


def gradients(engine: Engine, parameters: Iterable[Tensor] | None = None) -> list[Tensor]:
    """Give this rank's pieces of the averaged gradients, to be read and changed in place.

    They carry the loss scale. With ``parameters`` it is theirs alone.
    """
    wanted = None if parameters is None else set(map(id, parameters))
    return [
        piece
        for one in trained(engine)
        if wanted is None or id(one) in wanted
        for piece in _gradient(engine.optimizer, one)
    ]


def total_norm(engine: Engine, pieces: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:
    """Measure the norm of gradients of which each rank has ``pieces``, without the loss scale.

    Ranks: all ranks call it.
    """
    device = torch.device(engine.device)
    norms = [torch.linalg.vector_norm(one.float(), norm_type).to(device) for one in pieces]
    own = torch.stack(norms) if norms else torch.zeros(1, device=device)
    if norm_type == float("inf"):
        total = own.max()
        watch.all_reduce(total, torch.distributed.ReduceOp.MAX)
    else:
        total = own.pow(norm_type).sum()
        if not _holds_all(engine.optimizer):
            watch.all_reduce(total)
        total = total.pow(1 / norm_type)
    return total / scale(engine)


def scale(engine: Engine) -> float:
    """Give by what losses are multiplied: 1 but in fp16."""
    found = getattr(engine.optimizer, "loss_scale", 1.0)
    return float(found)


def _gradient(zero: Any, parameter: Any) -> Iterator[Tensor]:
    if hasattr(parameter, "ds_id"):
        piece, _ = zero._get_fp32_grad_state_partition(parameter, release_swap_buffers=True)
        yield piece
    elif _holds_all(zero):
        if parameter._hp_grad is not None:
            yield parameter._hp_grad
    elif parameter._hp_mapping is not None:
        found = parameter._hp_mapping
        if zero.cpu_offload:
            flat = zero.single_partition_of_fp32_groups[found.param_group_index].grad
            where = found.get_hp_fragment_address()
            yield flat.view(-1).narrow(0, where.start, where.numel)
        else:
            yield found.get_lp_grad_fragment(parameter._index_in_param_group)


def _holds_all(zero: Any) -> bool:
    """Whether each rank has whole gradients: in bf16 of stage 1."""
    return hasattr(zero, "fp32_groups_gradients")


# ── models ────────────────────────────────────────────────────────────────────────────────────


def trained(engine: Engine) -> list[Any]:
    """List the parameters that the engine's optimizer trains."""
    zero = engine.optimizer
    groups = getattr(zero, "bf16_groups", None) or getattr(zero, "bit16_groups", None)
    return [one for group in groups or getattr(zero, "fp16_groups", []) for one in group]


def numel(parameter: Any) -> int:
    """Count the elements of the whole of ``parameter``."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def whole_tensor(parameter: Any) -> Tensor:
    """Give the whole of a parameter, in float32 where there is such a copy; buffers are whole.

    Ranks: all ranks call it.
    """
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters
    from deepspeed.utils import safe_get_full_fp32_param

    has_copy = parameter.requires_grad and (
        hasattr(parameter, "_z3_optimizer") or hasattr(parameter, "_hp_mapping")
    )
    if has_copy:
        found: Tensor = safe_get_full_fp32_param(parameter).detach()
        return found
    with GatheredParameters([parameter]):
        return torch.clone(parameter.detach())


def model_state(model: nn.Module, dtypes: Mapping[str, torch.dtype], keep: bool) -> dict[str, Any]:
    """Give the whole state of a model on the CPU, in the numbers that ``dtypes`` names.

    Where ``keep`` is false it is empty: this rank only helps the others.

    Ranks: all ranks call it.
    """
    state: dict[str, Any] = {}
    done: dict[int, Any] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            state[name] = tensor
            continue
        if id(tensor) not in done:
            value = whole_tensor(tensor)
            value = value.to(dtypes.get(name, value.dtype))
            done[id(tensor)] = value.to("cpu", copy=True) if keep else None
        state[name] = done[id(tensor)]
    return state if keep else {}


def load_model(engine: Engine, state: Mapping[str, Any], strict: bool) -> Any:
    """Load the whole state of the plain module; each rank keeps its pieces.

    Ranks: all ranks call it, with the same state.
    """
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    model: nn.Module = engine.module
    names: dict[int, list[str]] = {}
    for name, one in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(one), []).append(name)
    given = dict(state)
    for alike in names.values():  # tied ones need only be there once
        for present in [name for name in alike if name in given][:1]:
            given.update({name: given[present] for name in alike if name not in given})
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []

    def load(module: nn.Module, prefix: str) -> None:
        own = list(module.parameters(recurse=False))
        with GatheredParameters(own, modifier_rank=0):
            module._load_from_state_dict(given, prefix, {}, True, missing, unexpected, errors)
        for name, child in module._modules.items():
            if child is not None:
                load(child, f"{prefix}{name}.")

    load(model, "")
    if errors or (strict and (missing or unexpected)):
        lines = [*errors, *(f"Missing key: {one}." for one in missing)]
        raise RuntimeError(" ".join([*lines, *(f"Unexpected key: {one}." for one in unexpected)]))
    trains = set(map(id, trained(engine)))
    for key, alike in names.items():
        if key in trains and alike[0] in given:
            parameter = model.get_parameter(alike[0])
            _keep_piece(engine, parameter, given[alike[0]])
    return nn.modules.module._IncompatibleKeys(missing, unexpected)


# ── optimizers ────────────────────────────────────────────────────────────────────────────────


def flats(engine: Engine) -> list[tuple[Tensor, list[Any], int]]:
    """List this rank's flat float32 pieces, the parameters in each, and its optimizer's group."""
    zero = engine.optimizer
    if hasattr(zero, "fp16_groups"):  # stage 3 divides groups further
        found = zero.fp32_partitioned_groups_flat
        of = zero.sub_group_to_group_id
        return [(one, zero.fp16_groups[i], of[i]) for i, one in enumerate(found)]
    flat = getattr(zero, "fp32_groups_flat_partition", None)
    flat = zero.single_partition_of_fp32_groups if flat is None else flat
    groups = getattr(zero, "bf16_groups", None) or zero.bit16_groups
    return [(one, groups[i], i) for i, one in enumerate(flat)]


def optimizer_state(
    engine: Engine, inner: Optimizer, groups: Sequence[Sequence[Any]], keep: bool
) -> dict[str, Any]:
    """Give the whole state of an optimizer in torch's form; ``groups`` are its parameters.

    Where ``keep`` is false tensors are empty: this rank only helps the others.

    Ranks: all ranks call it.
    """
    from deepspeed.utils import safe_get_full_optimizer_state

    if inner.state:
        _link(engine)
    state: dict[int, Any] = {}
    number = {id(one): i for i, one in enumerate(one for group in groups for one in group)}
    for flat, members, _ in flats(engine):
        fields = inner.state.get(flat, {})
        for one in members:
            entry = state.setdefault(number[id(one)], {}) if fields else {}
            for name, value in fields.items():
                if isinstance(value, Tensor) and value.shape == flat.shape:
                    full = safe_get_full_optimizer_state(one, name)
                    value = full.to("cpu", copy=True) if keep else torch.empty(0)
                entry[name] = value.clone() if isinstance(value, Tensor) else value
    numbered = [[number[id(one)] for one in group] for group in groups]
    return {
        "state": dict(sorted(state.items())),
        "param_groups": [
            {**{k: v for k, v in group.items() if k != "params"}, "params": numbers}
            for group, numbers in zip(inner.param_groups, numbered, strict=True)
        ],
    }


def load_optimizer_state(
    engine: Engine, inner: Optimizer, groups: Sequence[Sequence[Any]], tree: Mapping[str, Any]
) -> None:
    """Load what ``optimizer_state`` gave, or torch's own; each rank keeps its pieces.

    Ranks: all ranks call it, with the same state.
    """
    number = {id(one): i for i, one in enumerate(one for group in groups for one in group)}
    for group, saved in zip(inner.param_groups, tree["param_groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})
    entries = tree["state"]
    for flat, members, _ in flats(engine):
        fields: dict[str, Any] = {}
        for one in members:
            for name, value in entries.get(number[id(one)], {}).items():
                fields[name] = torch.zeros_like(flat) if _is_like(one, name, value) else value
        if fields:
            inner.state[flat] = fields
    if not inner.state:  # saved before the first step
        return
    _link(engine)
    for _, members, _ in flats(engine):
        for one in members:
            for name, value in entries.get(number[id(one)], {}).items():
                if _is_like(one, name, value):
                    _keep_piece(engine, one, value, name)


def _keep_piece(engine: Engine, parameter: Any, whole: Tensor, field: str | None = None) -> None:
    """Keep this rank's piece of the float32 copy of ``parameter``, or of a ``field`` of its state.

    Stage 3 pads pieces to one size, which DeepSpeed's function for whole tensors forgets.
    """
    value = whole.detach().float().to(engine.device)
    if not hasattr(parameter, "ds_id"):
        parameter.set_full_hp_param(value, field)
        return
    size = parameter.ds_tensor.numel()
    start = size * engine.optimizer._get_param_partition_rank(parameter)
    piece = torch.zeros(size, device=value.device)
    held = value.flatten()[start : start + size]
    piece[: held.numel()] = held
    engine.optimizer.set_local_hp_param(piece, parameter, field)


def _is_like(parameter: Any, name: str, value: Any) -> bool:
    """Whether a field of an optimizer's state has an element for each of ``parameter``."""
    shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
    return isinstance(value, Tensor) and tuple(value.shape) == shape and name != "step"


def _link(engine: Engine) -> None:
    """Let parameters find their states: DeepSpeed does it when the first group has some."""
    zero = engine.optimizer
    if hasattr(zero, "_lazy_init_hp_params_optimizer_state"):
        zero._hp_optimizer_states_linked = False
        zero._lazy_init_hp_params_optimizer_state()
