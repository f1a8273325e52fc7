"""Which strategies there are for a model on so many ranks, the fastest first, and what each is for.

Pure: what they cost is ``config.budget``'s say, and whether it fits is the asker's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from notebook_accel.config.sizes import Sizes
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, SingleDevice, Strategy, TensorParallel

KINDS = ("single", "ddp", "fsdp", "tensor", "pipeline")


@dataclass(frozen=True)
class Offer:
    """A strategy, the kind it is of, what to call it, and what speaks for it or against it."""

    kind: str
    wish: Strategy
    label: str
    why: str


def offers(sizes: Sizes, num_ranks: int) -> list[Offer]:
    """List what can train a model of ``sizes`` on ``num_ranks`` ranks, the fastest first."""
    return list(_offers(sizes, num_ranks))


def _offers(sizes: Sizes, ranks: int) -> Iterator[Offer]:
    if ranks == 1:
        yield Offer("single", SingleDevice(), "single device", "nothing is sent")
        return
    yield Offer("ddp", DDP(), "DDP", "the fastest where a whole copy fits: only gradients are sent")
    yield Offer(
        "fsdp", FSDP(reshard_after_forward=False), "FSDP, gradients",
        "optimizer states in shards; each block is gathered once an update",
    )  # fmt: skip
    yield Offer("fsdp", FSDP(), "FSDP", "all in shards; each block is gathered twice an update")
    if sizes.num_blocks > 1:
        yield Offer(
            "fsdp", FSDP(activation_checkpointing=True), "FSDP, recomputing",
            "keeps only what goes into blocks; forwards run twice: about a third more work",
        )  # fmt: skip
    if sizes.has_plan and _divides(sizes, ranks):
        yield Offer(
            "tensor", TensorParallel(size=ranks), f"tensor x {ranks}",
            "layers and what they make are divided; talks in each layer: needs fast links",
        )  # fmt: skip
    if sizes.num_blocks >= ranks:
        yield Offer(
            "pipeline", Pipeline(stages=ranks), f"pipeline x {ranks}",
            "little is sent; every rank keeps all weights; the loop calls forward_backward",
        )  # fmt: skip
    yield Offer(
        "fsdp", FSDP(cpu_offload=True), "FSDP, offloaded",
        "shards stay in the memory of the CPU, which also updates them: slow",
    )  # fmt: skip
    if sizes.num_blocks > 1:
        yield Offer(
            "fsdp", FSDP(cpu_offload=True, activation_checkpointing=True),
            "FSDP, both", "the least memory, and the slowest",
        )  # fmt: skip


def _divides(sizes: Sizes, ranks: int) -> bool:
    """Tell whether all layers of the model's plan can be cut into as many equal parts."""
    cut = [one.shape[one.cut] for one in sizes.weights if one.cut is not None and one.shape]
    return bool(cut) and all(length % ranks == 0 for length in cut)
