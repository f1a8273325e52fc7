"""In what form DDP sends gradients to the other ranks: half the bytes, or a low rank.

Source: torch.distributed.algorithms.ddp_comm_hooks; Vogels et al. 2019, "PowerSGD", algorithms 1
and 2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from notebook_accel.config.fields import choose
from notebook_accel.errors import ConfigError


def compress_gradients(
    model: DistributedDataParallel, hook: str, wrapper: str = "no", options: Any = None
) -> None:
    """Let ``model`` send its gradients to the other ranks in the form ``hook`` of ``wishes.DDP``.

    ``options`` are arguments of the ``PowerSGDState`` of PowerSGD hooks.

    Errors: ConfigError for another word, and for options that it does not take.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    plain = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    low_rank = {
        "power_sgd": powerSGD_hook.powerSGD_hook,
        "batched_power_sgd": send_buckets_as_squares,
    }
    wrappers = {
        "no": lambda send: send,
        "fp16": default_hooks.fp16_compress_wrapper,
        "bf16": default_hooks.bf16_compress_wrapper,
    }
    word = choose(hook, "comm_hook", ("no", *plain, *low_rank))
    wrap: Any = wrappers[choose(wrapper, "comm_wrapper", wrappers)]
    if word == "no":
        return
    state: Any = None
    if word in low_rank:
        state = _power_state(powerSGD_hook.PowerSGDState, dict(options or {}))
    model.register_comm_hook(state, _nameless(wrap({**plain, **low_rank}[word])))


def send_buckets_as_squares(state: Any, bucket: Any) -> Any:
    """Average a bucket of gradients in the form of one low-rank square matrix; a DDP hook.

    It is the batched form of PowerSGD: fewer and larger products than one for each layer, and less
    exact. Torch's own fails at its first compressed step (2.13: an assertion about dimensions).

    Shapes: M is the square, P and Q are its tall factors, of the state's rank or the square's side.
    """
    group: Any = state.process_group or dist.group.WORLD
    flat: Tensor = bucket.buffer()
    index = bucket.index()
    if state.iter < state.start_powerSGD_iter:
        state.maybe_increase_iter(bucket)
        work = dist.all_reduce(flat.div_(group.size()), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])
    side = math.ceil(math.sqrt(flat.numel()))
    M = torch.nn.functional.pad(flat, (0, side * side - flat.numel())).view(side, side)
    if index in state.error_dict:
        M = M + state.error_dict[index]
    Q = state.q_memory_dict.get(index)
    if Q is None or not state.warm_start:
        Q = _random(side, min(side, state.matrix_approximation_rank), state.rng).to(M)
    P = M @ _orthogonal(Q)

    def finish(done: Any) -> Tensor:
        P = _orthogonal(done.value()[0])
        Q = M.t() @ P
        dist.all_reduce(Q, group=group)
        Q = state.q_memory_dict[index] = Q / group.size()
        mean = P @ Q.t()
        if state.use_error_feedback:
            state.error_dict[index] = M - mean
        state.maybe_increase_iter(bucket)
        flat.copy_(mean.view(-1)[: flat.numel()])
        return flat

    return dist.all_reduce(P, group=group, async_op=True).get_future().then(finish)


def _orthogonal(matrix: Tensor) -> Tensor:
    """Give orthogonal columns that span those of ``matrix``; half precision has no such routine."""
    columns: Tensor = torch.linalg.qr(matrix.float()).Q
    return columns.to(matrix.dtype)


def _random(rows: int, columns: int, rng: Any) -> Tensor:
    """Draw a matrix that is the same on all ranks, and takes no global random number."""
    generator = torch.Generator().manual_seed(int(rng.randint(1_000_000_000)))
    return torch.randn(rows, columns, generator=generator)


def _power_state(make: Any, options: dict[str, Any]) -> Any:
    """Make the state of a PowerSGD hook, for all ranks."""
    try:
        return make(process_group=None, **options)
    except (TypeError, ValueError) as reason:
        raise ConfigError(
            f"comm_state_option={options!r} makes no PowerSGDState",
            f"torch says: {str(reason).removesuffix('.')}",
            "give arguments of torch's PowerSGDState, such as matrix_approximation_rank=2, "
            "start_powerSGD_iter=1000",
        ) from reason


def _nameless(send: Any) -> Any:
    """Hide a hook's name: torch refuses bf16 hooks by name where there is no nccl; gloo can."""
    if dist.get_backend() != "gloo":
        return send
    return lambda state, bucket: send(state, bucket)
