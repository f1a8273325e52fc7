"""What training occupies on each rank, strategy by strategy: arithmetic on a model's sizes. Pure.

The one model of memory: ``advise``, ``estimate-memory``, pickers and the wizard ask it. Parameters,
gradients and optimizer states are exact for the engines of torch, for the rank that has most;
activations are what was measured, and ``other`` is an estimate.

Sources: Micikevicius et al. 2018, "Mixed precision training"; Rajbhandari et al. 2020, "ZeRO",
section 3; torch.distributed.fsdp.fully_shard, on what is gathered when; Narayanan et al. 2021,
"Efficient large-scale language model training", section 2.2, on 1F1B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.megatron import Megatron
from notebook_accel.config.schema import check_choice
from notebook_accel.config.sequence import SequenceParallel
from notebook_accel.config.sizes import HALF, HALF_BYTES, Kept, Sizes, Weight, nbytes
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, SingleDevice, Strategy, TensorParallel

# What an optimizer keeps of each trained number: times the size of the number; the same in bytes
# where it does not depend on that; bytes for each parameter (the count of its steps).
_STATES: Mapping[str, tuple[float, int, int]] = {
    "adamw": (2, 0, 4), "adam": (2, 0, 4), "adam8bit": (0, 2, 0), "adafactor": (0, 0, 0),
    "lion": (1, 0, 0), "momentum": (1, 0, 0), "sgd": (0, 0, 0),
}  # fmt: skip
OPTIMIZERS = tuple(_STATES)


@dataclass(frozen=True)
class Training:
    """How a model is trained: by how many ranks, in which precision, by which optimizer.

    Errors: ConfigError for an unknown optimizer.
    """

    num_ranks: int = 1
    precision: str = "no"
    optimizer: str = "adamw"

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)

    @property
    def is_half(self) -> bool:
        """Whether forward passes compute in 16 bits."""
        return self.precision in HALF

    def states(self, weights: Sequence[Weight]) -> int:
        """Give the bytes that the optimizer keeps of ``weights``."""
        factor, per_number, per_weight = _STATES[self.optimizer]
        learning = [one for one in weights if one.learns]
        return int(
            factor * nbytes(learning)
            + per_number * sum(one.numel for one in learning)
            + per_weight * len(learning)
        )

    def computed(self, weights: Sequence[Weight]) -> int:
        """Give the bytes of ``weights`` in the numbers that forward passes compute in."""
        return HALF_BYTES * sum(one.numel for one in weights) if self.is_half else nbytes(weights)


@dataclass(frozen=True)
class Budget:
    """What one rank holds on its device, in bytes, and in the memory of the CPU (``host``).

    ``other`` is what the strategy needs on top: buckets, gathered blocks, half-precision copies.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int = 0
    other: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        """Everything together that is on the device."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.other

    def as_data(self) -> dict[str, int]:
        """Give it as plain data."""
        return {**asdict(self), "total": self.total}


def budget(wish: Strategy, sizes: Sizes, training: Training) -> Budget | None:
    """Tell what the rank that has most holds under ``wish``.

    None for one that nobody has counted, and for one that refuses the precision.
    """
    if training.precision == "fp8" and isinstance(wish, (DeepSpeed, Pipeline)):
        return None
    cost = next((_COSTS[kind] for kind in type(wish).__mro__ if kind in _COSTS), None)
    return None if cost is None else cost(wish, sizes, training)


def replicated(wish: Any, sizes: Sizes, training: Training) -> Budget:
    """Count a whole copy on each rank; several ranks send gradients from buckets."""
    gradients = nbytes(one for one in sizes.weights if one.learns)
    views = getattr(wish, "gradient_as_bucket_view", False)
    return Budget(
        nbytes(sizes.weights) + sizes.buffers,
        gradients,
        training.states(sizes.weights),
        _activations(sizes),
        sizes.copies(training.precision)
        + (gradients if training.num_ranks > 1 and not views else 0),
    )


def sharded(wish: FSDP, sizes: Sizes, training: Training) -> Budget:
    """Count FSDP: shards of everything, and whole blocks while they compute."""
    if training.num_ranks == 1:
        return replicated(wish, sizes, training)
    copies = wish.replicas if isinstance(wish.replicas, int) else 1
    return _shards(wish, sizes, training, sizes.weights, max(1, training.num_ranks // copies))


def layers_divided(wish: TensorParallel, sizes: Sizes, training: Training) -> Budget:
    """Count tensor parallelism: divided layers, and FSDP of them among readers of data."""
    parts = [one.divided(wish.size) for one in sizes.weights]
    copies = wish.data.replicas if isinstance(wish.data.replicas, int) else 1
    readers = max(1, training.num_ranks // wish.size // copies)
    one = _shards(wish.data, sizes, training, parts, readers)
    if readers == 1 and not (training.is_half or wish.data.cpu_offload):  # nothing is gathered
        one = replace(one, other=0)
    kept = sizes.kept
    if kept is None or wish.data.activation_checkpointing:
        return one
    saved = kept.divided - kept.divided // wish.size
    return replace(one, activations=one.activations - saved)


def staged(wish: Pipeline, sizes: Sizes, training: Training) -> Budget:
    """Count a pipeline, on the rank that has most: its stages, which lie there as ``inside`` says.

    The first of S ranks keeps activations of up to S micro-batches, by 1F1B.
    """
    readers = max(1, training.num_ranks // wish.num_ranks)
    inside = SingleDevice() if isinstance(wish.inside, DDP) else wish.inside  # without buckets
    found = [
        budget(inside, _stages(rank, wish, sizes, training), replace(training, num_ranks=readers))
        for rank in range(wish.num_ranks)
    ]
    return max((one for one in found if one is not None), key=lambda one: one.total)


def sequences_divided(wish: SequenceParallel, sizes: Sizes, training: Training) -> Budget | None:
    """Count sequence parallelism: a part of each sequence, parameters as ``data`` says."""
    one = budget(wish.data, sizes, training)
    return None if one is None else replace(one, activations=_share(one.activations, wish.size))


def deepspeed(wish: DeepSpeed, sizes: Sizes, training: Training) -> Budget:
    """Count DeepSpeed's ZeRO by its stage, and what is offloaded."""
    away = [one not in (None, "none") for one in (wish.offload_optimizer, wish.offload_param)]
    return zero(wish.stage, sizes, training, any(away), away[1])


