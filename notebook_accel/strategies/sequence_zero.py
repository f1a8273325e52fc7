"""Parts of sequences, their model in the hands of DeepSpeed's ZeRO."""

from __future__ import annotations

from notebook_accel.strategies.sequence import SequenceEngine
from notebook_accel.strategies.zero import ZeroEngine


class SequenceZero(SequenceEngine, ZeroEngine):
    """Parts of sequences, and shards by DeepSpeed."""
