"""Weights out of checkpoints in pieces: every kind gives back what was saved, name by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.checkpoint import consolidate
from notebook_accel.config.wishes import FSDP
from notebook_accel.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def save_distributed(state: dict, folder: Path) -> None:
    from torch.distributed.checkpoint import save

    save(state, checkpoint_id=str(folder), no_dist=True)


def test_what_fsdp_writes_becomes_one_file_without_the_optimizer(
    tmp_path: Path, model: nn.Module
) -> None:
    state = {"model": model.state_dict(), "optimizer": {"exp_avg": torch.ones(3)}, "epoch": 3}
    save_distributed(state, tmp_path / "pieces")
    told = consolidate.merge(str(tmp_path / "pieces"), str(tmp_path / "out"))
    assert same(load_file(tmp_path / "out/model.safetensors"), model.state_dict())
    assert told["written"][0]["tensors"] == len(model.state_dict())
    assert told["removed"] is None and (tmp_path / "pieces").is_dir()


def test_a_bare_model_and_accelerates_folder_names_are_read_too(
    tmp_path: Path, model: nn.Module
) -> None:
    save_distributed(model.state_dict(), tmp_path / "run/pytorch_model_fsdp_0")
    save_distributed({"optimizer": {"a": torch.ones(1)}}, tmp_path / "run/optimizer_0")
    consolidate.merge(str(tmp_path / "run"), str(tmp_path / "whole.safetensors"))
    assert same(load_file(tmp_path / "whole.safetensors"), model.state_dict())


def test_shards_with_an_index_become_one_file(tmp_path: Path, model: nn.Module) -> None:
    state = model.state_dict()
    names = list(state)
    parts = {"a.safetensors": names[:3], "b.safetensors": names[3:]}
    (tmp_path / "shards").mkdir()
    for file, held in parts.items():
        save_file({name: state[name] for name in held}, tmp_path / "shards" / file)
    where = {name: file for file, held in parts.items() for name in held}
    index = tmp_path / "shards/model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    consolidate.merge(str(tmp_path / "shards"), str(tmp_path / "out"), safe=False)
    assert same(torch.load(tmp_path / "out/pytorch_model.bin"), state)


def test_two_models_of_one_checkpoint_are_two_files(tmp_path: Path, model: nn.Module) -> None:
    (tmp_path / "saved").mkdir()
    save_file(model.state_dict(), tmp_path / "saved/model.safetensors")
    save_file({"w": torch.ones(2)}, tmp_path / "saved/model_1.safetensors")
    consolidate.merge(str(tmp_path / "saved"), str(tmp_path / "x.safetensors"))
    assert same(load_file(tmp_path / "x.safetensors"), model.state_dict())
    assert same(load_file(tmp_path / "x_1.safetensors"), {"w": torch.ones(2)})


def test_the_checkpoint_is_removed_only_on_request_and_never_with_the_output(
    tmp_path: Path, model: nn.Module
) -> None:
    pieces = tmp_path / "pieces"
    save_distributed(model.state_dict(), pieces)
    with pytest.raises(ConfigError, match="which is to be removed"):
        consolidate.merge(str(pieces), str(pieces / "out"), remove=True)
    assert pieces.is_dir()
    consolidate.merge(str(pieces), str(tmp_path / "out"), remove=True)
    assert not pieces.exists() and (tmp_path / "out/model.safetensors").is_file()


def test_folders_that_are_no_checkpoints_say_what_they_are(
    tmp_path: Path, model: nn.Module
) -> None:
    def refused(folder: str, said: str) -> None:
        with pytest.raises(CheckpointError, match=said):
            consolidate.merge(str(tmp_path / folder), str(tmp_path / "out"))

    refused("absent", "there is no checkpoint folder")
    (tmp_path / "empty").mkdir()
    refused("empty", "holds no weights")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/zero_to_fp32.py").touch()
    refused("deep", "was written by DeepSpeed(.|\n)*python .*zero_to_fp32.py")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/.metadata").write_bytes(b"not a pickle")
    refused("broken", "the pieces in .*broken cannot be read")
    save_distributed(model.state_dict(), tmp_path / "cut")
    next((tmp_path / "cut").glob("*.distcp")).unlink()
    refused("cut", "the pieces in .*cut cannot be read")
    assert not (tmp_path / "out").exists()


def test_the_ending_of_the_output_and_the_kind_of_file_must_agree(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    save_file({"w": torch.ones(2)}, tmp_path / "saved/model.safetensors")
    with pytest.raises(ConfigError, match="--unsafe_serialization for a pickle"):
        consolidate.merge(str(tmp_path / "saved"), str(tmp_path / "x.safetensors"), safe=False)
    consolidate.merge(str(tmp_path / "saved"), str(tmp_path / "x.bin"), safe=False)
    assert same(torch.load(tmp_path / "x.bin"), {"w": torch.ones(2)})


def saves_in_shards(folder: str) -> dict[str, list[float]]:
    accelerator = Accelerator(cpu=True, strategy=FSDP(state_dict_type="sharded_state_dict"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(model(torch.ones(4, 4)).square().mean())
    optimizer.step()
    accelerator.save_state(folder)
    state = accelerator.get_state_dict(model)
    return {name: one.flatten().tolist() for name, one in state.items()}


def test_a_sharded_checkpoint_of_two_ranks_of_ours_becomes_the_whole_model(tmp_path: Path) -> None:
    run = notebook_launcher(saves_in_shards, (str(tmp_path / "saved"),), 2, device="cpu")
    assert any((tmp_path / "saved").rglob("*.distcp")), "nothing was sharded"
    told = consolidate.merge(str(tmp_path / "saved"), str(tmp_path / "out"))
    found = load_file(tmp_path / "out/model.safetensors")
    assert {name: one.flatten().tolist() for name, one in found.items()} == run[0]
    assert [one["tensors"] for one in told["written"]] == [len(run[0])]
