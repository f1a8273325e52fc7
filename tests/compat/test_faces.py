"""PartialState, AcceleratorState, GradientState: what old code reads, and what it resets."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from notebook_accel import (
    Accelerator,
    FullyShardedDataParallelPlugin,
    PartialState,
    notebook_launcher,
)
from notebook_accel.config.placement import Placement
from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.ranks.world import World
from notebook_accel.runtime.faces import AcceleratorState, kind_of_ranks
from notebook_accel.runtime.gradient_state import GradientState
from notebook_accel.utils.imports import is_bnb_available, is_pytest_available


@pytest.fixture(autouse=True)
def empty_faces() -> Iterator[None]:
    reset()
    yield
    reset()


def reset() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def test_shared_state_is_a_real_dict_empty_until_there_is_a_state() -> None:
    for face in (PartialState, AcceleratorState, GradientState):
        assert face._shared_state == {}
    Accelerator(cpu=True)
    for face in (PartialState, AcceleratorState, GradientState):
        assert type(face._shared_state) is dict
        assert face._shared_state != {}


def test_a_partial_state_before_any_accelerator_knows_its_place() -> None:
    state = PartialState(cpu=True)
    assert (state.num_processes, state.process_index, state.local_process_index) == (1, 0, 0)
    assert state.is_main_process and state.is_local_main_process and state.is_last_process
    assert (state.distributed_type, state.device) == ("NO", torch.device("cpu"))
    assert not state.use_distributed and state.backend is None and not state.fork_launched
    assert "process 0 of 1" in repr(state)
    assert AcceleratorState._shared_state == {}


def test_all_instances_show_the_same() -> None:
    first = PartialState(cpu=True)
    second = pickle.loads(pickle.dumps(first))
    assert second.__dict__ is first.__dict__ is PartialState._shared_state


def test_reset_empties_faces_only() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    shared = AcceleratorState()
    AcceleratorState._reset_state(reset_partial_state=True)
    assert AcceleratorState._shared_state == {} == PartialState._shared_state
    with pytest.raises(AttributeError) as error:
        _ = shared.num_processes
    assert "This AcceleratorState shows nothing" in str(error.value)
    assert "_reset_state() emptied it" in str(error.value)
    assert accelerator.state.mixed_precision == "bf16"
    assert accelerator.num_processes == 1
    assert not hasattr(accelerator.state, "no_such_name")


def test_the_shared_faces_show_the_newest_accelerator_and_each_has_its_own() -> None:
    older = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=4)
    gradients = GradientState()
    newer = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert (AcceleratorState().mixed_precision, GradientState().num_steps) == ("no", 2)
    assert gradients.num_steps == 2
    assert older.state.mixed_precision == "bf16"
    assert (older.gradient_state.num_steps, newer.gradient_state.num_steps) == (4, 2)


def test_the_shared_faces_show_the_one_before_when_the_newest_is_gone() -> None:
    older = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=4)
    for _ in range(2):
        newer = Accelerator(cpu=True)
        assert AcceleratorState().mixed_precision == "no"
        del newer
        gc.collect()
        assert (AcceleratorState().mixed_precision, GradientState().num_steps) == ("bf16", 4)
    newer = Accelerator(cpu=True)
    reset()
    del newer
    gc.collect()
    assert GradientState._shared_state == {}  # a reset stays one
    assert older.gradient_state.num_steps == 4


def test_faces_keep_no_model_alive() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    gone = [weakref.ref(accelerator), weakref.ref(model)]
    state = GradientState()
    del accelerator, model
    gc.collect()
    assert [one() for one in gone] == [None, None]
    with pytest.raises(AttributeError, match="This GradientState shows nothing"):
        _ = state.num_steps
    assert GradientState().num_steps == 1


def test_a_state_cannot_be_made_before_or_against_its_accelerator() -> None:
    with pytest.raises(RuntimeMisuse) as early:
        AcceleratorState()
    assert "before there is an Accelerator" in early.value.what
    assert "accelerator = Accelerator(...)" in early.value.fix
    Accelerator(cpu=True)
    assert AcceleratorState(mixed_precision="no", cpu=True).mixed_precision == "no"
    with pytest.raises(ConfigError) as other:
        AcceleratorState(mixed_precision="bf16")
    assert "the newest Accelerator has 'no'" in other.value.what
    assert "live side by side" in other.value.fix


def test_a_state_is_not_told_of_plugins_that_its_accelerator_does_not_have() -> None:
    plugin = FullyShardedDataParallelPlugin()
    accelerator = Accelerator(cpu=True)
    assert AcceleratorState(fsdp_plugin=None, parallelism_config=None).fsdp_plugin is None
    for name in ("fsdp_plugin", "deepspeed_plugin", "megatron_lm_plugin", "torch_tp_plugin"):
        with pytest.raises(ConfigError, match=rf"AcceleratorState\({name}="):
            AcceleratorState(**{name: plugin})
    assert accelerator.state.fsdp_plugin is None


def test_every_prepared_object_says_so_to_other_libraries() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = torch.utils.data.DataLoader([1])
    prepared = Accelerator(cpu=True).prepare(model, optimizer, schedule, loader)
    assert [one._is_accelerate_prepared for one in prepared] == [True] * 4


@pytest.mark.parametrize(("version", "there"), [(None, True), ("0.1", True), ("9999", False)])
def test_a_package_is_available_from_a_version_on(version: str | None, there: bool) -> None:
    assert is_pytest_available(version) is there
    assert not is_bnb_available(min_version="0.1")


def test_gradient_state_follows_accumulation_and_the_end_of_the_loader() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    state = GradientState()
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    loader = accelerator.prepare(DataLoader(torch.ones(5, 1), batch_size=2))
    assert not state.in_dataloader and state.remainder == -1 and state.active_dataloader is None
    seen = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            seen.append((state.sync_gradients, state.end_of_dataloader))
            assert state.active_dataloader is loader
            assert state.remainder == 1
    assert seen == [(False, False), (True, False), (True, True)]
    assert not state.in_dataloader and not state.end_of_dataloader
    assert state.dataloader_references == [None]


def test_sync_can_be_driven_from_outside() -> None:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    start = model.weight.clone()
    accelerator.gradient_state._set_sync_gradients(False)
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    assert torch.equal(model.weight, start) and not accelerator.sync_gradients
    accelerator.sync_gradients = True
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    assert torch.equal(model.weight, start - 2)


def test_an_open_window_has_no_say_once_sync_is_driven() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    start = model.weight.clone()
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 1)).sum())
        assert not accelerator.sync_gradients
        GradientState()._set_sync_gradients(True)
        optimizer.step()
    assert torch.equal(model.weight, start - 1 / 4)


def test_kinds_of_ranks_are_named_by_device() -> None:
    def kind(size: int, device: str) -> str:
        return str(kind_of_ranks(World(Placement(size=size), torch.device(device))))

    assert [kind(1, "cuda"), kind(2, "cuda:0"), kind(2, "cpu")] == ["NO", "MULTI_GPU", "MULTI_CPU"]


def test_the_loss_scale_can_be_taken_off_early() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    accelerator.backward(model(torch.ones(1, 1)).sum() / 4)
    assert model.weight.grad.item() == accelerator.scaler.get_scale() / 4
    accelerator.unscale_gradients(optimizer)
    assert model.weight.grad.item() == 1 / 4
    accelerator.unscale_gradients()  # once only
    assert model.weight.grad.item() == 1 / 4 and accelerator.native_amp
    optimizer.step()
    assert not accelerator.optimizer_step_was_skipped


def test_a_model_spread_over_devices_is_recognized() -> None:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    assert not accelerator.verify_device_map(model)
    model[0].hf_device_map = {"a": 0, "b": 1}
    assert accelerator.verify_device_map(model)


def test_printing_takes_what_print_takes(capsys: pytest.CaptureFixture[str]) -> None:
    Accelerator(cpu=True).print("a", "b", sep="-", end="!", flush=True)
    assert capsys.readouterr().out == "a-b!"


def test_an_accelerator_is_copied_as_itself() -> None:
    accelerator = Accelerator(cpu=True)
    assert copy.deepcopy({"held": accelerator})["held"] is accelerator


def test_lists_of_prepared_objects_are_those_that_were_prepared() -> None:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    prepared = accelerator.prepare(model, optimizer, DataLoader([1]), scheduler)
    assert accelerator._models == [model]
    held = (*accelerator._optimizers, *accelerator._dataloaders, *accelerator._schedulers)
    assert all(a is b for a, b in zip(held, prepared[1:], strict=True))
    assert accelerator.step == 0 and accelerator.scaler is None and not accelerator.native_amp
    assert not accelerator.multi_device and accelerator.data_parallel_rank == 0
    assert accelerator.deepspeed_plugin is accelerator.state.fsdp_plugin is None


def test_a_state_of_the_kernel_shows_the_rank_inside_a_worker() -> None:
    carried = PartialState(cpu=True)

    def main() -> tuple[int, int, str, int]:
        place = (carried.process_index, carried.num_processes, str(PartialState().distributed_type))
        with PartialState().split_between_processes([1, 2, 3]) as part:
            PartialState().wait_for_everyone()
            return (*place, len(part))

    run = notebook_launcher(main, num_processes=2, device="cpu")
    assert [run[0], run[1]] == [(0, 2, "MULTI_CPU", 2), (1, 2, "MULTI_CPU", 1)]
    assert carried.num_processes == 1


class Asking(Dataset[list[object]]):
    """Its items say what the states show where they are made."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> list[object]:
        carried = [self.state.num_processes, self.state.process_index]
        return [*carried, AcceleratorState().mixed_precision, GradientState().num_steps]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_workers_of_a_data_loader_see_their_ranks_states(num_processes: int) -> None:
    def main() -> list[object]:
        dataset = Asking()
        dataset.state = PartialState()
        accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=3)
        assert accelerator.num_processes == num_processes
        loader = DataLoader(dataset, num_workers=1, batch_size=None)
        return next(iter(loader))

    run = notebook_launcher(main, num_processes=num_processes, device="cpu")
    for rank in range(num_processes):
        assert run[rank] == [num_processes, rank, "bf16", 3]
    if num_processes == 1:
        assert main() == [1, 0, "bf16", 3]


def test_ranks_meet_through_a_state_alone() -> None:
    def main() -> list[object]:
        state = PartialState()
        seen: list[object] = []

        @state.on_main_process
        def say(word: str) -> str:
            return word

        with state.main_process_first():
            seen.append(say("main"))
        accelerator = Accelerator()
        assert accelerator.num_processes == state.num_processes == 2
        seen.append(str(accelerator.distributed_type))
        seen.append(accelerator.state.use_distributed and state.fork_launched)
        state.print("once")
        state.destroy_process_group()
        return seen

    run = notebook_launcher(main, num_processes=2, device="cpu")
    assert run[0] == ["main", "MULTI_CPU", True]
    assert run[1] == [None, "MULTI_CPU", True]
    assert "".join(run.logs).count("once") == 1
