"""What a launch gives back: every rank's value, the curves, the output, how long it took."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from notebook_accel.events.history import History


@dataclass(frozen=True)
class RunResult:
    """The result of one run; ``run[rank]`` is what the function returned on that rank.

    values: one value a rank, in rank order; None where a rank was stopped before it returned.
    history: the curves, averaged over ranks (``run.history["loss"]``).
    logs: what each rank wrote, in rank order.
    duration_s: from the launch to the last rank's end, in seconds.
    stopped: True if the run was ended before its function returned.
    salvaged: rank 0's models as they were when a run was stopped, in the order of ``prepare``.
    """

    values: list[Any]
    history: History
    logs: list[str]
    duration_s: float
    devices: str
    start_method: str
    stopped: bool = False
    salvaged: list[Any] = field(default_factory=list)

    def __getitem__(self, rank: int) -> Any:
        return self.values[rank]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __repr__(self) -> str:
        facts = [self.devices, f"{self.duration_s:.1f} s"]
        if self.history.get("loss"):
            losses = self.history["loss"]
            facts.append(f"loss {losses[0]:.4g} -> {losses[-1]:.4g}")
        if self.stopped:
            facts.append("stopped early")
        return f"RunResult({', '.join(facts)})"

    def show(self) -> None:
        """Show the run's picture again, here."""
        view = importlib.import_module("notebook_accel.ui.live")
        view.show(self.history, repr(self))
