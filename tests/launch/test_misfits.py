"""Strategies that their run cannot have: said once, in the same words, before any rank starts."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from notebook_accel import Accelerator, RunConfig, notebook_launcher
from notebook_accel.cli.main import main as cli
from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.megatron import Megatron
from notebook_accel.config.placement import Placement
from notebook_accel.config.resolve import as_ranks_will
from notebook_accel.config.sequence import SequenceParallel
from notebook_accel.config.wishes import FSDP, Pipeline, SingleDevice, Strategy, TensorParallel
from notebook_accel.errors import ConfigError, Explained, MissingPackage
from tests.support.launches import launch

WHOLE = "groups of {} ranks do not fill it"
BOTH_FORMATS = {"bf16": {"enabled": True}, "fp16": {"enabled": True}}
IN_TWO = {"gradient_accumulation_steps": 2}
# What two ranks cannot have: the wish, what else is asked for, and what is said of both.
OF_TWO: tuple[tuple[Strategy, dict[str, Any], str, str], ...] = (
    (SingleDevice(), {}, "SingleDevice() in a world of 2 ranks", "its own model"),
    (FSDP(replicas=3), {}, "FSDP(replicas=3) in a world of 2 ranks", WHOLE.format(3)),
    (TensorParallel(3), {}, "TensorParallel(size=3) in a world of 2 ranks", WHOLE.format(3)),
    (
        TensorParallel(2, data=FSDP(replicas=2)), {},
        "TensorParallel(size=2) x FSDP(replicas=2) in a world of 2 ranks", WHOLE.format(4),
    ),
    (Pipeline(3), {}, "Pipeline(stages=3) in a world of 2 ranks", WHOLE.format(3)),
    (
        Pipeline(6, stages_per_rank=2), {},
        "Pipeline(stages=6, stages_per_rank=2) in a world of 2 ranks", WHOLE.format(3),
    ),
    (
        Pipeline(2, inside=TensorParallel(2)), {},
        "Pipeline(stages=2) x TensorParallel(size=2) in a world of 2 ranks", WHOLE.format(4),
    ),
    (
        Pipeline(2, inside=FSDP(replicas=2)), {},
        "Pipeline(stages=2) x FSDP(replicas=2) in a world of 2 ranks", WHOLE.format(4),
    ),
    (SequenceParallel(3), {}, "SequenceParallel(size=3) in a world of 2 ranks", WHOLE.format(3)),
    (
        SequenceParallel(2, data=TensorParallel(2)), {},
        "SequenceParallel(size=2) x TensorParallel(size=2) in a world of 2 ranks", WHOLE.format(4),
    ),
    (
        SequenceParallel(2, data=FSDP(replicas=2)), {},
        "SequenceParallel(size=2) x FSDP(replicas=2) in a world of 2 ranks", WHOLE.format(4),
    ),
    (SequenceParallel(1, data=FSDP(replicas=3)), {}, "FSDP(replicas=3) in a", WHOLE.format(3)),
    (Megatron(3), {}, "Megatron(tp_degree=3) in a world of 2 ranks", WHOLE.format(3)),
    (
        Megatron(2, 2), {},
        "Megatron(tp_degree=2 x pp_degree=2) in a world of 2 ranks", WHOLE.format(4),
    ),
    (Megatron(2, layers="core"), {}, "needs megatron-core, which is", "made of its layers"),
    (DeepSpeed(), {}, "strategy=DeepSpeed(...) needs deepspeed", "by the real package"),
    (SequenceParallel(2, data=DeepSpeed()), {}, "needs deepspeed", "by the real package"),
    (DeepSpeed(config=BOTH_FORMATS), {}, "are both true", "one number format"),
    (DeepSpeed(config={"fp16": {"hysteresis": "auto"}}), {}, "fp16.hysteresis=", "nothing in the"),
    (
        DeepSpeed(config=IN_TWO), {"gradient_accumulation_steps": 3},
        "gradient_accumulation_steps=3, but DeepSpeed has gradient_accumulation_steps=2",
        "one run can only follow one of them",
    ),
    (Pipeline(2), {"mixed_precision": "fp8"}, "Pipeline() with mixed_precision='fp8'", "is traced"),
    (Megatron(1, 2), {"mixed_precision": "fp8"}, "Pipeline() with mixed_prec", "is traced"),
    (DeepSpeed(), {"mixed_precision": "fp8"}, "strategy=DeepSpeed(...) with mixed_", "one number"),
)  # fmt: skip
# What one rank cannot have: there is nobody to divide anything with.
ALONE: tuple[tuple[Strategy, str], ...] = (
    (TensorParallel(2), "TensorParallel(size=2) in a world of 1 rank"),
    (SequenceParallel(2), "SequenceParallel(size=2) in a world of 1 rank"),
    (Pipeline(2), "Pipeline(stages=2) in a world of 1 rank"),
    (Megatron(2), "Megatron(tp_degree=2) in a world of 1 rank"),
)


@pytest.fixture(autouse=True)
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_packages(monkeypatch.setitem)


def hide_packages(setitem: Any = dict.__setitem__) -> None:
    """Let no optional engine be found here, but torchao: a wish for 8 bits gets that far."""
    for package in ("deepspeed", "megatron"):
        setitem(sys.modules, package, None)
    torchao = ModuleType("torchao")
    torchao.__spec__ = ModuleSpec("torchao", None)
    setitem(sys.modules, "torchao", torchao)


def never() -> None:
    raise AssertionError("a rank has started")


def refused(call: Any) -> Explained:
    """Give what ``call`` is refused with; it must start nothing."""
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    with pytest.raises((ConfigError, MissingPackage)) as error:
        call()
    assert {one.pid for one in psutil.Process().children(recursive=True)} <= before
    return error.value


def in_a_cell(wish: Strategy | None, num_processes: int, **asked: Any) -> Explained:
    config = asked.pop("config", None) or RunConfig(device="cpu", **asked)
    return refused(
        lambda: notebook_launcher(never, (), num_processes, strategy=wish, config=config)
    )


@pytest.mark.parametrize(("wish", "asked", "what", "why"), OF_TWO, ids=lambda one: str(one)[:50])
def test_a_launch_refuses_a_strategy_that_its_ranks_cannot_have(
    wish: Strategy, asked: dict[str, Any], what: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    error = in_a_cell(wish, 2, **asked)
    assert what in error.what
    assert why in error.why
    assert error.fix
    assert "Launching" not in capfd.readouterr().out


@pytest.mark.parametrize(("wish", "what"), ALONE)
def test_one_rank_has_nobody_to_divide_with(wish: Strategy, what: str) -> None:
    error = in_a_cell(wish, 1)
    assert error.what == what
    assert error.fix == "launch a multiple of 2 processes"
    with pytest.raises(ConfigError) as here:
        Accelerator(cpu=True, strategy=wish)
    assert str(here.value) == str(error)


def tell_of_two() -> None:
    """Print what an Accelerator of this rank says of each, in a script that a launch started."""
    hide_packages()
    said = []
    for wish, asked, _, _ in OF_TWO:
        try:
            Accelerator(cpu=True, strategy=wish, **asked)
        except Explained as error:
            said.append(str(error))
        else:
            said.append("nothing")
    print("said:" + json.dumps(said))


def test_ranks_of_a_script_say_the_same_and_all_alike(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from tests.launch.test_misfits import tell_of_two\n\ntell_of_two()\n")
    done = launch("--cpu", "--num_processes", "2", script)
    assert done.returncode == 0, done.stderr
    told = [line.partition("said:")[2] for line in done.stdout.splitlines() if "said:" in line]
    assert len(told) == 2 and told[0] == told[1]
    for (wish, asked, *_), said in zip(OF_TWO, json.loads(told[0]), strict=True):
        assert said == str(in_a_cell(wish, 2, **asked))


def test_played_ranks_hold_nothing_that_deepspeed_could_cut() -> None:
    with pytest.raises(ConfigError) as error:
        notebook_launcher(never, (), 8, device="fake", strategy=DeepSpeed())
    assert error.value.what == 'strategy=DeepSpeed(...) with device="fake"'
    assert "strategy=FSDP()" in error.value.fix


@dataclass(frozen=True)
class InPairs(Strategy):
    """A strategy of somebody else's."""

    def check_fit(self, place: Placement, precision: str) -> None:
        """Refuse an odd number of ranks."""
        if place.size % 2:
            raise ConfigError(
                f"InPairs() of {place.size} ranks in {precision}", "odd", "launch two"
            )


