"""What all notebooks take together, told at the end of ``make notebooks``."""

from __future__ import annotations

import os

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = {
        report.nodeid: report.duration
        for report in terminalreporter.getreports("passed")
        if report.when == "call" and "runs_top_to_bottom" in report.nodeid
    }
    if ran:
        slowest = max(ran, key=lambda name: ran[name])
        terminalreporter.write_line(
            f"{len(ran)} notebooks ran, in {sum(ran.values()):.0f} s together, on "
            f"{os.cpu_count()} cores (load {os.getloadavg()[0]:.1f}); "
            f"the slowest took {ran[slowest]:.0f} s: {slowest.rpartition('::')[2]}"
        )
