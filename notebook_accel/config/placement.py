"""Who a worker is: plain data, decided by the launcher or read from a torchrun-like environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """One rank's place in the run.

    ``device`` is a torch device string ("cpu", "cuda:0", "mps"), ``comm`` the collective library
    ("gloo", "nccl") or None for a world of one that needs none.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    device: str = "cpu"
    comm: str | None = None

    @staticmethod
    def from_env(env: Mapping[str, str] | None = None, device_type: str = "cpu") -> Placement:
        """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun sets them.

        ``device_type`` is "cpu", "cuda" or "mps": what this process computes on. Without these
        variables: a world of one.
        """
        env = os.environ if env is None else env
        size = int(env.get("WORLD_SIZE", "1"))
        rank = int(env.get("RANK", "0"))
        local_rank = int(env.get("LOCAL_RANK", str(rank)))
        local_size = int(env.get("LOCAL_WORLD_SIZE", str(size)))
        device = f"cuda:{local_rank}" if device_type == "cuda" else device_type
        comm = None if size == 1 else ("nccl" if device_type == "cuda" else "gloo")
        return Placement(rank, size, local_rank, local_size, device, comm)
