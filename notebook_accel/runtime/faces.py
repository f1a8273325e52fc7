"""What Accelerate calls states: PartialState, AcceleratorState, GradientState, as faces.

Nothing is decided by them. They show the newest Accelerator's parts, or the topology alone before
there is one; ``accelerator.state`` and ``accelerator.gradient_state`` show that accelerator's own.
All instances of a class share one real dict, ``_shared_state``, empty until there is something to
show; ``_reset_state`` empties it and touches nothing that it showed.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, ClassVar

import torch

from notebook_accel.config.kinds import DistributedType
from notebook_accel.config.training import mixed_precision as read_precision
from notebook_accel.data.loader import Pass, Passes
from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.events import context
from notebook_accel.ranks.world import World, leave
from notebook_accel.runtime.among_ranks import AmongRanks
from notebook_accel.runtime.clock import Clock

# What a topology's face shares with the one that it shows.
_TOPOLOGY = ("_world", "_stop", "_passes", "_pid")


class PartialState(AmongRanks):
    """Which rank this is, and what ranks say to each other, without an Accelerator.

    The first one joins the ranks (``cpu`` and ``group`` as for an Accelerator); later ones show
    what is there. Carried into another process it shows that process's place.

    Ranks: all ranks make the first one together.
    """

    _shared_state: ClassVar[dict[str, Any]] = {}

    def __init__(self, cpu: bool = False, **group: Any) -> None:
        self.__dict__ = self._shared_state
        if not self._shared_state:
            group.pop("_from_accelerator", None)
            worker = context.current()
            super().__init__(World.join(cpu, **group), None if worker is None else worker.flags)

    def __getattr__(self, name: str) -> Any:
        # Only reached for what is not there: what somebody probes, or an emptied face.
        if name in _TOPOLOGY and type(self) is PartialState and _Fork.happened:
            _Fork.happened = False
            self.__init__()  # type: ignore[misc]
            return self.__dict__[name]
        raise _not_there(self, name)

    def __reduce__(self) -> Any:
        return PartialState, ()

    def __repr__(self) -> str:
        if not self.initialized:
            return f"{type(self).__name__}()"
        return (
            f"{self.distributed_type}: process {self.process_index} of {self.num_processes} "
            f"(local {self.local_process_index}) on {self.device}, backend {self.backend}"
        )

    @property
    def initialized(self) -> bool:
        """Whether there is something to show."""
        return "_world" in self.__dict__

    @property
    def backend(self) -> str | None:
        """The collective library, "gloo" or "nccl"; None for a world of one."""
        return self._world.placement.comm

    @property
    def distributed_type(self) -> DistributedType:
        """What kind of ranks these are."""
        return kind_of_ranks(self._world)

    @property
    def use_distributed(self) -> bool:
        """Whether there are several ranks."""
        return self._world.size > 1

    @property
    def default_device(self) -> torch.device:
        """What a process computes on that nobody placed."""
        return torch.accelerator.current_accelerator() or torch.device("cpu")

    @property
    def fork_launched(self) -> bool:
        """Whether a launcher started this process from a notebook or script."""
        return context.current() is not None

    @property
    def debug(self) -> bool:
        """Whether collectives check shapes before they talk."""
        return self._world.checks

    def set_device(self) -> None:
        """Make this rank's device torch's current one; it already is, since the ranks joined."""
        if self._world.device.type == "cuda":
            torch.cuda.set_device(self._world.device)

    def destroy_process_group(self, group: Any = None) -> None:
        """Leave the process group (or ``group``); nothing is left in a world of one.

        Ranks: all ranks call it, at the end.
        """
        if group is None:
            leave()
        elif torch.distributed.is_initialized():
            torch.distributed.destroy_process_group(group)

    @staticmethod
    def _reset_state() -> None:
        PartialState._shared_state.clear()


class AcceleratorState(PartialState):
    """What a PartialState shows, and the precision of the newest Accelerator.

    Errors: RuntimeMisuse when there is no Accelerator yet; ConfigError (a ValueError) for values
    that are not the Accelerator's.
    """

    _shared_state: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        mixed_precision: str | None = None,
        cpu: bool = False,
        dynamo_plugin: Any = None,
        **others: Any,
    ) -> None:
        self.__dict__ = self._shared_state
        if not self._shared_state:
            raise RuntimeMisuse(
                "AcceleratorState() before there is an Accelerator.",
                "it shows what an Accelerator was given, and decides nothing itself.",
                "write accelerator = Accelerator(...) first; accelerator.state is the same.",
            )
        if mixed_precision is not None:
            wanted = read_precision(mixed_precision, {})
            if wanted != self.mixed_precision:
                raise _other_value("mixed_precision", wanted, self.mixed_precision)
        if cpu and self.device.type != "cpu":
            raise _other_value("cpu", True, f"on {self.device}")

    def __reduce__(self) -> Any:
        return AcceleratorState, ()

    @property
    def mixed_precision(self) -> str:
        """In what forward passes run: "no", "bf16" or "fp16"."""
        return str(self._precision)

    @property
    def dynamo_plugin(self) -> Any:
        """How models are compiled."""
        return self._dynamo

    @property
    def fsdp_plugin(self) -> None:
        """How models are sharded; None, as they are not."""

    @property
    def deepspeed_plugin(self) -> None:
        """How DeepSpeed trains; None, as it does not."""

    @property
    def parallelism_config(self) -> None:
        """How ranks are laid out over several dimensions; None, as they are not."""

    @property
    def device_mesh(self) -> None:
        """The mesh of ranks; None, as there is one dimension."""

    @property
    def is_fsdp2(self) -> bool:
        """Whether models are sharded by FSDP2."""
        return False

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        AcceleratorState._shared_state.clear()
        if reset_partial_state:
            PartialState._reset_state()


class GradientState:
    """Where accumulation is: the newest Accelerator's clock, or one of its own before that."""

    _shared_state: ClassVar[dict[str, Any]] = {}

    def __init__(self, gradient_accumulation_plugin: Any = None) -> None:
        self.__dict__ = self._shared_state
        if not self._shared_state:
            steps = getattr(gradient_accumulation_plugin, "num_steps", None) or 1
            clock = Clock(steps, Passes())
            self._shared_state.update(_clock=clock, _plugin=gradient_accumulation_plugin)

    def __getattr__(self, name: str) -> Any:
        # The shared face does not keep an Accelerator, and with it the models, alive.
        clock = self._newest() if name == "_clock" and "_newest" in self.__dict__ else None
        if clock is None:
            raise _not_there(self, name)
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
        return -1 if one is None else _remainder(one)

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


