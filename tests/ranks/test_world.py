"""Who is there: placements from the launch, the environment or nobody, and leaving cleanly."""

from __future__ import annotations

import pytest
import torch

from notebook_accel.errors import ConfigError
from notebook_accel.ranks.world import World, pick_device_type
from tests.support.ranks import run_ranks, start_ranks


def test_nobody_s_placement_is_a_world_of_one() -> None:
    world = World.join(cpu=True)
    assert (world.rank, world.size, world.device) == (0, 1, torch.device("cpu"))
    world.wait()  # nobody to wait for


def test_a_process_that_nobody_placed_takes_the_best_device() -> None:
    assert pick_device_type(num_gpus=2, has_mps=False, size=2, local_rank=1) == "cuda"
    assert pick_device_type(num_gpus=0, has_mps=True, size=1, local_rank=0) == "mps"
    assert pick_device_type(num_gpus=0, has_mps=True, size=2, local_rank=0) == "cpu"
    assert pick_device_type(num_gpus=0, has_mps=False, size=1, local_rank=0) == "cpu"


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        pick_device_type(num_gpus=1, has_mps=False, size=2, local_rank=1)
    assert "local rank 1 has no GPU: this machine shows 1" in error.value.what
    assert "at most 1 ranks" in error.value.fix


def ends_without_end_training():
    import torch

    from notebook_accel import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    for _ in range(3):
        accelerator.backward(model(torch.ones(1, 2)).sum())
    accelerator.gather(torch.ones(1))
    return "ended"


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_scripts_that_just_end_do_not_abort_at_exit_in_ten_of_ten_runs() -> None:
    for _ in range(10):
        assert_ends_cleanly()


def test_a_script_that_just_ends_does_not_abort_at_exit() -> None:
    """E1."""
    assert_ends_cleanly()


def assert_ends_cleanly() -> None:
    for code, _, err, value in start_ranks(ends_without_end_training, 2):
        assert (code, value) == (0, "ended"), err


def joins_a_group_of_its_own():
    import torch.distributed as dist

    from notebook_accel import Accelerator

    dist.init_process_group("gloo")
    accelerator = Accelerator(cpu=True)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    dist.barrier()  # it is theirs to end
    return [accelerator.process_index, accelerator.num_processes]


def test_a_group_that_the_user_made_is_used_as_it_is() -> None:
    values = [value for *_, value in start_ranks(joins_a_group_of_its_own, 2)]
    assert values == [[0, 2], [1, 2]]


def lays_ranks_out_twice():
    import torch.distributed as dist

    from notebook_accel.ranks.world import World, leave
    from notebook_accel.strategies import layout

    kept = []
    for ends in (leave, dist.destroy_process_group):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        mesh = layout.mesh_of(World.join(cpu=True))
        kept.append(layout.mesh_of(World.join(cpu=True)) is mesh)
        ends()
        World.join(cpu=True)  # alone
        kept.append(layout._mesh.cache_info().currsize)
    return kept


def test_what_is_kept_of_a_group_goes_with_it() -> None:
    assert run_ranks(lays_ranks_out_twice, 1) == [[True, 0, True, 0]]


def trains_three_times():
    import torch
    from torch.utils.data import DataLoader

    from notebook_accel import Accelerator

    seen = []
    for turn in range(3):
        accelerator = Accelerator(cpu=True)
        model, loader = accelerator.prepare(
            torch.nn.Linear(2, 1), DataLoader(torch.ones(8, 2), batch_size=2)
        )
        for batch in loader:
            accelerator.backward(model(batch).sum())
        here = torch.tensor([10 * turn + accelerator.process_index])
        seen.append(accelerator.gather(here).tolist())
        accelerator.end_training()
    return seen


def test_a_script_makes_a_new_accelerator_after_end_training() -> None:
    for code, _, err, value in start_ranks(trains_three_times, 2, timeout_s=60):
        assert (code, value) == (0, [[0, 1], [10, 11], [20, 21]]), err
