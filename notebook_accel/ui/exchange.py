"""One collective among real ranks: what each brings, and what each holds afterwards."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError, LaunchError, RanksStuck, WorkerDied
from notebook_accel.launch.quiet import run_quietly

MOST_RANKS = 8
TIMEOUT_S = 60.0

Buffers = tuple[tuple[float, ...], ...]
Origins = tuple[tuple[tuple[int, ...], ...], ...]

# What each does, for who reads the picture.
MEANING = {
    "all_reduce": "every rank gets the sum of all buffers, place by place",
    "all_gather": "every rank gets all buffers, one after the other in rank order",
    "reduce_scatter": "the sum is made place by place, and each rank gets its own part of it",
    "broadcast": "every rank gets the buffer of rank {source}",
}


@dataclass(frozen=True)
class Exchange:
    """One collective: what each rank brings and, once it ran, what each rank holds.

    before: a buffer for each rank. after: the same; None before a run, and after one that got
    stuck. origins: for each number of ``after``, the ranks whose numbers are in it. source: the
    rank whose buffer is broadcast. absent: ranks that do not call the collective. error: what the
    toolkit said when the ranks got stuck.
    """

    operation: str
    before: Buffers
    source: int = 0
    absent: frozenset[int] = frozenset()
    after: Buffers | None = None
    origins: Origins = ()
    took_s: float = 0.0
    error: LaunchError | None = None

    @property
    def num_ranks(self) -> int:
        """How many ranks there are, absent ones too."""
        return len(self.before)

    @property
    def meaning(self) -> str:
        """What the collective does, in a sentence without its capital."""
        return MEANING[self.operation].format(source=self.source)

    def run(self) -> Exchange:
        """Carry it out on as many real processes as there are buffers; give how it went.

        Ranks: called in the notebook's own process. Nothing is printed.
        Errors: as ``notebook_launcher``, but ranks that got stuck are a result like any other.
        """
        arguments = (self.operation, self.before, self.source, self.absent)
        try:
            result = run_quietly(_be_a_rank, arguments, self.num_ranks, TIMEOUT_S)
        except (RanksStuck, WorkerDied) as error:
            if getattr(error, "exit_code", 0):
                raise  # it was ended from outside, and that is no lesson about collectives
            return replace(self, after=None, origins=(), error=error)
        after, origins = zip(*result.values, strict=True)
        return replace(self, after=after, origins=origins, took_s=result.duration_s, error=None)

    def __repr__(self) -> str:
        drawing = importlib.import_module("notebook_accel.ui.exchange_text")
        return str(drawing.text(self))

    def _repr_html_(self) -> str:
        drawing = importlib.import_module("notebook_accel.ui.exchange_html")
        return str(drawing.picture(self))


def exchange(
    operation: str,
    buffers: Sequence[Any] | None = None,
    num_ranks: int = 2,
    source: int = 0,
    absent: Collection[int] = (),
) -> Exchange:
    """Make an exchange that has not run yet; without ``buffers``, some that tell ranks apart.

    Errors: ConfigError for what cannot be run or drawn.
    """
    if operation not in MEANING:
        raise ConfigError(
            f"operation={operation!r} is not in the playground",
            f"it has {', '.join(MEANING)}",
            'write, for example, playground.show("all_gather")',
        )
    before = _telling(operation, num_ranks) if buffers is None else _numbers(buffers)
    _check_number(len(before))
    _check_ranks(len(before), source, absent)
    _check_lengths(operation, [len(one) for one in before])
    return Exchange(operation, before, source, frozenset(absent))


def _telling(operation: str, num_ranks: int) -> Buffers:
    """Buffers whose tens tell the rank and whose ones tell the place."""
    _check_number(num_ranks)
    length = 2 if operation == "all_gather" else num_ranks
    return tuple(
        tuple(10 * rank + place for place in range(1, length + 1)) for rank in range(num_ranks)
    )


def _numbers(buffers: Sequence[Any]) -> Buffers:
    try:
        lists = [one.tolist() if hasattr(one, "tolist") else list(one) for one in buffers]
        for one in lists:
            _ = [0.0 + number for number in one]
    except TypeError:
        lists = []
    if lists and all(lists):
        return tuple(map(tuple, lists))
    raise ConfigError(
        f"buffers={buffers!r:.80} are not lists of numbers",
        "each rank brings one list with at least one number",
        "write, for two ranks, [[1, 2], [3, 4]]",
    )


def _check_number(num_ranks: Any) -> None:
    if not isinstance(num_ranks, int) or not 2 <= num_ranks <= MOST_RANKS:
        raise ConfigError(
            f"{num_ranks!r} ranks do not fit into the playground",
            f"each is a process of its own, and a picture shows 2 to {MOST_RANKS}",
            "use 2, 3 or 4: they show all there is to see",
        )


def _check_lengths(operation: str, lengths: list[int]) -> None:
    """Refuse what not even a hang would come of; the other two show one for unlike lengths."""
    if operation in ("broadcast", "reduce_scatter") and len(set(lengths)) > 1:
        raise ConfigError(
            f"the buffers have {', '.join(map(str, lengths))} numbers",
            f"{operation} needs buffers of one length",
            "give each rank as many numbers; all_reduce shows what unlike lengths lead to",
        )
    if operation == "reduce_scatter" and lengths[0] % len(lengths):
        raise ConfigError(
            f"{counted(lengths[0], 'number')} cannot be shared by {len(lengths)} ranks",
            "reduce_scatter gives each rank an equal part of the sum",
            f"give each rank {len(lengths)} numbers, or a multiple of {len(lengths)}",
        )


def _check_ranks(num_ranks: int, source: Any, absent: Collection[Any]) -> None:
    for name, rank in [("source", source), *(("absent", one) for one in absent)]:
        if rank not in range(num_ranks):
            raise ConfigError(
                f"{name}: there is no rank {rank!r}",
                f"{num_ranks} ranks are counted from 0 to {num_ranks - 1}",
                "name one of these",
            )
    if len(set(absent)) == num_ranks:
        raise ConfigError(
            f"all {num_ranks} ranks are absent",
            "then nobody calls the collective, and nobody waits",
            "let at least one rank take part",
        )


# ── on a rank ─────────────────────────────────────────────────────────────────────────────────


def _be_a_rank(
    operation: str, buffers: Buffers, source: int, absent: frozenset[int]
) -> tuple[tuple[float, ...], tuple[tuple[int, ...], ...]] | None:
    """Bring this rank's buffer; give what it holds then, and which ranks are in each number.

    The second comes from the same collective, of numbers in which each rank has a bit of its own.
    """
    torch: Any = importlib.import_module("torch")
    runtime = importlib.import_module("notebook_accel.runtime.accelerator")
    rank = runtime.Accelerator(cpu=True).process_index
    if rank in absent:
        return None
    whole = all(isinstance(number, int) for one in buffers for number in one)
    brought = torch.tensor(buffers[rank], dtype=torch.int64 if whole else torch.float64)
    bits = torch.full(brought.shape, 1 << rank, dtype=torch.int64)
    held, mixed = (
        _COLLECTIVES[operation](torch.distributed, one, len(buffers), source)
        for one in (brought, bits)
    )
    origins = [tuple(r for r in range(len(buffers)) if bit >> r & 1) for bit in mixed.tolist()]
    return tuple(held.tolist()), tuple(origins)


def _all_reduce(dist: Any, brought: Any, num_ranks: int, source: int) -> Any:
    held = brought.clone()
    dist.all_reduce(held)
    return held


def _all_gather(dist: Any, brought: Any, num_ranks: int, source: int) -> Any:
    held = brought.new_empty(num_ranks * len(brought))
    dist.all_gather_into_tensor(held, brought)
    return held


def _reduce_scatter(dist: Any, brought: Any, num_ranks: int, source: int) -> Any:
    held = brought.new_empty(len(brought) // num_ranks)
    dist.reduce_scatter_tensor(held, brought)
    return held


def _broadcast(dist: Any, brought: Any, num_ranks: int, source: int) -> Any:
    held = brought.clone()
    dist.broadcast(held, source)
    return held


_COLLECTIVES: dict[str, Callable[[Any, Any, int, int], Any]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
}
