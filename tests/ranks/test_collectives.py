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
    assert collectives.reduce(torch.tensor([3]), ALONE, "mean").dtype == torch.float64
    assert collectives.reduce(2.5, ALONE, "mean").item() == 2.5
    assert collectives.gather(2, ALONE).tolist() == [2]
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


def numbers_of_two_ranks():
    import numpy as np
    import torch

    from notebook_accel import Accelerator
    from notebook_accel.utils import broadcast

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index

    def of(tensor):
        return [type(tensor).__name__, str(tensor.dtype), str(tensor.device), tensor.tolist()]

    tree = accelerator.gather({"n": rank, "name": f"r{rank}", "x": torch.ones(1), "none": None})
    said = {
        "epoch loss": of(accelerator.reduce(1.0 + rank, "mean")),
        "count": of(accelerator.reduce(20_000_001, "sum")),
        "flag": of(accelerator.reduce(rank == 1)),
        "numpy's": of(accelerator.reduce(np.float64(0.1), "max")),
        "array": of(accelerator.reduce(np.array([1.0, rank], dtype=">f4"), "mean")),
        "gathered": of(accelerator.gather(1.5 + rank)),
        "gathered array": of(accelerator.gather(np.arange(4)[::-2] + rank)),
        "gathered list": [one.tolist() for one in accelerator.gather([rank, 7])],
        "tree": [tree["n"].tolist(), tree["name"], tree["none"], tree["x"].tolist()],
        "broadcast": of(broadcast(2.5 + rank, from_process=1)),
        "padded": of(accelerator.pad_across_processes(np.ones(1 + rank), pad_index=7)),
        "padded number": of(accelerator.pad_across_processes(1.0)),
        "empty": accelerator.gather([]),
    }
    for kind in ("int64", "int32"):
        large = torch.tensor([20_000_001 + 2 * rank], dtype=getattr(torch, kind))
        said[f"{kind} mean"] = of(accelerator.reduce(large, "mean"))
    half = torch.tensor([60_000.0], dtype=torch.float16)
    said["half mean"] = of(accelerator.reduce(half, "mean"))
    said["byte mean"] = of(accelerator.reduce(torch.tensor([200], dtype=torch.uint8), "mean"))
    for kind in ("uint8", "int8", "int16", "int32", "int64"):
        most = torch.iinfo(getattr(torch, kind)).max if kind != "int64" else 2**62 - 1
        most = torch.tensor([most], dtype=getattr(torch, kind))
        whole = accelerator.reduce(most)
        said[f"{kind} sum"] = [str(whole.dtype), whole.item() == 2 * most.item()]
        said[f"{kind} max"] = str(accelerator.reduce(most, "max").dtype)
    said["scaled"] = of(accelerator.reduce(torch.tensor([20_000_001]), "max", scale=1.5))
    said["complex"] = of(accelerator.reduce(torch.tensor([1j * rank]), "mean").imag)
    return said


@pytest.fixture(scope="module")
def numbers() -> list[dict]:
    return run_ranks(numbers_of_two_ranks, 2)


def test_numbers_and_arrays_are_combined_as_tensors(numbers: list[dict]) -> None:
    first, second = numbers
    assert first["tree"] == [[0, 1], "r0", None, [1, 1]]
    assert second["tree"] == [[0, 1], "r1", None, [1, 1]]
    assert first["padded"] == ["Tensor", "torch.float64", "cpu", [1, 7]]
    assert second["padded"] == ["Tensor", "torch.float64", "cpu", [1, 1]]
    apart = ("tree", "padded")
    assert {k: v for k, v in first.items() if k not in apart} == {
        k: v for k, v in second.items() if k not in apart
    }
    assert first["epoch loss"] == ["Tensor", "torch.float32", "cpu", 1.5]
    assert first["count"] == ["Tensor", "torch.int64", "cpu", 40_000_002]
    assert first["flag"] == ["Tensor", "torch.int64", "cpu", 1]
    assert first["numpy's"] == ["Tensor", "torch.float64", "cpu", 0.1]
    assert first["array"] == ["Tensor", "torch.float32", "cpu", [1, 0.5]]
    assert first["gathered"] == ["Tensor", "torch.float32", "cpu", [1.5, 2.5]]
    assert first["gathered array"] == ["Tensor", "torch.int64", "cpu", [3, 1, 4, 2]]
    assert first["gathered list"] == [[0, 1], [7, 7]]
    assert first["broadcast"] == ["Tensor", "torch.float32", "cpu", 3.5]
    assert first["padded number"] == ["Tensor", "torch.float32", "cpu", 1.0]
    assert first["empty"] == []


def test_reductions_keep_every_digit_that_integers_have(numbers: list[dict]) -> None:
    said = numbers[1]
    assert said["int64 mean"] == ["Tensor", "torch.float64", "cpu", [20_000_002]]
    assert said["int32 mean"] == said["int64 mean"]
    assert said["half mean"] == ["Tensor", "torch.float16", "cpu", [60_000]]
    assert said["byte mean"] == ["Tensor", "torch.float32", "cpu", [200]]
    for kind in ("uint8", "int8", "int16", "int32", "int64"):
        assert said[f"{kind} sum"] == ["torch.int64", True]
        assert said[f"{kind} max"] == f"torch.{kind}"
    assert said["complex"] == ["Tensor", "torch.float32", "cpu", [0.5]]
    assert said["scaled"] == ["Tensor", "torch.float64", "cpu", [30_000_001.5]]


@pytest.mark.parametrize("given", ["text", None, ["a", None], {1, 2}, [torch.ones(1), {1, 2}]])
@pytest.mark.parametrize("operation", ["gather", "reduce", "broadcast", "pad_across_processes"])
def test_what_no_rank_can_combine_is_refused(operation: str, given: object) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(collectives, operation)(given, ALONE)
    error = caught.value
    assert isinstance(error, collectives.NoTensors)
    kinds = {"text": "a str", "None": "None", "['a', None]": "a str, in a list"}
    inside = "a set" + ", in a list" * isinstance(given, list)
    assert error.what == f"{operation} got {kinds.get(str(given), inside)}"
    assert "tensors, numbers and arrays" in error.why
    assert "gather_object" in error.fix


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_complex_numbers_have_no_largest(reduction: str) -> None:
    with pytest.raises(TypeError) as caught:
        collectives.reduce(torch.tensor([1j]), ALONE, reduction)
    assert f'a complex64 tensor for "{reduction}"' in caught.value.what
    assert "no order" in caught.value.why
    assert "tensor.abs()" in caught.value.fix


def test_numbers_of_8_bits_with_a_point_are_refused() -> None:
    with pytest.raises(TypeError) as caught:
        collectives.reduce([torch.ones(1).to(torch.float8_e4m3fn)], ALONE)
    assert caught.value.what == "reduce got a float8_e4m3fn tensor"
    assert "tensor.float()" in caught.value.fix
