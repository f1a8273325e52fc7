"""Which strategy an Accelerator has: its argument, else a plugin, else the launch, else none.

None is for ``strategies.registry.build`` to decide: one device, or data parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from notebook_accel.config.adoption import adopt
from notebook_accel.config.fsdp import FullyShardedDataParallelPlugin
from notebook_accel.config.handlers import Handlers
from notebook_accel.config.parallelism import ParallelismConfig
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.values import check
from notebook_accel.config.wishes import DDP, FSDP, Strategy, refuse_class
from notebook_accel.errors import ConfigError


@dataclass(frozen=True)
class Ways:
    """What an Accelerator was told of its strategy; ``launched`` counts for who says nothing."""

    strategy: Strategy | str | None = None
    fsdp_plugin: Any = None
    axes: ParallelismConfig | None = None
    launched: Strategy | None = None


@dataclass(frozen=True)
class Chosen:
    """A wish, and the plugins of Accelerate's that say the same."""

    wish: Strategy | None
    fsdp_plugin: FullyShardedDataParallelPlugin | None = None
    axes: ParallelismConfig | None = None


def chosen_strategy(ways: Ways, handlers: Handlers, asked: RunConfig, world_size: int) -> Chosen:
    """Find the strategy; the settings of one that is named by a word are what ``asked`` has.

    Errors: ConfigError for two that exclude each other, and for what is none.
    """
    strategy, axes = ways.strategy, ways.axes
    refuse_class(strategy)
    if isinstance(strategy, str):
        check(SETTINGS["strategy"], strategy)
    plugin = _adopted(ways.fsdp_plugin)
    if axes is None and strategy is None and asked.use_parallelism_config:
        axes = ParallelismConfig()
    if strategy is not None and (plugin is not None or axes is not None):
        other = "parallelism_config" if plugin is None else "fsdp_plugin"
        raise ConfigError(
            f"strategy={strategy!r} and {other} are both given",
            "both say how models lie across ranks, and nobody could say which of them counts",
            "leave one of them out",
        )
    if axes is not None:
        if plugin is None and asked.strategy == "fsdp":
            plugin = FullyShardedDataParallelPlugin()
        sharded = None if plugin is None else plugin.wish()
        fsdp = sharded if isinstance(sharded, FSDP) else None
        return Chosen(axes.wish(world_size, fsdp), plugin, axes)
    if plugin is not None:
        return Chosen(plugin.wish(), plugin)
    if strategy is None and handlers.strategy(None) is None:
        strategy = ways.launched
    if isinstance(strategy, Strategy):
        return Chosen(handlers.strategy(strategy))
    word = strategy or asked.strategy
    if word == "fsdp":
        plugin = FullyShardedDataParallelPlugin()
        return Chosen(plugin.wish(), plugin)
    wish = handlers.strategy(None)
    return Chosen(DDP() if word == "ddp" and wish is None else wish)


def _adopted(plugin: Any) -> FullyShardedDataParallelPlugin | None:
    """Take Accelerate's own plugin as ours."""
    ours = adopt(plugin, FullyShardedDataParallelPlugin)
    if ours is None or isinstance(ours, FullyShardedDataParallelPlugin):
        return ours
    raise ConfigError(
        f"fsdp_plugin={plugin!r} is no FullyShardedDataParallelPlugin",
        "it holds the settings of FSDP under Accelerate's names",
        "write fsdp_plugin=FullyShardedDataParallelPlugin(...), or strategy=FSDP(...)",
    )
