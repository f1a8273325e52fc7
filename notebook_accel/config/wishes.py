"""How a person wants a model to lie across ranks: small frozen values, storable and printable.

A wish knows nothing of torch; ``strategies.registry.build`` turns it into a live engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from notebook_accel.config.schema import check_choice

# In what form DDP sends gradients, and what a PowerSGD hook may be wrapped in.
COMM_HOOKS = ("no", "fp16", "bf16", "power_sgd", "batched_power_sgd")
COMM_WRAPPERS = ("no", "fp16", "bf16")


@dataclass(frozen=True)
class Strategy:
    """What every wish is: a name and plain fields."""

    name: ClassVar[str] = "strategy"


@dataclass(frozen=True)
class SingleDevice(Strategy):
    """One process, one device."""

    name: ClassVar[str] = "single"


@dataclass(frozen=True)
class DDP(Strategy):
    """A whole copy of the model on every rank, gradients averaged after each backward.

    ``comm_hook`` sends gradients as "fp16", "bf16" or compressed ("power_sgd", with
    ``comm_state_option`` for its state); ``comm_wrapper`` sends what PowerSGD makes as "fp16" or
    "bf16".

    Units: ``bucket_cap_mb`` in MiB of gradients per collective.
    Errors: ConfigError for an unknown hook.
    Source: torch.nn.parallel.DistributedDataParallel, whose arguments these are; Vogels et al.
    2019, "PowerSGD".
    """

    name: ClassVar[str] = "ddp"
    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: float = 25
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    check_reduction: bool = False
    static_graph: bool = False
    comm_hook: str = "no"
    comm_wrapper: str = "no"
    comm_state_option: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        choose(self.comm_hook, "comm_hook", COMM_HOOKS)
        choose(self.comm_wrapper, "comm_wrapper", COMM_WRAPPERS)


def choose(value: Any, name: str, choices: Iterable[str]) -> str:
    """Read one of ``choices``, given in whatever case, or as an enum of strings.

    Errors: ConfigError listing them.
    """
    word = str(getattr(value, "value", value)).lower()
    check_choice(name, word, tuple(choices))
    return word
