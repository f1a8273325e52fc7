"""The strategies that pickers offer, and the few questions that each of them asks. Pure.

A question is a field of the strategy's wish; a new strategy is one entry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.megatron import Megatron
from notebook_accel.config.sequence import SequenceParallel
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.strategy import wish_of as asked_by
from notebook_accel.config.values import check_choice
from notebook_accel.config.wishes import (
    DDP,
    FSDP,
    Pipeline,
    SingleDevice,
    Strategy,
    TensorParallel,
    refuse_class,
)
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError

AUTO = "auto"


@dataclass(frozen=True)
class Ask:
    """One question: a field of the wish, its name on screen, and what to pick.

    Without options it is how many ranks work together: a divisor of all.
    """

    field: str
    label: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Entry:
    """One strategy: its word, its wish, what it does, and what it asks.

    ``together`` names the fields that say how many ranks work together, the first of which is all
    of them at first. ``is_plain`` says that its word means its wish; the words of others mean what
    files and the environment add to them.
    """

    word: str
    wish: type[Strategy]
    words: str
    asks: tuple[Ask, ...] = ()
    together: tuple[str, ...] = ()
    is_plain: bool = False


YES_NO = (("no", False), ("yes", True))
MENU = (
    Entry(
        "ddp", DDP, "a whole copy of the model on each rank",
        (Ask("comm_hook", "Send as", (("float32", "no"), ("bf16", "bf16"), ("fp16", "fp16"))),),
        is_plain=True,
    ),
    Entry(
        "fsdp", FSDP, "a share of the model on each rank",
        (
            Ask("reshard_after_forward", "Between passes",
                (("in shards", True), ("whole until the backward", False))),
            Ask("activation_checkpointing", "Recompute", YES_NO),
            Ask("cpu_offload", "On the CPU", YES_NO),
        ),
    ),
    Entry(
        "deepspeed", DeepSpeed, "ZeRO: states, gradients or all in shares, by DeepSpeed",
        (
            Ask("zero_stage", "Stage",
                (("1: states", 1), ("2: and gradients", 2), ("3: and weights", 3))),
            Ask("offload_optimizer", "States on", (("the GPU", None), ("the CPU", "cpu"))),
        ),
    ),
    Entry(
        "tensor", TensorParallel, "each layer divided over ranks",
        (Ask("size", "Ranks a layer"),), ("size",),
    ),
    Entry(
        "pipeline", Pipeline, "groups of layers one after the other",
        (
            Ask("stages", "Stages"),
            Ask("schedule", "Order", (("1F1B", "1f1b"), ("GPipe", "gpipe"))),
        ),
        ("stages",),
    ),
    Entry(
        "sequence", SequenceParallel, "each sequence divided over ranks",
        (
            Ask("size", "Ranks each"),
            Ask("exchange", "Exchange", (("heads", "heads"), ("keys and values", "keys"))),
        ),
        ("size",),
    ),
    Entry(
        "megatron_lm", Megatron, "layers and stages by Megatron's degrees",
        (Ask("tp_degree", "Ranks a layer"), Ask("pp_degree", "Stages")),
        ("tp_degree", "pp_degree"),
    ),
)  # fmt: skip
WORDS: Mapping[str, str] = {
    AUTO: "ddp on several ranks",
    **{entry.word: entry.words for entry in MENU},
}


def offered_words() -> list[str]:
    """List the words of strategies that this version can carry out, "auto" first."""
    coming = SETTINGS["strategy"].coming
    return [word for word in WORDS if word not in coming]


def understood(asked: Any) -> str | Strategy:
    """Give the word of the menu or the wish that was asked for; a plugin asks for its wish.

    Errors: ConfigError for what is none of them.
    """
    refuse_class(asked)
    found = asked_by(asked)
    if isinstance(found, Strategy):
        return found
    check_choice("strategy", found, tuple(offered_words()))
    return str(found)


def entry_of(strategy: Any) -> Entry | None:
    """Find what a word or a wish is on the menu; "auto" and strategies of others are not."""
    for entry in MENU:
        if strategy == entry.word or type(strategy) is entry.wish:
            return entry
    return None


def word_of(strategy: Any) -> str:
    """Name a strategy in one word."""
    if isinstance(strategy, str):
        return strategy
    entry = entry_of(strategy)
    return type(strategy).__name__ if entry is None else entry.word


def wish_of(strategy: Any, num_ranks: int) -> Strategy:
    """Give the wish that a word stands for among ``num_ranks`` ranks; a wish as it is."""
    if isinstance(strategy, Strategy):
        return strategy
    entry = entry_of(strategy)
    if entry is None:
        return SingleDevice() if num_ranks == 1 else DDP()
    return entry.wish(**dict.fromkeys(entry.together[:1], num_ranks))


def num_readers(strategy: Any, num_ranks: int) -> int:
    """How many of the ranks read data of their own; the others work on a batch together."""
    wish, entry = wish_of(strategy, num_ranks), entry_of(strategy)
    sizes = [int(getattr(wish, name)) for name in (() if entry is None else entry.together)]
    return max(1, num_ranks // math.prod(sizes))


def admitted(asked: Any, num_ranks: int) -> str | Strategy:
    """Give a strategy in the form in which a choice has it: a plain word, else a wish.

    Errors: ConfigError for a word that is none, and degrees that do not divide the ranks.
    """
    asked = understood(asked)
    if isinstance(asked, str):
        entry = entry_of(asked)
        if entry is None or entry.is_plain:
            return asked
    wish = wish_of(asked, num_ranks)
    entry = entry_of(wish)
    sizes = {name: int(getattr(wish, name)) for name in (() if entry is None else entry.together)}
    size = math.prod(sizes.values())
    if num_ranks % size:
        degrees = ", ".join(f"{name}={degree}" for name, degree in sizes.items())
        raise ConfigError(
            f"strategy={type(wish).__name__}({degrees}) on {counted(num_ranks, 'rank')}",
            f"groups of {size} ranks do not fill them",
            f"pick degrees that divide {num_ranks}, or another num_processes",
        )
    return wish


def answered(strategy: Any, num_ranks: int, field: str, value: Any) -> Strategy:
    """Give the strategy with one of its questions answered."""
    return replace(wish_of(strategy, num_ranks), **{field: value})