def megatron(wish: Megatron, sizes: Sizes, training: Training) -> Budget | None:
    """Count the strategy that serves Megatron's degrees."""
    return budget(wish.engine(training.num_ranks), sizes, training)


def zero(
    stage: int, sizes: Sizes, training: Training, on_host: bool = False, all_on_host: bool = False
) -> Budget:
    """Count DeepSpeed's ZeRO, which keeps float32 weights with the optimizer's states.

    ``on_host`` puts these into the memory of the CPU, ``all_on_host`` weights too.
    """
    ranks = training.num_ranks
    size = HALF_BYTES if training.is_half else 4
    learning = sum(one.numel for one in sizes.weights if one.learns)
    weights = size * sizes.num_parameters
    gradients = size * learning
    states = training.states(sizes.weights) + (4 * learning if training.is_half else 0)
    states = _share(states, ranks)
    block = size * max(_blocks(sizes.weights))
    other = {1: gradients if ranks > 1 else 0, 2: block}.get(stage, 3 * block)
    weights = _share(weights, ranks) if stage == 3 else weights
    gradients = _share(gradients, ranks) if stage >= 2 else gradients
    if all_on_host:
        host, weights, gradients, states = weights + gradients + states, 0, 0, 0
    elif on_host:
        host, gradients, states = gradients + states, 0, 0
    else:
        host = 0
    return Budget(weights + sizes.buffers, gradients, states, _activations(sizes), other, host)


_COSTS: dict[type, Callable[[Any, Sizes, Training], Budget | None]] = {
    SingleDevice: replicated,
    DDP: replicated,
    FSDP: sharded,
    TensorParallel: layers_divided,
    Pipeline: staged,
    SequenceParallel: sequences_divided,
    DeepSpeed: deepspeed,
    Megatron: megatron,
}


