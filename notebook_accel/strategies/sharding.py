"""FSDP2 by hand: functions of a model and a mesh, for the engine and for a cell.

``shard`` cuts a model up; ``follow`` lets an optimizer that was made before have the new
parameters; ``total_norm`` and ``forget_pending`` are about gradients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.optim import Optimizer

from notebook_accel.errors import ConfigError
from notebook_accel.ranks.collectives import all_objects, bytes_of
from notebook_accel.ranks.shards import is_sharded, part_like, whole
from notebook_accel.ranks.world import World
from notebook_accel.strategies.again import again
from notebook_accel.strategies.blocks import parts_of
from notebook_accel.strategies.ddp import share_state

# The parameters a model had before -> those it has now. The old ones are kept, empty, so that
# nobody else gets their id.
Moved = dict[int, tuple[Tensor, Tensor]]

META = b"meta"
_RECOMPUTED = "_checkpoint_wrapped_module."  # what ``recompute`` puts into names


def start_alike(model: nn.Module, world: World) -> None:
    """Let every rank's ``model`` begin with rank 0's state; rank 0 says so where it differed.

    Ranks: all ranks call it.
    Errors: ConfigError where the models are not of one build.
    """
    builds = all_objects(fingerprint(model), world)
    odd = next((rank for rank, (names, _) in enumerate(builds) if names != builds[0][0]), None)
    if odd is not None:
        raise ConfigError(
            f"the models of rank 0 and rank {odd} have different parameters",
            "names, shapes and dtypes must be alike before the ranks can share one model",
            "build the same model on every rank",
        )
    if all(values == builds[0][1] for _, values in builds):
        return
    share_state(model, world)
    if world.rank == 0:
        print(
            "note: the ranks built models of different weights; all start from rank 0's "
            "(set_seed(...) before the model makes them alike)"
        )


def fingerprint(model: nn.Module) -> tuple[bytes, bytes]:
    """Digest what the parameters and buffers are called and shaped, and what they hold."""
    names, values = hashlib.blake2b(), hashlib.blake2b()
    state = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in state:
        names.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if not tensor.is_meta and tensor.numel():
            values.update(bytes_of(tensor))
    on_meta = any(tensor.is_meta for _, tensor in state)
    return names.digest(), META if on_meta else values.digest()


def shard(
    model: nn.Module,
    mesh: DeviceMesh,
    blocks: Sequence[nn.Module] = (),
    *,
    reshard_after_forward: bool = True,
    numbers: MixedPrecisionPolicy | None = None,
    offload: OffloadPolicy | None = None,
    ignored: Iterable[Tensor] = (),
) -> None:
    """Cut ``model`` up over ``mesh``, each of ``blocks`` (inner ones first) by itself.

    The last dimension of ``mesh`` shards; one before it holds copies.

    Ranks: all ranks of ``mesh`` call it, with models of equal weights.
    Source: torch.distributed.fsdp.fully_shard.
    """
    settings: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": numbers or MixedPrecisionPolicy(),
        "offload_policy": offload or OffloadPolicy(),
    }
    whole = set(ignored)
    if whole:
        settings["ignored_params"] = whole
    for block in blocks:
        fully_shard(block, reshard_after_forward=reshard_after_forward, **settings)
    # The outermost part is needed again at once by its backward: torch keeps it whole.
    outer = None if reshard_after_forward else False
    fully_shard(model, reshard_after_forward=outer, **settings)


@contextmanager
def tracked(model: nn.Module) -> Iterator[Moved]:
    """Note where each parameter of ``model`` goes inside the block, by whatever ways."""
    before = dict(model.named_parameters(remove_duplicate=False))
    moved: Moved = {}
    yield moved
    for name, new in model.named_parameters(remove_duplicate=False):
        was = before[name.replace(_RECOMPUTED, "")]
        if was is not new:
            moved[id(was)] = (was, new)
    for emptied, _ in moved.values():
        emptied.data = emptied.data.new_empty(0)  # whoever still holds it shall not hold its memory


def recompute(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Let ``blocks`` (or else all parts of ``model``) compute their forward again for the backward.

    Gives the blocks as they are now.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointWrapper,
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )

    def wrapped(block: nn.Module) -> nn.Module:
        made: nn.Module = checkpoint_wrapper(block, checkpoint_fn=_again)
        return made

    chosen = set(map(id, blocks or parts_of(model)))
    apply_activation_checkpointing(model, wrapped, check_fn=lambda module: id(module) in chosen)
    wrappers = [one for one in model.modules() if isinstance(one, CheckpointWrapper)]
    return [*reversed(wrappers)]


def _again(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return again(block, block, *args, **kwargs)


def follow(optimizer: Optimizer, moved: Moved) -> None:
    """Let ``optimizer`` train the parameters that came in place of those it was made with."""
    for group in optimizer.param_groups:
        group["params"] = [now(one, moved) for one in group["params"]]
    for old in [one for one in optimizer.state if id(one) in moved]:
        new = now(old, moved)
        optimizer.state[new] = {
            name: part_like(value, new)
            if isinstance(value, Tensor) and value.shape == new.shape
            else value
            for name, value in optimizer.state.pop(old).items()
        }


def now(parameter: Tensor, moved: Moved) -> Tensor:
    """Give the parameter that came in place of ``parameter``, or that itself."""
    return moved[id(parameter)][1] if id(parameter) in moved else parameter


def total_norm(parameters: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """Measure the norm of all gradients together, sharded ones and others.

    Ranks: all ranks call it.
    """
    norm = partial(torch.nn.utils.get_total_norm, norm_type=norm_type)
    norms = [
        whole(norm([one.grad for one in group if one.grad is not None]))
        for group in by_mesh(parameters)
    ]
    return norms[0] if len(norms) == 1 else norm(norms)


def by_mesh(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group parameters that have gradients by the ranks these lie on."""
    groups: dict[Any, list[Tensor]] = {}
    for one in parameters:
        if one.grad is not None:
            mesh = one.grad.device_mesh if is_sharded(one.grad) else None  # type: ignore[attr-defined]
            groups.setdefault(mesh, []).append(one)
    return list(groups.values())


def clip_to(parameters: Iterable[Tensor], max_norm: float, norm: Tensor) -> None:
    """Scale gradients whose norm is ``norm`` so that it is at most ``max_norm``."""
    for group in by_mesh(parameters):
        torch.nn.utils.clip_grads_with_norm_(group, max_norm, norm)


def forget_pending(model: nn.Module) -> None:
    """Drop the gradients that micro-batches of an open window have left, not yet averaged.

    torch has no name for this: they lie in the parts' own parameters.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            for one in [] if group is None else group.fsdp_params:
                one.unsharded_accumulated_grad = None
                if hasattr(one, "_unsharded_param"):
                    one._unsharded_param.grad = None
