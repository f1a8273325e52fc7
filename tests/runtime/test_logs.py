"""Log lines and bars that know their rank, on one process; many: test_tools_on_ranks."""

from __future__ import annotations

import io
import logging

import pytest

from notebook_accel.errors import ConfigError
from notebook_accel.runtime.bars import tqdm
from notebook_accel.runtime.logs import get_logger


def test_a_logger_needs_no_state_and_makes_none(caplog: pytest.LogCaptureFixture) -> None:
    """TR02."""
    import torch.distributed as dist

    with caplog.at_level(logging.INFO):
        get_logger("quiet.start").info("hi %s", "there", main_process_only=True)
    assert [one.getMessage() for one in caplog.records] == ["hi there"]
    assert not dist.is_initialized()


def test_a_line_points_to_the_person_s_own_code(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("place")
    logger.warning("here")
    logger.warning("here", main_process_only=False, in_order=True)
    logger.warning_once("here")
    logger.log(logging.WARNING, "here")
    names = {(one.filename, one.funcName) for one in caplog.records}
    expected = "test_a_line_points_to_the_person_s_own_code"
    assert names == {("test_logs.py", expected)}


def test_a_warning_is_said_once_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("once")
    for _ in range(3):
        logger.warning_once("slow %s", "disk")
    logger.warning_once("slow %s", "net")
    get_logger("once").warning_once("slow %s", "disk")
    assert [one.getMessage() for one in caplog.records] == ["slow disk", "slow net", "slow disk"]


def test_a_level_is_this_logger_s_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = logging.getLogger().level
    assert get_logger("loud", log_level="debug").isEnabledFor(logging.DEBUG)
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "ERROR")
    assert not get_logger("hushed").isEnabledFor(logging.WARNING)
    assert logging.getLogger().level == before


def test_a_bar_iterates_what_it_is_given() -> None:
    assert list(tqdm(range(3), disable=True)) == [0, 1, 2]
    shown = io.StringIO()
    assert list(tqdm(range(3), file=shown)) == [0, 1, 2]
    assert "3/3" in shown.getvalue()


def test_the_old_way_to_call_a_bar_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        tqdm(False, range(3))
    assert "tqdm got False" in error.value.what
    assert "iterable" in error.value.why
    assert "main_process_only=False" in error.value.fix
