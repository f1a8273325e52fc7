"""The Accelerator: settings, preparing, saying, and refusing what cannot be."""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import io
import os
import pickle
import sys
import weakref
from argparse import Namespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from notebook_accel import Accelerator
from notebook_accel.config import wishes
from notebook_accel.config.handlers import GradScalerKwargs
from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.runtime import accelerator as accelerator_file
from notebook_accel.runtime import among_ranks
from tests.support.ranks import run_ranks


def test_explicit_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert Accelerator(cpu=True).gradient_accumulation_steps == 8
    assert Accelerator(cpu=True).mixed_precision == "bf16"
    given = Accelerator(gradient_accumulation_steps=2, mixed_precision="no", cpu=True)
    assert (given.gradient_accumulation_steps, given.mixed_precision) == (2, "no")


def test_whole_numbers_are_accepted_as_steps() -> None:
    assert Accelerator(gradient_accumulation_steps=2.0, cpu=True).gradient_accumulation_steps == 2


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many"])
def test_impossible_accumulation_steps_are_refused(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(gradient_accumulation_steps=value, cpu=True)
    assert f"gradient_accumulation_steps={value!r}" in error.value.what
    assert "micro-batches" in error.value.why
    assert "gradient_accumulation_steps=1" in error.value.fix


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("dataloader_config", {"split_batches": True}, "DataLoaderConfiguration"),
        ("project_config", "runs", "ProjectConfiguration"),
        ("gradient_accumulation_plugin", 4, "GradientAccumulationPlugin"),
        ("dynamo_plugin", "eager", "TorchDynamoPlugin"),
        ("parallelism_config", {"tp_size": 2}, "ParallelismConfig"),
    ],
)
def test_settings_of_another_kind_are_refused_by_name(name: str, value: object, kind: str) -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True, **{name: value})
    assert error.value.what == f"{name}={value!r} is no {kind}"
    assert error.value.fix == f"write {name}={kind}(...)"


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "split_batches",
        "device_placement",
        "step_scheduler_with_optimizer",
        "schedule_in_updates",
    ],
)
def test_a_word_is_no_switch(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(**{"cpu": True, name: "no"})
    assert error.value.what == f"Accelerator({name}='no')"
    assert error.value.fix == f"write {name}=True, or {name}=False"


def test_one_handler_may_come_without_a_list() -> None:
    accelerator = Accelerator(cpu=True, kwargs_handlers=GradScalerKwargs(init_scale=4.0))
    assert accelerator._handlers.kwargs(GradScalerKwargs) == {"init_scale": 4.0}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a: a.backward(0.5), "backward() got a float"),
        (lambda a: a.backward([torch.ones(())]), "backward() got a list"),
        (lambda a: a.clip_grad_norm_(nn.Linear(1, 1), 1.0), "clipping gradients got a Linear"),
        (lambda a: a.clip_grad_value_(nn.Linear(1, 1), 1.0), "clipping gradients got a Linear"),
        (lambda a: a.get_state_dict({"w": 1}), "get_state_dict() got a dict"),
        (lambda a: a.save_model({"w": 1}, "folder"), "get_state_dict() got a dict"),
        (lambda a: a.skip_first_batches([1, 2], 1), "skip_first_batches() got a list"),
        (lambda a: a.init_trackers("p", Namespace(lr=1)), "(config=...) got a Namespace"),
    ],
)
def test_a_call_with_the_wrong_kind_of_thing_says_which_it_needs(call: Any, said: str) -> None:
    with pytest.raises(RuntimeMisuse) as error:
        call(Accelerator(cpu=True))
    assert said in error.value.what
    assert error.value.why and error.value.fix.startswith(("pass", "write"))


def test_an_unknown_precision_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError) as error:
        Accelerator(mixed_precision="fp17", cpu=True)
    assert "mixed_precision='fp17' is not known" in str(error.value)
    assert "'no', 'fp16', 'bf16'" in str(error.value)
    assert "pass mixed_precision='fp16'" in str(error.value)


def test_one_object_gives_one_several_give_a_tuple_and_strangers_come_back() -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    assert accelerator.prepare(model) is model
    stranger = object()
    given = accelerator.prepare(stranger, None, model)
    assert isinstance(given, tuple)
    assert given == (stranger, None, model)


