"""The operations of ``notebook_accel.utils``: on trees, and among ranks (GM02, GM03, GM12)."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

from notebook_accel import notebook_launcher
from notebook_accel.utils import (
    concatenate,
    convert_outputs_to_fp32,
    convert_to_fp32,
    find_batch_size,
    find_device,
    get_data_structure,
    honor_type,
    ignorant_find_batch_size,
    initialize_tensors,
    is_namedtuple,
    is_tensor_information,
    is_torch_tensor,
    listify,
    pad_input_tensors,
    recursively_apply,
    send_to_device,
    slice_tensors,
)

Pair = namedtuple("Pair", "x y")


def batch() -> dict[str, Any]:
    return {"x": torch.ones(3, 2), "more": Pair([torch.zeros(3)], ("word", 1))}


def test_functions_keep_containers_and_skip_what_is_no_tensor() -> None:
    doubled = recursively_apply(lambda one, by: one * by, batch(), 2)
    assert torch.equal(doubled["x"], torch.full((3, 2), 2.0))
    assert type(doubled["more"]) is Pair and doubled["more"].y == ("word", 1)
    assert is_namedtuple(doubled["more"]) and not is_namedtuple((1, 2))
    ordered = recursively_apply(torch.neg, OrderedDict(a=torch.ones(1)))
    assert type(ordered) is OrderedDict


def test_another_type_can_be_refused() -> None:
    with pytest.raises(TypeError) as error:
        recursively_apply(torch.neg, ["word"], error_on_other_type=True)
    assert "neg met a str" in str(error.value)
    assert "is_torch_tensor accepts" in str(error.value)
    assert "gather_object" in str(error.value)


def test_batch_size_and_device_come_from_the_first_tensor() -> None:
    assert find_batch_size(batch()) == 3
    assert find_device(batch()) == torch.device("cpu")
    assert find_device(["word"]) is None
    assert ignorant_find_batch_size([torch.tensor(1.0)]) is None
    with pytest.raises(TypeError) as error:
        find_batch_size({"x": "word"})
    assert "there is no batch size in a dict" in str(error.value)
    assert "first dimension of the first tensor" in str(error.value)
    assert "at least one tensor" in str(error.value)


def test_a_structure_can_be_taken_off_and_filled_again() -> None:
    structure = get_data_structure(batch())
    assert is_tensor_information(structure["x"]) and structure["x"].shape == (3, 2)
    filled = initialize_tensors(structure)
    assert is_torch_tensor(filled["x"]) and filled["x"].shape == (3, 2)
    assert filled["more"].x[0].shape == (3,) and filled["more"].y == ("word", 1)


def test_slices_and_joins_undo_each_other() -> None:
    whole = batch()
    parts = [slice_tensors(whole, slice(0, 1)), slice_tensors(whole, slice(1, 3))]
    assert torch.equal(concatenate([one["x"] for one in parts]), whole["x"])
    joined = concatenate([{"a": Pair(torch.ones(1), torch.ones(2))} for _ in range(2)])
    assert joined["a"].x.shape == (2,) and joined["a"].y.shape == (4,)
    assert concatenate(["word"]) == "word"
    with pytest.raises(TypeError) as error:
        concatenate(["a", "b"])
    assert "2 parts of type str" in str(error.value)
    assert "only tensors can be joined" in str(error.value)
    assert "leave them out" in str(error.value)


def test_moving_leaves_skipped_keys_where_they_are() -> None:
    moved = send_to_device({"x": torch.ones(1), "ids": torch.ones(1)}, "meta", skip_keys="ids")
    assert (moved["x"].device.type, moved["ids"].device.type) == ("meta", "cpu")
    nested = send_to_device([{"ids": torch.ones(1)}, torch.ones(1)], "meta", skip_keys=["ids"])
    assert (nested[0]["ids"].device.type, nested[1].device.type) == ("cpu", "meta")
    assert send_to_device(Pair(torch.ones(1), "word"), "meta").x.device.type == "meta"


def test_half_precision_becomes_full_and_nothing_else_changes() -> None:
    halves = {"a": torch.ones(1).bfloat16(), "b": torch.ones(1).half(), "i": torch.ones(1).long()}
    assert [one.dtype for one in convert_to_fp32(halves).values()] == [
        torch.float32,
        torch.float32,
        torch.int64,
    ]
    assert convert_outputs_to_fp32(lambda x: x.half())(torch.ones(1)).dtype == torch.float32
    assert listify({"a": torch.ones(2).bfloat16()}) == {"a": [1.0, 1.0]}


def test_containers_are_made_anew_in_their_own_type() -> None:
    assert honor_type(Pair(1, 2), iter([3, 4])) == Pair(3, 4)
    assert honor_type([1], iter([3, 4])) == [3, 4]


def test_rows_are_padded_to_a_multiple() -> None:
    assert pad_input_tensors(torch.arange(3), 3, 2).tolist() == [0, 1, 2, 2]


def both_ranks() -> dict[str, Any]:
    import torch

    from notebook_accel import Accelerator, synchronize_rng_states
    from notebook_accel.state import PartialState
    from notebook_accel.utils import (
        broadcast,
        broadcast_object_list,
        gather,
        gather_object,
        pad_across_processes,
        reduce,
        wait_for_everyone,
    )

    rank = PartialState().process_index
    seen: dict[str, Any] = {}
    seen["gather 0-d"] = gather(torch.tensor(float(rank))).tolist()
    seen["gather bool"] = gather(torch.tensor([bool(rank)])).tolist()
    seen["gather tree"] = gather({"a": [torch.tensor([rank])]})["a"][0].tolist()
    given = torch.tensor([1.0 + rank])
    seen["sum"] = reduce(given, "sum").tolist()
    seen["default is mean"] = reduce(given).tolist()
    seen["input kept"] = given.item() == 1.0 + rank
    seen["int mean"] = reduce(torch.tensor([1 + rank]), "mean").tolist()
    seen["bool sum"] = reduce(torch.tensor([True, bool(rank)]), "sum").tolist()
    seen["scaled"] = reduce(given, "sum", scale=0.5).tolist()
    seen["dict"] = gather_object({"r": rank})
    seen["string"] = gather_object("ab")
    seen["lists"] = gather_object([rank, rank])
    seen["number"] = Accelerator().gather_for_metrics(1.5 + rank)
    seen["none"] = Accelerator().gather_for_metrics(None)
    own = torch.tensor([rank])
    seen["broadcast in place"] = broadcast(own, from_process=1) is own and own.tolist()
    words = [rank, "x" * (rank + 1)]
    broadcast_object_list(words, from_process=1)
    seen["objects"] = words
    seen["padded"] = pad_across_processes(torch.ones(rank + 1), pad_index=7).tolist()
    torch.manual_seed(rank)
    generator = torch.Generator().manual_seed(rank)
    synchronize_rng_states(["torch", "generator"], generator)
    seen["random"] = [torch.rand(1).item(), torch.rand(1, generator=generator).item()]
    wait_for_everyone()
    return seen


def test_ranks_exchange_values_of_every_kind() -> None:
    """GM03 c and d; GM12."""
    run = notebook_launcher(both_ranks, num_processes=2, device="cpu")
    expected = {
        "gather 0-d": [0.0, 1.0],
        "gather bool": [False, True],
        "gather tree": [0, 1],
        "sum": [3.0],
        "default is mean": [1.5],
        "input kept": True,
        "int mean": [1.5],
        "bool sum": [2, 1],
        "scaled": [1.5],
        "dict": [{"r": 0}, {"r": 1}],
        "string": ["ab", "ab"],
        "lists": [0, 0, 1, 1],
        "number": [1.5, 2.5],
        "none": [None, None],
        "broadcast in place": [1],
        "objects": [1, "xx"],
        "random": run[0]["random"],
    }
    for rank in (0, 1):
        padded = run[rank].pop("padded")
        assert padded == ([1.0, 7.0] if rank == 0 else [1.0, 1.0])
        assert run[rank] == expected


def metrics_of_strings() -> dict[str, Any]:
    from torch.utils.data import DataLoader

    from notebook_accel import Accelerator

    accelerator = Accelerator()
    seen: dict[str, Any] = {}
    for num in (4, 5):
        words = [f"s{i}" for i in range(num)]
        gathered: list[Any] = []
        flat: list[str] = []
        for part in accelerator.prepare(DataLoader(words, batch_size=2)):
            gathered.append(accelerator.gather_for_metrics((part, [one + "!" for one in part])))
            flat += accelerator.gather_for_metrics(part)
        seen[f"{num} pairs"] = [list(map(list, one)) for one in gathered]
        seen[f"{num} flat"] = flat
    items = [{"t": f"s{i}", "x": i} for i in range(5)]
    texts, numbers = [], []
    for part in accelerator.prepare(DataLoader(items, batch_size=2)):
        both = accelerator.gather_for_metrics(part)
        texts += both["t"]
        numbers += both["x"].tolist()
    seen["dict"] = [texts, numbers]
    return seen


@pytest.mark.parametrize("num_processes", [1, 2])
def test_strings_in_tuples_and_dicts_keep_their_structure(num_processes: int) -> None:
    """GM02, GM03 a and b."""
    run = notebook_launcher(metrics_of_strings, num_processes=num_processes, device="cpu")
    for rank in range(num_processes):
        seen = run[rank]
        for num in (4, 5):
            words = [f"s{i}" for i in range(num)]
            assert seen[f"{num} flat"] == words
            assert [w for one in seen[f"{num} pairs"] for w in one[0]] == words
            assert [w for one in seen[f"{num} pairs"] for w in one[1]] == [w + "!" for w in words]
        assert seen["dict"] == [[f"s{i}" for i in range(5)], list(range(5))]
