"""How often something may be done: never so often that watching costs more than one percent."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """When the next refresh is due: at most every ``interval_s``, and 100 times its own cost."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._due = 0.0

    def run(self, refresh: Callable[[], None]) -> bool:
        """Refresh if it is due, and say so. The cost is processor time: waiting costs nobody."""
        if time.monotonic() < self._due:
            return False
        start = time.thread_time()
        refresh()
        cost_s = time.thread_time() - start
        self._due = time.monotonic() + max(self._interval_s, 100 * cost_s)
        return True

    def hold(self, seconds: float) -> None:
        """Let no refresh happen for a while."""
        self._due = max(self._due, time.monotonic() + seconds)
