"""Files of weights: what others read of ours, and what we read of theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from notebook_accel import load_weights
from notebook_accel.checkpoint import weights
from notebook_accel.checkpoint.names import plain_state
from notebook_accel.checkpoint.weights import export, num_bytes, read, write
from notebook_accel.errors import CheckpointError, ConfigError


class Tied(nn.Module):
    """A language model's shape: the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight


def alike(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_the_library_reads_what_we_write_in_every_dtype(tmp_path: Path) -> None:
    state = {
        str(dtype).split(".")[1]: torch.arange(6).to(dtype).reshape(2, 3)
        for dtype in weights._DTYPES
        if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2)
    }
    state["float8"] = torch.arange(4.0).to(torch.float8_e4m3fn)
    state["number"] = torch.tensor(3.5)
    state["empty"] = torch.empty(0, 3)
    state["transposed"] = torch.arange(6.0).reshape(2, 3).t()
    state["part"] = torch.arange(10)[3:5]
    write(state, tmp_path / "a.safetensors")
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name].float(), tensor.float()), name


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    state = {"w": torch.randn(3, 2)}
    save_file(state, tmp_path / "a.safetensors")
    assert alike(read(tmp_path / "a.safetensors"), state)


@pytest.mark.parametrize("safe", [True, False])
def test_an_export_loads_into_the_plain_module_with_tied_weights(
    tmp_path: Path, safe: bool
) -> None:
    """SV01: the exported file loads by torch's own strict load_state_dict."""
    model = Tied()
    export(model.state_dict(), tmp_path, "10GB", safe)
    file = tmp_path / ("model.safetensors" if safe else "pytorch_model.bin")
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    other = Tied()
    other.load_state_dict(load_file(file) if safe else torch.load(file))
    assert alike(other.state_dict(), model.state_dict())
    assert other.head.weight is other.embedding.weight


@pytest.mark.parametrize("safe", [True, False])
def test_a_large_model_is_cut_into_shards_with_an_index(tmp_path: Path, safe: bool) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    export(model.state_dict(), tmp_path, 100, safe)
    stem, end = ("model", "safetensors") if safe else ("pytorch_model", "bin")
    index = json.loads((tmp_path / f"{stem}.{end}.index.json").read_text())
    assert index["metadata"]["total_size"] == 3 * 80
    assert index["weight_map"]["2.bias"] == f"{stem}-00003-of-00003.{end}"
    other = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    assert load_weights(other, tmp_path) == []
    assert alike(other.state_dict(), model.state_dict())

    export(model.state_dict(), tmp_path, "10GB", safe)  # the shards of before are gone
    assert [path.name for path in tmp_path.iterdir()] == [f"{stem}.{end}"]


def test_an_export_replaces_an_earlier_one_of_the_other_format(tmp_path: Path) -> None:
    for safe in (True, False, True):
        value = torch.full((20,), float(safe))
        export({"a": value, "b": value.clone()}, tmp_path, 100 if safe else "10GB", safe)
        model = nn.ParameterDict({"a": torch.zeros(20), "b": torch.zeros(20)})
        load_weights(model, tmp_path)
        assert torch.equal(model["a"], value)


def test_an_export_leaves_other_files_alone(tmp_path: Path) -> None:
    for name in ("model_card.md", "model-notes.safetensors", "config.json"):
        (tmp_path / name).write_text("")
    export({"w": torch.ones(1)}, tmp_path, "10GB", True)
    assert len(list(tmp_path.iterdir())) == 4


def test_exporting_into_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        export({}, tmp_path / "file", "10GB", True)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"w": torch.empty(2, device="meta")}, "'w' is on the meta device"),
        ({"w": torch.zeros(2, dtype=torch.complex64)}, "'w' is a torch.complex64 tensor"),
        ({"w": torch.eye(2).to_sparse()}, "'w' is a torch.float32 tensor .torch.sparse_coo"),
        ({"extra": {"a": 1}}, "'extra' is a dict"),
    ],
)
def test_what_safetensors_cannot_hold_is_named(tmp_path: Path, state: dict, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        write(state, tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("text", "size"), [("10GB", 10**10), ("1KiB", 1024), ("1.5 mb", 1_500_000), (7, 7), ("12", 12)]
)
def test_sizes_are_read_in_both_kinds_of_units(text: int | str, size: int) -> None:
    assert num_bytes(text) == size


@pytest.mark.parametrize("size", ["ten", "5 apples", 0, -1, ""])
def test_what_is_no_size_is_refused(size: int | str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        num_bytes(size)


def wrapped(model: nn.Module) -> dict[str, torch.Tensor]:
    return {f"module.{name}": value for name, value in model.state_dict().items()}


def test_a_wrapped_models_state_loads_into_a_plain_model_with_a_note(tmp_path: Path) -> None:
    """SV07: torch.save(wrapped.state_dict()) and load_weights(plain, file)."""
    model, other = Tied(), Tied()
    torch.save(wrapped(model), tmp_path / "model.pt")
    with pytest.warns(UserWarning, match="7 saved names"):
        load_weights(other, tmp_path / "model.pt")
    assert alike(other.state_dict(), model.state_dict())


def test_a_plain_state_loads_into_a_compiled_and_wrapped_model() -> None:
    """PR04: whole or in parts compiled, before or inside a wrapper."""
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    state = {name: torch.full_like(value, 3.0) for name, value in plain.state_dict().items()}
    parts = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"), nn.Linear(2, 2))
    whole = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), backend="eager")
    for model in (parts, whole, nn.DataParallel(parts)):
        assert model.state_dict().keys() != state.keys()
        load_weights(model, state)
        assert alike(plain_state(model, model.state_dict()), state)


class HasModule(nn.Module):
    """A person's own submodule may be called as wrappers call theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.linear = nn.Linear(2, 2)


def test_a_persons_own_module_called_module_keeps_its_name() -> None:
    model = HasModule()
    assert plain_state(model, model.state_dict()).keys() == model.state_dict().keys()
    other = HasModule()
    with pytest.warns(UserWarning, match="4 saved names"):
        load_weights(other, wrapped(model))
    assert alike(other.state_dict(), model.state_dict())


def test_weights_that_do_not_fit_say_so(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(3, 3)}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="do not fit Linear") as caught:
        load_weights(nn.Linear(2, 2), tmp_path / "model.pt")
    assert "bias" in str(caught.value) and "size mismatch" in str(caught.value)


def test_a_file_of_an_old_torch_is_read(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    file = tmp_path / "old.pth"
    torch.save(model.state_dict(), file, _use_new_zipfile_serialization=False)
    load_weights(other, file)
    assert alike(other.state_dict(), model.state_dict())


def test_not_strict_gives_the_names_that_were_absent() -> None:
    assert load_weights(nn.Linear(2, 2), {"weight": torch.zeros(2, 2)}, strict=False) == ["bias"]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for name in ("a.safetensors", "a.bin"):
        (tmp_path / name).write_bytes(b"not weights")
        with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
            load_weights(nn.Linear(2, 2), tmp_path / name)
    with pytest.raises(CheckpointError, match="holds no weights"):
        load_weights(nn.Linear(2, 2), tmp_path)


def test_a_file_that_could_run_code_is_refused_unless_trusted(tmp_path: Path) -> None:
    torch.save({"weight": Path("x")}, tmp_path / "a.bin")
    with pytest.raises(CheckpointError, match="could run code") as caught:
        read(tmp_path / "a.bin")
    assert "weights_only" in str(caught.value) and "PosixPath" in str(caught.value)
