"""What the ranks of a run wrote, asked for by rank; and how a rank is asked for."""

from __future__ import annotations

from typing import Any, SupportsIndex, overload

from notebook_accel.errors import NoSuchRank


class Logs(list[str]):
    """What each rank wrote, in rank order: ``logs[0]`` or ``logs(0)``."""

    def __call__(self, rank: int = 0) -> str:
        """Give what ``rank`` wrote.

        Errors: NoSuchRank.
        """
        return self[rank]

    @overload
    def __getitem__(self, rank: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, rank: slice) -> list[str]: ...
    def __getitem__(self, rank: SupportsIndex | slice) -> str | list[str]:
        try:
            return super().__getitem__(rank)
        except (IndexError, TypeError):
            raise no_such_rank(rank, len(self)) from None


def no_such_rank(rank: Any, num_ranks: int) -> NoSuchRank:
    """Make the error for a ``rank`` that a run of ``num_ranks`` does not have, or that is none."""
    if not hasattr(rank, "__index__"):
        return NoSuchRank(
            f"there is no rank {rank!r}",
            "ranks are numbers; curves are asked for by name",
            'write run.history["loss"] for a curve, run[0] for what rank 0 returned, and '
            "run.logs[0] for what it wrote",
        )
    if num_ranks == 0:
        return NoSuchRank(
            f"there is no rank {rank}",
            "no rank of this run has started so far",
            "ask again when it has, or after run.wait()",
        )
    there = "only rank 0" if num_ranks == 1 else f"ranks 0 to {num_ranks - 1}"
    return NoSuchRank(
        f"there is no rank {rank}",
        f"the run has {there}",
        "ask for one of these; num_processes= of the launch says how many there are",
    )
