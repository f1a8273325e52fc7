"""Advice on strategies: what fits, in which order, and how it is shown."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import (
    DDP,
    FSDP,
    ConfigError,
    SingleDevice,
    TensorParallel,
    advise,
)
from notebook_accel.config.installed import is_installed
from notebook_accel.launch.advice import Advice, count, gigabytes
from tests.strategies.test_measure import Net, loss_fn
from tests.support import hardware

WORDS = torch.zeros(4, 7, dtype=torch.long)


def far(width: int = 4096, depth: int = 32) -> Net:
    with torch.device("meta"):
        return Net(width, depth, 32_000)


def labels(advice: Advice, fits: bool = True) -> list[str]:
    return [one.label for one in advice.estimates if one.fits is fits]


def test_where_a_copy_fits_it_is_the_best_and_the_line_says_so() -> None:
    advice = advise(Net(), WORDS, "T4 x2")
    assert advice.best == DDP()
    assert advice.code == (
        'notebook_launcher(main, num_processes=2, mixed_precision="fp16", strategy=DDP())'
    )
    assert all(one.fits for one in advice.estimates)


def test_a_model_too_large_for_this_machine_is_advised_to_share_on_eight_and_nothing_on_one() -> (
    None
):
    model = far()
    many = advise(model, torch.zeros(8, 1024, dtype=torch.long), "A100-80GB x8")
    assert many.best == FSDP(reshard_after_forward=False)
    assert labels(many, fits=False) == ["DDP"]
    few = advise(model, torch.zeros(8, 1024, dtype=torch.long), "T4 x8")
    assert isinstance(few.best, (FSDP, TensorParallel)) or few.best is not None
    assert "DDP" in labels(few, fits=False) and "FSDP, gradients" in labels(few, fits=False)
    away = advise(model, WORDS, "T4")
    assert away.code.endswith('strategy=DeepSpeed(zero_stage=2, offload_optimizer="cpu"))')
    one = advise(model, WORDS, "8GB")
    assert one.best is None and one.code == ""
    assert "nothing fits" in str(one)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_those_that_do_not_fit_come_last_the_nearest_first_and_say_how_much_is_too_much() -> None:
    advice = advise(far(), WORDS, "24GB x8")
    totals = [one.memory.total for one in advice.estimates if not one.fits]
    assert totals == sorted(totals) and totals
    assert "GB too much" in advice.estimates[-1].why
    fits = [one.fits for one in advice.estimates]
    assert fits == sorted(fits, reverse=True)


def test_what_is_offloaded_must_fit_into_the_memory_of_this_machine() -> None:
    two = hardware.gpus(2, "Tesla T4", (7, 5))
    found = {
        free_gb: advise(
            1_500_000_000, machine=hardware.machine(*two, free_bytes=free_gb * hardware.GB)
        )
        for free_gb in (28, 4)
    }
    assert "FSDP, offloaded" in labels(found[28])
    assert "FSDP, offloaded" in labels(found[4], fits=False)
    why = next(one.why for one in found[4].estimates if one.label == "FSDP, offloaded")
    assert why.startswith("20 GB too much for the CPU's memory; ")
    assert "12 GB of the CPU's memory for each rank" in why
    elsewhere = advise(1_500_000_000, devices="T4 x2")  # nobody knows what else is there
    assert "FSDP, offloaded" in labels(elsewhere)


@pytest.mark.skipif(is_installed("deepspeed"), reason="it is here")
def test_what_needs_a_package_that_is_missing_comes_after_what_does_not_and_says_so() -> None:
    advice = advise(far(), WORDS, ["24GB", "24GB"])
    assert advice.best == FSDP(cpu_offload=True)
    there = labels(advice)
    assert there.index("ZeRO 2, offloaded") > there.index("FSDP, both")
    whys = {one.label: one.why for one in advice.estimates}
    assert all(
        ('pip install "notebook-accel[deepspeed]"' in why) == label.startswith("ZeRO")
        for label, why in whys.items()
    )


def test_small_and_large_sizes_are_written_without_powers_of_ten() -> None:
    assert [gigabytes(size) for size in (1270, 12_400_000_000, 1_120_000_000_000)] == [
        "< 0.01 GB", "12.4 GB", "1,120 GB",
    ]  # fmt: skip
    assert "e-0" not in str(advise(Net(), WORDS, "T4 x2"))


def test_sixteen_bytes_a_parameter_and_activations_of_the_batch() -> None:
    one = advise(1_000_000, devices="16GB", mixed_precision="no").estimates[0].memory
    assert one.weights + one.gradients + one.optimizer == pytest.approx(16e6, rel=1e-3)
    small, large = (
        advise(Net(), torch.zeros(n, 7, dtype=torch.long), "T4").estimates[0].memory.activations
        for n in (4, 8)
    )
    assert large == pytest.approx(2 * small, rel=0.01)


def test_a_batch_may_be_a_pair_a_loader_or_nothing() -> None:
    net = Net()
    pair = advise(net, (WORDS, WORDS), "T4", loss_fn=loss_fn)
    loader = DataLoader(TensorDataset(WORDS.expand(4, 7), WORDS), batch_size=4)
    state = torch.random.get_rng_state()
    assert advise(net, loader, "T4", loss_fn=loss_fn).sizes == pair.sizes
    assert torch.equal(state, torch.random.get_rng_state())
    nothing = advise(Net(), devices="T4")
    assert "activations are not counted: no batch was given" in str(nothing)
    assert " ? " in str(nothing)


def test_a_function_makes_the_model_without_its_memory() -> None:
    advice = advise(lambda: far(), WORDS, "80GB x8")
    assert advice.sizes.num_parameters > 4_000_000_000


def test_the_precision_is_that_of_the_devices_unless_it_is_said() -> None:
    found = {
        devices: advise(Net(), WORDS, devices).training.precision
        for devices in ("T4", "A100", "16GB")
    }
    assert found == {"T4": "fp16", "A100": "bf16", "16GB": "bf16"}
    assert advise(Net(), WORDS, "T4", mixed_precision="no").training.precision == "no"
    here = advise(Net(), WORDS, machine=hardware.KAGGLE)
    assert (here.training.num_ranks, here.training.precision) == (2, "fp16")


def test_on_the_cpu_ranks_share_its_memory_and_nothing_is_offloaded() -> None:
    advice = advise(Net(), WORDS, 2, machine=hardware.machine())
    assert 'device="cpu"' in advice.code
    assert not any("offloaded" in label for label in labels(advice))
    assert advise(Net(), WORDS, machine=hardware.machine()).best == SingleDevice()


def test_it_shows_as_text_of_one_unit_and_as_a_table_of_html() -> None:
    advice = advise(Net(), WORDS, "T4 x2")
    text, html = repr(advice), advice._repr_html_()
    assert "Net, 8.13 k parameters, on 2 x T4 (15.7 GB each): adamw, mixed_precision=fp16" in text
    assert "MB on a rank" in text
    assert text.splitlines()[3].startswith("→  DDP ")
    assert text.endswith(advice.code)
    assert html.count("<tr>") == len(advice.estimates) + 1
    assert "<td" in html and "strategy=DDP()" in html
    assert "<Net" not in advise(type("<b>", (Net,), {})(), WORDS, "T4")._repr_html_()


def test_a_strategy_and_a_size_are_written_as_a_person_would() -> None:
    assert repr(FSDP(cpu_offload=True, auto_wrap_policy="no_wrap")) == (
        'FSDP(auto_wrap_policy="no_wrap", cpu_offload=True)'
    )
    assert repr(TensorParallel(size=4, data=FSDP(replicas=2))) == (
        "TensorParallel(size=4, data=FSDP(replicas=2))"
    )
    assert [count(n) for n in (5, 12_300, 124_000_000, 6_740_000_000)] == [
        "5", "12.3 k", "124 M", "6.74 B",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "gpt2"}, "model='gpt2' has no size"),
        ({"model": Net}, "has no size"),
        ({"model": -3}, "model=-3 has no size"),
        ({"model": True}, "model=True has no size"),
        ({"model": lambda: 7}, r"model\(\) made an int"),
        ({"mixed_precision": "fp17"}, r"mixed_precision='fp17' is not known"),
        ({"optimizer": "adamv"}, r"optimizer='adamv' is not known"),
        ({"devices": "T5"}, "is not known"),
        ({"batch": WORDS, "loss_fn": loss_fn}, "no pair but Tensor"),
        ({"batch": DataLoader([WORDS], batch_size=None)}, "no sample to look at"),
    ],
)
def test_what_cannot_be_is_one_clear_error(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        advise(**{"model": Net(), "devices": "T4", **arguments})


def test_a_model_that_cannot_be_copied_or_run_is_advised_without_activations() -> None:
    class Locked(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("cannot pickle a lock")

    advice = advise(Locked(2, 2), torch.zeros(1, 2), "T4 x2")
    assert advice.best == DDP()
    assert "cannot pickle a lock" in str(advice)