def test_a_strategy_of_another_package_says_so_too() -> None:
    assert in_a_cell(InPairs(), 3, mixed_precision="bf16").what == "InPairs() of 3 ranks in bf16"


# ── asked for by settings ─────────────────────────────────────────────────────────────────────

AXES = ("--use_parallelism_config", "--parallelism_config_dp_shard_size=2")
# The same wishes in words: options of a launch, lines of a file, and what is said of both.
IN_WORDS = {
    "no package": (
        ("--use_deepspeed",),
        "distributed_type: DEEPSPEED\n",
        ("--use_deepspeed needs deepspeed", "write --use_fsdp, which needs none"),
        ("line 1: strategy: deepspeed needs", "write strategy: fsdp, which needs none"),
    ),
    "degrees": (
        ("--use_megatron_lm", "--megatron_lm_tp_degree=3"),
        "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_tp_degree: 3\n",
        ("--megatron_lm_tp_degree 3", "write --num_processes 3"),
        ("megatron_lm_tp_degree=3", "write num_processes=3"),
    ),
    "stages and sequences": (
        ("--use_megatron_lm", "--megatron_lm_pp_degree=2", "--megatron_lm_context_parallel_size=2"),
        "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_pp_degree: 2\n"
        "  megatron_lm_context_parallel_size: 2\n",
        ("--megatron_lm_pp_degree 2, but --megatron", "leave one of them at 1"),
        ("line 3: megatron_lm_pp_degree=2, but line 4", "leave one of them at 1"),
    ),
    "axes": (
        (*AXES, "--parallelism_config_tp_size=2"),
        "parallelism_config:\n  parallelism_config_dp_shard_size: 2\n"
        "  parallelism_config_tp_size: 2\n",
        ("--parallelism_config_dp_shard_size 2", "write --num_processes 4"),
        ("parallelism_config_dp_shard_size=2", "write num_processes=4"),
    ),
    "axes that exclude each other": (
        ("--parallelism_config_cp_size=2", "--parallelism_config_sp_size=2"),
        "parallelism_config:\n  parallelism_config_cp_size: 2\n  parallelism_config_sp_size: 2\n",
        ("--parallelism_config_cp_size 2, but --para", "leave one of them at 1"),
        ("line 2: parallelism_config_cp_size=2, but line 3", "leave one of them at 1"),
    ),
    "8 bits under DeepSpeed": (
        ("--use_deepspeed", "--mixed_precision=fp8"),
        "distributed_type: DEEPSPEED\nmixed_precision: fp8\n",
        ("--use_deepspeed, but --mixed_precision fp8", "--mixed_precision bf16, or --use_fsdp"),
        ("line 1: strategy='deepspeed', but line 2", "bf16, or strategy: fsdp"),
    ),
    "8 bits in stages": (
        ("--use_megatron_lm", "--megatron_lm_pp_degree=2", "--mixed_precision=fp8"),
        "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_pp_degree: 2\n"
        "mixed_precision: fp8\n",
        ("--megatron_lm_pp_degree 2, but --mixed", "leave --megatron_lm_pp_degree out"),
        ("line 3: megatron_lm_pp_degree=2, but line 4", "leave megatron_lm_pp_degree out"),
    ),
    "stages along an axis": (
        ("--parallelism_config_pp_size=2", "--mixed_precision=fp8"),
        "parallelism_config_pp_size: 2\nmixed_precision: fp8\n",
        ("--parallelism_config_pp_size 2, but --mixed", "leave --parallelism_config_pp_size out"),
        ("line 1: parallelism_config_pp_size=2, but line 2", "leave parallelism_config_pp_size"),
    ),
    "layers divided under DeepSpeed": (
        ("--use_deepspeed", "--parallelism_config_tp_size=2"),
        "distributed_type: DEEPSPEED\nparallelism_config:\n  parallelism_config_tp_size: 2\n",
        ("--use_deepspeed, but --parallelism_config_tp_size 2", "or write --use_fsdp"),
        ("line 1: strategy='deepspeed', but line 3", "or write strategy: fsdp"),
    ),
    "two layouts": (
        ("--use_megatron_lm", "--parallelism_config_tp_size=2"),
        "distributed_type: MEGATRON_LM\nparallelism_config:\n  parallelism_config_tp_size: 2\n",
        ("but --use_megatron_lm", "leave --use_megatron_lm out, or"),
        ("strategy='megatron_lm'", "leave strategy out, or"),
    ),
    "no folder": (
        ("--use_deepspeed", "--offload_optimizer_device=nvme"),
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  offload_optimizer_device: nvme\n",
        ("--offload_optimizer_device nvme, but", "write --offload_optimizer_nvme_path /local/d"),
        ("offload_optimizer_device='nvme'", "write offload_optimizer_nvme_path: /local/disk"),
    ),
    "Megatron's own": (
        ("--use_megatron_lm", "--megatron_lm_no_save_optim=true"),
        "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_no_save_optim: true\n",
        ("(from option --megatron_lm_no_save_optim)", "accelerator.save_model in place"),
        ("config.yaml, line 3)", "accelerator.save_model in place"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", IN_WORDS.values(), ids=list(IN_WORDS))
def test_options_and_files_are_answered_in_their_own_words(
    row: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options, lines, by_options, by_file = row
    monkeypatch.setenv("NOTEBOOK_ACCEL_CONFIG", "off")
    script, file = tmp_path / "train.py", tmp_path / "config.yaml"
    script.write_text("raise SystemExit('a rank has started')\n")
    file.write_text(lines)
    assert cli(["launch", "--cpu", "--num_processes", "2", *options, str(script)]) != 0
    said = capsys.readouterr().err
    error = in_a_cell(None, 2, config=file)
    for words, (what, fix) in ((said, by_options), (str(error), by_file)):
        assert what in words
        assert fix in words
        assert error.why in words


def test_a_number_of_ranks_that_nobody_said_is_checked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTEBOOK_ACCEL_CONFIG", "off")
    assert cli(["launch", "--cpu", *AXES, __file__]) == 2
    said = capsys.readouterr().err
    assert "--num_processes is 1, but --parallelism_config_dp_shard_size 2" in said
    assert "write --num_processes 2" in said


def test_deepspeeds_own_file_is_read_before_any_rank_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "deepspeed")
    (tmp_path / "deepspeed.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    own, file = tmp_path / "own.json", tmp_path / "config.yaml"
    file.write_text(
        "distributed_type: DEEPSPEED\ngradient_accumulation_steps: 3\n"
        f"deepspeed_config:\n  deepspeed_config_file: {own}\n"
    )
    rows = {
        json.dumps(BOTH_FORMATS): "are both true in DeepSpeed's configuration",
        json.dumps(IN_TWO): f"gradient_accumulation_steps=3 (from file {file}, line 2), but Deep",
        '{"zero_optimization": {"stage": 4}}': "DeepSpeed(zero_stage=4)",
    }
    for text, what in rows.items():
        own.write_text(text)
        assert what in in_a_cell(None, 2, config=file).what


def test_the_environment_of_ranks_is_asked_and_not_that_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MEGATRON_LM_TP_DEGREE", "2")
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
    with pytest.raises(ConfigError) as error:
        notebook_launcher(never, (), 2, device="cpu", env={"MEGATRON_LM_TP_DEGREE": "3"})
    assert "MEGATRON_LM_TP_DEGREE=3" in error.value.what or "tp_degree=3" in error.value.what
    with as_ranks_will({}):
        assert Accelerator(cpu=True)._engine.wish == SingleDevice()
