"""What an Accelerator and its state say of sharding, in the same words."""

from __future__ import annotations

from dataclasses import dataclass

from notebook_accel.config.fsdp import FullyShardedDataParallelPlugin
from notebook_accel.config.kinds import DistributedType
from notebook_accel.config.parallelism import ParallelismConfig
from notebook_accel.config.strategy import Plugin


@dataclass(frozen=True)
class Plugins:
    """What says how models lie across ranks; ``kind`` is None where each rank has the whole."""

    kind: DistributedType | None = None
    plugin: Plugin | None = None
    axes: ParallelismConfig | None = None


class Sharing:
    """How models lie across ranks."""

    _plugins: Plugins

    @property
    def fsdp_plugin(self) -> FullyShardedDataParallelPlugin | None:
        """How models are sharded; None, if no plugin said it."""
        plugin = self._plugins.plugin
        return plugin if isinstance(plugin, FullyShardedDataParallelPlugin) else None

    @property
    def deepspeed_plugin(self) -> None:
        """How DeepSpeed trains; None, as it does not."""

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """How ranks are laid out along axes; None, if nothing said it."""
        return self._plugins.axes

    @property
    def is_fsdp2(self) -> bool:
        """Whether models are sharded by FSDP2."""
        return self._plugins.kind == DistributedType.FSDP
