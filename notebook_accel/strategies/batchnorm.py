"""Batch statistics of all ranks, also where torch has none: its SyncBatchNorm wants GPUs.

It is written ``nn.SyncBatchNorm.convert_sync_batchnorm(model)``, as everywhere; on CPU ranks
``prepare`` then lets its layers talk over gloo.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from notebook_accel.errors import ConfigError
from notebook_accel.ranks import watch


class CPUSyncBatchNorm(_BatchNorm):
    """A SyncBatchNorm over any collectives, by one sum over the ranks each way.

    Its ranks are those of ``process_group``, or all. Not a subclass: DDP refuses those on the CPU.
    Pickled it is torch's own again: how ranks talk belongs to the run.

    Source: Ioffe and Szegedy 2015, "Batch normalization", algorithm 1, over the whole batch.
    """

    _check_input_dim = nn.SyncBatchNorm._check_input_dim

    def forward(self, input: Tensor) -> Tensor:
        """Normalize by the statistics of all ranks' batches; in evaluation by the running ones.

        Ranks: all ranks call it in training.
        """
        if not (self.training and dist.is_initialized()):
            return super().forward(input)
        dims = [dim for dim in range(input.dim()) if dim != 1]
        wide = input.double()  # the difference of two large sums must not lose the variance
        num = wide.new_tensor([input.numel() / input.shape[1]])
        sums: Tensor = _SumOverRanks.apply(  # type: ignore[no-untyped-call]
            torch.cat([wide.sum(dims), wide.square().sum(dims), num]), self.process_group
        )
        (total, squares), num = sums[:-1].view(2, -1), sums[-1:]
        mean = total / num
        variance = (squares / num - mean.square()).clamp(min=0)
        self._remember(mean.detach(), variance.detach(), num.detach())
        shape = [1, -1] + [1] * (input.dim() - 2)
        scale = (variance + self.eps).rsqrt()
        normal = (wide - mean.view(shape)) * scale.view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        result: Tensor = normal.to(input.dtype)
        return result

    def _remember(self, mean: Tensor, variance: Tensor, num: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        pace = self.momentum
        if pace is None:  # the plain mean of all batches so far
            pace = 1.0 / self.num_batches_tracked.item()
        unbiased = variance * (num / (num - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), pace)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), pace)

    def __reduce__(self) -> Any:  # a group of ranks belongs to the run too
        return object.__new__, (nn.SyncBatchNorm,), {**vars(self), "process_group": None}


class _SumOverRanks(torch.autograd.Function):
    """A sum over the ranks of ``group``, whose gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total = given.clone()
        watch.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.contiguous().clone()
        watch.all_reduce(total, group=ctx.group)
        return total, None


def let_batch_norms_meet(model: nn.Module, device: torch.device, group: Any = None) -> None:
    """Let the SyncBatchNorm layers of ``model`` meet over ``group``, the readers of data; on CPUs.

    None is all ranks. A layer that was made with a group of the person's keeps it.
    """
    for module in model.modules():
        if not isinstance(module, (nn.SyncBatchNorm, CPUSyncBatchNorm)):
            continue
        if module.process_group is None:
            module.process_group = group
        if device.type == "cpu" and type(module) is nn.SyncBatchNorm:
            module.__class__ = CPUSyncBatchNorm  # type: ignore[assignment]


def refuse_to_meet(model: nn.Module) -> None:
    """Refuse SyncBatchNorm layers that train in stages.

    Errors: ConfigError.
    """
    for name, one in model.named_modules():
        if one.training and isinstance(one, (nn.SyncBatchNorm, CPUSyncBatchNorm)):
            raise ConfigError(
                f"{name or type(model).__name__} is a SyncBatchNorm, under Pipeline()",
                "its ranks would be all ranks, and each computes another stage; batch statistics "
                "are those of a micro-batch there",
                "leave out nn.SyncBatchNorm.convert_sync_batchnorm(model): plain batch norms keep "
                "the first copy's running statistics; or use strategy=FSDP()",
            )
