"""What an Accelerator and its state say of sharding, in the same words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from notebook_accel.config.deepspeed import DeepSpeedPlugin, DeepSpeedPlugins
from notebook_accel.config.fsdp import FullyShardedDataParallelPlugin
from notebook_accel.config.kinds import DistributedType
from notebook_accel.config.megatron import MegatronLMPlugin
from notebook_accel.config.parallelism import ParallelismConfig
from notebook_accel.config.strategy import Plugin
from notebook_accel.config.wishes import Strategy
from notebook_accel.errors import ConfigError


@dataclass(frozen=True)
class Plugins:
    """What says how models lie across ranks; ``kind`` is None where each rank has the whole.

    ``follow`` takes a wish that counts for the models that are prepared from then on.
    """

    kind: DistributedType | None = None
    plugin: Plugin | None = None
    axes: ParallelismConfig | None = None
    follow: Callable[[Strategy], None] | None = None


class Sharing:
    """How models lie across ranks."""

    _plugins: Plugins

    @property
    def fsdp_plugin(self) -> FullyShardedDataParallelPlugin | None:
        """How models are sharded; None, if no plugin said it."""
        plugin = self._plugins.plugin
        return plugin if isinstance(plugin, FullyShardedDataParallelPlugin) else None

    @property
    def deepspeed_plugin(self) -> DeepSpeedPlugin | None:
        """How DeepSpeed trains, of several plugins the selected one; None, if no plugin said it."""
        plugin = self._plugins.plugin
        plugin = plugin.selected if isinstance(plugin, DeepSpeedPlugins) else plugin
        return plugin if isinstance(plugin, DeepSpeedPlugin) else None

    @property
    def deepspeed_plugins(self) -> DeepSpeedPlugin | dict[str, DeepSpeedPlugin] | None:
        """All of DeepSpeed's plugins by name, or the only one."""
        plugin = self._plugins.plugin
        return plugin.plugins if isinstance(plugin, DeepSpeedPlugins) else self.deepspeed_plugin

    def get_deepspeed_plugin(self, name: str) -> DeepSpeedPlugin:
        """Give one of several plugins of DeepSpeed.

        Errors: ConfigError for a name that there is not.
        """
        return self._several().get(name)

    def select_deepspeed_plugin(self, name: str) -> None:
        """Let the models that are prepared from now on be trained as another plugin says.

        Ranks: all ranks call it.
        Errors: ConfigError for a name that there is not, and for a plugin of another strategy.
        """
        plugins = self._several()
        wish = plugins.get(name).wish()
        if self._plugins.follow is not None:
            self._plugins.follow(wish)
        plugins.select(name)

    def _several(self) -> DeepSpeedPlugins:
        plugin = self._plugins.plugin
        if isinstance(plugin, DeepSpeedPlugins):
            return plugin
        raise ConfigError(
            "the Accelerator was not given several DeepSpeed plugins",
            "only where they have names can one be chosen among them",
            'write Accelerator(deepspeed_plugin={"student": DeepSpeedPlugin(...), ...})',
        )

    @property
    def megatron_lm_plugin(self) -> MegatronLMPlugin | None:
        """Megatron's degrees; None, if no plugin said them."""
        plugin = self._plugins.plugin
        return plugin if isinstance(plugin, MegatronLMPlugin) else None

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """How ranks are laid out along axes; None, if nothing said it."""
        return self._plugins.axes

    @property
    def is_fsdp2(self) -> bool:
        """Whether models are sharded by FSDP2."""
        return self._plugins.kind == DistributedType.FSDP
