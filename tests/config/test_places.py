"""Where configuration files lie when nobody names one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from notebook_accel.config.places import accelerates_path, at_home, default_path, find_default


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mixed_precision: bf16\n")
    return path


def test_our_file_lies_in_the_users_folder_for_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    named = tmp_path / "elsewhere" / "config.yaml"
    assert default_path({"NOTEBOOK_ACCEL_CONFIG": str(named)}) == named
    if sys.platform == "linux":
        assert default_path({}) == tmp_path / ".config" / "notebook_accel" / "config.yaml"
        moved = default_path({"XDG_CONFIG_HOME": str(tmp_path / "xdg")})
        assert moved == tmp_path / "xdg" / "notebook_accel" / "config.yaml"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Application Support" in default_path({}).parts
    monkeypatch.setattr(sys, "platform", "win32")
    assert default_path({"APPDATA": "roaming"}) == Path("roaming/notebook_accel/config.yaml")


def test_accelerates_file_lies_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tail = Path("accelerate/default_config.yaml")
    assert accelerates_path({}) == tmp_path / ".cache/huggingface" / tail
    assert accelerates_path({"XDG_CACHE_HOME": "cache"}) == Path("cache/huggingface") / tail
    assert accelerates_path({"HF_HOME": "hf", "XDG_CACHE_HOME": "cache"}) == "hf" / tail


def test_ours_counts_before_accelerates_and_a_named_one_before_both(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HF_HOME": str(tmp_path / "hf")}
    if sys.platform != "linux":
        pytest.skip("XDG_CONFIG_HOME is for Linux")
    assert find_default(env) is None
    old = touch(tmp_path / "hf/accelerate/default_config.json")
    assert find_default(env) == old
    theirs = touch(tmp_path / "hf/accelerate/default_config.yaml")
    assert find_default(env) == theirs
    ours = touch(tmp_path / "config/notebook_accel/config.yaml")
    assert find_default(env) == ours
    absent = tmp_path / "absent.yaml"
    assert find_default({**env, "NOTEBOOK_ACCEL_CONFIG": str(absent)}) == absent
    assert find_default({**env, "NOTEBOOK_ACCEL_CONFIG": "off"}) is None


def test_a_user_without_a_home_and_a_folder_that_is_none_have_no_file(tmp_path: Path) -> None:
    assert at_home("~no_such_user_here/x") == Path("~no_such_user_here/x")
    env = {"XDG_CONFIG_HOME": "~no_such_user_here", "HF_HOME": str(tmp_path / "file")}
    (tmp_path / "file").write_text("")  # a file where a folder should be
    assert find_default(env) is None