def test_preparing_again_gives_the_same_objects() -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    parts = accelerator.prepare(model, torch.optim.SGD(model.parameters()), DataLoader([1]))
    assert all(a is b for a, b in zip(accelerator.prepare(*parts), parts, strict=True))
    assert accelerator.prepare_optimizer(parts[1]) is parts[1]
    assert accelerator.prepare_data_loader(parts[2]) is parts[2]
    assert accelerator.prepare_model(model) is model


def test_a_cell_run_again_with_another_precision_takes_over_what_was_prepared() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.ones(4, 4), batch_size=2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    for precision, steps in (("bf16", 2), ("no", 1), ("bf16", 4)):
        accelerator = Accelerator(
            mixed_precision=precision, gradient_accumulation_steps=steps, cpu=True
        )
        model, optimizer, loader, scheduler = accelerator.prepare(
            model, optimizer, loader, scheduler
        )
        assert scheduler._optimizers == [optimizer]
        steps_made = 0
        for x in loader:
            with accelerator.accumulate(model):
                exact = nn.functional.linear(x, model.weight, model.bias)
                assert torch.equal(model(x), exact) is (precision == "no")
                accelerator.backward(model(x).sum())
                before = model.bias.clone()
                optimizer.step()
                steps_made += not torch.equal(before, model.bias)
        assert steps_made == (2 if steps == 1 else 1)


def test_a_wrong_number_of_placements_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True).prepare(nn.Linear(1, 1), device_placement=[True, False])
    assert "2 entries for 1 objects" in error.value.what
    assert "True or False" in error.value.fix


def test_outputs_are_full_precision_and_the_module_comes_back_as_it_was() -> None:
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    model = accelerator.prepare(nn.Linear(8, 8))
    x = torch.randn(2, 8)
    assert model(x).dtype == torch.float32
    with accelerator.autocast():
        assert nn.functional.linear(x, model.weight).dtype == torch.bfloat16
    average = copy.deepcopy(model)
    assert torch.equal(average(x), model(x))
    assert average.forward.forward.__self__ is average
    traveled = pickle.loads(pickle.dumps(model))
    exact = nn.functional.linear(x, model.weight, model.bias)
    assert torch.equal(traveled(x), exact)
    assert accelerator.unwrap_model(model) is model
    assert not torch.equal(model(x), exact)
    bare = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    assert torch.equal(bare(x), exact)


def test_the_facade_asks_no_strategy_its_name() -> None:
    names = {wish.__name__ for wish in (wishes.DDP, wishes.SingleDevice)}
    strings = {wish.name for wish in (wishes.DDP, wishes.SingleDevice)}
    for file in (accelerator_file, among_ranks):
        for node in ast.walk(ast.parse(inspect.getsource(file))):
            if isinstance(node, ast.Name):
                assert node.id not in names and "Engine" not in node.id
            elif isinstance(node, ast.Compare):
                constants = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
                assert not constants & strings
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                assert ast.unparse(node.args[1]) in ("Tensor",)


def test_printing_happens_once_and_takes_print_s_arguments(capsys) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.print("a", 1, sep="-", end="!\n")
    file = io.StringIO()
    accelerator.print("b", file=file)
    assert capsys.readouterr().out == "a-1!\n"
    assert file.getvalue() == "b\n"


def test_printing_in_a_launched_run_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    class WorkerStream(io.StringIO):
        said = ""

        def announce(self, text: str) -> None:
            self.said += text

    stream = WorkerStream()
    monkeypatch.setattr(sys, "stdout", stream)
    Accelerator(cpu=True).print("epoch", 1)
    assert stream.said == "epoch 1\n"
    assert stream.getvalue() == ""


def test_memory_is_free_after_free_memory_even_in_mid_loop() -> None:
    """MM01."""
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(100, 100)
    watched = weakref.ref(model)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    loader = DataLoader(torch.ones(4, 100), batch_size=2)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    walk = iter(loader)
    with accelerator.accumulate(model):
        accelerator.backward(model(next(walk)).sum())
        optimizer.step()
    model, optimizer, scheduler, loader = accelerator.free_memory(
        model, optimizer, scheduler, loader
    )
    assert model is optimizer is scheduler is loader is None
    gc.collect()
    assert watched() is None


