"""What this machine's processor is and which small numbers it computes itself, by /proc/cpuinfo."""

from __future__ import annotations

import re
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# As Linux spells them: Intel's matrix unit, AVX-512 of Intel and AMD, ARM.
_BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "ARM BF16"}
_FP16 = {"amx_fp16": "AMX-FP16", "avx512_fp16": "AVX512-FP16", "asimdhp": "ARM FP16"}


def cpuinfo() -> str | None:
    """Read what Linux tells of its processors; None where nobody tells."""
    try:
        return CPUINFO.read_text()
    except OSError:
        return None


def bf16_unit(cpuinfo: str) -> str | None:
    """Name the unit for bfloat16 in the text of /proc/cpuinfo; None if there is none.

    Source: Linux, Documentation/arch/x86/cpuinfo.rst and arm64/elf_hwcaps.rst.
    """
    return _unit(cpuinfo, _BF16)


def fp16_unit(cpuinfo: str) -> str | None:
    """Name the unit for float16 in the text of /proc/cpuinfo; None if there is none."""
    return _unit(cpuinfo, _FP16)


def cpu_name(cpuinfo: str) -> str:
    """Give the processor's name as it calls itself; empty where it does not."""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return re.sub(r"\((?:R|TM)\)", "", match.group(1)).strip() if match else ""


def _unit(cpuinfo: str, units: dict[str, str]) -> str | None:
    words = set(cpuinfo.split())
    return next((name for flag, name in units.items() if flag in words), None)
