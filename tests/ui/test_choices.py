"""What a person picked, and what is there, make a choice that can be launched."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from notebook_accel.errors import ConfigError, NotHere
from notebook_accel.launch.machine import Machine
from notebook_accel.ui.choices import (
    Choice,
    decide,
    gpus,
    most_processes,
    places,
    planned,
    standings,
)
from tests.support import hardware


def chosen(machine: Machine, **wishes: Any) -> Choice:
    decision = decide(wishes, machine, firm=wishes)
    assert decision.dropped == {}
    return decision.choice


def refusal(machine: Machine, **wishes: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        decide(wishes, machine, firm=wishes)
    return caught.value


@pytest.mark.parametrize(
    ("machine", "device", "num_processes", "precision"),
    [
        (hardware.PLAIN_CPU, "cpu", 1, "no"),
        (hardware.AMX_CPU, "cpu", 1, "no"),
        (hardware.T4, "cuda", 1, "fp16"),
        (hardware.KAGGLE, "cuda", 2, "fp16"),
        (hardware.P100, "cuda", 1, "fp16"),
        (hardware.A100S, "cuda", 4, "bf16"),
        (hardware.H100, "cuda", 1, "bf16"),
        (hardware.MIG, "cuda", 1, "bf16"),
        (hardware.MAC, "mps", 1, "no"),
        (hardware.TPU, "cpu", 1, "no"),
        (hardware.UNLIKE, "cuda", 2, "fp16"),
    ],
)
def test_nothing_picked_is_all_there_is_in_the_precision_that_suits_it(
    machine: Machine, device: str, num_processes: int, precision: str
) -> None:
    assert chosen(machine) == Choice(device, num_processes, precision, "auto", 1)
    assert planned(chosen(machine), machine).placements[0].size == num_processes


def test_a_device_has_one_form_however_it_was_said() -> None:
    for said in ("auto", "auto-or-cpu", "gpu", "cuda", [0, 1]):
        assert chosen(hardware.KAGGLE, device=said).device == "cuda"
    assert chosen(hardware.KAGGLE, device=[1]).device == 1
    assert chosen(hardware.KAGGLE, device=[1, 0]).device == (1, 0)
    assert chosen(hardware.A100S, device=[0, 2]).device == (0, 2)
    assert chosen(hardware.PLAIN_CPU, device="auto-or-cpu").device == "cpu"


def test_what_was_not_picked_follows_the_device() -> None:
    assert chosen(hardware.KAGGLE, device="cpu") == Choice("cpu", 1, "no", "auto", 1)
    assert chosen(hardware.KAGGLE, device=1).num_processes == 1
    assert chosen(hardware.A100S, device=[0, 2]).num_processes == 2


def test_what_was_picked_stays_when_the_device_changes() -> None:
    picked = chosen(hardware.KAGGLE, device="cpu", num_processes=2, mixed_precision="bf16")
    assert picked == Choice("cpu", 2, "bf16", "auto", 1)


def test_a_wish_that_cannot_be_kept_is_dropped_and_said() -> None:
    decision = decide({"num_processes": 2, "device": 3}, hardware.T4)
    assert decision.choice.device == "cuda"
    assert decision.choice.num_processes == 1
    assert decision.dropped == {
        "device": "device=3: there is no GPU 3; now device='cuda'",
        "num_processes": "num_processes=2, but 1 CUDA device to use; now num_processes=1",
    }


def test_a_precision_that_the_device_lacks_is_dropped() -> None:
    decision = decide({"device": "cpu", "mixed_precision": "fp8"}, hardware.PLAIN_CPU)
    assert decision.choice.mixed_precision == "no"
    assert "mixed_precision='fp8'" in decision.dropped["mixed_precision"]
    with_torchao = dataclasses.replace(hardware.PLAIN_CPU, packages=frozenset({"torchao"}))
    kept = decide({"device": "cpu", "mixed_precision": "fp8"}, with_torchao)
    assert (kept.choice.mixed_precision, kept.dropped) == ("fp8", {})


def test_more_processes_than_gpus_names_both_ways_out() -> None:
    error = refusal(hardware.KAGGLE, num_processes=3)
    assert error.what == "num_processes=3, but 2 CUDA devices to use"
    assert 'device="cpu"' in error.fix


@pytest.mark.parametrize(
    ("wishes", "what"),
    [
        ({"num_processes": 0}, "num_processes=0"),
        ({"num_processes": "2"}, "num_processes='2'"),
        ({"mixed_precision": "fp17"}, "mixed_precision='fp17'"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0"),
        ({"device": "gpuu"}, "device='gpuu'"),
        ({"device": [0, 0]}, "GPU 0 is asked for more than once"),
        ({"strategy": "ddpp"}, "strategy='ddpp'"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_the_schema(wishes: dict[str, Any], what: str) -> None:
    assert what in refusal(hardware.KAGGLE, **wishes).what


def test_what_comes_later_is_refused_as_everywhere() -> None:
    wishes = {"device": "tpu"}
    with pytest.raises(NotHere) as caught:
        decide(wishes, hardware.TPU, firm=wishes)
    assert "asks for what is not here yet" in caught.value.what


def test_places_and_gpus_are_named_with_what_is_free() -> None:
    assert [one.label for one in places(hardware.KAGGLE)] == [
        "GPUs: 2 x Tesla T4",
        "CPU: Intel Xeon CPU @ 2.00GHz, 4 usable cores, 28.0 of 31.0 GB free",
    ]
    assert [(one.value, one.label) for one in gpus(hardware.KAGGLE)] == [
        (0, "GPU 0: Tesla T4, 15.0 of 16.0 GB free"),
        (1, "GPU 1: Tesla T4, 15.0 of 16.0 GB free"),
    ]
    assert places(hardware.T4)[0].label == "GPU: Tesla T4, 15.0 of 16.0 GB free"
    assert gpus(hardware.T4) == []
    assert [one.value for one in places(hardware.MAC)] == ["mps", "cpu"]
    assert places(hardware.MAC)[1].label == "CPU: 8 usable cores"
    assert [one.value for one in places(hardware.TPU)] == ["cpu"]


def test_a_t4_is_not_offered_bf16_as_native() -> None:
    marks = {one.precision: one.mark for one in standings(chosen(hardware.T4), hardware.T4)}
    assert marks == {"no": "native", "bf16": "emulated", "fp16": "native", "fp8": "absent"}
    on_cpu = standings(chosen(hardware.KAGGLE, device="cpu"), hardware.KAGGLE)
    assert on_cpu[1].mark == on_cpu[2].mark == "emulated"


def test_as_many_processes_are_offered_as_can_work() -> None:
    assert most_processes(chosen(hardware.KAGGLE), hardware.KAGGLE) == 2
    assert most_processes(chosen(hardware.KAGGLE, device=1), hardware.KAGGLE) == 1
    assert most_processes(chosen(hardware.MAC), hardware.MAC) == 1
    assert most_processes(chosen(hardware.A100S, device="cpu"), hardware.A100S) == 128
    assert most_processes(chosen(hardware.PLAIN_CPU), hardware.PLAIN_CPU) == 64
