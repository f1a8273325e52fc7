"""How micro-batches make one optimizer step, in Accelerate's words."""

from __future__ import annotations

from dataclasses import dataclass, replace

from notebook_accel.config.adoption import adopted
from notebook_accel.config.handlers import KwargsHandler
from notebook_accel.config.training import setting_of
from notebook_accel.errors import ConfigError


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """How micro-batches become optimizer steps.

    ``num_steps`` micro-batches make one; None is what the launch or the environment says.
    ``sync_with_dataloader`` ends a window with its loader, however short it is; without it windows
    run on into the next pass, always divided by ``num_steps``. ``sync_each_batch`` averages
    gradients over ranks after every micro-batch: more traffic, less memory. ``adjust_scheduler``
    moves prepared schedulers as often as there were micro-batches, for a schedule that was sized
    in micro-batches; None and False count updates.

    Errors: ConfigError for a number of steps that cannot be.
    """

    num_steps: int | None = None
    adjust_scheduler: bool | None = None
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False

    def __post_init__(self) -> None:
        if self.num_steps is not None:
            self.num_steps = setting_of("gradient_accumulation_steps", self.num_steps)
        super().__post_init__()


def chosen_accumulation(
    plugin: GradientAccumulationPlugin | None, steps: int | None
) -> GradientAccumulationPlugin:
    """Find the plugin of an Accelerator that was given ``plugin`` and ``steps``.

    Errors: ConfigError if both say a number, and not the same.
    """
    plugin = adopted("gradient_accumulation_plugin", plugin, GradientAccumulationPlugin)
    if plugin is None:
        return GradientAccumulationPlugin(num_steps=steps)
    if steps is None:
        return plugin
    if plugin.num_steps is None:
        return replace(plugin, num_steps=steps)
    if setting_of("gradient_accumulation_steps", steps) not in (1, plugin.num_steps):
        raise ConfigError(
            f"gradient_accumulation_steps={steps} and a plugin with num_steps={plugin.num_steps}",
            "both say how many micro-batches make one optimizer step",
            "leave gradient_accumulation_steps out; the plugin's number counts",
        )
    return plugin
