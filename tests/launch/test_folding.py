"""The same line, told once: of several ranks, many times over, and warnings."""

from __future__ import annotations

import random
import time

from notebook_accel.config.words import spanned
from notebook_accel.launch.folding import HOLD_S, Folder
from notebook_accel.launch.streams import Console


def folder_of(num_ranks: int) -> Folder:
    return Folder(num_ranks, lambda ranks: f"[{spanned(ranks)}] ")


def texts(folder: Folder, now: float | None = None) -> str:
    return "".join(text for _, text in folder.due(now, everything=now is None))


def test_the_same_line_of_all_ranks_is_told_at_once_with_all_their_numbers() -> None:
    folder = folder_of(4)
    for rank in (2, 0, 1):
        folder.add(rank, "stdout", ["hello\n"], 1.0)
    assert texts(folder, 1.01) == "", "rank 3 may yet say the same"
    folder.add(3, "stdout", ["hello\n"], 1.02)
    assert texts(folder, 1.02) == "[0-3] hello\n"


def test_a_line_of_one_rank_waits_only_a_moment() -> None:
    folder = folder_of(2)
    folder.add(0, "stdout", ["mine\n"], 1.0)
    assert texts(folder, 1.0 + HOLD_S / 2) == ""
    assert texts(folder, 1.0 + HOLD_S) == "[0] mine\n"


def test_each_rank_keeps_the_order_of_its_lines() -> None:
    folder = folder_of(2)
    folder.add(0, "stdout", ["a\n", "b\n", "c\n"], 1.0)
    folder.add(1, "stdout", ["b\n", "a\n", "c\n"], 1.0)
    assert texts(folder) == "[0] a\n[0,1] b\n[0] c\n[1] a\n[1] c\n"


def test_whatever_ranks_say_nothing_is_lost_and_no_order_is_changed() -> None:
    random.seed(0)
    for _ in range(200):
        folder, said = folder_of(3), {rank: [] for rank in range(3)}  # type: ignore[var-annotated]
        shown, now = "", 1.0
        for _ in range(40):
            rank, line = random.randrange(3), random.choice("abcd") + "\n"
            said[rank].append(line)
            folder.add(rank, "stdout", [line], now)
            now += random.choice([0.0, 0.01, 0.3])
            shown += texts(folder, now)
        shown += texts(folder)
        heard = {rank: [] for rank in range(3)}  # type: ignore[var-annotated]
        for text in shown.splitlines():
            tag, _, line = text.partition("] ")
            first, _, last = tag[1:].partition("-")
            ranks = range(int(first), int(last) + 1) if last else map(int, first.split(","))
            for rank in ranks:
                heard[rank].append(line)
        for rank in range(3):
            lines = unfolded(heard[rank])
            assert squeezed(lines) == squeezed(said[rank]), shown


def unfolded(lines: list[str]) -> list[str]:
    """Lines with those that stand for several written out."""
    out: list[str] = []
    for line in lines:
        if line.startswith("(the same line"):
            out.append(out[-1])
        else:
            out.append(line.partition("  (x")[0] + "\n")
    return out


def squeezed(lines: list[str]) -> list[str]:
    """Lines without those that repeat the one before."""
    return [line for i, line in enumerate(lines) if not i or line != lines[i - 1]]


def test_a_line_said_again_and_again_is_told_with_its_number() -> None:
    folder = folder_of(2)
    folder.add(0, "stdout", ["nan!\n"] * 40, 1.0)
    assert texts(folder, 2.0) == "[0] nan!  (x40)\n"
    folder.add(0, "stdout", ["nan!\n"] * 30, 2.1)
    assert texts(folder, 2.5) == "", "there may come more"
    folder.add(0, "stdout", ["nan!\n"] * 30, 2.6)
    assert texts(folder, 3.2) == "[0] (the same line x60)\n"
    folder.add(0, "stdout", ["nan!\n", "over\n"], 3.3)
    assert texts(folder, 3.3 + HOLD_S) == "[0] nan!\n[0] over\n", "a single one is no crowd"


def test_empty_lines_and_bars_are_left_alone() -> None:
    folder = folder_of(2)
    folder.add(0, "stderr", ["\n", "\n", "\n", "10%\r", "10%\r", "10%\r"], 1.0)
    assert texts(folder, 1.0) == "\n\n\n" + "[0] 10%\r" * 3


def test_pieces_of_a_long_line_are_not_lines() -> None:
    folder = folder_of(1)
    folder.add(0, "stdout", ["xxxx"] * 5 + ["x\n"], 1.0)
    assert texts(folder).count("x") == 21


def test_a_warning_is_told_once_with_what_belongs_to_it() -> None:
    folder = folder_of(2)
    warning = ["train.py:3: UserWarning: slow\n", "  step()\n"]
    folder.add(0, "stderr", warning, 1.0)
    assert texts(folder, 2.0) == "[0] train.py:3: UserWarning: slow\n[0]   step()\n"
    folder.add(1, "stderr", [*warning, "mine\n"], 3.0)
    assert texts(folder) == "[1] mine\n"
    folder.add(1, "stdout", warning, 4.0)
    assert "UserWarning" in texts(folder), "on stdout it is a line like any other"


def test_streams_are_not_mixed_up() -> None:
    folder = folder_of(2)
    folder.add(0, "stdout", ["x\n"], 1.0)
    folder.add(1, "stderr", ["x\n"], 1.0)
    assert folder.due(everything=True) == [("stdout", "[0] x\n"), ("stderr", "[1] x\n")]


def test_a_flood_of_lines_does_not_wait() -> None:
    folder = folder_of(2)
    folder.add(0, "stdout", (f"{n}\n" for n in range(5000)), 1.0)
    assert texts(folder, 1.0).count("\n") == 5000


def test_a_console_writes_no_line_later_than_it_must() -> None:
    written: list[str] = []
    console = Console(2, write=lambda stream, text: written.append(text))
    from notebook_accel.events.model import Display, Output

    console.handle(Output(0, "stdout", "before\n"))
    console.handle(Display(0, "display_data", {}, {}))
    assert written == ["[0] before\n"], "what was said before a figure stands above it"
    console.handle(Output(0, "stdout", "after\n"))
    deadline = time.monotonic() + 5
    while len(written) < 2 and time.monotonic() < deadline:
        console.tick()
        time.sleep(0.01)
    assert written[1:] == ["[0] after\n"]
