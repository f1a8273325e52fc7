"""Which strategies there are for a model on so many ranks, what each is for, which come first.

Pure: what they cost is ``config.budget``'s say; whether it fits and is installed, the asker's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from notebook_accel.config.budget import Budget, Training, budget
from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.sequence import SequenceParallel
from notebook_accel.config.sizes import Sizes
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, SingleDevice, Strategy, TensorParallel

KINDS = ("single", "ddp", "fsdp", "deepspeed", "sequence", "tensor", "pipeline")


@dataclass(frozen=True)
class Offer:
    """A strategy, the kind it is of, what to call it, and what speaks for it or against it.

    ``package`` is what it needs beside torch, if anything.
    """

    kind: str
    wish: Strategy
    label: str
    why: str
    package: str = ""


@dataclass(frozen=True)
class Costed:
    """An offer with what a rank would hold; ``fits`` is None where nobody knows the room.

    ``missing`` is the package that would have to be installed for it, if any.
    """

    offer: Offer
    memory: Budget
    fits: bool | None
    missing: str = ""


def costed(
    sizes: Sizes,
    training: Training,
    fits: Callable[[Budget], bool | None],
    is_installed: Callable[[str], bool],
    shares_host: bool,
) -> list[Costed]:
    """Count all offers and put them in order, the best first.

    First the fastest of those that fit, then those that would after an install, then what does not
    fit, the leanest first. ``shares_host``: ranks compute on the CPU; nothing is offloaded.
    """
    found = []
    for offer in offers(sizes, training.num_ranks):
        memory = budget(offer.wish, sizes, training)
        if memory is not None and not (memory.host and shares_host):
            missing = "" if not offer.package or is_installed(offer.package) else offer.package
            found.append(Costed(offer, memory, fits(memory), missing))
    return sorted(found, key=_place)


def _place(one: Costed) -> tuple[int, int]:
    if one.fits is False:
        return 2, one.memory.total
    return (1 if one.missing else 0), 0  # as they were offered


def offers(sizes: Sizes, num_ranks: int) -> list[Offer]:
    """List what can train a model of ``sizes`` on ``num_ranks`` ranks, the fastest first."""
    if num_ranks == 1:
        return [Offer("single", SingleDevice(), "single device", "nothing is sent"), *_away(1)]
    return [*_in_memory(sizes), *_divided(sizes, num_ranks), *_away(num_ranks)]


def _in_memory(sizes: Sizes) -> Iterator[Offer]:
    """Each rank computes its own batch by whole layers."""
    yield Offer("ddp", DDP(), "DDP", "the fastest where a whole copy fits: only gradients are sent")
    yield Offer(
        "fsdp", FSDP(reshard_after_forward=False), "FSDP, gradients",
        "gradients and optimizer states in shards; parts stay whole until the backward, so each is "
        "gathered once an update",
    )  # fmt: skip
    yield Offer("fsdp", FSDP(), "FSDP", "all in shards; each block is gathered twice an update")
    for stage, shares in ((2, "states and gradients"), (3, "all")):
        yield Offer(
            "deepspeed", DeepSpeed(zero_stage=stage), f"ZeRO {stage}",
            f"by DeepSpeed: {shares} in shards; in bf16 and fp16 weights are 16 bits themselves",
            "deepspeed",
        )  # fmt: skip
    if sizes.num_blocks > 1:
        yield Offer(
            "fsdp", FSDP(activation_checkpointing=True), "FSDP, recomputing",
            "keeps only what goes into blocks; forwards run twice: about a third more work",
        )  # fmt: skip


def _divided(sizes: Sizes, ranks: int) -> Iterator[Offer]:
    """Several ranks compute one batch together."""
    if sizes.has_sequences:
        yield Offer(
            "sequence", SequenceParallel(size=ranks, data=FSDP()), f"sequence x {ranks}",
            "each sequence is divided, for long ones; all else in shards, as by FSDP",
        )  # fmt: skip
    if sizes.has_plan and _divides(sizes, ranks):
        yield Offer(
            "tensor", TensorParallel(size=ranks), f"tensor x {ranks}",
            "layers and what they make are divided; talks in each layer: needs fast links",
        )  # fmt: skip
    if sizes.num_blocks >= ranks:
        yield Offer(
            "pipeline", Pipeline(stages=ranks), f"pipeline x {ranks}",
            "little is sent, ranks wait at the ends; the loop calls forward_backward",
        )  # fmt: skip


def _away(ranks: int) -> Iterator[Offer]:
    """What a device does not hold lies in the memory of the CPU."""
    yield Offer(
        "deepspeed", DeepSpeed(zero_stage=2, offload_optimizer="cpu"), "ZeRO 2, offloaded",
        "by DeepSpeed: the CPU keeps optimizer states and updates: slow", "deepspeed",
    )  # fmt: skip
    if ranks == 1:
        return
    yield Offer(
        "fsdp", FSDP(cpu_offload=True), "FSDP, offloaded",
        "shards lie in the memory of the CPU, which updates them: slow",
    )  # fmt: skip
    yield Offer(
        "fsdp", FSDP(cpu_offload=True, activation_checkpointing=True), "FSDP, both",
        "offloaded and recomputing: the least memory, and the slowest",
    )  # fmt: skip


def _divides(sizes: Sizes, ranks: int) -> bool:
    """Tell whether all layers of the model's plan can be cut into as many equal parts."""
    cut = [one.shape[one.cut] for one in sizes.weights if one.cut is not None and one.shape]
    return bool(cut) and all(length % ranks == 0 for length in cut)
