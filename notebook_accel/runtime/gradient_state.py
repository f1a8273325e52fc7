"""Accelerate's GradientState, as a face of the clock."""

from __future__ import annotations

from typing import Any, ClassVar

from notebook_accel.data.loader import Pass, Passes
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.shown import not_there, settle, shared_state


class GradientState:
    """Where accumulation is: the newest Accelerator's clock, or one of its own before that."""

    _shared_state: ClassVar[dict[str, Any]] = shared_state()

    def __init__(self, gradient_accumulation_plugin: Any = None) -> None:
        settle()
        self.__dict__ = self._shared_state
        if not self._shared_state:
            steps = getattr(gradient_accumulation_plugin, "num_steps", None) or 1
            clock = Clock(steps, Passes())
            self._shared_state.update(_clock=clock, _plugin=gradient_accumulation_plugin)

    def __getattr__(self, name: str) -> Any:
        if name == "_clock":
            settle()
        # The shared face does not keep an Accelerator, and with it the models, alive.
        clock = self._newest() if name == "_clock" and "_newest" in self.__dict__ else None
        if clock is None:
            raise not_there(self, name)
        return clock

    def __reduce__(self) -> Any:
        return GradientState, ()

    def __repr__(self) -> str:
        if not self.initialized:
            return "GradientState()"
        return (
            f"GradientState(sync_gradients={self.sync_gradients}, num_steps={self.num_steps}, "
            f"end_of_dataloader={self.end_of_dataloader}, remainder={self.remainder})"
        )

    @property
    def initialized(self) -> bool:
        """Whether there is something to show."""
        return bool(self.__dict__)

    @property
    def sync_gradients(self) -> bool:
        """Whether this micro-batch closes its window: gradients meet and optimizers step."""
        return bool(self._clock.sync)

    @property
    def num_steps(self) -> int:
        """How many micro-batches make one optimizer step."""
        return int(self._clock.num_steps)

    @property
    def adjust_scheduler(self) -> bool:
        """Whether prepared schedulers count micro-batches instead of updates."""
        return bool(getattr(self._plugin, "adjust_scheduler", False))

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the last batch of a loader closes its window."""
        return bool(getattr(self._plugin, "sync_with_dataloader", True))

    @property
    def plugin_kwargs(self) -> dict[str, Any]:
        """What the accumulation plugin was given."""
        return {} if self._plugin is None else dict(self._plugin.to_kwargs())

    @property
    def is_xla_gradients_synced(self) -> bool:
        """Whether gradients were reduced on XLA; there is none here."""
        return False

    @property
    def active_dataloader(self) -> Any:
        """The loader whose batch was given out last, while its loop goes on."""
        one = self._walk
        return None if one is None else one.loader

    @property
    def dataloader_references(self) -> list[Any]:
        """The loaders that are being iterated, the newest last; None for outside of them all."""
        return [None, *(one.loader for one in self._clock.passes.active)]

    @property
    def in_dataloader(self) -> bool:
        """Whether a prepared loader is being iterated."""
        return self._walk is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the newest batch is the last of its loader."""
        one = self._walk
        return one is not None and one.is_last

    @property
    def remainder(self) -> int:
        """How many samples the last step of all ranks together has, if it is short.

        0 when it is full, -1 outside of loops and for loaders without a length.
        """
        one = self._walk
        return -1 if one is None else one.loader.remainder

    @property
    def _walk(self) -> Pass | None:
        one: Pass | None = self._clock.passes.current
        return one

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        """Say from outside whether the next step is one; windows then have no say in it."""
        self._clock.drive(sync_gradients)

    def _add_dataloader(self, dataloader: Any) -> None:
        """Loaders say themselves where they are: nothing to do."""

    def _remove_dataloader(self, dataloader: Any) -> None:
        """Loaders say themselves where they are: nothing to do."""

    @staticmethod
    def _reset_state() -> None:
        GradientState._shared_state.clear()
