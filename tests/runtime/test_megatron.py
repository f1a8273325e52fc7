"""What Accelerate has for loops under Megatron."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from notebook_accel import notebook_launcher, utils
from notebook_accel.errors import ConfigError


def rates(style: str, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> list[float]:
    monkeypatch.setenv("MEGATRON_LM_LR_DECAY_STYLE", style)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = utils.MegatronLMDummyScheduler(optimizer, warmup_num_steps=2, **arguments)
    found = []
    for _ in range(7):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_a_rate_rises_and_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rates("linear", monkeypatch, total_num_steps=6) == [0, 0.5, 1, 0.75, 0.5, 0.25, 0]
    assert rates("constant", monkeypatch, total_num_steps=6)[2:] == [1] * 5
    assert rates("linear", monkeypatch)[2:] == [1] * 5
    assert rates("cosine", monkeypatch, total_num_steps=6)[4] == pytest.approx(0.5)
    slowly = rates("inverse-square-root", monkeypatch, total_num_steps=6)
    assert slowly[4] == pytest.approx(0.5**0.5)
    monkeypatch.setenv("MEGATRON_LM_MIN_LR", "0.3")
    assert rates("linear", monkeypatch, total_num_steps=6)[-2:] == [0.3, 0.3]
    with pytest.raises(ConfigError, match="MEGATRON_LM_LR_DECAY_STYLE=falling") as error:
        rates("falling", monkeypatch)
    assert "inverse-square-root" in error.value.why


@pytest.mark.parametrize("name", ["BertTrainStep", "GPTTrainStep", "T5TrainStep"])
def test_steps_of_megatrons_models_name_the_loop(name: str) -> None:
    with pytest.raises(ConfigError, match=name) as error:
        getattr(utils, name)(None, None)
    assert "accelerator.forward_backward(model, (inputs, targets), loss_fn)" in error.value.fix


def test_megatrons_datasets_are_read_by_a_loader() -> None:
    with pytest.raises(ConfigError, match="indexed datasets") as error:
        utils.MegatronLMDummyDataLoader(data_path=["a"])
    assert "torch DataLoader" in error.value.fix


def test_what_scripts_for_megatron_define_can_be_defined() -> None:
    class Step(utils.AbstractTrainStep):
        def get_batch_func(self, accelerator: Any, megatron_dataset_flag: bool) -> Any:
            return None

        get_forward_step_func = get_loss_func = get_batch_func

    assert Step("mine").name == "mine"

    @utils.add_model_config_to_megatron_parser("mine")
    def parse(args: Any) -> Any:
        return args

    assert parse(1) == 1


def averages() -> list[float]:
    from notebook_accel import Accelerator

    rank = Accelerator(cpu=True).process_index
    losses = [torch.tensor(float(rank)), torch.tensor([2.0 * rank])]
    return utils.avg_losses_across_data_parallel_group(losses).tolist()


def test_losses_are_averaged_over_readers() -> None:
    assert list(notebook_launcher(averages, (), 2, device="cpu")) == [[0.5, 1.0]] * 2
