"""What ranks say to each other: alone, and among two real ranks."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest
import torch

from notebook_accel.errors import ConfigError
from notebook_accel.ranks import collectives
from notebook_accel.ranks.world import World
from tests.support.ranks import run_ranks

Pair = namedtuple("Pair", ["x", "y"])
ALONE = World.alone()


def test_a_world_of_one_gives_the_shapes_and_types_of_many() -> None:
    assert collectives.gather(torch.tensor(3.0), ALONE).tolist() == [3.0]
    assert collectives.gather(torch.ones(2, 3), ALONE).shape == (2, 3)
    assert collectives.gather_object({"r": 0}, ALONE) == [{"r": 0}]
    assert collectives.gather_object(["a", "b"], ALONE) == ["a", "b"]
    assert collectives.reduce(torch.tensor([True]), ALONE).tolist() == [1]
    assert collectives.reduce(torch.tensor([3]), ALONE, "mean").dtype == torch.float32
    assert collectives.reduce(torch.tensor([3.0]), ALONE, scale=2.0).tolist() == [6.0]


def test_containers_keep_their_types() -> None:
    tree = Pair([torch.ones(1)], OrderedDict(a=(torch.zeros(1), "text")))
    doubled = collectives.map_tensors(lambda tensor: tensor + 1, tree)
    assert type(doubled) is Pair
    assert type(doubled.y) is OrderedDict
    assert doubled.y["a"][1] == "text"
    assert tree.y["a"][0].item() == 0


def test_the_tensors_of_a_tree_come_in_its_order() -> None:
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    tree = Pair([one, "text"], {"b": (two, None), "a": three})
    assert [id(found) for found in collectives.tensors_of(tree)] == [id(one), id(two), id(three)]
    assert tree.x == [one, "text"]
    assert collectives.tensors_of("text") == []


def test_the_bytes_of_a_tensor_are_its_own_memory_or_a_copy_without_gaps() -> None:
    own = torch.arange(6, dtype=torch.int16).view(2, 3)
    seen = collectives.bytes_of(own)
    own[0, 0] = 7
    assert bytes(seen) == bytes([7, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0])
    assert bytes(collectives.bytes_of(own.T)) == bytes([7, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5, 0])
    assert collectives.bytes_of(torch.tensor(1.0, dtype=torch.bfloat16)).nbytes == 2
    assert collectives.bytes_of(torch.empty(0, 3, requires_grad=True)).nbytes == 0


def test_reducing_does_not_touch_its_input() -> None:
    given = torch.ones(2)
    result = collectives.reduce(given, ALONE)
    result += 1
    assert given.tolist() == [1, 1]


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        collectives.reduce(torch.ones(1), ALONE, "median")
    assert "reduction='median'" in error.value.what
    assert "sum, mean, max, min" in error.value.why
    assert 'reduction="sum"' in error.value.fix


def two_ranks():
    import torch

    from notebook_accel.ranks import collectives as c
    from notebook_accel.ranks.world import World

    world = World.join(cpu=True)
    again = World.join(cpu=True)
    rank = world.rank
    said = {"joined": [world.rank, world.size, world == again]}
    said["gather_0d"] = c.gather(torch.tensor(float(rank)), world).tolist()
    said["gather_bool"] = c.gather(torch.tensor([rank == 1]), world).tolist()
    said["gather_tree"] = c.gather({"a": [torch.tensor([rank])]}, world)["a"][0].tolist()
    said["gather_dtypes"] = [
        c.gather(torch.tensor([[rank, 1]], dtype=dtype), world).tolist() == [[0, 1], [1, 1]]
        for dtype in (torch.bfloat16, torch.float16, torch.int16, torch.complex64, torch.float64)
    ]
    said["gather_empty"] = list(c.gather(torch.empty(0, 3), world).shape)
    rows = [torch.zeros(3, 2), torch.ones(1, 2)][rank]
    said["gather_rows"] = [len(part) for part in c.gather_rows([rows], [[3, 1]], world)[0]]
    said["objects"] = [
        c.gather_object({"r": rank}, world),
        c.gather_object("ab", world),
        c.gather_object([rank], world),
    ]
    value = torch.tensor([1.0 + rank])
    said["sum"] = c.reduce(value, world).item()
    said["mean"] = c.reduce(value, world, "mean").item()
    said["max_min"] = [c.reduce(value, world, how).item() for how in ("max", "min")]
    said["untouched"] = value.item()
    said["int_mean"] = c.reduce(torch.tensor([1 + rank]), world, "mean").item()
    said["bool_sum"] = c.reduce(torch.tensor([True]), world).item()
    said["bool_max"] = c.reduce(torch.tensor([rank == 1]), world, "max").tolist()
    said["broadcast"] = c.broadcast(torch.tensor([rank], dtype=torch.int16), world, 1).tolist()
    said["padded"] = c.pad_across_processes(torch.ones(1, 2 + rank), world, dim=1).tolist()
    said["padded_first"] = c.pad_across_processes(
        torch.ones(1 + rank), world, dim=-1, pad_index=9, pad_first=True
    ).tolist()
    said["no_such_dim"] = list(c.pad_across_processes(torch.ones(2), world, dim=3).shape)
    return said


def test_two_ranks_understand_each_other() -> None:
    first, second = run_ranks(two_ranks, 2)
    assert first["joined"] == [0, 2, True]
    assert second["joined"] == [1, 2, True]
    for said in (first, second):
        assert said["gather_0d"] == [0, 1]
        assert said["gather_bool"] == [False, True]
        assert said["gather_tree"] == [0, 1]
        assert all(said["gather_dtypes"])
        assert said["gather_empty"] == [0, 3]
        assert said["gather_rows"] == [3, 1]
        assert said["objects"] == [[{"r": 0}, {"r": 1}], ["ab", "ab"], [0, 1]]
        assert (said["sum"], said["mean"], said["max_min"]) == (3, 1.5, [2, 1])
        assert said["int_mean"] == 1.5
        assert said["bool_sum"] == 2
        assert said["bool_max"] == [True]
        assert said["broadcast"] == [1]
        assert said["no_such_dim"] == [2]
    assert (first["untouched"], second["untouched"]) == (1, 2)
    assert first["padded"] == [[1, 1, 0]]
    assert second["padded"] == [[1, 1, 1]]
    assert first["padded_first"] == [9, 1]
