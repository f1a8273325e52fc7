"""Compiled models, frozen models: what prepare makes of them and unwrap gives back (PR01, PR04)."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.dynamo import TorchDynamoPlugin
from notebook_accel.config.kinds import DynamoBackend
from notebook_accel.errors import ConfigError
from notebook_accel.utils import (
    compile_regions,
    extract_model_from_parallel,
    has_compiled_regions,
    is_compiled_module,
)


def compiled_by_the_person() -> dict[str, Any]:
    import torch
    from torch import nn

    from notebook_accel import Accelerator

    seen: dict[str, Any] = {}
    for precision in ("no", "bf16"):
        accelerator = Accelerator(mixed_precision=precision)
        torch.manual_seed(0)
        plain = nn.Linear(2, 2)
        whole = torch.compile(plain, backend="eager")
        partly = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"), nn.ReLU())
        for name, model in (("whole", whole), ("partly", partly)):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            prepared, optimizer = accelerator.prepare(model, optimizer)
            outputs = prepared(torch.ones(1, 2) * (accelerator.process_index + 1))
            accelerator.backward(outputs.sum())
            optimizer.step()
            state = accelerator.get_state_dict(prepared)
            unwrapped = accelerator.unwrap_model(prepared)
            bare = accelerator.unwrap_model(
                prepared, keep_fp32_wrapper=False, keep_torch_compile=False
            )
            weights = accelerator.gather(next(iter(state.values()))[None])
            seen[f"{name} {precision}"] = [
                sorted(state),
                unwrapped is model,
                bare is plain if name == "whole" else bare is model,
                str(outputs.dtype),
                bool((weights == weights[0]).all()),
            ]
        nn.Linear(2, 2).load_state_dict(accelerator.get_state_dict(accelerator.prepare(whole)))
    return seen


@pytest.mark.parametrize("num_processes", [1, 2])
def test_models_that_a_person_compiled_train_and_keep_plain_names(num_processes: int) -> None:
    """PR04."""
    run = notebook_launcher(compiled_by_the_person, num_processes=num_processes, device="cpu")
    for rank in range(num_processes):
        for precision in ("no", "bf16"):
            common = [True, True, "torch.float32", True]
            assert run[rank][f"whole {precision}"] == [["bias", "weight"], *common]
            assert run[rank][f"partly {precision}"] == [["0.bias", "0.weight"], *common]


def compiled_by_prepare() -> list[Any]:
    import torch
    from torch import nn

    from notebook_accel import Accelerator
    from notebook_accel.utils import is_compiled_module

    seen = []
    for backend in ("eager", None):
        accelerator = Accelerator(dynamo_backend=backend)
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        prepared, optimizer = accelerator.prepare(model, optimizer)
        for _ in range(2):
            accelerator.backward(prepared(torch.ones(1, 2)).sum())
            optimizer.step()
            optimizer.zero_grad()
        state = accelerator.get_state_dict(prepared)
        seen += [is_compiled_module(prepared), sorted(state), state["weight"].tolist()]
        assert accelerator.unwrap_model(prepared) is model
    return [seen, prepared]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_prepare_compiles_in_place_with_the_same_numbers(num_processes: int) -> None:
    run = notebook_launcher(compiled_by_prepare, num_processes=num_processes, device="cpu")
    for rank in range(num_processes):
        (compiled, keys, weights, other, other_keys, other_weights), model = run[rank]
        assert compiled and not other
        assert keys == other_keys == ["bias", "weight"]
        assert weights == other_weights
        assert type(model) is nn.Linear


def test_the_plugin_is_read_from_arguments_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not TorchDynamoPlugin().compiles
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "inductor")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "yes")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_FULLGRAPH", "no")
    plugin = TorchDynamoPlugin(mode="reduce-overhead")
    assert plugin.compiles and plugin.backend == DynamoBackend.INDUCTOR
    assert plugin.to_kwargs() == {"backend": "inductor", "mode": "reduce-overhead", "dynamic": True}
    assert not TorchDynamoPlugin(backend="no").compiles
    assert not TorchDynamoPlugin(disable=True).compiles
    assert TorchDynamoPlugin(backend="my_backend").to_dict()["backend"] == "my_backend"
    assert not Accelerator(cpu=True, dynamo_backend="no")._dynamo.compiles


def test_two_ways_to_name_a_compiler_are_refused_together() -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True, dynamo_backend="eager", dynamo_plugin=TorchDynamoPlugin())
    assert "both given" in error.value.what
    assert "which of them counts" in error.value.why
    assert "TorchDynamoPlugin(backend=...)" in error.value.fix
    with pytest.raises(ConfigError) as empty:
        TorchDynamoPlugin(backend=" ")
    assert "empty word" in empty.value.what
    assert "which backend" in empty.value.why
    assert 'dynamo_backend="inductor"' in empty.value.fix


@pytest.mark.parametrize(
    ("how", "what", "why", "fix"),
    [
        (
            {"backend": "inducter"},
            "torch.compile has no backend 'inducter'",
            "eager, aot_eager, cudagraphs, inductor",
            "write 'inductor'",
        ),
        (
            {"backend": "FX2TRT"},
            "torch.compile has no backend 'fx2trt'",
            "this torch has",
            "pass a function as backend",
        ),
        (
            {"backend": "inductor", "mode": "fast"},
            "the compiler's mode is 'fast', its backend 'inductor'",
            "inductor has the modes: default,",
            "write one of them",
        ),
        (
            {"backend": "eager", "mode": "max-autotune"},
            "the compiler's mode is 'max-autotune', its backend 'eager'",
            "eager has the modes: default",
            "leave mode out",
        ),
        (
            {"backend": "inductor", "mode": "max-autotune", "options": {"trace.enabled": False}},
            "TorchDynamoPlugin has mode='max-autotune' and options",
            "a mode is a set of options",
            "leave options out",
        ),
    ],
)
def test_what_torch_cannot_compile_with_is_refused_at_once(
    how: dict[str, Any], what: str, why: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True, dynamo_plugin=TorchDynamoPlugin(**how))
    assert error.value.what == what
    assert why in error.value.why and fix in error.value.fix


def test_a_function_compiles_and_its_modes_are_its_own() -> None:
    seen = []

    def backend(graph: Any, inputs: Any, **kwargs: Any) -> Any:
        seen.append(kwargs)
        return graph

    plugin = TorchDynamoPlugin(backend=backend, mode="default")
    assert plugin.to_dict()["backend"] is backend
    assert plugin.to_kwargs() == {"backend": backend}  # each backend has a default mode
    torch._dynamo.reset()  # other tests of this file may have used up its patience with Linear
    model = Accelerator(cpu=True, dynamo_plugin=plugin).prepare(nn.Linear(2, 2))
    model(torch.ones(1, 2))
    assert seen == [{}]
    torch._dynamo.register_backend(backend, name="of_the_person")
    Accelerator(cpu=True, dynamo_plugin=TorchDynamoPlugin("of_the_person", mode="own"))


def test_torchs_own_modules_are_compiled_and_travel() -> None:
    torch._dynamo.reset()
    seen: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(str(graph.code))
        return graph

    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    expected = model(torch.ones(1, 2))
    model = Accelerator(cpu=True, dynamo_backend=backend).prepare(model)
    assert torch.equal(model(torch.ones(1, 2)), expected)
    assert len(seen) == 1 and "tanh" in seen[0]
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(copied) is nn.Sequential and not is_compiled_module(copied)
        assert torch.equal(copied(torch.ones(1, 2)), expected)
        copied[0].weight.data.zero_()  # its forward is its own
        assert not torch.equal(copied(torch.ones(1, 2)), expected)
    again = Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
    assert type(pickle.loads(pickle.dumps(again))) is nn.Sequential


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_repeated_blocks_are_compiled_one_by_one() -> None:
    plugin = TorchDynamoPlugin(backend="eager", use_regional_compilation=True)
    model = Blocks()
    expected = model(torch.ones(1, 2))
    model = Accelerator(cpu=True, dynamo_plugin=plugin).prepare(model)
    assert has_compiled_regions(model) and not is_compiled_module(model)
    assert [is_compiled_module(one) for one in (model.first, *model.blocks)] == [False] + [True] * 3
    assert torch.equal(model(torch.ones(1, 2)), expected)
    assert is_compiled_module(compile_regions(nn.Linear(2, 2), backend="eager"))


def test_a_cell_run_again_does_not_compile_twice() -> None:
    model = nn.Linear(2, 2)
    for _ in range(2):
        prepared = Accelerator(cpu=True, dynamo_backend="eager").prepare(model)
        assert prepared is model
        inner = model._compiled_call_impl
    assert Accelerator(cpu=True, dynamo_backend="eager").prepare(model)._compiled_call_impl is inner


def test_wrappers_are_taken_off_by_a_function_too() -> None:
    model = torch.compile(nn.Linear(2, 2), backend="eager")
    assert extract_model_from_parallel(nn.DataParallel(model)) is model
    assert type(extract_model_from_parallel(model, keep_torch_compile=False)) is nn.Linear
    nested = nn.Sequential(nn.DataParallel(nn.ReLU()))
    assert type(extract_model_from_parallel(nested, recursive=True)[0]) is nn.ReLU


def without_anything_to_train() -> list[Any]:
    import torch
    from torch import nn

    from notebook_accel import Accelerator

    accelerator = Accelerator()
    frozen = nn.Linear(1, 1).requires_grad_(False)
    torch.nn.init.constant_(frozen.weight, accelerator.process_index + 1.0)
    prepared, relu = accelerator.prepare(frozen, nn.ReLU())
    return [
        type(prepared).__name__,
        type(relu).__name__,
        relu(torch.tensor([-1.0])).item(),
        accelerator.gather(prepared.weight).flatten().tolist(),
    ]


def test_models_without_anything_to_train_come_back_unwrapped_and_equal() -> None:
    """PR01."""
    run = notebook_launcher(without_anything_to_train, num_processes=2, device="cpu")
    assert run[0] == run[1] == ["Linear", "ReLU", 0.0, [1.0, 1.0]]


def sync_after_no_sync() -> list[float]:
    import torch
    from torch import nn

    from notebook_accel import Accelerator

    accelerator = Accelerator()
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    model = accelerator.prepare(model)
    x = torch.ones(1, 1) * (accelerator.process_index + 1)
    with accelerator.no_sync(model):
        loss = model(x).sum() + model(x).sum()
    with Accelerator.trigger_sync_in_backward(model):
        accelerator.backward(loss)
    gradient: torch.Tensor = accelerator.unwrap_model(model).weight.grad
    return [float(one) for one in accelerator.gather(gradient)]


def test_gradients_can_be_averaged_after_forwards_that_were_not_meant_to() -> None:
    run = notebook_launcher(sync_after_no_sync, num_processes=2, device="cpu")
    assert run[0] == [3.0, 3.0]
    assert notebook_launcher(sync_after_no_sync, num_processes=1, device="cpu")[0] == [2.0]
