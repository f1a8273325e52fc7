"""Small tensors of a gather travel together; what comes back is nobody else's memory."""

from __future__ import annotations

import pytest

from tests.support.ranks import run_ranks


def gathers_together():
    import torch

    from notebook_accel import Accelerator
    from notebook_accel.ranks import parcel, watch
    from notebook_accel.ranks.world import World

    world = World.join(cpu=True)
    rank, calls = world.rank, []
    all_gather = watch.all_gather_rows
    watch.all_gather_rows = lambda *args: (calls.append(args[1].numel()), all_gather(*args))

    def counted(tensors):
        calls.clear()
        return [one.tolist() for one in parcel.gather_tensors(tensors, world)], len(calls)

    said = {}
    kinds = (torch.float32, torch.bool, torch.int64, torch.float16, torch.complex128, torch.uint8)
    odd = [torch.full((3,), rank, dtype=kind) for kind in kinds]
    found, said["calls of many dtypes"] = counted(odd)
    said["many dtypes"] = found == [
        torch.cat([torch.zeros(3, dtype=kind), torch.ones(3, dtype=kind)]).tolist()
        for kind in kinds
    ]
    mixed = [torch.tensor(float(rank)), torch.zeros(0, 2), torch.full((1, 2), rank).T]
    said["shapes"] = counted(mixed)
    large = [torch.full((parcel.MAX_BYTES // 4,), float(rank)), torch.tensor([rank])]
    found, said["calls of large ones"] = counted(large)
    said["large ones"] = [found[0][0], found[0][-1], found[1]]
    first = parcel.gather_tensors([torch.tensor([rank])], world)[0]
    with torch.inference_mode():
        inside = parcel.gather_tensors([torch.tensor([rank + 2])], world)[0]
    again = parcel.gather_tensors([torch.tensor([rank + 4])], world)[0]
    first += 10
    said["apart"] = [one.tolist() for one in (first, inside, again)]
    weight = torch.ones(1, requires_grad=True)
    (free,) = parcel.gather_tensors([weight * 2], world)
    said["detached"] = not free.requires_grad
    accelerator = Accelerator(cpu=True)
    calls.clear()
    pair = accelerator.gather_for_metrics((torch.ones(4, 2), torch.tensor([rank] * 4)))
    said["a pair"] = [type(pair).__name__, [list(one.shape) for one in pair], len(calls)]
    return said


@pytest.fixture(scope="module")
def both() -> list[dict]:
    return run_ranks(gathers_together, 2)


def test_tensors_of_all_dtypes_and_shapes_travel_in_one_collective(both: list[dict]) -> None:
    for said in both:
        assert said["many dtypes"]
        assert said["calls of many dtypes"] == 1
        assert said["shapes"] == [[[0, 1], [], [[0], [0], [1], [1]]], 1]


def test_large_tensors_travel_alone(both: list[dict]) -> None:
    for said in both:
        assert said["large ones"] == [0.0, 1.0, [0, 1]]
        assert said["calls of large ones"] == 2


def test_the_next_gather_does_not_write_into_the_last_one_s_result(both: list[dict]) -> None:
    for said in both:
        assert said["apart"] == [[10, 11], [2, 3], [4, 5]]
        assert said["detached"]


def test_a_prediction_and_its_label_are_one_collective(both: list[dict]) -> None:
    for said in both:
        assert said["a pair"] == ["tuple", [[8, 2], [8]], 1]


def gathers_unlike_tensors():
    import torch

    from notebook_accel import Accelerator
    from notebook_accel.utils import DistributedOperationException

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    said = []
    for gather in (accelerator.gather, accelerator.gather_for_metrics):
        try:
            gather(torch.ones(1 + rank, 5))
        except DistributedOperationException as error:
            said.append(error.what)
    return [*said, accelerator.gather(torch.tensor(rank)).tolist()]


def test_small_tensors_of_unlike_sizes_are_named_on_every_rank_which_goes_on() -> None:
    words = "do not fit together: rank 0 [1, 5] float32, rank 1 [2, 5] float32"
    for *said, after in run_ranks(gathers_unlike_tensors, 2):
        assert [words in one for one in said] == [True, True]
        assert after == [0, 1]
