"""Strategies in pickers: words, wishes, the questions of each, and the line that says the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import notebook_accel
from notebook_accel import (
    DDP,
    FSDP,
    ConfigError,
    DeepSpeed,
    DeepSpeedPlugin,
    FullyShardedDataParallelPlugin,
    LaunchPicker,
    Megatron,
    Pipeline,
    RunConfig,
    SequenceParallel,
    SingleDevice,
    TensorParallel,
)
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.wishes import Strategy
from notebook_accel.launch.asked import asked
from notebook_accel.ui import menu
from notebook_accel.ui import picker as picker_module
from tests.support import hardware


@pytest.fixture(autouse=True)
def nothing_picked_before() -> Iterator[None]:
    yield
    picker_module._kept.clear()


NO_ARGUMENTS: dict[str, Any] = {"num_processes": None, "strategy": None}


def picker(**given: Any) -> LaunchPicker:
    return LaunchPicker(machine=hardware.A100S, name=repr(given), **given)


def run_line(code: str) -> dict[str, Any]:
    """Do what the line says, with a launcher that tells what it was given."""
    said: dict[str, Any] = {}
    names = {name: getattr(notebook_accel, name) for name in notebook_accel._WHERE}
    names |= {"notebook_launcher": lambda main, **given: said.update(given), "main": None}
    eval(code, names)
    return said


def test_a_plugin_of_accelerates_is_the_wish_that_it_asks_for() -> None:
    plugin = FullyShardedDataParallelPlugin(cpu_offload=True)
    picker = LaunchPicker(strategy=plugin, machine=hardware.KAGGLE)  # type: ignore[arg-type]
    assert picker.wish == plugin.wish()
    assert "strategy=FSDP(cpu_offload=True" in picker.code
    picker.choose(strategy=DeepSpeedPlugin(zero_stage=3))
    assert picker.wish == DeepSpeedPlugin(zero_stage=3).wish()
    assert "on the CPU" not in repr(picker)


def test_every_choice_of_the_setting_and_every_wish_is_on_the_menu() -> None:
    assert set(SETTINGS["strategy"].choices) <= set(menu.WORDS)
    for entry in menu.MENU:
        fields = entry.wish.__dataclass_fields__
        assert {ask.field for ask in entry.asks} <= set(fields)
        assert getattr(notebook_accel, entry.wish.__name__) is entry.wish


@pytest.mark.parametrize("word", menu.WORDS)
def test_the_line_of_each_strategy_says_the_same_choice(word: str) -> None:
    one = picker().choose(strategy=word, gradient_accumulation_steps=3)
    said = run_line(one.code)
    config = said.get("config", RunConfig())
    assert config.gradient_accumulation_steps == 3
    assert config.num_processes == 4
    strategy = said.get("strategy", config.strategy)
    assert strategy == one.values["strategy"]
    assert menu.word_of(strategy) == word
    plain = run_line(picker().choose(strategy=word, gradient_accumulation_steps=None).code)
    assert plain.get("strategy", "auto") == one.values["strategy"]


def test_a_word_that_is_no_setting_means_all_ranks_and_follows_their_number() -> None:
    one = picker().choose(strategy="tensor")
    assert one.wish == TensorParallel(size=4)
    assert one.choose(num_processes=2).wish == TensorParallel(size=2)
    assert (one.run_config.num_processes, one.run_config.strategy) == (2, "auto")


def test_a_wish_is_kept_and_launched_with() -> None:
    wish = FSDP(cpu_offload=True)
    one = picker(strategy=wish)
    assert one.wish == one.values["strategy"] == one.accelerator_kwargs["strategy"] == wish
    assert one.code.endswith("strategy=FSDP(cpu_offload=True))")
    wanted = asked(one, NO_ARGUMENTS, None)
    assert wanted.words["wish"] == wish and wanted.config.strategy == "auto"
    both = asked(one, {**NO_ARGUMENTS, "strategy": DDP()}, None)
    assert both.words["wish"] == DDP()


def test_degrees_that_do_not_divide_the_ranks_are_refused_or_dropped_with_a_word() -> None:
    one = picker()
    with pytest.raises(ConfigError, match=r"TensorParallel\(size=3\) on 4 ranks"):
        one.choose(strategy=TensorParallel(size=3))
    one.choose(strategy=Pipeline(stages=4)).choose(num_processes=3)
    assert one.values["strategy"] == "auto"
    assert "note: strategy=Pipeline(stages=4) on 3 ranks; now strategy='auto'" in one.findings
    with pytest.raises(ConfigError, match="is a class"):
        one.choose(strategy=FSDP)
    with pytest.raises(ConfigError, match=r"strategy='fdsp' is not known(.|\n)*'fsdp'"):
        one.choose(strategy="fdsp")


def test_words_and_wishes_lead_to_each_other() -> None:
    assert menu.wish_of("auto", 1) == SingleDevice() and menu.wish_of("auto", 2) == DDP()
    assert menu.wish_of("megatron_lm", 4) == Megatron(tp_degree=4)
    assert menu.answered("deepspeed", 2, "zero_stage", 3) == DeepSpeed(zero_stage=3)
    assert menu.num_readers(SequenceParallel(size=2), 8) == 4
    assert menu.num_readers(Megatron(tp_degree=2, pp_degree=2), 8) == 2

    class Own(Strategy):
        pass

    assert menu.word_of(Own()) == "Own" and menu.entry_of(Own()) is None
    assert picker(strategy=Own()).values["strategy"] == Own()


def test_text_shows_the_questions_as_a_line_that_answers_them() -> None:
    text = repr(picker().choose(strategy="fsdp"))
    assert (
        "choose(strategy=FSDP(reshard_after_forward=True, activation_checkpointing=False, "
        "cpu_offload=False))"
    ) in text
    assert "choose(strategy=DDP" not in repr(picker())


# ── as widgets ────────────────────────────────────────────────────────────────────────────────


def questions(one: LaunchPicker) -> dict[str, Any]:
    """The controls between the strategies and what follows them."""
    one.widget  # noqa: B018 - makes them
    return {field.description: field for field in one._skin._controls["strategy"].parts[1].children}


def test_questions_of_the_picked_strategy_are_asked_and_change_the_line() -> None:
    one = picker().choose(strategy="fsdp")
    asks = questions(one)
    assert list(asks) == ["Between passes", "Recompute", "On the CPU"]
    asks["On the CPU"].value = True
    assert one.wish == FSDP(cpu_offload=True)
    asks["Between passes"].value = False
    assert one.wish == FSDP(cpu_offload=True, reshard_after_forward=False)
    one.choose(strategy="auto")
    assert questions(one) == {}
    one.choose(strategy="fsdp")
    assert questions(one)["On the CPU"].value is False


def test_degrees_are_divisors_and_what_cannot_be_is_said_in_place() -> None:
    one = picker().choose(strategy="tensor")
    asks = questions(one)
    assert asks["Ranks a layer"].value == 4
    assert asks["Ranks a layer"].options == (1, 2, 4)
    asks["Ranks a layer"].value = 2
    assert one.wish == TensorParallel(size=2)
    one.choose(strategy="megatron_lm")
    asks = questions(one)
    asks["Stages"].value = 2
    assert one.wish == Megatron(tp_degree=4) and asks["Stages"].value == 1
    assert "groups of 8 ranks do not fill them" in one._skin.problem.value
    asks["Ranks a layer"].value = 2
    asks["Stages"].value = 2
    assert one.wish == Megatron(tp_degree=2, pp_degree=2) and one._skin.problem.value == ""