def test_prepared_things_of_another_process_are_refused() -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters()), DataLoader([1])
    )
    uses = {
        "Accelerator": [
            lambda: accelerator.prepare(model),
            lambda: accelerator.backward(torch.ones(1, requires_grad=True)),
            lambda: accelerator.gather(torch.ones(1)),
        ],
        "optimizer": [optimizer.step],
        "DataLoader": [lambda: iter(loader)],
    }
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for name, calls in uses.items():
            for call in calls:
                try:
                    call()
                    said.append(f"{name}: no error")
                except RuntimeMisuse as error:
                    said.append(error.what + error.fix)
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        lines = pipe.read().splitlines()
    assert len(lines) == 5
    for line, name in zip(lines, ["Accelerator"] * 3 + ["optimizer", "DataLoader"], strict=True):
        assert f"this prepared {name} was made in another process" in line
        assert "inside the function that you launch" in line


def test_an_accelerator_does_not_travel() -> None:
    with pytest.raises(RuntimeMisuse) as error:
        pickle.dumps(Accelerator(cpu=True))
    assert "Accelerator cannot travel between processes" in error.value.what


def test_on_one_process_everything_is_there_and_alone() -> None:
    accelerator = Accelerator(cpu=True)
    assert accelerator.is_main_process and accelerator.is_local_main_process
    assert accelerator.is_last_process
    assert accelerator.local_process_index == accelerator.process_index == 0
    assert accelerator.on_main_process(lambda x: x + 1)(1) == 2
    with accelerator.split_between_processes([1, 2]) as mine, accelerator.main_process_first():
        assert mine == [1, 2]
    accelerator.wait_for_everyone()
    accelerator.log({"loss": 1.0})
    assert accelerator.reduce(torch.ones(1)).item() == 1
    assert accelerator.pad_across_processes(torch.ones(2)).shape == (2,)
    accelerator.end_training()


def works_together():
    import time

    import torch
    from torch import nn

    from notebook_accel import Accelerator

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    said = {}
    torch.manual_seed(rank)
    frozen = accelerator.prepare(nn.Linear(2, 2).requires_grad_(False))
    said["frozen"] = [type(frozen).__name__, frozen.weight.tolist()]
    said["no_parameters"] = type(accelerator.prepare(nn.ReLU())).__name__
    model = accelerator.prepare(nn.Linear(2, 2))
    said["wrapped"] = type(model).__name__
    said["same_start"] = accelerator.get_state_dict(model)["weight"].tolist()
    said["keys"] = list(accelerator.get_state_dict(model))
    said["unwrapped"] = type(accelerator.unwrap_model(model)).__name__
    said["evaluation"] = type(
        accelerator.prepare_model(nn.Linear(1, 1), evaluation_mode=True)
    ).__name__

    def gradients_agree():
        grads = accelerator.gather(model.module.weight.grad.reshape(1, -1))
        model.zero_grad()
        return bool(torch.equal(grads[0], grads[1]))

    x = torch.full((1, 2), rank + 1.0)
    with accelerator.no_sync(model):
        accelerator.backward(model(x).sum())
    said["no_sync"] = gradients_agree()
    accelerator.backward(model(x).sum())
    said["sync"] = gradients_agree()
    accelerator.gradient_accumulation_steps = 2
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
            said.setdefault("window", []).append(gradients_agree())

    with accelerator.split_between_processes((1, 2, 3), apply_padding=True) as mine:
        said["mine"] = mine
    seen = []
    if rank == 0:
        time.sleep(0.3)
    with accelerator.main_process_first():
        seen.append(time.time())
    said["entered"] = seen[0]
    try:
        with accelerator.main_process_first():
            if rank == 0:
                raise ValueError("in the main process")
    except ValueError:
        said["raised"] = True
    said["main_only"] = accelerator.on_main_process(lambda: "main")()
    again = Accelerator(mixed_precision="bf16", cpu=True)
    said["again"] = [again.num_processes, type(again.prepare(model)).__name__]
    accelerator.print("once")
    return said


def test_two_ranks_work_together() -> None:
    first, second = run_ranks(works_together, 2)
    for said in (first, second):
        assert said["frozen"] == ["Linear", first["frozen"][1]]
        assert said["no_parameters"] == "ReLU"
        assert said["wrapped"] == "DistributedDataParallel"
        assert said["same_start"] == first["same_start"]
        assert said["keys"] == ["weight", "bias"]
        assert said["unwrapped"] == said["evaluation"] == "Linear"
        assert (said["no_sync"], said["sync"], said["window"]) == (False, True, [False, True])
        assert said["again"] == [2, "DistributedDataParallel"]
    assert (first["mine"], second["mine"]) == ([1, 2], [3, 3])
    assert first["entered"] < second["entered"]
    assert first.get("raised") and not second.get("raised")
    assert (first["main_only"], second["main_only"]) == ("main", None)
