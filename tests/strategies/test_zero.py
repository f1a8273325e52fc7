"""DeepSpeed's ZeRO beyond the agreement of its numbers: what is cut, made, refused, given back."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, DeepSpeed, DeepSpeedPlugin, notebook_launcher
from notebook_accel.config.environment import patch_environment
from notebook_accel.config.wishes import DDP, Strategy
from notebook_accel.errors import ConfigError, MissingPackage, RanksStuck, RuntimeMisuse, WorkerDied
from notebook_accel.strategies.dummies import DummyOptim, DummyScheduler
from notebook_accel.strategies.zero_start import made_scheduler
from tests.support.launches import clean_env, launch
from tests.support.nets import Net

HAS_IT = importlib.util.find_spec("deepspeed") is not None
WITHOUT = "deepspeed is not installed: pip install 'notebook-accel[deepspeed]'"


def real(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs the real package."""
    needs = pytest.mark.skipif(not HAS_IT, reason=WITHOUT)
    marked: Callable[..., None] = pytest.mark.slow(pytest.mark.timeout(300)(needs(test)))
    return marked


@pytest.fixture
def imported() -> None:
    """Import it here: ranks are forks of this process."""
    with patch_environment(ds_accelerator="cpu", pytorch_nvml_based_cuda_check="1"):
        importlib.import_module("deepspeed")


CUT = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}


def zero(stage: int) -> DeepSpeed:
    """Cut up everything in stage 3, which DeepSpeed leaves whole where it is small."""
    return DeepSpeed(config=CUT) if stage == 3 else DeepSpeed(zero_stage=stage)


def on_two(function: Any, *args: Any, size: int = 2, **kwargs: Any) -> Any:
    return notebook_launcher(function, args, size, device="cpu", timeout_s=200, **kwargs)


def prepared(wish: Any, **arguments: Any) -> tuple[Accelerator, nn.Module, Any]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, strategy=wish, **arguments)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    return accelerator, model, optimizer


def gradients(accelerator: Accelerator, model: nn.Module, scale: float = 1.0) -> float:
    loss = model(torch.ones(2, 4)).square().mean() * scale
    accelerator.backward(loss)
    return loss.item()


def step(accelerator: Accelerator, model: nn.Module, optimizer: Any) -> float:
    loss = gradients(accelerator, model)
    optimizer.step()
    optimizer.zero_grad()
    return loss


# ── without the package ───────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(HAS_IT, reason="deepspeed is installed")
def test_without_the_package_an_accelerator_says_what_to_install() -> None:
    for arguments, asked, instead in (
        ({"strategy": "deepspeed"}, "strategy='deepspeed'", "strategy='fsdp'"),
        ({"deepspeed_plugin": DeepSpeedPlugin()}, "strategy=DeepSpeed(...)", "strategy=FSDP()"),
    ):
        with pytest.raises(MissingPackage) as error:
            Accelerator(cpu=True, **arguments)
        assert error.value.what == f"{asked} needs deepspeed, which is not installed"
        assert "notebook-accel[deepspeed]" in error.value.fix
        assert f"or write {instead}, which needs none" in error.value.fix


def test_ranks_that_are_only_played_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        notebook_launcher(Accelerator, (), 8, device="fake", strategy=DeepSpeed())
    assert 'DeepSpeed(...) with device="fake"' in error.value.what
    assert "strategy=FSDP()" in error.value.fix


def test_stand_ins_say_what_they_stand_for() -> None:
    model = nn.Linear(1, 1)
    optimizer = DummyOptim(model.parameters(), lr=0.5)
    with pytest.raises(RuntimeMisuse) as error:
        optimizer.step()
    assert error.value.what == "DummyOptim.step()"
    assert "torch.optim" in error.value.fix
    scheduler = DummyScheduler(optimizer, total_num_steps=10)
    with pytest.raises(RuntimeMisuse) as error:
        scheduler.step()
    assert error.value.what == "DummyScheduler.step()"


