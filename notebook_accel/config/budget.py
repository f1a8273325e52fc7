"""What training occupies on each rank, strategy by strategy: arithmetic on a model's sizes. Pure.

Sources: Micikevicius et al. 2018, "Mixed precision training"; Rajbhandari et al. 2020, "ZeRO",
section 3; torch.distributed.fsdp.fully_shard, on what is gathered when.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from notebook_accel.config.schema import check_choice

# Bytes that an optimizer keeps for each trainable number, beside the gradient.
OPTIMIZERS = {
    "adamw": 8, "adam": 8, "adam8bit": 2, "adafactor": 0, "lion": 4, "momentum": 4, "sgd": 0,
}  # fmt: skip
HALF = ("fp16", "bf16")


@dataclass(frozen=True)
class Sizes:
    """A model's sizes, in bytes, as it was built (float32 as a rule).

    num_parameters, num_trainable: how many numbers; tied ones count once.
    weights: parameters and buffers. trainable: the part that learns. castable: parameters that
    autocast copies into half precision. layer: the largest layer. block: the largest part that FSDP
    gathers at once. shared: weights of layers that tensor parallelism cuts. activations: what a
    forward pass keeps for its backward pass; None where it was not measured, and then ``why``.
    """

    name: str
    num_parameters: int
    num_trainable: int
    weights: int
    trainable: int
    castable: int
    layer: int
    layer_name: str
    block: int
    shared: int
    activations: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Budget:
    """What one rank holds, in bytes; ``other`` is what the strategy itself needs on top."""

    strategy: str
    weights: int
    gradients: int
    optimizer: int
    activations: int
    other: int

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.other

    def as_data(self) -> dict[str, Any]:
        """Give it as plain data."""
        return {**asdict(self), "total": self.total}


def budgets(sizes: Sizes, num_ranks: int, precision: str, optimizer: str) -> list[Budget]:
    """List what one of ``num_ranks`` ranks holds, strategy by strategy.

    The batch of each rank is the same in all of them.

    Errors: ConfigError for an unknown optimizer.
    """
    check_choice("optimizer", optimizer, tuple(OPTIMIZERS))
    return list(_budgets(sizes, num_ranks, precision, OPTIMIZERS[optimizer]))


def _budgets(sizes: Sizes, ranks: int, precision: str, per_number: int) -> Iterator[Budget]:
    weights, gradients = sizes.weights, sizes.trainable
    states = per_number * sizes.num_trainable
    activations = sizes.activations or 0
    half = precision in HALF
    copies = 2 * sizes.castable // 4 if half else 0  # of float32 weights, made by autocast
    if ranks == 1:
        yield Budget("one process", weights, gradients, states, activations, copies)
        return
    yield Budget("ddp", weights, gradients, states, activations, copies + gradients)
    gathered = sizes.block // 2 if half else sizes.block
    yield Budget(
        "fsdp, gradients", weights // (2 if half else 1) + _share(weights, ranks),
        _share(gradients, ranks), _share(states, ranks), activations, gathered,
    )  # fmt: skip
    yield Budget(
        "fsdp, full", _share(weights, ranks), _share(gradients, ranks), _share(states, ranks),
        activations, 2 * gathered + gathered,
    )  # fmt: skip
    # DeepSpeed keeps half-precision weights and gradients, and float32 weights with the states.
    size = 2 if half else 4
    held = size * sizes.num_parameters
    grads = size * sizes.num_trainable
    master = (states + 4 * sizes.num_trainable) if half else states
    yield Budget("zero 1", held, grads, _share(master, ranks), activations, grads)
    yield Budget("zero 2", held, _share(grads, ranks), _share(master, ranks), activations, gathered)
    yield Budget(
        "zero 3", _share(held, ranks), _share(grads, ranks), _share(master, ranks), activations,
        3 * gathered,
    )  # fmt: skip
    cut = sizes.shared / max(1, weights)
    yield Budget(
        "tensor", _cut(weights, cut, ranks), _cut(gradients, cut, ranks), _cut(states, cut, ranks),
        activations, _cut(copies, cut, ranks),
    )  # fmt: skip


def _share(size: int, ranks: int) -> int:
    return -(-size // ranks)


def _cut(size: int, cut: float, ranks: int) -> int:
    """Divide the part ``cut`` of ``size`` among the ranks; the rest is on each of them."""
    return int(size * (1 - cut) + size * cut / ranks)
