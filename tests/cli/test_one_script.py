"""One unedited train.py, in every way there is: only the options of the launch differ."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.launches import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TRAIN = Path(__file__).parent / "scripts" / "train.py"
ALWAYS = ("--cpu", "--gradient_accumulation_steps", "4")
AXES = ("--use_parallelism_config",)

WAYS = {
    "ddp": (2, "MULTI_CPU", ()),
    "fsdp": (2, "FSDP", ("--use_fsdp", "--fsdp_version", "2")),
    "fsdp by class": (
        2, "FSDP",
        ("--use_fsdp", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP",
         "--fsdp_transformer_layer_cls_to_wrap", "Block"),
    ),
    "tensor": (2, "FSDP", (*AXES, "--parallelism_config_tp_size", "2")),
    "tensor and fsdp": (
        4, "FSDP",
        (*AXES, "--parallelism_config_tp_size", "2", "--parallelism_config_dp_shard_size", "2"),
    ),
    "pipeline": (2, "MULTI_CPU", (*AXES, "--parallelism_config_pp_size", "2")),
    "Megatron's degrees": (
        2, "MEGATRON_LM", ("--use_megatron_lm", "--megatron_lm_pp_degree", "2"),
    ),
    "zero 2": (2, "DEEPSPEED", ("--use_deepspeed", "--zero_stage", "2")),
}  # fmt: skip

# As `accelerate config` writes it.
FSDP_FILE = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_version: 2
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 4
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: true
"""


class Told(NamedTuple):
    """What train.py says at its end."""

    losses: list[float]
    norms: list[float]
    num_processes: int
    kind: str
    precision: str


def told(*words: str | Path) -> Told:
    done = launch(*words)
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("told:")]
    return Told(*json.loads(line.removeprefix("told:")))


@pytest.fixture(scope="module")
def alone() -> Told:
    found = told(*ALWAYS, TRAIN)
    assert (found.num_processes, found.kind, len(found.losses)) == (1, "NO", 12)
    assert len(found.norms) == 4  # windows of four batches and of two
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_launchs_options_change_how_a_script_trains_and_not_what(way: str, alone: Told) -> None:
    num, kind, options = WAYS[way]
    if kind == "DEEPSPEED" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed: make test-slow installs it")
    found = told(*ALWAYS, "--num_processes", str(num), *options, TRAIN)
    assert (found.num_processes, found.kind) == (num, kind)
    assert found.losses == pytest.approx(alone.losses, rel=1e-4)
    assert found.norms == pytest.approx(alone.norms, rel=1e-4)


def test_accelerates_file_launches_sharded_training_that_resumes(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(FSDP_FILE)
    words = "--config_file", tmp_path / "fsdp.yaml", TRAIN
    never_stopped = told(*words, tmp_path / "other")
    assert never_stopped[2:] == (4, "FSDP", "bf16")
    stopped = told(*words, tmp_path / "state", "1")
    assert stopped.losses == pytest.approx(never_stopped.losses[:6], rel=1e-5)
    files = json.loads((tmp_path / "state" / "checkpoint.json").read_text())["files"]
    assert len([name for name in files if name.endswith(".distcp")]) == 4
    resumed = told(*words, tmp_path / "state")
    assert resumed.losses == pytest.approx(never_stopped.losses[6:], rel=1e-5)
    assert resumed.norms == pytest.approx(never_stopped.norms[6:], rel=1e-5)
