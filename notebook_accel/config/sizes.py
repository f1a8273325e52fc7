"""How large a model is, as plain values: what both sides of the fork know of it. Pure.

``strategies.measure`` makes a ``Sizes`` of a module and a batch; ``config.budget`` tells from it
what a rank holds under each strategy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

HALF_BYTES = 2
ASSUMED_BLOCKS = 32
HALF = ("fp16", "bf16", "fp8")  # what of precisions keeps activations in 16 bits


@dataclass(frozen=True)
class Weight:
    """One parameter: ``learns`` tells whether it is trained, ``block`` in which of the model's
    repeated blocks it is (-1: in none), ``cut`` which dim tensor parallelism divides."""

    shape: tuple[int, ...]
    itemsize: int = 4
    learns: bool = True
    block: int = -1
    cut: int | None = None

    @property
    def numel(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.numel * self.itemsize

    def divided(self, ranks: int) -> Weight:
        """Give the part that each of ``ranks`` ranks of tensor parallelism has."""
        if self.cut is None or not self.shape:
            return self
        shape = list(self.shape)
        shape[self.cut] = -(-shape[self.cut] // ranks)
        return Weight(tuple(shape), self.itemsize, self.learns, self.block, self.cut)

    def sharded(self, ranks: int) -> Weight:
        """Give the largest part under FSDP, which cuts dim 0 into equal pieces, rounded up."""
        if not self.shape:
            return self
        shape = (-(-self.shape[0] // ranks), *self.shape[1:])
        return Weight(shape, self.itemsize, self.learns, self.block, self.cut)


@dataclass(frozen=True)
class Kept:
    """What a forward pass keeps for its backward pass, in bytes.

    ``blocks`` is what each repeated block keeps, ``outside`` the rest; ``inputs`` is what goes into
    blocks (all that activation checkpointing keeps of them), ``divided`` the part of all that
    tensor parallelism divides. ``copies`` are weights in half precision that autocast made, not
    counted among the others. ``batch`` describes what the pass was run on.
    """

    outside: int = 0
    blocks: tuple[int, ...] = ()
    inputs: int = 0
    divided: int = 0
    copies: int = 0
    batch: str = ""

    @property
    def total(self) -> int:
        """Everything but the copies."""
        return self.outside + sum(self.blocks)

    @property
    def recomputed(self) -> int:
        """What is kept where blocks compute their forward again, one at a time."""
        if not self.blocks:
            return self.total
        return min(self.total, self.outside + self.inputs + max(self.blocks))


@dataclass(frozen=True)
class Sizes:
    """A model's parameters in the order of its modules, and what a forward pass of it keeps.

    ``kept`` is None where no batch was given or the pass failed, and then ``why`` says so.
    ``has_plan`` tells whether the model has a
    tensor parallel plan, ``has_sequences`` whether its attention could work on parts of sequences.
    """

    name: str
    weights: tuple[Weight, ...]
    buffers: int = 0
    kept: Kept | None = None
    why: str = ""
    largest: tuple[str, int] = ("", 0)
    has_plan: bool = False
    has_sequences: bool = False

    @staticmethod
    def of_number(num_parameters: int) -> Sizes:
        """Know a model by its number of parameters alone, in float32.

        It is taken for so many equal blocks, as of a language model.
        """
        size, rest = divmod(num_parameters, ASSUMED_BLOCKS)
        blocks = [Weight((size,), block=number) for number in range(ASSUMED_BLOCKS)]
        why = f"only its size is known; it is taken for {ASSUMED_BLOCKS} equal blocks"
        weights = tuple(one for one in (Weight((rest,)), *blocks) if one.numel)
        return Sizes("a model", weights, why=why)

    @cached_property
    def num_parameters(self) -> int:
        """How many numbers it has; tied ones count once."""
        return sum(one.numel for one in self.weights)

    @cached_property
    def num_trainable(self) -> int:
        """How many of them learn."""
        return sum(one.numel for one in self.weights if one.learns)

    @property
    def num_blocks(self) -> int:
        """How many repeated blocks it has."""
        return 1 + max((one.block for one in self.weights), default=-1)

    def copies(self, precision: str) -> int:
        """Give the bytes of half-precision copies that autocast keeps of float32 weights."""
        if precision not in HALF:
            return 0
        if self.kept is not None:
            return self.kept.copies
        return sum(HALF_BYTES * one.numel for one in self.weights if one.itemsize == 4)


def nbytes(weights: Iterable[Weight]) -> int:
    """Add the bytes up."""
    return sum(one.nbytes for one in weights)
