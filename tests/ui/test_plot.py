"""The picture and its facts."""

import io
import math
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics
from notebook_accel.ui import plot
from notebook_accel.ui.curves import Curves


def history_of(**series):
    history = History()
    for name, values in series.items():
        history.handle(Metrics(0, [(name, step, v) for step, v in enumerate(values, 1)]))
    return history


def pixels(history, scale=1.0):
    image = Image.open(io.BytesIO(plot.png(history, "run", scale))).convert("RGB")
    return np.asarray(image).astype(int)


def num_pixels(history, color):
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels(history) - wanted).max(axis=2) < 24).sum())


BLUE, ORANGE, ALARM = plot._PENS[0][0], plot._PENS[1][0], plot._ALARM


def test_the_picture_is_an_opaque_white_card_of_the_stated_size():
    image = Image.open(io.BytesIO(plot.png(history_of(loss=[2.0, 1.0]), "run", 2.0)))
    assert image.size == (2 * plot.WIDTH_PX, 2 * plot.HEIGHT_PX)
    assert image.convert("RGBA").getpixel((2, 2)) == (255, 255, 255, 255)


def test_the_curve_is_drawn():
    assert num_pixels(history_of(loss=[2.0, 1.0, 0.5]), BLUE) > 300
    assert num_pixels(history_of(), BLUE) == 0


def test_two_losses_differ_by_more_than_color():
    two = history_of(**{"loss": [2.0, 2.0] * 20, "loss/2": [1.0, 1.0] * 20})
    row = (np.abs(pixels(two) - [0xB0, 0x4A, 0x00]).max(axis=2) < 60).any(axis=0)
    changes = int(np.abs(np.diff(row[60:640].astype(int))).sum())
    assert changes > 20, "the second line is dashed"


def test_values_that_are_not_finite_are_marked():
    good = [2.0 - 0.01 * step for step in range(100)]
    assert num_pixels(history_of(loss=good), ALARM) == 0
    assert num_pixels(history_of(loss=[*good, math.nan, *good]), ALARM) > 5
    assert num_pixels(history_of(loss=[math.inf] * 3), ALARM) > 5


@pytest.mark.parametrize("values", [[0.0], [1.0, 1.0], [-3.0, -3.0], [1e-9, 1e9], [math.nan]])
def test_odd_curves_are_drawn_without_complaint(values, recwarn):
    assert plot.png(history_of(loss=values), "run").startswith(b"\x89PNG")
    assert not [str(warning.message) for warning in recwarn]


def test_reducing_a_long_series_keeps_every_spike_and_every_mark():
    values = [1.0] * 100_000
    values[54_321], values[77_777] = 50.0, math.nan
    reduced = Curves(history_of(loss=values))["loss"]
    assert 250 < len(reduced.steps) <= 513
    assert reduced.highs.max() == 50.0
    assert reduced.lows.min() == 1.0
    (broken,) = reduced.broken
    assert abs(broken - 77_778) < 100_000 / 250
    narrow = reduced.narrowed(100)
    assert len(narrow.steps) <= 100
    assert (narrow.highs.max(), narrow.lows.min(), *narrow.broken) == (50.0, 1.0, broken)


def test_a_short_series_is_drawn_as_it_is():
    reduced = Curves(history_of(loss=[3.0, 1.0, 2.0]))["loss"]
    assert reduced.steps.tolist() == [1, 2, 3]
    assert reduced.means.tolist() == [3.0, 1.0, 2.0]


def test_a_card_drawn_again_is_the_same_as_a_new_one():
    history, card = history_of(loss=[2.0]), plot.Card("run")
    curves = Curves(history)
    card.png(curves)
    history.handle(Metrics(0, [("loss", 2, 1.0), ("loss", 3, math.nan), ("loss", 4, 0.2)]))
    assert card.png(curves) == plot.png(history, "run")
    history.handle(Metrics(0, [("accuracy", 4, 0.9), ("loss", 5, 1e9), ("loss", 6, 1e-9)]))
    card.png(curves, 2.0)
    assert card.png(curves) == plot.png(history, "run")


def test_train_and_validation_share_a_panel_and_the_first_of_three_is_wide():
    card = plot.Card("run")
    card.png(Curves(history_of(loss=[1.0, 2.0], val_loss=[2.0, 2.0], accuracy=[0.1, 0.2])))
    assert [axes.get_title("left") for axes in card._panels] == ["loss", "accuracy"]
    card.png(Curves(history_of(loss=[1.0, 2.0], accuracy=[0.1, 0.2], lr=[1.0, 0.5])))
    widths = [axes.get_position().width for axes in card._panels]
    assert widths[0] > 1.9 * max(widths[1:])


def test_a_run_with_many_curves_names_what_it_left_out():
    card = plot.Card("run")
    card.png(Curves(history_of(**{f"metric {n}": [float(n)] * 3 for n in range(6)})))
    assert len(card._panels) == plot.MAX_PANELS
    assert card._title_text.get_text() == "run   (without metric 4, metric 5)"
    several = history_of(
        **{"loss": [1.0] * 3, **{f"loss/{n}": [float(n)] * 3 for n in range(2, 9)}}
    )
    card = plot.Card("run")
    card.png(Curves(several))
    texts = [text.get_text() for text in card._panels[0].texts]
    assert len(texts) == 5
    assert texts[-1] == "+4 more"


def test_drawing_leaves_pyplot_alone():
    code = (
        "import sys\nfrom notebook_accel.events.history import History\n"
        "from notebook_accel.ui import plot\nplot.png(History(), 'run')\n"
        "print('matplotlib.pyplot' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False"], done.stderr


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["日本", "損失 😀", "$\\frac$", "a$b$c_d^", "ü\u0301", "\ud800"])
def test_a_name_is_written_as_it_is_or_with_boxes_and_nothing_is_said_about_fonts(
    name: str,
) -> None:
    history = history_of(**{name: [2.0, 1.0]})
    assert plot.png(history, f"run {name}") != plot.png(history, "run x")
    assert "DejaVu Sans" in plot.ink.written(name)["fontfamily"]


def test_letters_that_no_font_has_are_boxes_and_others_stay() -> None:
    said = plot.ink.written("a ü→$x$\n\U000f0000\ud800")
    assert said["text"] == "a ü→$x$\n□□" and said["parse_math"] is False