@pytest.mark.parametrize(
    ("optimizer", "section", "what"),
    [
        (False, {}, "prepare() got a DummyScheduler without its optimizer"),
        (True, {}, "DeepSpeed's configuration has no scheduler"),
    ],
)
def test_a_schedule_that_nobody_describes_is_an_error(
    optimizer: bool, section: dict[str, Any], what: str
) -> None:
    moved = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1) if optimizer else None
    with pytest.raises(ConfigError) as error:
        made_scheduler(DummyScheduler(None), moved, section)
    assert what in error.value.what
    assert error.value.fix.startswith("write ")


# ── with it ───────────────────────────────────────────────────────────────────────────────────


def tells() -> dict[str, Any]:
    """Train a step at each stage; tell what an Accelerator says of it."""
    told: dict[str, Any] = {}
    for stage in (1, 2, 3):
        accelerator, model, optimizer = prepared(zero(stage))
        losses = [step(accelerator, model, optimizer) for _ in range(4)]
        told[f"fell {stage}"] = min(losses) < losses[0]
        told[f"does {stage}"] = accelerator._engine.describe(model)
        told[f"kept {stage}"] = sum(
            one.numel() for one in accelerator.unwrap_model(model).parameters()
        )
        told[f"own {stage}"] = type(accelerator.unwrap_model(model)).__name__
    told["kind"] = str(accelerator.distributed_type)
    told["skipped"] = accelerator.optimizer_step_was_skipped
    told["scaler"] = accelerator.scaler
    accelerator.clip_grad_value_(model.parameters(), 1.0)
    return told


@real
def test_an_accelerator_tells_what_deepspeed_does(imported: None) -> None:
    told = on_two(tells)[0]
    assert all(told[f"fell {stage}"] for stage in (1, 2, 3))
    assert told["does 1"] == "ZeRO stage 1 of DeepSpeed: optimizer states over 2 ranks"
    assert told["does 3"].endswith("parameters, gradients and optimizer states over 2 ranks")
    assert told["kept 3"] < told["kept 2"] == sum(one.numel() for one in Net().parameters())
    assert told["own 1"] == told["own 3"] == "Net"
    assert told["kind"] == "DEEPSPEED"
    assert (told["skipped"], told["scaler"]) == (False, None)


OWN: dict[str, Any] = {
    "zero_optimization": {"stage": 2},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "weight_decay": "auto", "betas": "auto"},
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "warmup_type": "linear",
        },
    },
    "gradient_accumulation_steps": 2,
}


def trains_by_the_file(own: Any) -> dict[str, Any]:
    plugin = DeepSpeedPlugin(hf_ds_config=own)
    accelerator = Accelerator(cpu=True, deepspeed_plugin=plugin)
    torch.manual_seed(0)
    x = torch.randn(24, 4)
    model = Net()
    loader = DataLoader(TensorDataset(x, x[:, :1]), batch_size=2)
    optimizer = DummyOptim(model.parameters(), lr=0.5, weight_decay=0.25)
    scheduler = DummyScheduler(optimizer, total_num_steps=6, warmup_num_steps=5)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    rates, moved = [], []
    weight = model.module.leave.weight
    for inputs, targets in loader:
        before = weight.detach().clone()
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        rates.append(scheduler.get_last_lr()[0])
        moved.append(not torch.equal(before, weight))
    group = optimizer.param_groups[0]
    return {
        "rates": rates,
        "moved": moved,
        "decay": group["weight_decay"],
        "steps": accelerator.gradient_accumulation_steps,
        "plugin": accelerator.state.deepspeed_plugin is plugin is accelerator.deepspeed_plugin,
        "made": type(optimizer.optimizer).__name__,
    }


@real
def test_a_file_makes_the_optimizer_the_schedule_and_the_windows(imported: None) -> None:
    told = on_two(trains_by_the_file, OWN)[0]
    # Every second of six batches a rank; DeepSpeed's warm-up makes two updates at rate 0.
    assert told["moved"] == [False, False, False, False, False, True]
    assert told["rates"] == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.1, 0.2])
    # torch's own: DeepSpeed's would be compiled first, on the CPU too
    assert (told["decay"], told["steps"], told["made"]) == (0.25, 2, "AdamW")
    assert told["plugin"]


