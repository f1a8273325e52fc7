"""The accumulation plugin: plain data, one number of steps."""

from __future__ import annotations

import pytest

from notebook_accel.config.accumulation import GradientAccumulationPlugin, chosen_accumulation
from notebook_accel.errors import ConfigError


def test_the_number_of_steps_is_whatever_one_of_both_says() -> None:
    plugin = GradientAccumulationPlugin(num_steps=4, sync_each_batch=True)
    assert chosen_accumulation(None, 3).num_steps == 3
    assert chosen_accumulation(None, None).num_steps is None
    for given in (None, 1, 4):
        assert chosen_accumulation(plugin, given) == plugin
    filled = chosen_accumulation(GradientAccumulationPlugin(sync_with_dataloader=False), 2)
    assert filled == GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)


def test_two_unlike_numbers_of_steps_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        chosen_accumulation(GradientAccumulationPlugin(num_steps=4), 2)
    assert "gradient_accumulation_steps=2 and a plugin with num_steps=4" in error.value.what
    assert "the plugin's number counts" in error.value.fix


def test_a_number_of_steps_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="gradient_accumulation_steps=0"):
        GradientAccumulationPlugin(num_steps=0)


def test_only_changed_fields_are_passed_on() -> None:
    assert GradientAccumulationPlugin(num_steps=2).to_kwargs() == {"num_steps": 2}
