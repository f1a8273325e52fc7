"""``to-fsdp2``: what becomes of each key, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from notebook_accel.cli.to_fsdp2 import convert
from notebook_accel.config import store
from notebook_accel.errors import ConfigError
from tests.cli.typing_in import typed

OLD = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: no
num_processes: 4
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: BertLayer
  fsdp_use_orig_params: true
"""


def test_a_file_is_rewritten_beside_itself_and_reads_back(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(OLD)
    done = typed("to-fsdp2", "--config_file", str(old), "--output_file", str(new))
    assert done.returncode == 0, done.stderr
    assert (
        "fsdp_sharding_strategy: SHARD_GRAD_OP -> fsdp_reshard_after_forward: false" in done.stdout
    )
    assert "fsdp_use_orig_params: True -> left out" in done.stdout
    assert old.read_text() == OLD
    found = yaml.safe_load(new.read_text())
    assert found["fsdp_config"] == {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": False,
        "fsdp_reshard_after_forward": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_transformer_layer_cls_to_wrap": "BertLayer",
    }
    assert (found["mixed_precision"], found["num_processes"]) == ("no", 4)
    assert store.read(new).values["fsdp_version"] == 2


def test_without_a_target_nothing_is_overwritten(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"distributed_type": "FSDP", "fsdp_config": {"version": 1}}))
    done = typed("to-fsdp2", "--config_file", str(old))
    assert done.returncode == 2
    assert "nothing says where to write" in done.stderr and "--overwrite" in done.stderr
    assert typed("to-fsdp2", "--config_file", str(old), "--overwrite").returncode == 0
    assert json.loads(old.read_text())["fsdp_config"] == {"fsdp_version": 2}


@pytest.mark.parametrize(
    ("strategy", "reshards"),
    [("FULL_SHARD", True), (1, True), ("2", False), ("HYBRID_SHARD", True), (5, False)],
)
def test_sharding_strategies_by_name_and_number(strategy: object, reshards: bool) -> None:
    tree = {"fsdp_config": {"fsdp_sharding_strategy": strategy}}
    changed = convert(tree, Path("x.yaml"))
    assert tree["fsdp_config"]["fsdp_reshard_after_forward"] is reshards
    copies = [line for line in changed if "dp_replicate_size" in line]
    assert bool(copies) == (strategy in ("HYBRID_SHARD", 5))


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({}, "x.yaml has no fsdp_config"),
        ({"fsdp_config": {"fsdp_version": 2}}, "is for FSDP 2 already"),
        ({"fsdp_config": {"sharding_strategy": "NO_SHARD"}}, "NO_SHARD has no counterpart"),
    ],
)
def test_what_cannot_be_rewritten_is_refused(tree: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        convert(tree, Path("x.yaml"))
