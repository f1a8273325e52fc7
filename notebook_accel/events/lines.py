"""Lines of the person's code: which frame is theirs, and where a line is in their own terms."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from types import FrameType
from typing import Any

THE_PERSON, US, BETWEEN = range(3)  # who wrote a line; between: libraries, calling or called
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_told: dict[str, int] = {}  # in a worker: the cells of the notebook that started it


def owner_of(filename: str) -> int:
    """Tell who wrote the lines of ``filename``."""
    if filename.startswith(_PACKAGE):
        return US
    if filename.startswith((_STANDARD, "<frozen ")) or "-packages" + os.sep in filename:
        return BETWEEN
    return THE_PERSON


def persons_frame(frame: FrameType | None) -> FrameType | None:
    """Find the innermost frame of the person's, from ``frame`` outwards."""
    while frame is not None and owner_of(frame.f_code.co_filename) != THE_PERSON:
        frame = frame.f_back
    return frame


def ours_between(frame: FrameType | None, person: FrameType) -> bool:
    """Whether a frame of this package lies between ``frame`` and ``person``, outside of it."""
    while frame is not None and frame is not person:
        if owner_of(frame.f_code.co_filename) == US:
            return True
        frame = frame.f_back
    return False


def place_of(filename: str, line: int) -> str:
    """Say where a line is: "Cell In[7], line 3" if it is in a cell."""
    cell = cell_number(filename)
    return f"Cell In[{cell}], line {line}" if cell is not None else f"File {filename}:{line}"


def cell_number(filename: str) -> int | None:
    """Give the execution count of the cell that was compiled as ``filename``, if one was."""
    if filename in _told:
        return _told[filename]
    if "ipykernel" in filename:
        return cell_numbers().get(filename)
    match = re.match(r"<ipython-input-(\d+)-", filename)
    return int(match.group(1)) if match else None


def cell_numbers() -> dict[str, int]:
    """Give the execution counts of all cells by the names of their files."""
    shell = ipython()
    compiler: Any = getattr(shell, "compile", None)
    if hasattr(compiler, "_filename_map"):
        return dict(compiler._filename_map)
    return _names_by_source(shell) if hasattr(compiler, "get_code_name") else {}


def tell_cells(numbers: dict[str, int]) -> None:
    """Let a worker know the cells of the notebook that started it."""
    _told.update(numbers)


def _names_by_source(shell: Any) -> dict[str, int]:
    """Find the file names of all cells where the compiler keeps none: IPython before 8."""
    names = {}
    for number, source in enumerate(shell.history_manager.input_hist_raw):
        for text in (source, source + "\n"):  # the history has no newline at the end
            names[shell.compile.get_code_name(text, text, number)] = number
    return names


def ipython() -> Any:
    """Give the IPython shell of this process; None where there is none."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None
