"""Configuration files as people have them: each is read, round-trips, or is refused by its line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from notebook_accel.config.resolve import RunConfig, resolve
from notebook_accel.config.settings import SETTINGS, by_key
from notebook_accel.config.store import problems, read, write
from notebook_accel.errors import ConfigError
from tests.config.accelerates_names import BLOCKS, KEYS, NESTED_KEYS
from tests.config.corpus_says import BAD, GOOD

CORPUS = Path(__file__).parent / "corpus"
# What Accelerate's files have no key for, by the files that use it.
OURS_ONLY = {
    "axes_for_later.yaml": {"parallelism_config_tp_size"},
    "ours.yaml": {
        "start_method",
        "max_restarts",
        "timeout_s",
        "parallelism_config_pp_size",
        "use_parallelism_config",
    },
}


def config_of(path: Path) -> RunConfig:
    return resolve({}, {}, read(path))


def chosen(config: RunConfig) -> dict[str, object]:
    """What differs from the defaults."""
    return {n: value for n, value in config.given().items() if value != SETTINGS[n].default}


def test_every_file_of_the_corpus_has_its_answer() -> None:
    assert {path.name for path in (CORPUS / "good").iterdir()} == set(GOOD)
    assert {path.name for path in (CORPUS / "bad").iterdir()} == set(BAD)
    assert len(GOOD) + len(BAD) >= 40


def test_the_good_files_use_every_key_there_is() -> None:
    used: set[str] = set()
    for path in (CORPUS / "good").glob("*.yaml"):
        for key, value in yaml.safe_load(path.read_text(encoding="utf-8-sig")).items():
            used |= {f"{key}.{inside}" for inside in value} if key in BLOCKS and value else {key}
    assert (KEYS | NESTED_KEYS) - used == set()


@pytest.mark.parametrize("name", GOOD)
def test_a_good_file_says_what_it_says_and_says_it_again_when_written(
    name: str, tmp_path: Path
) -> None:
    config = config_of(CORPUS / "good" / name)
    assert chosen(config) == GOOD[name]
    for again in (tmp_path / "deep" / "again.yaml", tmp_path / "again.json"):
        assert write(config, again) == ()
        assert config_of(again) == config


@pytest.mark.parametrize("name", GOOD)
def test_a_good_file_round_trips_in_accelerates_own_keys(name: str, tmp_path: Path) -> None:
    config = config_of(CORPUS / "good" / name)
    left_out = write(config, tmp_path / "again.yaml", accelerate=True)
    assert set(left_out) == OURS_ONLY.get(name, set())
    lost = set(left_out)
    if config.device in (None, "auto-or-cpu"):
        lost.add("device")  # several processes are GPUs
    if config.strategy == "ddp":
        lost.add("strategy")
    there = chosen(config_of(tmp_path / "again.yaml"))
    expected = {key: value for key, value in GOOD[name].items() if key not in lost}
    assert {key: value for key, value in there.items() if key not in lost} == expected


@pytest.mark.slow
def test_accelerate_itself_reads_what_is_written_for_it(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    # SageMaker's: one lacks what Accelerate requires; to the other it adds a key it then refuses
    for name in GOOD.keys() - {"sagemaker_parallel.yaml", "sagemaker.yaml"}:
        write(config_of(CORPUS / "good" / name), tmp_path / name, accelerate=True)
    code = (
        "from accelerate.commands.config.config_args import load_config_from_file as load\n"
        f"for path in {sorted(map(str, tmp_path.iterdir()))}: load(path)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_what_is_written_for_accelerate_has_its_keys_only(tmp_path: Path) -> None:
    for name in GOOD:
        path = tmp_path / name
        write(config_of(CORPUS / "good" / name), path, accelerate=True)
        for key, value in yaml.safe_load(path.read_text()).items():
            inside = {f"{key}.{one}" for one in value} if key in BLOCKS else {key}
            # fsdp_ignored_modules is Accelerate's by its variable only
            assert inside - KEYS - NESTED_KEYS - {"fsdp_config.fsdp_ignored_modules"} == set(), name
            assert inside <= set(by_key())


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_once_with_the_right_line(name: str) -> None:
    path, (line, what, fix) = CORPUS / "bad" / name, BAD[name]
    found = problems(path)
    assert len(found) == 1
    error = found[0]
    assert isinstance(error, ConfigError)
    assert str(path) in error.what
    lines = re.findall(r", line (\d+)", error.what)
    assert [int(one) for one in lines[:1]] == ([line] if line else [])
    assert what in error.what
    assert fix in error.fix
    assert error.why
    with pytest.raises(ConfigError) as caught:
        config_of(path)
    assert str(caught.value) == str(error)


def test_all_that_is_wrong_can_be_listed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text("mixed_precision: bf17\nnum_processes: x\nfoo: 1\ndevice: cpu\n")
    assert [re.search(r"line (\d)", error.what).group(1) for error in problems(path)] == [  # type: ignore[union-attr]
        "1",
        "2",
        "3",
    ]
    path.write_text("device: cpu\n")
    assert problems(path) == []


def test_a_file_that_is_not_there_a_folder_and_a_secret_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no configuration file .*none\.yaml"):
        read(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: is a directory"):
        read(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be written: (file exists|not a directory)"):
        (tmp_path / "file").write_text("")
        write(RunConfig(), tmp_path / "file" / "config.yaml")


def test_secrets_are_never_written(tmp_path: Path) -> None:
    config = RunConfig(aws_secret_access_key="do not tell", num_processes=2)
    for accelerate in (False, True):
        left_out = write(config, tmp_path / "config.yaml", accelerate)
        assert left_out == ("aws_secret_access_key",)
        assert "do not tell" not in (tmp_path / "config.yaml").read_text()


def test_writing_leaves_the_old_file_or_the_new_one_and_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write(RunConfig(num_processes=2), path)
    write(RunConfig(num_processes=3), path)
    assert [one.name for one in tmp_path.iterdir()] == ["config.yaml"]
    assert read(path).values == {"num_processes": 3}
    assert read(path).lines == {"num_processes": 1}


def test_what_accelerate_has_dropped_is_named_as_that(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("ipex_config:\n  ipex: true\n")
    with pytest.raises(ConfigError) as error:
        read(path)
    assert "ipex" in error.value.what and "is of an older Accelerate" in error.value.what
    assert "torch itself does now" in error.value.why and "delete" in error.value.fix


def test_a_block_of_axes_of_one_rank_asks_for_none(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("num_processes: 4\nparallelism_config:\n  tp_size: 1\n")
    assert not config_of(path).use_parallelism_config
