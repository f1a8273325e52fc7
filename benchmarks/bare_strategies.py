"""The strategies of ``strategies.py`` in bare torch and bare DeepSpeed code, and their models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

BATCH_SIZE = 64
Step = Callable[[], None]
loss_of = nn.functional.mse_loss


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).tanh())


class Net(nn.Module):
    tp_plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}  # noqa: RUF012

    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.enter = nn.Linear(16, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.leave = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


class Attention(nn.Module):
    """A block of attention; how it attends is the caller's, as sequences may be in parts."""

    def __init__(self, width: int, num_heads: int, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.num_heads, self.attend = num_heads, attend
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BTC: Tensor) -> Tensor:
        q, k, v = (
            one.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for one in self.qkv(self.norm(x_BTC)).chunk(3, -1)
        )
        return x_BTC + self.out(self.attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Reader(nn.Module):
    """Attends to sequences, and knows nothing of places."""

    def __init__(self, attend: Callable[..., Tensor], width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.enter = nn.Linear(16, width)
        self.blocks = nn.ModuleList(
            layer for _ in range(depth) for layer in (Attention(width, 4, attend), Block(width))
        )
        self.leave = nn.Linear(width, 1)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = self.enter(x_BTC)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return self.leave(x_BTC)


def attends(*args: Any, **kwargs: Any) -> Tensor:
    """Attend by torch's function, looked up at each call."""
    return nn.functional.scaled_dot_product_attention(*args, **kwargs)


def reader_and_batch(attend: Callable[..., Tensor]) -> tuple[Reader, Tensor, Tensor]:
    torch.manual_seed(0)
    return Reader(attend), torch.randn(4, 128, 16), torch.randn(4, 128, 1)


def model_and_batch(rows: int = BATCH_SIZE) -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(0)
    return Net(), torch.randn(rows, 16), torch.randn(rows, 1)


def plain_step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

    return step


# ── bare code ─────────────────────────────────────────────────────────────────────────────────


def bare_ddp() -> Step:
    from torch.nn.parallel import DistributedDataParallel

    model, x, y = model_and_batch()
    wrapped = DistributedDataParallel(model)
    return plain_step(wrapped, torch.optim.AdamW(wrapped.parameters()), x, y)


def bare_fsdp(mesh: Any = None, model: Net | None = None) -> Step:
    from torch.distributed.fsdp import fully_shard

    fresh, x, y = model_and_batch()
    model = model or fresh
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return plain_step(model, torch.optim.AdamW(model.parameters()), x, y)


def bare_hsdp() -> Step:
    from torch.distributed.device_mesh import init_device_mesh

    sizes = (2, dist.get_world_size() // 2)
    return bare_fsdp(init_device_mesh("cpu", sizes, mesh_dim_names=("copies", "parts")))


def divided(model: Net, mesh: Any) -> Net:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


def bare_tensor() -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    model, x, y = model_and_batch()
    divided(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    groups: list[list[Tensor]] = [[], []]  # one call for all takes no mixture
    for one in model.parameters():
        groups[isinstance(one, DTensor)].append(one)
    optimizer = torch.optim.AdamW([{"params": group} for group in groups])
    return plain_step(model, optimizer, x, y)


def bare_tensor_and_fsdp() -> Step:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    return bare_fsdp(mesh["dp"], divided(model_and_batch()[0], mesh["tp"]))


def bare_pipeline() -> Step:
    from torch.distributed.pipelining import Schedule1F1B, SplitPoint, pipeline

    model, x, y = model_and_batch()
    rank, size = dist.get_rank(), dist.get_world_size()
    spec = {"blocks.2": SplitPoint.BEGINNING}
    stage = pipeline(model, (x[: BATCH_SIZE // size],), split_spec=spec).build_stage(
        rank, torch.device("cpu")
    )
    schedule = Schedule1F1B(stage, size, loss_of)
    optimizer = torch.optim.AdamW(stage.submod.parameters())

    def step() -> None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        loss = torch.stack(losses).mean() if losses else torch.zeros(())
        dist.broadcast(loss.detach(), size - 1)  # every rank knows it, as it does with ours
        optimizer.step()

    return step


def bare_sequence() -> Step:
    from torch.nn.parallel import DistributedDataParallel

    model, x, y = reader_and_batch(ulysses_by_hand)
    x, y = (one.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous() for one in (x, y))
    wrapped = DistributedDataParallel(model)
    return plain_step(wrapped, torch.optim.AdamW(wrapped.parameters()), x, y)


def ulysses_by_hand(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Attend to all tokens for this rank's heads: [B, H, T/N, D] to [B, H/N, T, D] and back."""
    size = dist.get_world_size()
    parts = torch.cat([q, k, v]).chunk(size, 1)
    heads = torch.cat(exchanged(torch.stack(parts)).unbind(0), 2)
    seen = nn.functional.scaled_dot_product_attention(*heads.chunk(3), is_causal=is_causal)
    return torch.cat(exchanged(torch.stack(seen.chunk(size, 2))).unbind(0), 1)


def exchanged(parts: Tensor) -> Tensor:
    """Give part ``i`` to rank ``i``."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor

    sizes = [1] * len(parts)
    return wait_tensor(
        all_to_all_single_autograd(parts.contiguous(), sizes, sizes, dist.group.WORLD)
    )


def bare_zero(stage: int = 2) -> Step:
    import deepspeed

    model, x, y = model_and_batch()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": BATCH_SIZE,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
        dist_init_required=False,
    )

    def step() -> None:
        engine.backward(loss_of(engine(x), y))
        engine.step()

    return step
