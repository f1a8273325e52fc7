"""Tensor parallelism beyond the agreement of its numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import FSDP, TensorParallel
from notebook_accel.errors import ConfigError
from notebook_accel.strategies.tensor import plan_of
from tests.support.nets import PLAN, Net


def evaluates() -> dict[str, Any]:
    accelerator = Accelerator(cpu=True, strategy=TensorParallel(size=2, plan=PLAN))
    torch.manual_seed(0)
    model, loader = accelerator.prepare(
        Net(), DataLoader(TensorDataset(torch.arange(10.0)[:, None].expand(10, 4)), batch_size=2)
    )
    tensors, names = [], []
    for (inputs,) in loader:
        model(inputs)
        tensors += accelerator.gather_for_metrics(inputs[:, 0]).tolist()
        names += accelerator.gather_for_metrics([f"row {int(one)}" for one in inputs[:, 0]])
    return {
        "tensors": tensors,
        "names": names,
        "outside": accelerator.gather_for_metrics(torch.tensor([accelerator.process_index])),
        "up": tuple(model.blocks[0].up.weight.to_local().shape),
        "rows": len(loader),
        "explained": "\n".join(accelerator._explanation()),
    }


def test_ranks_of_one_layer_read_the_same_rows_and_each_row_counts_once() -> None:
    for rank, told in enumerate(notebook_launcher(evaluates, (), 4, device="cpu", timeout_s=100)):
        assert sorted(told["tensors"]) == [float(one) for one in range(10)], rank
        assert sorted(told["names"]) == [f"row {one}" for one in range(10)]
        assert told["outside"].tolist() == [0, 2]
        assert told["up"] == (3, 6)  # 12 rows over 2 x 2 ranks
        assert told["rows"] == 3
        assert "layers divided over 2 ranks; 3 parts, each sharded" in told["explained"]


def test_a_plan_is_patterns_of_names() -> None:
    assert sorted(plan_of(Net(), PLAN)) == [
        "blocks.0.down",
        "blocks.0.up",
        "blocks.1.down",
        "blocks.1.up",
        "enter",
    ]


class Planned(Net):
    _tp_plan: ClassVar = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise", "head": "rowwise"}


def test_a_model_brings_its_own_plan_of_which_not_all_need_be_there() -> None:
    assert len(plan_of(Planned(), None)) == 4


@pytest.mark.parametrize(
    ("plan", "what", "fix"),
    [
        (None, "no plan for Net", "blocks.0.up, blocks.0.down"),
        ({"blocks.*.upp": "colwise"}, "'blocks.*.upp', which is not in Net", "write 'blocks.*.up'"),
        ({"block.*.up": "colwise"}, "'block.*.up', which is not in Net", "write 'blocks.*.up'"),
        ({"blocks.1.upp": "colwise"}, "'blocks.1.upp', which is not in Net", "write 'blocks.1.up'"),
        ({"enter": "sideways"}, "says 'sideways' for 'enter'", "ParallelStyle"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan: Any, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan_of(Net(), plan)
    assert what in error.value.what
    assert fix in error.value.fix


def prepares(wish: TensorParallel, num_heads: int = 0) -> None:
    model = Net()
    if num_heads:
        model.config = SimpleNamespace(num_attention_heads=num_heads)  # type: ignore[assignment]
    Accelerator(cpu=True, strategy=wish).prepare(model)


@pytest.mark.parametrize(
    ("wish", "num_heads", "what"),
    [
        (TensorParallel(size=3, plan=PLAN), 0, "TensorParallel(size=3) in a world of 2"),
        (
            TensorParallel(size=2, plan=PLAN, data=FSDP(replicas=2)),
            0,
            "TensorParallel(size=2) x FSDP(replicas=2) in a world of 2",
        ),
        (TensorParallel(plan={"leave": "colwise"}), 0, "leave has a weight of shape (1, 6)"),
        (TensorParallel(plan={"blocks.0": "colwise"}), 0, "plan divides blocks.0, a Block"),
        (TensorParallel(plan={"blocks.*.norm": "rowwise"}), 0, "blocks.0.norm, a LayerNorm"),
        (TensorParallel(plan=PLAN), 3, "Net has num_attention_heads=3, to be divided over 2"),
    ],
)
def test_what_cannot_be_divided_is_refused(wish: TensorParallel, num_heads: int, what: str) -> None:
    with pytest.raises(ConfigError) as error:
        notebook_launcher(prepares, (wish, num_heads), 2, device="cpu", timeout_s=100)
    assert what in error.value.what


def test_one_rank_alone_cannot_divide_layers() -> None:
    with pytest.raises(ConfigError, match="in a world of 1 rank"):
        Accelerator(cpu=True, strategy=TensorParallel(plan=PLAN))


@pytest.mark.parametrize("size", [0, True, "2"])
def test_a_size_counts_ranks(size: Any) -> None:
    with pytest.raises(ConfigError, match="size is a whole number of at least 1"):
        TensorParallel(size=size)


def test_the_planned_layers_are_linear() -> None:
    assert all(isinstance(Net().get_submodule(name), nn.Linear) for name in plan_of(Net(), PLAN))


def trains_with(name: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    accelerator = Accelerator()
    model = Net()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **settings)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(3):
        accelerator.backward(prepared(torch.ones(2, 4)).square().mean())
        accelerator.clip_grad_value_(prepared.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
    kinds = sorted({type(one).__name__ for one in prepared.parameters()})
    state = accelerator.get_state_dict(prepared)
    values = [value for one in state.values() for value in one.flatten().tolist()]
    return values, kinds, "\n".join(accelerator._explanation())


def trains_with_all() -> Any:
    return [
        trains_with("AdamW"),
        trains_with("AdamW", foreach=True),
        trains_with("AdamW", fused=True),
        trains_with("SGD", momentum=0.9, foreach=True),
    ]


def test_among_one_reader_only_layers_are_divided_and_any_optimizer_trains_the_mixture() -> None:
    wish = TensorParallel(plan=PLAN)
    found = notebook_launcher(trains_with_all, (), 2, device="cpu", strategy=wish, timeout_s=60)[0]
    alone = notebook_launcher(trains_with_all, (), 1, device="cpu", timeout_s=60)[0]
    for (values, kinds, lines), (wanted, _, _) in zip(found, alone, strict=True):
        assert values == pytest.approx(wanted, abs=1e-6)
        assert kinds == ["DTensor", "Parameter"]
        assert "layers divided over 2 ranks" in lines and "sharded" not in lines


def measures_a_norm() -> float:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Net())
    accelerator.backward(model(torch.ones(2, 4)).square().mean())
    return float(accelerator.clip_grad_norm_(model.parameters(), 1.0))


def test_torchs_advice_on_axes_that_a_wish_has_named_is_left_out(
    capfd: pytest.CaptureFixture[str],
) -> None:
    wish = TensorParallel(2, plan=PLAN)
    run = notebook_launcher(measures_a_norm, (), 4, device="cpu", strategy=wish, timeout_s=60)
    assert len(set(run)) == 1
    printed = "".join(capfd.readouterr())
    assert "suboptimal" not in printed
    assert "Launching on 4 CPU processes" in printed
