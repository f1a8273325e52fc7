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
from notebook_accel.config.training import setting_of
from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.events import context
from notebook_accel.ranks.world import World, leave
from notebook_accel.runtime.among_ranks import AmongRanks
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.gradient_state import GradientState
from notebook_accel.runtime.sharing import Plugins, Sharing
from notebook_accel.runtime.shown import not_there, settle, shared_state

# What a topology's face shares with the one that it shows.
_TOPOLOGY = ("_world", "_stop", "_passes", "_pid")


class PartialState(AmongRanks):
    """Which rank this is, and what ranks say to each other, without an Accelerator.

    The first one joins the ranks (``cpu`` and ``group`` as for an Accelerator); later ones show
    what is there. Carried into another process it shows that process's place.

    Ranks: all ranks make the first one together.
    """

    _shared_state: ClassVar[dict[str, Any]] = shared_state()

    def __init__(self, cpu: bool = False, **group: Any) -> None:
        settle()
        self.__dict__ = self._shared_state
        if not self._shared_state:
            group.pop("_from_accelerator", None)
            worker = context.current()
            super().__init__(World.join(cpu, **group), None if worker is None else worker.flags)

    def __getattr__(self, name: str) -> Any:
        # Only reached for what is not there: what somebody probes, or an emptied face.
        if name in _TOPOLOGY and settle() and type(self) is PartialState:
            self.__init__()  # type: ignore[misc]
        if name in self.__dict__:
            return self.__dict__[name]
        raise not_there(self, name)

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


class AcceleratorState(PartialState, Sharing):
    """What a PartialState shows, and the precision of the newest Accelerator.

    Errors: RuntimeMisuse when there is no Accelerator yet; ConfigError (a ValueError) for values
    that are not the Accelerator's.
    """

    _shared_state: ClassVar[dict[str, Any]] = shared_state()

    def __init__(
        self,
        mixed_precision: str | None = None,
        cpu: bool = False,
        dynamo_plugin: Any = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        parallelism_config: Any = None,
        **others: Any,
    ) -> None:
        settle()
        self.__dict__ = self._shared_state
        if not self._shared_state:
            raise RuntimeMisuse(
                "AcceleratorState() before there is an Accelerator",
                "it shows what an Accelerator was given, and decides nothing itself",
                "write accelerator = Accelerator(...) first; accelerator.state is the same",
            )
        if mixed_precision is not None:
            wanted = setting_of("mixed_precision", mixed_precision)
            if wanted != self.mixed_precision:
                raise _other_value("mixed_precision", wanted, self.mixed_precision)
        if cpu and self.device.type != "cpu":
            raise _other_value("cpu", True, f"on {self.device}")
        given = {
            "dynamo_plugin": dynamo_plugin,
            "deepspeed_plugin": deepspeed_plugin,
            "fsdp_plugin": fsdp_plugin,
            "torch_tp_plugin": torch_tp_plugin,
            "megatron_lm_plugin": megatron_lm_plugin,
            "parallelism_config": parallelism_config,
        }
        for name, value in given.items():
            own = getattr(self, name, None)
            if value is not None and value != own:
                raise _other_value(name, value, own)

    def __reduce__(self) -> Any:
        return AcceleratorState, ()

    @property
    def mixed_precision(self) -> str:
        """In what forward passes run: "no", "bf16", "fp16" or "fp8"."""
        return str(self._precision)

    @property
    def dynamo_plugin(self) -> Any:
        """How models are compiled."""
        return self._dynamo

    @property
    def distributed_type(self) -> DistributedType:
        """What kind of ranks these are, or how models lie across them."""
        return self._plugins.kind or super().distributed_type

    @property
    def device_mesh(self) -> None:
        """The mesh of ranks; None, as there is one dimension."""

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        AcceleratorState._shared_state.clear()
        if reset_partial_state:
            PartialState._reset_state()


def faces_of(
    ranks: AmongRanks,
    clock: Clock,
    plugin: Any,
    precision: str,
    dynamo: Any,
    plugins: Plugins,
) -> tuple[AcceleratorState, GradientState]:
    """Make the faces of one Accelerator, and let the shared ones show it while it is the newest."""
    settle()
    topology = {name: getattr(ranks, name) for name in _TOPOLOGY}
    state = AcceleratorState.__new__(AcceleratorState)
    state.__dict__.update(topology, _precision=precision, _dynamo=dynamo, _plugins=plugins)
    gradients = GradientState.__new__(GradientState)
    gradients.__dict__.update(_clock=clock, _plugin=plugin)

    newest = weakref.ref(clock)

    def died(reference: Any) -> None:
        _living.remove(reference)
        if GradientState._shared_state.get("_newest") is newest:
            GradientState._shared_state.clear()
            # One that is being made just now has no faces yet, and shows itself in a moment.
            living: list[Any] = [ref() for ref in _living]
            others = [one for one in living if hasattr(one, "state")]
            if others and others[-1]._pid == os.getpid():
                _show(others[-1].state, others[-1].gradient_state, weakref.ref(others[-1]._clock))

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


def _other_value(name: str, wanted: Any, there: Any) -> ConfigError:
    return ConfigError(
        f"AcceleratorState({name}={wanted!r}), but the newest Accelerator has {there!r}",
        "a state shows what the Accelerator was given; it cannot change it",
        f"make another Accelerator({name}={wanted!r}); both can live side by side",
    )
