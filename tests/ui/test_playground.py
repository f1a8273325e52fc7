"""The playground: collectives on real processes, drawn as text, picture and controls."""

from __future__ import annotations

import re

import pytest

from notebook_accel import WorkerDied, playground
from notebook_accel.errors import ConfigError
from notebook_accel.ui import exchange_html
from notebook_accel.ui.exchange import Exchange, exchange


@pytest.mark.parametrize(
    ("call", "after", "origins"),
    [
        (
            lambda: playground.all_reduce(num_ranks=3),
            ((33, 36, 39),) * 3,
            (((0, 1, 2),) * 3,) * 3,
        ),
        (
            lambda: playground.all_gather([[5], [6]]),
            ((5, 6),) * 2,
            (((0,), (1,)),) * 2,
        ),
        (
            lambda: playground.reduce_scatter([[1, 2, 3, 4], [0.5, 0.5, 0.5, 0.5]]),
            ((1.5, 2.5), (3.5, 4.5)),
            (((0, 1), (0, 1)),) * 2,
        ),
        (
            lambda: playground.broadcast([[1, 2], [3, 4]], source=1),
            ((3, 4),) * 2,
            (((1,), (1,)),) * 2,
        ),
    ],
    ids=["all_reduce", "all_gather", "reduce_scatter", "broadcast"],
)
def test_real_ranks_hold_the_right_numbers_and_know_from_whom(call, after, origins, capfd):
    done = call()
    assert done.after == after
    assert done.origins == origins
    assert done.error is None
    assert "Launching" not in capfd.readouterr().out


def test_a_rank_that_stays_away_leaves_the_others_waiting_and_is_named():
    done = playground.all_reduce(num_ranks=3, absent=[1])
    assert done.after is None
    assert isinstance(done.error, WorkerDied)
    text = repr(done)
    assert text.startswith("all_reduce on 3 processes: the ranks got stuck")
    assert re.search(r"rank 0 .* -> +waits\n", text)
    assert re.search(r"rank 1 .* -> +did not come\n", text)
    assert re.search(r"WorkerDied: rank 1 returned early, .* waited for it in all_reduce", text)


@pytest.mark.slow
def test_unlike_lengths_get_the_ranks_stuck_with_the_sizes():
    done = playground.all_reduce([[1, 2], [3]])
    assert "tensors of different sizes" in repr(done)
    assert "rank 0 16 bytes" in repr(done)


def test_the_text_tells_what_comes_from_whom():
    shown = exchange("all_gather")
    assert repr(shown).splitlines()[1:] == [
        "  rank 0   1 2     ->   ?",
        "  rank 1   11 12   ->   ?",
    ]
    ran = Exchange(
        "all_gather", ((1.0, 2.5), (11, 12)), after=((1.0, 2.5, 11),) * 2,
        origins=(((0,), (0,), (0, 1)),) * 2, took_s=0.26,
    )  # fmt: skip
    assert repr(ran).splitlines() == [
        "all_gather on 2 processes (0.3 s): every rank gets all buffers, one after the other in"
        " rank order",
        "  rank 0   1 2.5   ->   1 2.5 (from 0) | 11 (from 0+1)",
        "  rank 1   11 12   ->   1 2.5 (from 0) | 11 (from 0+1)",
    ]


def test_the_picture_says_in_words_what_it_says_in_color():
    ran = Exchange("all_reduce", ((1,), (2,)), after=((3,), (3,)), origins=(((0, 1),),) * 2)
    page = ran._repr_html_()
    assert page.count('title="from ranks 0 and 1"') == 2
    assert page.count(">0+1</span>") == 2
    for rank in (0, 1):
        assert f'title="from rank {rank}"' in page
        assert exchange_html.COLORS[rank] in page
    assert "color:" not in page.replace("background-color:", ""), "the ink is the page's"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"operation": "all_to_all"}, r"operation='all_to_all' is not in the playground"),
        ({"num_ranks": 1}, r"1 ranks do not fit into the playground"),
        ({"num_ranks": 9}, r"9 ranks do not fit .*\n.*shows 2 to 8"),
        ({"buffers": [[1, 2]]}, r"1 ranks do not fit"),
        ({"buffers": 7}, r"buffers=7 are not lists of numbers"),
        ({"buffers": [["a"], ["b"]]}, r"are not lists of numbers"),
        ({"buffers": [[1], []]}, r"one list with at least one number"),
        ({"absent": [2]}, r"absent: there is no rank 2"),
        ({"source": -1}, r"source: there is no rank -1"),
        ({"absent": [0, 1]}, r"all 2 ranks are absent"),
        (
            {"operation": "reduce_scatter", "buffers": [[1], [2]]},
            r"1 number cannot be shared by 2",
        ),
        ({"operation": "broadcast", "buffers": [[1, 2], [2]]}, r"the buffers have 2, 1 numbers"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(arguments, said):
    with pytest.raises(ConfigError, match=said):
        exchange(**{"operation": "all_reduce", **arguments})


def test_tensors_are_buffers_too():
    torch = pytest.importorskip("torch")
    assert exchange("all_reduce", torch.arange(4).view(2, 2)).before == ((0, 1), (2, 3))


class TestControls:
    def test_they_show_what_is_chosen_and_nothing_runs_before_it_is_asked_for(self):
        stage = playground.show("broadcast", num_ranks=2)
        assert "?" in repr(stage)
        stage.choose(num_ranks=3).choose(source=2)
        skin = stage.widget and stage._skin
        assert [row.box.layout.display for row in skin._rows] == [None, None, None, "none"]
        assert skin._source.layout.display is None
        skin._operation.value = "all_gather"
        assert skin._source.layout.display == "none"
        assert stage.exchange.before == ((1, 2), (11, 12), (21, 22))

    def test_what_a_person_writes_and_unticks_is_run(self):
        stage = playground.show("all_gather", num_ranks=2)
        skin = stage.widget and stage._skin
        skin._rows[1]._text.value = "7 8.5"
        skin._button.click()
        assert stage.exchange.after == ((1, 2, 7, 8.5),) * 2
        assert "8.5" in skin._picture.value
        skin._rows[0]._comes.value = False
        assert stage.exchange.after is None, "another question has no answer yet"
        skin._button.click()
        assert "rank 0 returned early" in skin._picture.value
        assert not skin._button.disabled

    def test_what_cannot_be_is_said_in_place_and_changes_nothing(self):
        stage = playground.show("reduce_scatter", num_ranks=2)
        skin = stage.widget and stage._skin
        skin._rows[0]._text.value = "1, two"
        assert "is not a list of numbers" in skin.problem.value
        assert skin._rows[0]._text.value == "1, 2"
        skin._rows[0]._comes.value = False
        skin._rows[1]._comes.value = False
        assert "all 2 ranks are absent" in skin.problem.value
        assert skin._rows[1]._comes.value

    def test_fewer_ranks_forget_who_was_absent_and_a_source_that_is_gone(self):
        stage = playground.show("broadcast", num_ranks=3).choose(source=2, absent={0})
        stage.choose(num_ranks=2)
        assert (stage.exchange.source, stage.exchange.absent) == (1, frozenset())
