"""The questions of ``notebook-accel config``: which are asked, and what is proposed first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from notebook_accel.cli.wizard import Question, detected, interview
from notebook_accel.config.resolve import RunConfig
from notebook_accel.errors import ConfigError
from notebook_accel.launch.devices import Device
from notebook_accel.launch.machine import Machine

BARE = Machine(num_cores=4)
T4 = Device("cuda", 0, "Tesla T4", capability=(7, 5))
KAGGLE = Machine((T4, T4), num_cores=4)


def script(answers: dict[str, Any], asked: list[Question]) -> Callable[[Question], Any]:
    """Answer by name, and with the default where nothing is written down."""

    def ask(question: Question) -> Any:
        asked.append(question)
        return answers.get(question.name, question.default)

    return ask


def walk(machine: Machine, before: Any = None, **answers: Any) -> tuple[dict, list[Question]]:
    asked: list[Question] = []
    return interview(machine, script(answers, asked), before), asked


def names(asked: list[Question]) -> list[str]:
    return [one.name for one in asked]


def test_a_bare_machine_is_asked_little_and_proposed_one_cpu_process() -> None:
    answers, asked = walk(BARE)
    assert names(asked) == [
        "device", "num_nodes", "num_processes", "mixed_precision", "gradient_accumulation_steps",
        "dynamo_backend",
    ]  # fmt: skip
    assert (answers["device"], answers["num_processes"], answers["mixed_precision"]) == (
        "cpu", 1, "no"
    )  # fmt: skip
    assert RunConfig(**answers).given()["device"] == "cpu"


def test_the_devices_of_this_machine_come_first_with_what_they_are() -> None:
    _, asked = walk(KAGGLE)
    device, processes = asked[0], next(one for one in asked if one.name == "num_processes")
    assert device.default == "cuda" and device.options[0].label == "cuda - 2 x Tesla T4"
    assert processes.default == 2
    labels = {one.value: one.label for one in device.options}
    assert labels["cpu"] == "cpu - 4 cores here"
    assert labels["mps"] == "mps - not in this machine"
    assert labels["tpu"] == "tpu - kept, but not trainable yet"
    listed = [one.value for one in device.options]
    assert listed[:4] == ["cuda", "auto", "cpu", "mps"] and "tpu" in listed[4:]
    assert detected(KAGGLE) == {"device": "cuda", "num_processes": 2, "mixed_precision": "fp16"}


def test_megatron_and_tpu_can_be_picked_and_lead_to_their_own_questions() -> None:
    _, asked = walk(KAGGLE, strategy="megatron_lm")
    layouts = next(one for one in asked if one.name == "strategy").options
    assert [one.value for one in layouts] == ["auto", "fsdp", "deepspeed", "megatron_lm"]
    assert any(name.startswith("megatron_lm_") for name in names(asked))
    assert not any(name.startswith(("fsdp_", "zero")) for name in names(asked))
    _, asked = walk(BARE, device="tpu")
    assert {"downcast_bf16", "tpu_use_cluster"} <= set(names(asked))
    assert "tpu_name" not in names(asked)
    _, asked = walk(BARE, device="tpu", tpu_use_cluster=True)
    assert "tpu_name" in names(asked)


def test_deepspeed_asks_for_stage_and_offload_and_only_stage_3_for_parameters() -> None:
    answers, asked = walk(KAGGLE, strategy="deepspeed")
    assert answers["zero_stage"] == 2
    assert "offload_optimizer_device" in names(asked)
    assert "offload_param_device" not in names(asked)
    _, asked = walk(KAGGLE, strategy="deepspeed", zero_stage=3)
    assert {"offload_param_device", "zero3_init_flag"} <= set(names(asked))


def test_fsdp_asks_what_is_cut_and_whether_it_is_offloaded() -> None:
    answers, asked = walk(KAGGLE, strategy="fsdp")
    assert {"fsdp_version", "fsdp_offload_params"} <= set(names(asked))
    assert answers["fsdp_offload_params"] is False
    assert RunConfig(**answers)["strategy"] == "fsdp"


def test_several_machines_are_asked_how_they_meet_and_fp8_who_computes() -> None:
    _, asked = walk(KAGGLE, num_nodes=2)
    assert {"node_rank", "master_addr", "use_port"} <= set(names(asked))
    assert next(one for one in asked if one.name == "num_processes").default == 4
    _, asked = walk(KAGGLE, mixed_precision="fp8")
    assert "fp8_backend" in names(asked)
    assert "fp8_backend" not in names(walk(KAGGLE)[1])


def test_earlier_answers_are_proposed_before_detected_ones() -> None:
    _, asked = walk(BARE, before={"num_processes": 3, "mixed_precision": "bf16"})
    by_name = {one.name: one for one in asked}
    assert by_name["num_processes"].default == 3
    assert by_name["mixed_precision"].options[0].value == "bf16"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("num_processes", "many", "is a whole number"),
        ("num_processes", "3", "as many ranks as the others, and 3 are not 2 times a whole number"),
        ("num_processes", "0", "must be at least 1"),
        ("node_rank", "2", "from 0, so of 2 the last is 1"),
    ],
)
def test_answers_that_cannot_be_are_refused_where_they_are_written(
    name: str, text: str, said: str
) -> None:
    _, asked = walk(BARE, num_nodes=2)
    question = next(one for one in asked if one.name == name)
    with pytest.raises(ConfigError) as refused:
        question.check(text)
    assert refused.value.what == f"{text!r} cannot be"
    assert said in refused.value.why
    assert question.check("1" if name == "node_rank" else "4") in (1, 4)


def test_degrees_that_do_not_divide_the_processes_are_refused_where_they_are_written() -> None:
    _, asked = walk(KAGGLE, num_processes=8, strategy="megatron_lm", megatron_lm_tp_degree=4)
    stages = next(one for one in asked if one.name == "megatron_lm_pp_degree")
    assert stages.check("2") == 2
    with pytest.raises(ConfigError, match="3 after 4 does not divide 8 processes") as refused:
        stages.check("3")
    assert refused.value.fix == "write a divisor of 2"


def test_what_is_for_a_call_is_not_proposed_for_a_file() -> None:
    _, asked = walk(KAGGLE)
    assert "fake" not in {option.value for option in asked[0].options}


def test_every_question_has_its_default_among_its_options() -> None:
    for strategy in ("auto", "fsdp", "deepspeed", "megatron_lm"):
        _, asked = walk(KAGGLE, strategy=strategy, use_parallelism_config=True, num_nodes=2)
        for one in asked:
            assert one.text.endswith("?") or one.text[-1].isalnum(), one.text
            assert not one.options or one.default in [option.value for option in one.options]
            assert all(len(option.label) <= 70 for option in one.options), one.options
