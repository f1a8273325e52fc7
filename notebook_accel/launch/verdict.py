"""Whose fault was it: from what the ranks left behind to the one error that the cell shows.

The blamed rank is the first that failed for a reason of its own. A broken connection is what the
others see when a rank has gone, so it is blamed only when nothing else explains it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping

from notebook_accel.config.words import without_numbers
from notebook_accel.errors import LaunchError, RanksStuck, RunTimeout, WorkerDied
from notebook_accel.events.model import Failed, signal_name
from notebook_accel.events.pulse import ONE_SIDED
from notebook_accel.launch import failure
from notebook_accel.launch.supervise import RankState
from notebook_accel.launch.waits import ALIKE, meeting

SAME_SHAPES = "bring tensors of the same shape and dtype from every rank (pad_across_processes)"

_SIGNAL_ADVICE: Mapping[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "something outside it sent SIGKILL; most often the system, when memory runs out",
        "use a smaller batch or fewer processes, and watch the memory while it runs",
    ),
    signal.SIGSEGV: (
        "native code read memory that is not there; its Python stack is in the output above",
        "look at the last line of that stack; try a smaller case, or DataLoader(num_workers=0)",
    ),
    signal.SIGABRT: (
        "native code gave up (abort); its last words are in the output above",
        "look for the message just before the stack",
    ),
    signal.SIGBUS: (
        "shared memory ran out (often /dev/shm of a container)",
        "use DataLoader(num_workers=0), or give the container more shared memory",
    ),
    signal.SIGTERM: (
        "something outside the launcher sent SIGTERM",
        "look for a job scheduler's limit, or another program that stops processes",
    ),
}


def signal_advice(number: int) -> tuple[str, str]:
    """Say why a process was probably ended by a signal, and what to do."""
    return _SIGNAL_ADVICE.get(number, ("a signal ended it", "look at its output above"))


def blame(
    ranks: list[RankState], exception_of: Callable[[int], BaseException | None]
) -> BaseException:
    """Make the error of a failed run; ``exception_of`` rebuilds a rank's own exception.

    Some rank must have failed or died without a word.
    """
    troubled = sorted((s.order, rank) for rank, s in enumerate(ranks) if s.order)
    own = [rank for _, rank in troubled if not _is_comm(ranks[rank])]
    if not own:
        return _nobodys_own(ranks, troubled[0][1], exception_of)
    first = own[0]
    failed = ranks[first].failed
    if failed is None:
        if ranks[first].code == -signal.SIGABRT:  # what gloo does about it
            if _was_left(ranks, ranks[first]):
                return _unfit(ranks[first])
            if _differ(ranks):
                return _apart(ranks, f"rank {ranks[first].rank} was given what it cannot use")
        return _died(ranks[first])
    if failed.type_name == "SystemExit":
        return _left(ranks[first], failed)
    same = sorted(ranks[rank].rank for rank in own if _same(ranks[rank].failed, failed))
    return failure.revive(failed, exception_of(first), same)


def _is_comm(state: RankState) -> bool:
    return state.failed is not None and state.failed.is_comm


def _same(one: Failed | None, other: Failed) -> bool:
    if one is None or (one.type_name, len(one.frames)) != (other.type_name, len(other.frames)):
        return False
    lines = [
        (a.filename, a.lineno) == (b.filename, b.lineno)
        for a, b in zip(one.frames, other.frames, strict=True)
    ]
    return all(lines) and without_numbers(one.message) == without_numbers(other.message)


def _nobodys_own(
    ranks: list[RankState], first: int, exception_of: Callable[[int], BaseException | None]
) -> BaseException:
    """Only connections broke: a rank that returned while the others waited is the reason."""
    failed = ranks[first].failed
    assert failed is not None
    waiting = ranks[first]
    saw = _without_noise((failed.message or failed.type_name).splitlines()[0])
    early = [state for state in ranks if _returned(state)]
    if early:
        where = _in(waiting) or _at(failed)
        return _returned_early(early[0], waiting, where, f"rank {waiting.rank} saw: {saw}")
    if _differ(ranks):
        return _apart(ranks, f"what rank {waiting.rank} saw: {saw}")
    return failure.revive(failed, exception_of(first), [waiting.rank])


def stuck(ranks: list[RankState]) -> LaunchError:
    """Make the error of a run whose ranks would wait for each other for ever."""
    early = [state for state in ranks if _returned(state)]
    waiting = [state for state in ranks if not _returned(state)]
    if not early or not waiting:
        return _apart(ranks, "none of them has moved for a while")
    where = _in(waiting[0])
    return _returned_early(early[0], waiting[0], where, "it has not moved for a while")


def _returned(state: RankState) -> bool:
    """Whether a rank came to the end of its function, and was not ended by us before that."""
    return state.returned is not None and not state.returned.stopped


def _returned_early(early: RankState, waiting: RankState, where: str, seen: str) -> WorkerDied:
    both = sorted([early, waiting], key=lambda state: state.rank)
    return WorkerDied(
        f"rank {early.rank} returned early, {_after(early)}, "
        f"while rank {waiting.rank} waited for it{where}",
        f"a collective needs every rank; {seen}{_counts(both)}",
        "let every rank run the same number of steps and call the same collectives; one that is "
        "under `if accelerator.is_main_process`: take it out of there",
        rank=early.rank,
    )


def _without_noise(message: str) -> str:
    """What a collective complained of, without where its source lies and what it guesses."""
    return re.sub(r"^\[\S+\] |(?<=\.) .*", "", message)


def _apart(ranks: list[RankState], seen: str) -> RanksStuck:
    beats = [state.wait.beat for state in ranks]
    kinds = {beat.kind for beat in beats}
    sizes = len({beat.num_bytes for beat in beats}) > 1 and len({beat.group for beat in beats}) == 1
    # One call may be several collectives: a rank that saw unlike tensors is in the next one.
    if sizes and not _on_different_lines(ranks) and (_in_one_call(ranks) or len(kinds) == 1):
        what = "the ranks bring tensors of different sizes to one collective: "
        places = [f"rank {state.rank}{_bytes(state)}{_in(state)}" for state in ranks]
        fix = SAME_SHAPES
    else:
        what = "the ranks wait for each other in different places: "
        places = [f"rank {state.rank}{_in(state)}" for state in ranks]
        fix = (
            "let every rank call it: take it out of `if accelerator.is_main_process`; "
            "where one rank leaves a loop early (break, continue), let all ranks take the same "
            "number of steps"
        )
        if sizes and len(kinds) == 1:  # or the one that was content went on to another line
            fix += "; where all call it, bring tensors of the same shape (pad_across_processes)"
    return RanksStuck(
        what + ", ".join(places),
        f"a collective ends when every rank is in the same one; {seen}{_counts(ranks)}",
        fix,
    )


def _was_left(ranks: list[RankState], died: RankState) -> bool:
    """Whether a rank was in a collective that others had left, having sent their part."""
    beat = died.wait.beat
    if beat.kind not in ONE_SIDED and _in_one_call(ranks) and _differ(ranks):
        return False  # what each of them brings says more
    ahead = any(state.wait.beat.entered > beat.entered for state in ranks)
    gone = any(not state.wait.beat.inside for state in ranks)
    return beat.inside and beat.kind in ALIKE and (ahead or gone)


def _unfit(died: RankState) -> RanksStuck:
    return RanksStuck(
        f"rank {died.rank} brought{_bytes(died)}{_in(died)}, and was sent another size",
        f"{died.wait.beat.kind} fills tensors of the size that is sent; gloo ended the process",
        SAME_SHAPES,
    )


def _in_one_call(ranks: list[RankState]) -> bool:
    return len({state.wait.where() for state in ranks}) == 1


def _on_different_lines(ranks: list[RankState]) -> bool:
    """Whether all ranks are known to be on lines of the person's code, and not on one."""
    told = [state.wait.landmarks.get(state.wait.beat.landmark) for state in ranks]
    lines = {(one.frame.filename, one.frame.lineno) for one in told if one is not None}
    return None not in told and len(lines) > 1


