"""Where am I."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from notebook_accel.errors import ConfigError
from notebook_accel.ui import place as place_module
from notebook_accel.ui.place import has_kernel, place


def test_a_plain_process_shows_text():
    here = place({}, io.StringIO())
    assert not has_kernel()
    assert (here.surface, here.host, here.rewrites) == ("text", "terminal", False)


def test_a_terminal_can_rewrite_its_line():
    reader, writer = os.openpty()
    try:
        with os.fdopen(writer, "w") as stream:
            assert place({}, stream).rewrites
    finally:
        os.close(reader)


@pytest.mark.parametrize(("wish", "surface"), [("off", "off"), ("TEXT", "text"), ("png", "text")])
def test_the_variable_overrides_but_a_picture_needs_a_kernel(wish, surface):
    assert place({"NOTEBOOK_ACCEL_UI": wish}, io.StringIO()).surface == surface


def test_an_unknown_wish_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match="NOTEBOOK_ACCEL_UI=fancy") as caught:
        place({"NOTEBOOK_ACCEL_UI": "fancy"}, io.StringIO())
    assert "png, text, off" in str(caught.value)


def test_kaggle_is_told_from_colab_whose_image_it_is_built_on():
    env = {"COLAB_RELEASE_TAG": "x", "KAGGLE_KERNEL_RUN_TYPE": "Interactive"}
    assert place(env, io.StringIO()).host == "kaggle"
    del env["KAGGLE_KERNEL_RUN_TYPE"]
    assert place(env, io.StringIO()).host == "colab"


def test_a_page_gets_a_widget_only_where_its_server_has_what_draws():
    """Lab's server is asked by its process: here it is this very one, then none at all."""
    assert not place_module._lab_can_draw({})
    assert not place_module._lab_can_draw({"JPY_PARENT_PID": "not a number"})
    assert not place_module._lab_can_draw({"JPY_PARENT_PID": "999999999"})
    has_it = (Path(sys.prefix) / place_module._EXTENSION).exists()
    here = Path(f"/proc/{os.getpid()}/cmdline").exists()
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None and child.stdout.readline()  # its command line is there
        assert place_module._lab_can_draw({"JPY_PARENT_PID": str(child.pid)}) == (has_it and here)
    finally:
        child.communicate(b"\n")
    other = subprocess.Popen(["sleep", "60"])
    try:
        assert not place_module._lab_can_draw({"JPY_PARENT_PID": str(other.pid)})
    finally:
        other.kill()
        other.wait()


def test_no_widget_and_no_question_without_a_kernel():
    here = place({"JPY_PARENT_PID": "1", "COLAB_RELEASE_TAG": "x"}, io.StringIO())
    assert (here.surface, here.may_have_widgets) == ("text", False)
