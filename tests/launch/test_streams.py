"""Lines of ranks: whole, tagged, in order; nothing lost at the end."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

from notebook_accel.events.model import Exited, Output
from notebook_accel.launch.streams import Console, LineCutter, RankLogs


def text_of(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs)


def shown(num_ranks: int, outputs: list[Output], template: str | None = None) -> str:
    console = Console(num_ranks, template)
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(stream):
        for output in outputs:
            console.handle(output)
        console.close()
    return stream.getvalue()


def test_only_whole_lines_come_out_and_the_rest_waits_for_its_end() -> None:
    cutter = LineCutter(0, "stdout")
    assert text_of(cutter.feed(b"one\ntw")) == "one\n"
    assert text_of(cutter.feed(b"o\n")) == "two\n"
    assert cutter.feed(b"thr") == []
    assert text_of(cutter.finish()) == "thr\n"
    assert cutter.finish() == []


def test_a_character_cut_in_two_by_the_pipe_stays_whole() -> None:
    cutter = LineCutter(0, "stdout")
    raw = "café\n".encode()
    assert cutter.feed(raw[:4]) == []
    assert text_of(cutter.feed(raw[4:])) == "café\n"


def test_bytes_that_are_no_text_do_not_stop_anything() -> None:
    assert text_of(LineCutter(0, "stdout").feed(b"a\xff\n")) == "a\N{REPLACEMENT CHARACTER}\n"


def test_a_progress_bar_moves_on_at_every_carriage_return() -> None:
    cutter = LineCutter(0, "stderr")
    assert text_of(cutter.feed(b"\r10%\r20%")) == "\r10%\r"
    assert text_of(cutter.finish()) == "20%\n"


def test_a_line_longer_than_the_limit_is_passed_on_in_pieces() -> None:
    cutter = LineCutter(0, "stdout")
    assert len(text_of(cutter.feed(b"x" * 70_000))) == 70_000


def test_lines_are_tagged_by_rank_and_only_with_several_ranks() -> None:
    outputs = [Output(1, "stdout", "a\n\nb\n"), Output(0, "stdout", "c\n")]
    assert shown(2, outputs) == "[1] a\n\n[1] b\n[0] c\n"
    assert shown(1, [Output(0, "stdout", "a\n")]) == "a\n"


def test_announced_lines_speak_for_the_run_and_have_no_tag() -> None:
    cutter = LineCutter(0, "stdout")
    outputs = cutter.feed(b"mine\n\x1eours\n\x1eours too\nmine again\n")
    assert [(o.text, o.announced) for o in outputs] == [
        ("mine\n", False),
        ("ours\nours too\n", True),
        ("mine again\n", False),
    ]
    assert shown(2, outputs) == "[0] mine\nours\nours too\n[0] mine again\n"


def test_every_line_of_a_run_with_a_name_begins_with_it() -> None:
    for num_ranks, template, said in (
        (1, None, "[run 2] a\n"),
        (2, None, "[run 2] [0] a\n"),
        (1, "<${rank}> ", "[run 2] <0> a\n"),
    ):
        console = Console(num_ranks, template, name="run 2")
        stream = io.StringIO()
        with redirect_stdout(stream):
            console.handle(Output(0, "stdout", "a\n"))
            console.handle(Output(0, "stdout", "ours\nours too\n", announced=True))
            console.close()
        assert stream.getvalue() == f"{said}[run 2] ours\n[run 2] ours too\n"


def test_a_second_machine_tags_its_lines_with_the_ranks_of_the_whole_run() -> None:
    console = Console(2, first_rank=2)
    stream = io.StringIO()
    with redirect_stdout(stream):
        console.handle(Output(1, "stdout", "a\n"))
        console.close()
    assert stream.getvalue() == "[3] a\n"


def test_the_tag_can_be_a_template_as_in_torch_elastic() -> None:
    assert shown(2, [Output(1, "stdout", "a\n")], "<${role_name}:${rank}> ") == "<default:1> a\n"


def test_stdout_and_stderr_keep_their_order_within_a_batch() -> None:
    outputs = [Output(0, "stdout", "1\n"), Output(0, "stderr", "2\n"), Output(0, "stdout", "3\n")]
    assert shown(1, outputs) == "1\n2\n3\n"


def test_logs_keep_the_newest_part_of_what_each_rank_wrote() -> None:
    logs = RankLogs(2, max_chars=6)
    for text in ("one\n", "two\n", "six\n"):
        logs.handle(Output(1, "stdout", text))
    logs.handle(Exited(1, 0))
    assert logs.texts() == ["", "six\n"]