def _differ(ranks: list[RankState]) -> bool:
    """Whether the ranks were last seen in collectives that do not belong together."""
    return len({meeting(state.wait.beat) for state in ranks if state.wait.beat.inside}) > 1


def _bytes(state: RankState) -> str:
    num_bytes = state.wait.beat.num_bytes
    return f" {num_bytes} bytes" if num_bytes else ""


def _in(state: RankState) -> str:
    return f" in {state.wait.where()}" if state.wait.beat.inside else ""


def _counts(ranks: list[RankState]) -> str:
    """Say how far each rank got, where that differs: "; backward so far, rank 0: 4, rank 1: 3"."""
    backward = [state.wait.beat.num_backward for state in ranks]
    others = [state.wait.beat.entered - state.wait.beat.num_backward for state in ranks]
    words = []
    for name, counts in (("backward", backward), ("other collectives", others)):
        if len(set(counts)) > 1:
            each = ", ".join(f"rank {s.rank}: {n}" for s, n in zip(ranks, counts, strict=True))
            words.append(f"{name} so far, {each}")
    return f"; {'; '.join(words)}" if words else ""


def _at(failed: Failed) -> str:
    return f" at {failure.place(failure.users_own(failed.frames)[-1])}" if failed.frames else ""


def _after(state: RankState) -> str:
    return f"after step {state.last_step}" if state.last_step else "before its first step"


def _died(state: RankState) -> WorkerDied:
    rank = state.rank
    code = state.code if state.code is not None else 0
    if code < 0:
        why, fix = signal_advice(-code)
        what = f"rank {rank} was killed by {signal_name(-code)}, {_after(state)}"
    else:
        what = f"rank {rank} left with exit code {code}, {_after(state)}, without returning"
        why = "something called os._exit, or native code ended the process"
        fix = "let the function return, or raise an exception that says what is wrong"
    return WorkerDied(what, why, fix, rank=rank, exit_code=code)


def _left(state: RankState, failed: Failed) -> WorkerDied:
    rank = state.rank
    is_number = failed.message.isdigit()
    code = int(failed.message) if is_number else 1
    said = failed.message if is_number else repr(failed.message)
    return WorkerDied(
        f"rank {rank} called sys.exit({said}){_at(failed)}, {_after(state)}",
        "a worker that exits leaves the others waiting",
        "return from the function instead; raise an exception if something is wrong",
        rank=rank,
        exit_code=code,
    )


def timed_out(timeout_s: float, ranks: list[RankState], stacks: Mapping[int, str]) -> LaunchError:
    """Make the error of a run that took too long, with where each rank was."""
    where = []
    for local_rank, state in enumerate(ranks):
        rank = state.rank
        if state.returned is not None and not state.returned.stopped:
            where.append(f"rank {rank} had returned, {_after(state)}")
        elif local_rank in stacks:
            where.append(
                f"rank {rank} was {failure.innermost(stacks[local_rank])}, {_after(state)}"
            )
        else:
            where.append(f"rank {rank} could not be asked, {_after(state)}")
    return RunTimeout(
        f"the run took longer than timeout_s={timeout_s:g}",
        "; ".join(where),
        "give it more time, or look at the ranks that wait for another one",
    )
