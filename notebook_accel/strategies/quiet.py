"""What libraries log about themselves, where the person can do nothing about it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed(name: str, level: int = logging.ERROR) -> Iterator[None]:
    """Let the logger ``name`` tell of nothing below ``level`` inside the block."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
