"""What a launch gives back: every rank's value, the curves, the output, how long it took."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notebook_accel.events.history import History
from notebook_accel.events.logs import Logs, no_such_rank
from notebook_accel.events.records import Record

if TYPE_CHECKING:
    from notebook_accel.launch.start import Job


@dataclass(frozen=True)
class RunResult:
    """The result of one run; ``run[rank]`` is what the function returned on that rank.

    values: one value a rank, in rank order; None where a rank was stopped before it returned.
    history: the curves, averaged over ranks (``run.history["loss"]``).
    logs: what each rank wrote, in rank order: ``run.logs(0)`` or ``run.logs[0]``.
    duration_s: from the launch to the last rank's end, in seconds.
    record: all that is known of the run, also on the disk; ``runs.get(run.id)`` finds it again.
    stopped: True if the run was ended before its function returned.
    salvaged: rank 0's models as they were when a run was stopped, in the order of ``prepare``.
    """

    values: list[Any]
    history: History
    logs: Logs
    duration_s: float
    devices: str
    start_method: str
    record: Record = field(repr=False)
    job: Job | None = field(repr=False)
    stopped: bool = False
    salvaged: list[Any] = field(default_factory=list)

    def __getitem__(self, rank: int) -> Any:
        try:
            return self.values[rank]
        except (IndexError, TypeError):
            raise no_such_rank(rank, len(self.values)) from None

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "job": None}  # functions of cells do not travel by pickle

    def __repr__(self) -> str:
        facts = [self.devices, f"{self.duration_s:.1f} s"]
        if self.history.get("loss"):
            losses = self.history["loss"]
            facts.append(f"loss {losses[0]:.4g} -> {losses[-1]:.4g}")
        if self.stopped:
            facts.append("stopped early")
        return f"RunResult({', '.join(facts)})"

    @property
    def id(self) -> str:
        """The run's name on record: ``runs.get(id)`` finds it in any notebook."""
        return self.record.id

    @property
    def path(self) -> Path | None:
        """The folder of its record; None if none is kept."""
        return self.record.path

    def show(self) -> None:
        """Show the run's picture again, here."""
        view = importlib.import_module("notebook_accel.ui.live")
        view.show(self.history, repr(self))

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the run into one HTML file that needs nothing else, and give its path."""
        return self.record.report(path)

    def export_script(self, path: str | Path = "train.py") -> Path:
        """Write the function with all it uses as a script, and give its path.

        Errors: ConfigError naming each global that has no source.
        """
        return export(self.job, self.record, path)


def export(job: Job | None, record: Record, path: str | Path) -> Path:
    """Write ``job`` as a script; what both a running and a finished run can do."""
    script = importlib.import_module("notebook_accel.launch.script")
    written: Path = script.export(job, record, Path(path))
    return written