def faces_of(
    ranks: AmongRanks, clock: Clock, plugin: Any, precision: str, dynamo: Any
) -> tuple[AcceleratorState, GradientState]:
    """Make the faces of one Accelerator, and let the shared ones show it while it is the newest."""
    topology = {name: getattr(ranks, name) for name in _TOPOLOGY}
    state = AcceleratorState.__new__(AcceleratorState)
    state.__dict__.update(topology, _precision=precision, _dynamo=dynamo)
    gradients = GradientState.__new__(GradientState)
    gradients.__dict__.update(_clock=clock, _plugin=plugin)

    newest = weakref.ref(clock)

    def died(reference: Any) -> None:
        if reference in _living:  # not so in a process forked off the Accelerator's
            _living.remove(reference)
        if GradientState._shared_state.get("_newest") is newest:
            GradientState._shared_state.clear()
            before = _living[-1]() if _living else None
            if before is not None:
                _show(before.state, before.gradient_state, weakref.ref(before._clock))

    _living.append(weakref.ref(ranks, died))
    _show(state, gradients, newest)
    return state, gradients


_living: list[weakref.ref[Any]] = []  # Accelerators, the newest last


def _show(state: AcceleratorState, gradients: GradientState, newest: weakref.ref[Clock]) -> None:
    PartialState._shared_state.update({name: state.__dict__[name] for name in _TOPOLOGY})
    AcceleratorState._shared_state.update(state.__dict__)
    GradientState._shared_state.pop("_clock", None)
    GradientState._shared_state.update(_newest=newest, _plugin=gradients.__dict__["_plugin"])


def kind_of_ranks(world: World) -> DistributedType:
    """Say what kind of ranks ``world`` has, in Accelerate's words."""
    if world.size == 1:
        return DistributedType.NO
    kind = "GPU" if world.device.type == "cuda" else world.device.type.upper()
    return DistributedType(f"MULTI_{kind}")


def _remainder(one: Pass) -> int:
    try:
        num_samples = len(one.loader.source.dataset)  # type: ignore[arg-type]
    except TypeError:
        return -1
    rows = one.loader.source.batch_size or 1
    readers = 1 if one.share is None else len(one.share.rows)
    return num_samples % (rows * readers)


class _Fork:
    """Whether this process was forked off one that was no rank, whose place it does not share."""

    happened = False


def _after_fork() -> None:
    if context.current() is None and not torch.distributed.is_initialized():
        for face in (PartialState, AcceleratorState, GradientState):
            face._shared_state.clear()
        _living.clear()
        _Fork.happened = True


# A launched worker is forked off the kernel, and what the kernel's faces showed is not its place.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _not_there(face: Any, name: str) -> AttributeError:
    kind = type(face).__name__
    if not face.__dict__ and not name.startswith("__"):
        return AttributeError(
            f"This {kind} shows nothing.\n"
            f"  why: {kind}._reset_state() emptied it, or it is another process's.\n"
            f"  do:  make an Accelerator (or {kind}() anew) before reading it."
        )
    return AttributeError(f"{kind!r} object has no attribute {name!r}")


def _other_value(name: str, wanted: Any, there: Any) -> ConfigError:
    return ConfigError(
        f"AcceleratorState({name}={wanted!r}), but the newest Accelerator has {there!r}.",
        "a state shows what the Accelerator was given; it cannot change it.",
        f"make another Accelerator({name}={wanted!r}); both can live side by side.",
    )
