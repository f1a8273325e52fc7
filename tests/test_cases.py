"""Every case that this package promises to handle has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# Reports of other toolkits' users, by the numbers under which we keep them: loaders, gathering,
# accumulation, optimizers, precision, preparing, saving, control, tracking, memory, the command
# line, and what was found beside them.
CASES = """
    DL01 DL02 DL04 DL05 DL07 DL08 DL10 DL11 DL13 DL14 DL16 DL17
    GM02 GM03 GM05 GM06 GM08 GM09 GM11 GM12 GA02 GA03 GA05 GA06 GA08
    OS01 OS03 OS04 MP02 PR01 PR03 PR04 SV01 SV02 SV04 SV05 SV07
    CT01 CT03 CT04 CT06 CT07 TR02 MM01 CL02 CL03 CL05 CL06 E1 E2 E3 E4 E5 E6 E7 E8 E9 E10
"""
TEXTS = [path.read_text() for path in Path(__file__).parent.rglob("test_*.py")]
NAMED = {
    case for text in TEXTS if "CASES = " not in text for case in re.findall(r"\b[A-Z]+\d+\b", text)
}


@pytest.mark.parametrize("case", CASES.split())
def test_a_case_has_a_test(case: str) -> None:
    assert case in NAMED
