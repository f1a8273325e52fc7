"""Memory and processor as the system's own files tell them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from notebook_accel.config.cpu import bf16_unit, cpu_name, fp16_unit
from notebook_accel.launch.machine import read_machine, usable_memory

MEMINFO = "MemTotal: 16000 kB\nMemFree: 1000 kB\nMemAvailable: 8000 kB\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_memory_is_what_the_system_has_available(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"})
    assert usable_memory(root) == (8000 << 10, 16000 << 10)


def test_a_containers_limit_counts_and_its_file_cache_is_free(tmp_path: Path) -> None:
    box = "sys/fs/cgroup/box"
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/box/inner\n",
        "sys/fs/cgroup/box/inner/memory.max": "max\n",
        f"{box}/memory.max": f"{4000 << 10}\n",
        f"{box}/memory.current": f"{3000 << 10}\n",
        f"{box}/memory.stat": f"anon 5\ninactive_file {500 << 10}\n",
    }
    assert usable_memory(write(tmp_path, files)) == (1500 << 10, 4000 << 10)


def test_the_older_kind_of_limit_counts_too(tmp_path: Path) -> None:
    box = "sys/fs/cgroup/memory/box"
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/box\n3:cpu:/box\n",
        f"{box}/memory.limit_in_bytes": f"{4000 << 10}",
        f"{box}/memory.usage_in_bytes": f"{1000 << 10}",
    }
    assert usable_memory(write(tmp_path, files)) == (3000 << 10, 4000 << 10)


def test_a_system_that_tells_nothing_has_unknown_memory(tmp_path: Path) -> None:
    assert usable_memory(tmp_path) == (0, 0)


def test_a_processor_is_named_as_it_names_itself() -> None:
    text = "processor : 0\nmodel name\t: Intel(R) Xeon(R) CPU @ 2.20GHz\nflags : amx_fp16\n"
    assert cpu_name(text) == "Intel Xeon CPU @ 2.20GHz"
    assert (bf16_unit(text), fp16_unit(text)) == (None, "AMX-FP16")
    assert cpu_name("") == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these files")
def test_this_machine_has_cores_and_memory() -> None:
    machine = read_machine()
    assert machine.num_cores >= 1
    assert 0 < machine.free_bytes <= machine.total_bytes


def test_looking_imports_no_torch() -> None:
    code = (
        "import sys; from notebook_accel.launch import precisions, machine; "
        "machine.read_machine(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
