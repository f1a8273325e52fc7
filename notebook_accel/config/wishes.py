"""How a person wants a model to lie across ranks: small frozen values, storable and printable.

A wish knows nothing of torch; ``strategies.registry.build`` turns it into a live engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


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

    Units: ``bucket_cap_mb`` in MiB of gradients per collective.
    Source: torch.nn.parallel.DistributedDataParallel, whose arguments these are.
    """

    name: ClassVar[str] = "ddp"
    broadcast_buffers: bool = True
    bucket_cap_mb: float = 25
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