def _shards(
    wish: FSDP, sizes: Sizes, training: Training, whole: Sequence[Weight], shards: int
) -> Budget:
    """Count ``whole`` weights cut over ``shards`` ranks."""
    parts = [one.sharded(shards) for one in whole]
    learning = [one for one in parts if one.learns]
    held = Budget(nbytes(parts), nbytes(learning), training.states(parts))
    inside: dict[int, list[Weight]] = {}
    for one in whole:
        inside.setdefault(-1 if wish.auto_wrap_policy == "no_wrap" else one.block, []).append(one)
    gathered = {number: training.computed(part) for number, part in inside.items()}
    largest = max(gathered.values(), default=0)
    outer = gathered.get(-1, 0)
    # Gradients of the part that is being averaged: whole, and once more as they are sent.
    sent = largest + (2 * largest if training.is_half else largest)
    if wish.reshard_after_forward:
        other = outer + 2 * max((v for k, v in gathered.items() if k >= 0), default=0) + sent
    else:
        other = sum(gathered.values()) + sent
    kept = sizes.kept
    activations = _activations(sizes)
    if wish.activation_checkpointing and kept is not None:
        activations = kept.recomputed
    if not wish.cpu_offload:
        return replace(
            held, weights=held.weights + sizes.buffers, activations=activations, other=other
        )
    host = held.weights + held.gradients + held.optimizer
    return Budget(sizes.buffers, 0, 0, activations, other, host)


def _stages(rank: int, wish: Pipeline, sizes: Sizes, training: Training) -> Sizes:
    """Take the stages of ``rank`` for a model, with what it keeps of the batch at one time."""
    starts = first_blocks(_blocks(sizes.weights), wish.stages)

    def is_mine(block: int) -> bool:
        return _stage_of(block, starts) % wish.num_ranks == rank

    places = _places(sizes.weights)
    mine = tuple(one for one, n in zip(sizes.weights, places, strict=True) if is_mine(n))
    if sizes.kept is None:
        return replace(sizes, weights=mine)
    micro = wish.num_microbatches or wish.stages
    at_once = wish.num_ranks - rank + (wish.num_ranks if wish.stages_per_rank > 1 else 0)
    part = micro if wish.schedule == "gpipe" else min(micro, at_once)
    is_last = rank == wish.num_ranks - 1  # what is outside of blocks is the head, as a rule
    kept = Kept(
        sizes.kept.outside * part // micro if is_last else 0,
        tuple(one * part // micro for n, one in enumerate(sizes.kept.blocks) if is_mine(n)),
        divided=sizes.kept.divided * part // micro // wish.num_ranks,
        copies=sizes.copies(training.precision) * len(mine) // len(sizes.weights),
    )
    return replace(sizes, weights=mine, kept=kept)


def first_blocks(blocks: Sequence[int], num_stages: int) -> list[int]:
    """Choose at which blocks the second stage begins, the third, and so on, by their numbers."""
    found: list[int] = []
    total, before = sum(blocks), 0
    for n, size in enumerate(blocks):
        stage = len(found) + 1
        is_due = before + size / 2 >= total * stage / num_stages
        must = len(blocks) - n <= num_stages - stage  # the stages to come need a block each
        if n and stage < num_stages and (is_due or must):
            found.append(n)
        before += size
    return found


def _stage_of(block: int, starts: Sequence[int]) -> int:
    return sum(block >= start for start in starts)


def _places(weights: Sequence[Weight]) -> list[int]:
    """Give each weight the block it goes with: what is before all blocks with the first."""
    last = max((one.block for one in weights), default=-1)
    has_begun, found = False, []
    for one in weights:
        has_begun = has_begun or one.block >= 0
        found.append(one.block if one.block >= 0 else last if has_begun else 0)
    return found


def _blocks(weights: Sequence[Weight]) -> list[int]:
    """Count the numbers in each block; the whole model is one where it has none."""
    last = max((one.block for one in weights), default=-1)
    if last < 0:
        return [sum(one.numel for one in weights)]
    return [sum(one.numel for one in weights if one.block == n) for n in range(last + 1)]


def _activations(sizes: Sizes) -> int:
    return 0 if sizes.kept is None else sizes.kept.total


def _share(size: int, ranks: int) -> int:
    return -(-size // ranks)
