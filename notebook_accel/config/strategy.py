"""Which strategy an Accelerator has: its argument, else a plugin, else the launch, else none.

None is for ``strategies.registry.build`` to decide: one device, or data parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from notebook_accel.config.adoption import adopt
from notebook_accel.config.fsdp import FullyShardedDataParallelPlugin
from notebook_accel.config.handlers import Handlers
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.wishes import DDP, Strategy
from notebook_accel.errors import ConfigError


@dataclass(frozen=True)
class Chosen:
    """A wish, and the plugins of Accelerate's that say the same."""

    wish: Strategy | None
    fsdp_plugin: FullyShardedDataParallelPlugin | None = None


def chosen_strategy(
    strategy: Strategy | str | None,
    fsdp_plugin: Any,
    handlers: Handlers,
    asked: RunConfig,
    launched: Strategy | None = None,
) -> Chosen:
    """Find the strategy; the settings of one that is named by a word are what ``asked`` has.

    ``launched`` is the wish of the launch, for who says nothing.

    Errors: ConfigError for two that exclude each other, and for what is none.
    """
    if fsdp_plugin is not None:
        plugin = adopt(fsdp_plugin, FullyShardedDataParallelPlugin)
        if not isinstance(plugin, FullyShardedDataParallelPlugin):
            raise ConfigError(
                f"fsdp_plugin={plugin!r} is no FullyShardedDataParallelPlugin",
                "it holds the settings of FSDP under Accelerate's names",
                "write fsdp_plugin=FullyShardedDataParallelPlugin(...), or strategy=FSDP(...)",
            )
        if strategy is not None:
            raise ConfigError(
                f"strategy={strategy!r} and fsdp_plugin are both given",
                "both say how models are sharded, and nobody could say which of them counts",
                "leave one of them out",
            )
        return Chosen(plugin.wish(), plugin)
    if strategy is None and handlers.strategy(None) is None:
        strategy = launched
    if isinstance(strategy, Strategy):
        return Chosen(handlers.strategy(strategy))
    word = strategy or asked.strategy
    if word == "fsdp":
        plugin = FullyShardedDataParallelPlugin()
        return Chosen(plugin.wish(), plugin)
    wish = handlers.strategy(None)
    return Chosen(DDP() if word == "ddp" and wish is None else wish)
