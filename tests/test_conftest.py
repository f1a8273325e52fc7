"""The leak police catches what it is there for."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

LEAKS = {
    "environment variable LEFT: None -> '1'": "os.environ['LEFT'] = '1'",
    "the working directory is now": "os.chdir('/')",
    "signal handler of SIGUSR1": "signal.signal(signal.SIGUSR1, lambda *_: None)",
    "thread <Thread": "threading.Thread(target=time.sleep, args=(3,), daemon=True).start()",
    "process psutil.Process": "subprocess.Popen(['sleep', '9'])",
}


@pytest.mark.parametrize(("words", "line"), LEAKS.items(), ids=list(LEAKS))
def test_a_test_that_leaves_something_behind_fails(
    pytester: pytest.Pytester, words: str, line: str
) -> None:
    police = (Path(__file__).parent / "conftest.py").read_text()
    pytester.makeconftest(police.replace("GRACE_S = 5.0", "GRACE_S = 0.2"))
    pytester.makepyfile(
        f"import os, signal, subprocess, threading, time\ndef test_leaks():\n    {line}\n"
    )
    result = pytester.runpytest_subprocess("-q", timeout=60)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f"*{words}*"])
