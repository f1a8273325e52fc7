"""What a choice means, told from plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from notebook_accel import notebook_launcher
from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.installed import is_installed
from notebook_accel.config.wishes import FSDP, Pipeline, TensorParallel
from notebook_accel.errors import ConfigError
from notebook_accel.launch import doctor
from notebook_accel.launch.advice import advise, sizes_of
from notebook_accel.launch.machine import Machine
from notebook_accel.ui.choices import decide
from notebook_accel.ui.outlook import Outlook, outlook
from notebook_accel.ui.picker import LaunchPicker
from tests.support import hardware

ALL = LaunchPicker.asks
WITH_DEEPSPEED = dataclasses.replace(hardware.KAGGLE, packages=frozenset({"deepspeed"}))


def told(
    machine: Machine, batch_size: int | None = None, model: int | None = None, **wishes: Any
) -> Outlook:
    decision = decide(wishes, machine)
    sizes = None if model is None else sizes_of(model)
    return outlook(decision.choice, machine, ALL, wishes, decision.dropped, batch_size, sizes)


def findings(machine: Machine, **asked: Any) -> list[str]:
    return [str(one) for one in told(machine, **asked).findings]


def test_ranks_are_told_with_their_threads() -> None:
    assert told(hardware.KAGGLE).ranks == "2 ranks on 2 x Tesla T4, 2 threads each"
    assert told(hardware.T4).ranks == "1 rank on Tesla T4, 4 threads"
    assert told(hardware.PLAIN_CPU, num_processes=4).ranks == "4 ranks on the CPU, 1 thread each"
    assert told(hardware.MAC).ranks == "1 rank on Apple GPU, 8 threads"


def test_the_batch_of_an_update_is_a_product() -> None:
    assert told(hardware.PLAIN_CPU, batch_size=32).batch == "one update sees 32 samples"
    assert told(hardware.PLAIN_CPU, batch_size=1).batch == "one update sees 1 sample"
    assert (
        told(hardware.KAGGLE, batch_size=32, gradient_accumulation_steps=4).batch
        == "one update sees 32 x 2 ranks x 4 micro-batches = 256 samples"
    )
    assert told(hardware.KAGGLE).batch == "one update sees the loader's batch size x 2 ranks"


def test_the_precision_says_why() -> None:
    assert told(hardware.T4).precision.startswith("fp16 is preselected: native here, while bf16")
    assert told(hardware.PLAIN_CPU).precision.startswith("float32 is preselected: ")
    picked = told(hardware.A100S, mixed_precision="fp16").precision
    assert picked.startswith("fp16 is your choice; bf16 suits most: native here")
    assert told(hardware.A100S, mixed_precision="bf16").precision.startswith("bf16 suits most")


def test_an_emulated_precision_warns_and_names_the_better_one() -> None:
    assert findings(hardware.T4, mixed_precision="bf16") == [
        "warning: bf16 is emulated here, often slower than float32: sm_75; native from sm_80 "
        "(fp16 suits better)"
    ]
    assert findings(hardware.T4, mixed_precision="fp16") == []
    assert "float32 suits better" in findings(hardware.PLAIN_CPU, mixed_precision="fp16")[0]


def test_what_the_plan_notes_is_shown_in_place() -> None:
    assert findings(hardware.PLAIN_CPU, num_processes=6) == [
        "note: 6 ranks share 4 cores: they take turns"
    ]
    assert findings(hardware.KAGGLE, num_processes=1) == ["note: GPU 1 stays idle"]
    assert findings(hardware.A100S, num_processes=2) == ["note: GPU 2 and GPU 3 stay idle"]
    assert findings(hardware.T4, strategy="fsdp") == [
        "note: fsdp has nothing to share out on 1 rank"
    ]
    assert findings(hardware.UNLIKE)[0] == (
        "note: unlike GPUs: the slowest one sets the pace of all"
    )
    assert findings(hardware.MIG) == [
        "note: a MIG slice: CUDA gives a process one slice, so 1 rank"
    ]


def test_a_tpu_host_says_what_is_missing() -> None:
    (only,) = findings(hardware.TPU)
    assert only.startswith("warning: this is a TPU host: TPU (PJRT_DEVICE=TPU)")
    assert "XLA engine" in only


def test_what_the_doctor_finds_in_the_kernel_is_told_to_who_places_ranks() -> None:
    opened = doctor.Finding(doctor.NOTE, "device", "CUDA is open in this kernel", "W", "restart")
    method = doctor.Finding(doctor.GOOD, "start", "workers start by forkserver: CUDA is open")
    barred = doctor.Finding(doctor.BAD, "start", "workers cannot be started", "no forks", "WSL 2")
    decision = decide({}, hardware.T4)

    def told_of(asked: tuple[str, ...], *kernel: doctor.Finding) -> Outlook:
        return outlook(decision.choice, hardware.T4, asked, {}, {}, kernel=kernel)

    one = told_of(("device",), opened, method)
    assert one.start == "workers start by forkserver: CUDA is open"
    assert [str(finding) for finding in one.findings] == ["note: W (restart)"]
    (error,) = told_of(("num_processes",), barred).findings
    assert str(error) == "error: workers cannot be started: no forks (WSL 2)"
    assert told_of(("mixed_precision",), opened, barred).findings == ()


def test_a_gpu_that_others_use_warns() -> None:
    busy = hardware.machine(*hardware.gpus(1, "Tesla T4", (7, 5), 16, 3))
    assert findings(busy) == ["warning: GPU 0: 13 GB are taken by other work"]


def test_a_model_that_does_not_fit_warns_with_numbers() -> None:
    (only,) = findings(hardware.T4, model=10**9)
    assert only.startswith("warning: the model needs 18 GB a rank, activations apart; GPU 0 has 15")
    assert only.endswith("(more GPUs, or a smaller model)")
    (only,) = findings(hardware.PLAIN_CPU, model=10**9, num_processes=2)
    assert "20 GB a rank, activations apart, 2 ranks 40 GB; 28 GB are free" in only
    assert findings(hardware.T4, model=10**8) == []
    assert findings(hardware.KAGGLE, model=10**9)[0].endswith(
        "(FSDP, gradients: 10 GB a rank, or a smaller model)"
    )


def test_what_was_dropped_is_a_note() -> None:
    assert findings(hardware.T4, num_processes=2)[0] == (
        "note: num_processes=2, but 1 CUDA device to use; now num_processes=1"
    )


def test_what_a_strategy_needs_beside_memory_is_said() -> None:
    kaggle = hardware.KAGGLE
    assert any("forward_backward" in one for one in findings(kaggle, strategy="pipeline"))
    assert any("fast links" in one for one in findings(kaggle, strategy="tensor"))
    assert any(
        one.startswith("warning: the model has no tp_plan, and without a plan")
        and "TensorParallel(size=2, plan={...})" in one
        for one in findings(kaggle, strategy="tensor", model=10**6)
    )
    planned = TensorParallel(size=2, plan={"up": "colwise"})
    assert not any("plan" in one for one in findings(kaggle, strategy=planned, model=10**6))
    assert findings(kaggle, strategy="deepspeed") == [
        "warning: deepspeed is not installed in this kernel "
        '(pip install "notebook-accel[deepspeed]")'
    ]
    assert findings(WITH_DEEPSPEED, strategy="deepspeed") == []


def test_what_a_launch_would_refuse_of_a_strategy_is_told_in_its_words() -> None:
    picker = LaunchPicker(device="cpu", num_processes=2, strategy=FSDP(replicas=3), name="misfit")
    (said,) = (one for one in picker.findings if one.startswith("error: "))
    with pytest.raises(ConfigError) as refused:
        notebook_launcher(print, config=picker)
    error = refused.value
    assert said == f"error: {error.what}: {error.why} ({error.fix})"
    cpu = dataclasses.replace(hardware.PLAIN_CPU, packages=frozenset({"torchao"}))
    asked: dict[str, Any] = {"num_processes": 2, "strategy": "pipeline"}
    assert any(
        "error: Pipeline() with" in one for one in findings(cpu, mixed_precision="fp8", **asked)
    )
    assert not any("error" in one for one in findings(cpu, mixed_precision="bf16", **asked))


def test_on_the_cpu_nothing_is_offloaded_and_all_of_it_counts() -> None:
    note = "note: ranks compute on the CPU already: nothing is offloaded"
    for wish in (FSDP(cpu_offload=True), DeepSpeed(offload_optimizer="cpu")):
        assert note in findings(hardware.PLAIN_CPU, strategy=wish, num_processes=2)
        assert note not in findings(hardware.KAGGLE, strategy=wish)
    assert note not in findings(hardware.PLAIN_CPU, strategy=FSDP(), num_processes=2)
    away = {"strategy": FSDP(cpu_offload=True), "model": 2 * 10**9, "num_processes": 2}
    warning = findings(hardware.PLAIN_CPU, **away)[-1]
    assert "the model needs 17 GB a rank" in warning, "what others keep on the CPU is here too"


def test_groups_that_share_a_batch_count_once() -> None:
    def batch(strategy: Any) -> str:
        return told(hardware.A100S, batch_size=8, strategy=strategy).batch

    assert batch(TensorParallel(size=2)) == "one update sees 8 x 2 groups of 2 = 16 samples"
    assert batch(Pipeline(stages=4)) == "one update sees 8 samples"
    assert batch(FSDP()) == "one update sees 8 x 4 ranks = 32 samples"


@pytest.mark.parametrize("model", ["net", 0, True, 2.5])
def test_what_has_no_size_is_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match="has no size") as caught:
        sizes_of(model)
    assert "the module itself" in caught.value.fix and "a number" in caught.value.fix


def test_precision_changes_what_is_computed_in_and_not_what_is_kept() -> None:
    full, mixed, _ = (one.memory for one in told(hardware.KAGGLE, model=10**9).memory)
    assert full.weights + full.gradients + full.optimizer == pytest.approx(16 * 10**9, rel=1e-6)
    assert (mixed.weights, mixed.optimizer) == (full.weights, full.optimizer)
    assert mixed.other - full.other == 2 * 10**9
    assert [one.precision for one in told(hardware.T4, model=5).memory] == ["no", "bf16", "fp16"]
    assert told(hardware.T4).memory == told(hardware.T4).strategies == ()


def test_sharded_ranks_hold_their_share() -> None:
    whole = told(hardware.KAGGLE, model=10**9, mixed_precision="no").memory[0].memory
    shards = told(hardware.KAGGLE, model=10**9, strategy="fsdp").memory[0].memory
    assert shards.weights == pytest.approx(whole.weights / 2, rel=1e-6)
    alone = told(hardware.T4, model=10**9, strategy="fsdp").memory[2].memory
    assert alone == told(hardware.T4, model=10**9).memory[2].memory


def test_each_strategy_is_told_with_whether_it_fits() -> None:
    found = told(hardware.KAGGLE, model=10**9).strategies
    fits = {one.offer.label: one.fits for one in found}
    assert fits["DDP"] is False and fits["FSDP"] is True and fits["pipeline x 2"] is True
    assert told(hardware.T4, model=10**9).strategies == ()


def test_what_is_not_installed_comes_behind_what_is_and_is_no_advice_while_that_fits() -> None:
    def labels(machine: Machine, num: int) -> list[str]:
        return [one.offer.label for one in told(machine, model=num).strategies]

    small, lean = labels(hardware.KAGGLE, 10**8), labels(WITH_DEEPSPEED, 10**8)
    assert sorted(small) == sorted(lean)
    assert small.index("ZeRO 2") > small.index("FSDP, both") > lean.index("ZeRO 2")
    missing = {one.offer.label for one in told(hardware.KAGGLE, model=5).strategies if one.missing}
    assert missing == {"ZeRO 2", "ZeRO 3", "ZeRO 2, offloaded"}
    assert not any(one.missing for one in told(WITH_DEEPSPEED, model=5).strategies)
    for num in range(10**9, 16 * 10**9, 5 * 10**8):
        machine = hardware.KAGGLE
        chosen = told(machine, model=num)
        advised = next((one for one in chosen.strategies if one.fits), None)
        if any(one.fits and not one.missing for one in chosen.strategies):
            assert advised is not None and not advised.missing
        elif advised is not None:
            assert "with deepspeed installed" in str(chosen.findings[-1])


def test_the_picker_and_advise_put_strategies_in_one_order() -> None:
    for num in (10**8, 10**9):
        picked = [one.offer.label for one in told(hardware.KAGGLE, model=num).strategies]
        advised = [one.label for one in advise(num, machine=hardware.KAGGLE).estimates]
        assert is_installed("deepspeed") or picked == advised


def test_every_precision_that_can_be_picked_has_its_memory() -> None:
    cpu = dataclasses.replace(hardware.PLAIN_CPU, packages=frozenset({"torchao"}))
    _, half, _, eight = (one.memory for one in told(cpu, model=10**9).memory)
    assert eight == half, "weights stay in float32, what is not in 8 bits is in bf16"
    said = findings(cpu, model=10**10, mixed_precision="fp8")
    assert any("the model needs 180 GB a rank" in one for one in said), said
    assert [one.precision for one in told(hardware.PLAIN_CPU, model=5).memory][-1] == "fp16"


def test_one_rank_that_does_not_fit_is_not_told_to_be_fewer() -> None:
    only = findings(hardware.PLAIN_CPU, model=7_000_000_000, num_processes=1)[-1]
    assert "a rank, activations apart; " in only and only.endswith("or a smaller model)")
    assert "1 ranks" not in only and "fewer ranks" not in only
    only = findings(hardware.PLAIN_CPU, model=7_000_000_000, num_processes=2)[-1]
    assert "2 ranks 280 GB" in only and "fewer ranks" not in only, "not even one of them fits"
    only = findings(hardware.PLAIN_CPU, model=1_300_000_000, num_processes=40)[-1]
    assert only.endswith("(fewer ranks, or a smaller model)"), only
