"""Whether this CPU computes in bfloat16 itself, or torch does it in float32 and rounds."""

from __future__ import annotations

import functools
from pathlib import Path

from notebook_accel.events import rails

_CPUINFO = Path("/proc/cpuinfo")
# As Linux spells them: Intel's matrix unit, AVX-512 of Intel and AMD, ARM.
_UNITS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "ARM BF16"}


def bf16_unit(cpuinfo: str) -> str | None:
    """Name the unit for bfloat16 in the text of /proc/cpuinfo; None if there is none.

    Source: Linux, Documentation/arch/x86/cpuinfo.rst and arm64/elf_hwcaps.rst.
    """
    words = set(cpuinfo.split())
    return next((name for flag, name in _UNITS.items() if flag in words), None)


@functools.cache  # once a process, whoever asks
def say_how_bf16_runs() -> None:
    """State whether bf16 on this CPU is native or emulated; silent where nobody can tell."""
    try:
        unit = bf16_unit(_CPUINFO.read_text())
    except OSError:
        return
    how = f"is native ({unit})" if unit else "is emulated, often slower than float32"
    rails.note(f"bf16 on this CPU {how}")
