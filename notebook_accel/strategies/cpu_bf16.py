"""Whether this CPU computes in bfloat16 itself, or torch does it in float32 and rounds."""

from __future__ import annotations

import functools

from notebook_accel.config.cpu import bf16_unit, cpuinfo
from notebook_accel.events import rails


@functools.cache  # once a process, whoever asks
def say_how_bf16_runs() -> None:
    """State whether bf16 on this CPU is native or emulated; silent where nobody can tell."""
    text = cpuinfo()
    if text is None:
        return
    unit = bf16_unit(text)
    how = f"is native ({unit})" if unit else "is emulated, often slower than float32"
    rails.note(f"bf16 on this CPU {how}")
