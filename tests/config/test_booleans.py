"""One reading of yes and no."""

from __future__ import annotations

import pytest

from notebook_accel import Accelerator
from notebook_accel.config.booleans import read_boolean
from notebook_accel.config.training import from_env
from notebook_accel.errors import ConfigError


@pytest.mark.parametrize("word", ["1", "true", "True", "YES", "y", "on", " t ", True, 1])
def test_these_mean_yes(word: object) -> None:
    assert read_boolean(word) is True


@pytest.mark.parametrize("word", ["0", "false", "No", "n", "OFF", "f", False, 0])
def test_these_mean_no(word: object) -> None:
    assert read_boolean(word) is False


def test_anything_else_is_refused_with_the_words_that_are_understood() -> None:
    with pytest.raises(ValueError) as error:
        read_boolean("maybe", "ACCELERATE_DEBUG_MODE")
    assert error.value.what == "ACCELERATE_DEBUG_MODE is 'maybe', which is neither yes nor no"
    assert "true" in error.value.why and "off" in error.value.why
    assert '"1"' in error.value.fix


@pytest.mark.parametrize("word", ["1", "true", "yes", "on"])
def test_a_switch_of_the_environment_has_one_spelling_of_each_answer(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E10: the debug mode was read with two spellings."""
    monkeypatch.delenv("ACCELERATE_DEBUG_MODE", raising=False)
    assert from_env("debug") is False
    for said, is_on in ((word, True), ("0", False), ("", False)):
        monkeypatch.setenv("ACCELERATE_DEBUG_MODE", said)
        assert from_env("debug") is is_on


def test_one_setting_is_read_whatever_other_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp7")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "yes")
    assert from_env("device") == "cpu"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "no")
    assert from_env("device") is None
    with pytest.raises(ConfigError, match="ACCELERATE_MIXED_PRECISION=fp7 is not known"):
        from_env("mixed_precision")


def test_a_switch_that_nobody_understands_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "perhaps")
    with pytest.raises(ConfigError, match="ACCELERATE_USE_CPU=perhaps is not yes or no"):
        Accelerator()