def misuses(name: str) -> None:
    own: dict[str, Any] = {"zero_optimization": {"stage": 2}}
    model = Net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if name == "both":
        own["optimizer"] = OWN["optimizer"]
    elif name == "none":
        optimizer = DummyOptim(model.parameters())
    elif name == "unknown":
        own["zero_optimization"]["stage_3_prefetch"] = 1
    elif name.startswith("plain"):
        own["zero_optimization"]["stage"] = int(name[-1])
    accelerator = Accelerator(cpu=True, strategy=DeepSpeed(config=own))
    if name == "apart":
        accelerator.prepare(model)
        accelerator.prepare(optimizer)
    model, optimizer = accelerator.prepare(model, optimizer)
    gradients(accelerator, model)
    if name.startswith("plain"):
        optimizer.step()
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    if name == "closure":
        optimizer.step(lambda: None)
    if name == "schedule":
        own["scheduler"] = {"type": "Cosine"}
        accelerator.prepare(DummyScheduler(optimizer))


@real
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("both", "DeepSpeed's configuration has an optimizer, and prepare() got SGD"),
        ("none", "prepare() got a DummyOptim, and DeepSpeed's configuration has no optimizer"),
        ("unknown", "DeepSpeed refuses this configuration"),
        ("apart", "prepare() got SGD without the one model that it trains"),
        ("closure", "optimizer.step(closure) under DeepSpeed"),
        ("plain 1", "optimizer.step() under DeepSpeed after loss.backward()"),
        ("plain 2", "optimizer.step() under DeepSpeed after loss.backward()"),
        ("plain 3", "optimizer.step() under DeepSpeed after loss.backward()"),
        ("schedule", "DeepSpeed has no scheduler 'Cosine'"),
    ],
)
def test_what_does_not_fit_is_the_same_error_on_every_rank(
    name: str, what: str, imported: None
) -> None:
    with pytest.raises((ConfigError, RuntimeMisuse)) as error:
        on_two(misuses, name)
    assert what in error.value.what
    assert error.value.why and error.value.fix


