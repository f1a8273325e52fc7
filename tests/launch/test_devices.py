"""Which GPUs are visible and how many cores may be used, from plain data and real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from notebook_accel.launch.devices import (
    Chip,
    accelerators,
    cgroup_cores,
    needs_cuda_order,
    parse_answer,
    tpu_sign,
    usable_cores,
    visible,
)

CHIPS = [
    Chip("GPU-aaaa1111", "Tesla T4"),
    Chip("GPU-aabb2222", "Tesla T4"),
    Chip("GPU-cccc3333", "Tesla T4"),
]
SLICES = (Chip("MIG-1111", "H200 MIG 1g"), Chip("MIG-2222", "H200 MIG 1g"))
CUT = [Chip("GPU-dddd4444", "H200", slices=SLICES), Chip("GPU-eeee5555", "H200")]


def seen(setting: str | None, chips: list[Chip] = CHIPS) -> list[str]:
    env = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    return [chip.uuid for chip in visible(chips, env)]


def test_all_gpus_are_visible_when_nothing_is_set() -> None:
    assert seen(None) == ["GPU-aaaa1111", "GPU-aabb2222", "GPU-cccc3333"]


@pytest.mark.parametrize("setting", ["", " ", "-1", "none", "7", "-1,0", ",0"])
def test_empty_and_impossible_settings_hide_everything(setting: str) -> None:
    assert seen(setting) == []


def test_numbers_pick_and_order() -> None:
    assert seen("2,0") == ["GPU-cccc3333", "GPU-aaaa1111"]
    assert seen(" 1 , 2 ") == ["GPU-aabb2222", "GPU-cccc3333"]
    assert seen("1gpu") == ["GPU-aabb2222"]


def test_the_first_invalid_entry_ends_the_list() -> None:
    assert seen("1,9,0") == ["GPU-aabb2222"]
    assert seen("1,-1,0") == ["GPU-aabb2222"]
    assert seen("0,GPU-cccc") == ["GPU-aaaa1111"]
    assert seen("GPU-cccc,0") == ["GPU-cccc3333"]


def test_a_repeated_gpu_leaves_none() -> None:
    assert seen("0,1,0") == []
    assert seen("GPU-aaaa,GPU-aaaa1111") == []


def test_names_may_be_shortened_while_they_stay_unique() -> None:
    assert seen("GPU-cccc,GPU-aabb2222") == ["GPU-cccc3333", "GPU-aabb2222"]
    assert seen("GPU-CCCC") == ["GPU-cccc3333"]
    assert seen("GPU-aa") == []
    assert seen("GPU-aaaa,GPU-aa") == ["GPU-aaaa1111"]


def test_one_mig_slice_is_visible_and_no_whole_gpu_beside_it() -> None:
    assert seen(None, CUT) == ["MIG-1111"]
    assert seen("MIG-2222", CUT) == ["MIG-2222"]
    assert seen("MIG-2222,MIG-1111", CUT) == ["MIG-2222"]
    assert seen("1", CUT) == ["GPU-eeee5555"]
    assert seen("1,0", CUT) == ["MIG-1111"]


def test_only_unlike_gpus_taken_by_number_need_cuda_to_tell_their_order() -> None:
    unlike = [Chip("GPU-1", "T4"), Chip("GPU-2", "H200")]
    assert needs_cuda_order(unlike, {})
    assert needs_cuda_order(unlike, {"CUDA_VISIBLE_DEVICES": "1,0"})
    assert not needs_cuda_order(unlike, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert not needs_cuda_order(unlike, {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-1"})
    assert not needs_cuda_order(CHIPS, {})


def test_the_answer_of_the_child_is_read_past_its_noise() -> None:
    text = 'a warning\ndevices:[["7a", "H200", 5], ["", "AMD", 3], ["GPU-9", "T4", 1]]\n'
    assert parse_answer(text) == [("GPU-7a", "H200", 5), ("", "AMD", 3), ("GPU-9", "T4", 1)]
    assert parse_answer("nothing") == []


def test_a_tpu_host_is_known_by_its_environment_or_its_device_files() -> None:
    assert tpu_sign({"PJRT_DEVICE": "TPU"}, []) == "PJRT_DEVICE=TPU"
    assert tpu_sign({"TPU_NAME": "local"}, []) == "TPU_NAME is set"
    assert tpu_sign({}, ["accel1", "accel0"]) == "/dev/accel0"
    assert tpu_sign({"PJRT_DEVICE": "CPU", "TPU_NAME": ""}, []) == ""


def test_listing_reads_the_environment_it_is_given() -> None:
    found = accelerators({"PJRT_DEVICE": "TPU", "CUDA_VISIBLE_DEVICES": ""})
    assert [device.kind for device in found if device.kind != "mps"] == ["tpu"]


def test_listing_leaves_no_accelerator_open() -> None:
    accelerators()
    fds = Path("/proc/self/fd")
    if not fds.exists():
        pytest.skip("no /proc on this system")
    opened = [os.readlink(fd) for fd in fds.iterdir() if fd.is_symlink()]
    assert [name for name in opened if name.startswith(("/dev/nvidia", "/dev/kfd"))] == []


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_tightest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "user/cpu.max": "400000 100000\n",
            "user/job/cpu.max": "max 100000\n",
            "other/cpu.max": "100000 100000\n",
        },
    )
    assert cgroup_cores(root, "0::/user/job\n") == 4.0


def test_a_group_path_from_outside_the_container_still_finds_its_root(tmp_path: Path) -> None:
    root = write(tmp_path, {"cpu.max": "150000 100000\n"})
    assert cgroup_cores(root, "0::/docker/abc/def\n") == 1.5


def test_version_1_quotas_are_read_from_the_cpu_controller(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "cpu,cpuacct/box/cpu.cfs_quota_us": "200000\n",
            "cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_cores(root, "4:cpu,cpuacct:/box\n3:memory:/box\n0::/\n") == 2.0


def test_no_quota_is_no_limit(tmp_path: Path) -> None:
    root = write(tmp_path, {"cpu.max": "max 100000\n"})
    assert cgroup_cores(root, "0::/\n1:name=systemd:/\n") is None
    assert cgroup_cores(tmp_path / "nothing", "0::/a\n") is None


def test_usable_cores_follow_the_affinity() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no CPU affinity on this system")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
