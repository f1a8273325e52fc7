"""Settings of a launch: what is refused, and in which words."""

from __future__ import annotations

import pickle

import pytest

from notebook_accel.config.schema import DEFAULT_PRECISION, LaunchSettings, given
from notebook_accel.errors import ConfigError


def refusal(**settings: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        LaunchSettings(**settings)
    return caught.value


def test_the_defaults_are_valid_and_not_given() -> None:
    settings = LaunchSettings()
    assert settings.mixed_precision == "no"
    assert not given(settings.mixed_precision)
    assert given("no")


def test_a_default_stays_not_given_after_pickling() -> None:
    copy = pickle.loads(pickle.dumps(DEFAULT_PRECISION))
    assert copy == "no"
    assert not given(copy)


def test_an_unknown_precision_lists_the_choices_and_proposes_the_nearest() -> None:
    error = refusal(mixed_precision="fp17")
    assert isinstance(error, ValueError)
    assert error.what == "mixed_precision='fp17' is not known"
    assert error.why == "mixed_precision is one of 'no', 'fp16', 'bf16', 'fp8'"
    assert error.fix == "pass mixed_precision='fp16'"
    assert "mixed_precision='bf16'" in refusal(mixed_precision="BF16").fix


def test_a_choice_that_resembles_nothing_gets_the_whole_list() -> None:
    assert refusal(on_interrupt="xyzzy").fix == "pass one of 'raise', 'return'"
    assert refusal(start_method=None).what == "start_method=None is not known"


@pytest.mark.parametrize(
    ("value", "what", "fix"),
    [
        (0, "num_processes=0 is out of range", "write num_processes=1, or leave it out"),
        (-1, "num_processes=-1 is out of range", "write num_processes=1, or leave it out"),
        (True, "num_processes=True is a bool", "write num_processes=1"),
        (2.0, "num_processes=2.0 is a float", "write num_processes=2"),
        ("2", "num_processes='2' is a str", "write num_processes=2"),
        ("two", "num_processes='two' is a str", "write num_processes=2"),
    ],
)
def test_a_bad_process_count_is_refused_with_the_call_to_write(
    value: object, what: str, fix: str
) -> None:
    error = refusal(num_processes=value)
    assert (error.what, error.fix) == (what, fix)


def test_no_process_count_and_no_timeout_are_fine() -> None:
    settings = LaunchSettings(num_processes=None, timeout_s=None)
    assert settings.num_processes is None
    assert LaunchSettings(timeout_s=5).timeout_s == 5


@pytest.mark.parametrize("value", [0, -3.0, float("nan")])
def test_a_timeout_must_be_more_than_zero(value: float) -> None:
    error = refusal(timeout_s=value)
    assert error.why.startswith("timeout_s must be more than 0: ")
    assert error.fix == "write timeout_s=60, or leave it out"


def test_a_timeout_in_words_is_refused() -> None:
    error = refusal(timeout_s="90.5")
    assert error.why.startswith("timeout_s is a number of seconds or None: ")
    assert error.fix == "write timeout_s=90.5"


def test_restarts_may_be_none_at_all_but_not_negative() -> None:
    assert LaunchSettings(max_restarts=0).max_restarts == 0
    assert refusal(max_restarts=-1).fix == "write max_restarts=0, or leave it out"


@pytest.mark.parametrize("value", [None, "cpu", "auto-or-cpu", 1, [2, 0], (0,)])
def test_devices_are_kinds_numbers_and_lists(value: object) -> None:
    assert LaunchSettings(device=value).device == value


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("cuda:1", "write device=1"),
        ("cdua", "pass device='cuda'"),
        ([], "write, for example, device=[0, 1]"),
        ([True], "write, for example, device=[0, 1]"),
        (["0"], "write, for example, device=[0, 1]"),
    ],
)
def test_other_devices_are_refused_with_the_value_to_write(value: object, fix: str) -> None:
    assert refusal(device=value).fix == fix


def test_a_bool_is_no_gpu_number() -> None:
    assert refusal(device=True).what == "device=True is not known"


def test_the_last_machine_is_one_less_than_their_number() -> None:
    assert LaunchSettings(num_nodes=2, node_rank=1).node_rank == 1
    error = refusal(num_nodes=2, node_rank=2)
    assert error.what == "node_rank=2, but num_nodes=2"
    assert "from 0 to 1" in error.fix


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(refusal(mixed_precision="x" * 500).what) < 120


def test_every_setting_says_what_it_is() -> None:
    for field in LaunchSettings.__dataclass_fields__.values():
        assert field.metadata["help"]
