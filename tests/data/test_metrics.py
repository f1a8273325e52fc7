"""What is gathered for a metric: rows of any kind, each sample once, alike on 1 and 2 ranks."""

from __future__ import annotations

from typing import Any

import pytest

from notebook_accel import notebook_launcher


def gathers_rows_of_every_kind() -> dict[str, Any]:
    """Five samples in batches of two: two ranks repeat three of them."""
    import warnings

    import numpy as np
    import torch
    from torch.utils.data import DataLoader

    from notebook_accel import Accelerator

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index

    def plain(tree: Any) -> Any:
        """Give tensors and arrays as their kind and numbers, so that they can be compared."""
        if isinstance(tree, torch.Tensor):
            return ("tensor", tree.tolist())
        if isinstance(tree, np.ndarray):
            return ("array", tree.dtype.name, tree.tolist())
        if isinstance(tree, dict):
            return {key: plain(one) for key, one in tree.items()}
        return type(tree)(map(plain, tree)) if isinstance(tree, (list, tuple)) else tree

    def gathered(make: Any, data: Any = range(5), **kwargs: Any) -> list[Any]:
        loader = accelerator.prepare(DataLoader(data, batch_size=2))
        return [plain(accelerator.gather_for_metrics(make(one), **kwargs)) for one in loader]

    def refused(make: Any, **kwargs: Any) -> list[Any]:
        try:
            return gathered(make, **kwargs)
        except TypeError as error:
            return [type(error).__name__, error.what, error.why, error.fix]

    def box(i: int) -> dict[str, Any]:
        return {"boxes": torch.full((i + 1, 2), float(i)), "id": i}

    questions = [(f"q{i}", f"a{i}") for i in range(5)]
    weight = torch.ones(1, requires_grad=True)
    said = {
        "references": gathered(lambda b: [[f"r{i}"] for i in b.tolist()]),
        "tuples": gathered(lambda b: [(f"q{i}", f"a{i}") for i in b.tolist()]),
        "dicts": gathered(lambda b: [{"id": i} for i in b.tolist()]),
        "tokens": gathered(lambda b: [list(range(i + 1)) for i in b.tolist()]),
        "numpy numbers": gathered(lambda b: [np.float32(i) for i in b.tolist()]),
        "arrays in a list": gathered(lambda b: [np.arange(i) for i in b.tolist()]),
        "pair": gathered(lambda b: ([[i] for i in b.tolist()], [str(i) for i in b.tolist()])),
        "mixed pair": gathered(
            lambda b: {"logits": b * 1.0, "ids": [{"i": i} for i in b.tolist()]}
        ),
        "array": gathered(lambda b: b.numpy()),
        "array of rows": gathered(lambda b: np.stack([b.numpy()] * 2, 1)[:, ::-1]),
        "array of strings": gathered(lambda b: np.array([f"s{i}" for i in b.tolist()])),
        "arrays": gathered(lambda b: (b.numpy() > 2, b.numpy().astype(">f8"))),
        "number array": gathered(lambda b: np.array(7)),
        "collated pairs": gathered(lambda b: b, questions),
        "collated strings": gathered(lambda b: b, [f"s{i}" for i in range(5)]),
        "detector": gathered(lambda b: tuple(box(i) for i in b.tolist())),
        "values": gathered(lambda b: {"n": 3, "name": "x", "f": np.float64(2), "none": None}),
        "detector, objects": gathered(
            lambda b: [box(i) for i in b.tolist()], use_gather_object=True
        ),
        "ragged": gathered(
            lambda b: [torch.arange(i + 1) for i in b.tolist()], use_gather_object=True
        ),
        "unpadded": gathered(
            lambda b: b.view(-1, 1).expand(-1, 1 + int(b.min())), use_gather_object=True
        ),
        "unpadded pair": gathered(
            lambda b: (b.view(-1, 1).expand(-1, 1 + int(b.min())), b), use_gather_object=True
        ),
        "graph": gathered(lambda b: [weight * 2 for _ in b], use_gather_object=True),
        "tensor, objects": gathered(lambda b: b, use_gather_object=True),
        "array, objects": gathered(lambda b: b.numpy(), use_gather_object=True),
        "0-d, objects": gathered(lambda b: torch.tensor(1), use_gather_object=True),
        "set": refused(lambda b: set(b.tolist())),
        "range": refused(lambda b: {"ids": range(2)}, use_gather_object=True),
        "outside": [
            accelerator.gather_for_metrics([{"id": rank}]),
            accelerator.gather_for_metrics([[rank], [rank, rank]]),
            accelerator.gather_for_metrics([] if rank else ["x"]),
            accelerator.gather_for_metrics(np.array([rank])).tolist(),
        ],
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said["answers"] = gathered(lambda b: [f"{i}{j}" for i in b.tolist() for j in "ab"])
    said["warned"] = [str(one.message) for one in caught]
    return said


EACH = [[0, 1, 2, 3], [4]]


def of_each(make: Any) -> list[list[Any]]:
    return [[make(i) for i in step] for step in EACH]


EXPECTED = {
    "references": of_each(lambda i: [f"r{i}"]),
    "tuples": of_each(lambda i: (f"q{i}", f"a{i}")),
    "dicts": of_each(lambda i: {"id": i}),
    "tokens": of_each(lambda i: [*range(i + 1)]),
    "numpy numbers": of_each(float),
    "arrays in a list": of_each(lambda i: ("array", "int64", [*range(i)])),
    "pair": [([[i] for i in step], [str(i) for i in step]) for step in EACH],
    "mixed pair": [
        {"logits": ("tensor", [*map(float, step)]), "ids": [{"i": i} for i in step]}
        for step in EACH
    ],
    "array": [("array", "int64", step) for step in EACH],
    "array of rows": [("array", "int64", [[i, i] for i in step]) for step in EACH],
    "array of strings": [("array", "str64", [f"s{i}" for i in step]) for step in EACH],
    "arrays": [
        (("array", "bool", [i > 2 for i in step]), ("array", "float64", [*map(float, step)]))
        for step in EACH
    ],
    "collated pairs": [
        [tuple(f"q{i}" for i in step), tuple(f"a{i}" for i in step)] for step in EACH
    ],
    "collated strings": of_each(lambda i: f"s{i}"),
    "detector": [
        tuple({"boxes": ("tensor", [[i, i]] * (i + 1)), "id": i} for i in step) for step in EACH
    ],
    "detector, objects": of_each(lambda i: {"boxes": ("tensor", [[i, i]] * (i + 1)), "id": i}),
    "ragged": of_each(lambda i: ("tensor", [*range(i + 1)])),
    "graph": of_each(lambda i: ("tensor", [2])),
    "tensor, objects": of_each(lambda i: ("tensor", i)),
    "array, objects": of_each(lambda i: i),
}


def flat(steps: list[Any]) -> list[Any]:
    return [one for step in steps for one in step]


@pytest.fixture(scope="module")
def two() -> Any:
    return notebook_launcher(gathers_rows_of_every_kind, (), num_processes=2, device="cpu")


@pytest.mark.parametrize("num_processes", [1, 2])
def test_rows_of_every_kind_are_gathered_each_sample_once(num_processes: int, two: Any) -> None:
    run = two
    if num_processes == 1:
        run = notebook_launcher(gathers_rows_of_every_kind, (), num_processes=1, device="cpu")
    for rank in range(num_processes):
        said = run[rank]
        for name, expected in EXPECTED.items():
            if num_processes == 2:
                assert said[name] == expected, name
            else:  # the same, in steps of two samples
                assert type(said[name][0]) is type(expected[0]), name
        for name in ("references", "tuples", "dicts", "tokens", "ragged", "detector, objects"):
            assert flat(said[name]) == flat(EXPECTED[name])
        assert flat(said["detector"]) == flat(EXPECTED["detector"])
        assert all(len(one["none"]) == num_processes for one in said["values"])
        assert said["values"][0] == {
            "n": [3] * num_processes,
            "name": ["x"] * num_processes,
            "f": [2.0] * num_processes,
            "none": [None] * num_processes,
        }
        assert said["number array"][-1] == ("array", "int64", [7] * num_processes)
        assert said["0-d, objects"][0] == [("tensor", 1)] * num_processes


def test_rows_may_have_any_shape_where_they_travel_as_objects(two: Any) -> None:
    said = two[0]
    first = [("tensor", [0]), ("tensor", [1])] + [("tensor", [i] * 3) for i in (2, 3)]
    assert said["unpadded"] == [first, [("tensor", [4])]]
    assert said["unpadded pair"][0] == (first, [("tensor", i) for i in range(4)])
    assert said["outside"] == [[{"id": 0}, {"id": 1}], [[0], [0, 0], [1], [1, 1]], ["x"], [0, 1]]


def test_what_has_no_rows_is_refused_and_an_uncut_list_is_warned_of(two: Any) -> None:
    run = two
    for rank in (0, 1):
        kind, what, why, fix = run[rank]["set"]
        assert (kind, what) == ("NoRows", "gather_for_metrics got a set")
        assert "would stay" in why
        assert "one entry a sample" in fix
        assert "gather_object" in fix
        assert run[rank]["range"][1] == "gather_for_metrics got a range"
    assert run[0]["answers"][1] == ["4a", "4b", "0a", "0b", "1a", "1b", "2a", "2b"]
    (text,) = run[0]["warned"]
    assert "a list of 4 entries from rank 0, for a batch of 2 samples" in text
    assert "3 samples of the last batch are repeated" in text
    assert "gather one entry a sample" in text
    assert run[1]["warned"] == []


def test_ranks_whose_trees_differ_are_told_so() -> None:
    def gather() -> str:
        from notebook_accel import Accelerator
        from notebook_accel.utils import DistributedOperationException

        accelerator = Accelerator(cpu=True)
        own = ["a"] if accelerator.is_main_process else (["a"], {"b": 1})
        try:
            accelerator.gather_for_metrics(own)
        except DistributedOperationException as error:
            return str(error)
        return ""

    run = notebook_launcher(gather, (), num_processes=2, device="cpu")
    for rank in (0, 1):
        assert "do not fit together: rank 0 list, rank 1 (list, {b: value})" in run[rank]
        assert "use_gather_object=True, for which every list is one" in run[rank]