def trains_a_student() -> dict[str, Any]:
    plugins = {
        "student": DeepSpeedPlugin(zero_stage=2),
        "teacher": DeepSpeedPlugin(hf_ds_config=CUT),
    }
    accelerator = Accelerator(cpu=True, deepspeed_plugin=plugins)
    torch.manual_seed(0)
    student, teacher = Net(), Net()
    whole = sum(one.numel() for one in teacher.parameters())
    expected = teacher(torch.ones(2, 4)).tolist()
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.02)
    student, optimizer = accelerator.prepare(student, optimizer)
    accelerator.state.select_deepspeed_plugin("teacher")
    selected = accelerator.deepspeed_plugin is plugins["teacher"]
    teacher = accelerator.prepare(teacher)
    teacher.eval()
    losses = []
    for _ in range(4):
        with torch.no_grad():
            targets = teacher(torch.ones(2, 4))
        loss = nn.functional.mse_loss(student(torch.ones(2, 4)), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    pieces = sum(one.numel() for one in teacher.module.parameters())
    return {
        "selected": selected,
        "answers": targets.tolist() == expected,
        "falls": min(losses) < max(losses),
        "cut": pieces < whole,
        "does": accelerator._engine.describe(teacher),
        "whole": len(accelerator.get_state_dict(teacher)),
    }


@real
def test_a_student_is_trained_by_one_plugin_and_its_teacher_answers_by_another(
    imported: None,
) -> None:
    told = on_two(trains_a_student)[0]
    assert told.pop("does") == "ZeRO stage 3 of DeepSpeed: parameters over 2 ranks"
    assert told.pop("whole") == len(Net().state_dict())
    assert all(told.values()), told


def clears_and_overflows() -> dict[str, Any]:
    told: dict[str, Any] = {}
    for stage in (1, 2, 3):
        accelerator, model, optimizer = prepared(zero(stage))
        gradients(accelerator, model, 100.0)
        optimizer.zero_grad()
        gradients(accelerator, model)
        gradients(accelerator, model)  # two backward passes of a hand-made window add up
        told[f"norm {stage}"] = accelerator.clip_grad_norm_(model.parameters(), 1.0).item()
        told[f"again {stage}"] = accelerator.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # nothing came since: nothing moves
        accelerator, model, optimizer = prepared(zero(stage), mixed_precision="fp16")
        before = accelerator.get_state_dict(model)
        gradients(accelerator, model, 1e6)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        told[f"scale {stage}"] = accelerator.scaler.get_scale()
        torch.amp.GradScaler("cpu").load_state_dict(accelerator.scaler.state_dict())
        accelerator.scaler.load_state_dict({"scale": 64.0, "_growth_tracker": 3})
        told[f"loaded {stage}"] = accelerator.scaler.state_dict()
        told[f"skipped {stage}"] = accelerator.optimizer_step_was_skipped
        after = accelerator.get_state_dict(model)
        told[f"same {stage}"] = all(torch.equal(before[name], after[name]) for name in before)
    return told


@real
def test_cleared_gradients_are_gone_and_an_overflow_is_told(imported: None) -> None:
    told = on_two(clears_and_overflows)[0]
    torch.manual_seed(0)
    model = Net()
    model(torch.ones(2, 4)).square().mean().backward()
    expected = 2 * torch.nn.utils.get_total_norm([one.grad for one in model.parameters()]).item()
    for stage in (1, 2, 3):
        assert told[f"norm {stage}"] == pytest.approx(expected, rel=1e-5)
        assert told[f"again {stage}"] == pytest.approx(1.0, rel=1e-3)
        assert told[f"skipped {stage}"] and told[f"same {stage}"]
        assert told[f"scale {stage}"] == 32768.0
        loaded = told[f"loaded {stage}"]
        assert (loaded["scale"], loaded["_growth_tracker"]) == (64.0, 3)


def gives_back(precision: str) -> list[Any]:
    back: list[Any] = []
    for stage in (1, 2, 3):
        accelerator, model, optimizer = prepared(zero(stage), mixed_precision=precision)
        step(accelerator, model, optimizer)
        state = accelerator.get_state_dict(model)
        back.append((accelerator.unwrap_model(model) if stage == 1 else model, state))
    return back


@real
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_model_in_pieces_comes_home_whole_and_in_its_own_numbers(
    precision: str, imported: None
) -> None:
    for model, state in on_two(gives_back, precision)[0]:
        assert type(model) is Net
        assert {one.dtype for one in state.values()} == {torch.float32}
        for name, value in model.state_dict().items():
            assert torch.equal(value, state[name])
        assert model(torch.ones(2, 4)).shape == (2, 1)


class Tied(nn.Module):
    """Its first and last layer share their weights; one in between is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(self.frozen(self.embed(ids)).tanh())}


def trains_tied(wish: Strategy, folder: Path, loads: bool) -> list[float]:
    accelerator = Accelerator(cpu=True, strategy=wish)
    torch.manual_seed(0)
    model: nn.Module = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer = accelerator.prepare(model, optimizer)
    if loads:
        accelerator.load_state(folder)
    ids = torch.arange(8).view(2, 4)
    losses = []
    for _ in range(3):
        logits = model(ids)["logits"]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if not loads:
        accelerator.save_state(folder)
    return losses


def trains_tied_in_every_way(folder: Path) -> tuple[list[list[float]], list[list[float]]]:
    ways = {"ddp": DDP(), "1": zero(1), "2": zero(2), "3": zero(3)}
    first = [trains_tied(wish, folder / name, False) for name, wish in ways.items()]
    then = [
        trains_tied(wish, folder / was, True)
        for name, wish in ways.items()
        for was in (("1", "3") if name == "ddp" else ("ddp", name))
    ]
    return first, then


@real
def test_tied_and_frozen_parameters_are_trained_saved_and_loaded(
    tmp_path: Path, imported: None
) -> None:
    first, then = on_two(trains_tied_in_every_way, tmp_path)[0]
    for losses in first:
        assert losses == pytest.approx(first[0], rel=1e-5)
    for losses in then:
        assert losses == pytest.approx(then[0], rel=1e-5)
        assert losses[0] < first[0][-1]


def saves_alone(folder: Path) -> None:
    accelerator, _, _ = prepared(DeepSpeed(zero_stage=2))
    if accelerator.is_main_process:
        accelerator.save_state(folder)


@real
def test_saving_on_the_main_rank_alone_is_told_and_does_not_hang(
    tmp_path: Path, imported: None
) -> None:
    with pytest.raises((RanksStuck, WorkerDied)) as error:
        on_two(saves_alone, tmp_path)
    assert "save_state" in str(error.value)


SCRIPT = """
import json, torch
from notebook_accel import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
accelerator.backward(model(torch.ones(1, 2)).square().mean())
optimizer.step()
plugin = accelerator.state.deepspeed_plugin
accelerator.print("told:" + json.dumps([
    str(accelerator.distributed_type), accelerator._engine.wish.zero_stage, plugin is not None,
    accelerator.gradient_accumulation_steps, accelerator.mixed_precision,
]))
"""


@real
@pytest.mark.parametrize("by", ["options", "file", "yaml"])
def test_a_launch_trains_a_script_unchanged_under_deepspeed(by: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    own = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(own))
    (tmp_path / "all.yaml").write_text(
        "distributed_type: DEEPSPEED\nuse_cpu: true\nnum_processes: 2\nmixed_precision: bf16\n"
        "deepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 2\n"
        "  zero3_init_flag: true\n"
    )
    words: dict[str, list[Any]] = {
        "options": ["--use_deepspeed", "--zero_stage", "1"],
        "file": ["--use_deepspeed", "--deepspeed_config_file", tmp_path / "ds.json"],
        "yaml": ["--config_file", tmp_path / "all.yaml"],
    }
    cpu = [] if by == "yaml" else ["--cpu", "--num_processes", "2"]
    done = launch(*cpu, *words[by], tmp_path / "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("told:")]
    expected = {
        "options": ["DEEPSPEED", 1, True, 1, "no"],
        "file": ["DEEPSPEED", 3, True, 1, "bf16"],
        "yaml": ["DEEPSPEED", 3, True, 2, "bf16"],
    }
    assert json.loads(line.removeprefix("told:")) == expected[by]


def by_a_word() -> str:
    return str(Accelerator(cpu=True)._engine.wish)


@real
def test_a_word_of_the_launch_is_enough(imported: None) -> None:
    assert on_two(by_a_word, strategy="deepspeed")[0].startswith("DeepSpeed(zero_stage=2")
    wish = DeepSpeed(zero_stage=3)
    assert on_two(by_a_word, strategy=wish)[1].startswith("DeepSpeed(zero_stage=3")


AGAIN = """
import os
import torch
from notebook_accel import Accelerator, DeepSpeed, PartialState, notebook_launcher

def train(fails=False):
    accelerator = Accelerator(cpu=True, strategy=DeepSpeed(zero_stage=3))
    if fails:
        raise ValueError("as meant")
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for _ in range(2):
        loss = model(torch.ones(1, 2)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses

if __name__ == "__main__":
    told = []
    for way, num, args in (
        ("inline", 1, ()), ("inline", 1, (True,)), ("inline", 1, ()), ("fork", 1, ()),
        ("spawn", 2, ()),
    ):
        try:
            told += notebook_launcher(train, args, num, device="cpu", start_method=way)[:1]
        except ValueError as error:
            told.append(str(error))
    assert "LOCAL_RANK" not in os.environ
    told.append(train())
    PartialState().destroy_process_group()
    assert "LOCAL_RANK" not in os.environ
    print("told:", told)
"""


@real
def test_one_process_trains_again_and_its_forks_and_others_too(tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(AGAIN)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("told:")]
    first, failed, *others = ast.literal_eval(line.removeprefix("told: "))
    assert failed == "as meant"
    assert others == [first] * 4
    assert first[1] < first[0]
