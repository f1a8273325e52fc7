"""Settings that go through to torch by a name of their own: Accelerate's kwargs handlers.

Each is plain data and knows nothing of torch; whoever makes the torch object asks for the fields
that a person changed (``to_kwargs``), so that torch's own defaults stay torch's.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, TypeVar

from notebook_accel.config.adoption import adopt
from notebook_accel.config.fields import check_count, check_kinds, check_positive
from notebook_accel.config.gradient_hooks import sent_as
from notebook_accel.config.kinds import WordEnum
from notebook_accel.config.wishes import DDP, Strategy, check_ddp
from notebook_accel.config.words import kind_of
from notebook_accel.errors import ConfigError

Handler = TypeVar("Handler", bound="KwargsHandler")


@dataclass
class KwargsHandler:
    """What every handler is: fields, of which the changed ones are passed on.

    Errors: ConfigError for a field that is not what it is declared.
    """

    def __post_init__(self) -> None:
        check_kinds(self)

    def to_dict(self) -> dict[str, Any]:
        """Give all fields by name, as copies."""
        return {one.name: copy.deepcopy(getattr(self, one.name)) for one in fields(self)}

    def to_kwargs(self) -> dict[str, Any]:
        """Give the fields that differ from their defaults, by name."""
        usual = type(self)().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != usual[name]}


@dataclass
class AutocastKwargs(KwargsHandler):
    """How forward passes are cast under mixed precision.

    Source: torch.autocast, whose arguments these are.
    """

    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass
class GradScalerKwargs(KwargsHandler):
    """How the loss scale of fp16 starts and moves.

    Source: torch.amp.GradScaler, whose arguments these are.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True

    def __post_init__(self) -> None:
        check_positive("GradScalerKwargs", "init_scale", self.init_scale, "what losses start with")
        check_count("GradScalerKwargs", "growth_interval", self.growth_interval)
        super().__post_init__()
        for name, is_right, when, example in (
            ("growth_factor", self.growth_factor > 1, "steps that were finite", 2.0),
            ("backoff_factor", 0 < self.backoff_factor < 1, "a step that was not finite", 0.5),
        ):
            if not is_right:
                raise ConfigError(
                    f"GradScalerKwargs({name}={getattr(self, name)!r})",
                    f"the scale is multiplied by it after {when}",
                    f"write {name}={example}, or leave it out",
                )


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """How the process group is made, by the first Accelerator of a process.

    Units: ``timeout`` is a timedelta, or a number of seconds; None leaves it to torch.
    Errors: ConfigError for a timeout that is neither, or not above zero.
    Source: torch.distributed.init_process_group, whose arguments these are.
    """

    backend: str | None = None
    init_method: str | None = None
    timeout: timedelta | float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.timeout = _duration(self.timeout)


class DDPCommunicationHookType(WordEnum):
    """In what form DistributedDataParallel sends gradients to the other ranks."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """How gradients are averaged by DistributedDataParallel, and in what form they travel.

    ``comm_hook`` is one of DDPCommunicationHookType, ``comm_wrapper`` "fp16" or "bf16" sends what a
    PowerSGD hook makes in that type; ``comm_state_option`` are arguments of its ``PowerSGDState``.

    Errors: ConfigError for an unknown hook.
    Source: torch.nn.parallel.DistributedDataParallel; Vogels et al. 2019, "PowerSGD".
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: float = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: str = DDPCommunicationHookType.NO
    comm_wrapper: str = DDPCommunicationHookType.NO
    comm_state_option: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_ddp(self)
        self.comm_hook = DDPCommunicationHookType(self.comm_hook)
        self.comm_wrapper = DDPCommunicationHookType(self.comm_wrapper)

    def to_kwargs(self) -> dict[str, Any]:
        """Give the fields that differ from their defaults, as DistributedDataParallel takes them.

        The hook is not among them: it is registered on the wrapped model.
        """
        ours = ("comm_hook", "comm_wrapper", "comm_state_option")
        return {name: value for name, value in super().to_kwargs().items() if name not in ours}

    def to_wish(self) -> DDP:
        """Give the strategy that these settings ask for."""
        hooks: dict[str, Any] = {
            "comm_hook": str(self.comm_hook),
            "comm_wrapper": str(self.comm_wrapper),
            "comm_state_option": dict(self.comm_state_option),
        }
        return DDP(**self.to_kwargs(), **hooks)

    def register_comm_hook(self, model: Any) -> None:
        """Let a DistributedDataParallel model of your own send its gradients in this form.

        ``prepare`` does it for those that it wraps.
        """
        hook = str(self.comm_hook), str(self.comm_wrapper), self.comm_state_option
        _worker_side("strategies.gradient_hooks", "compress_gradients")(model, *hook)


@dataclass
class ProfileKwargs(KwargsHandler):
    """What ``accelerator.profile()`` records, and where it writes the trace.

    ``activities`` are names ("cpu", "cuda", ...), None for the CPU and the device of this rank;
    ``schedule_option`` are arguments of ``torch.profiler.schedule`` (then call ``step()`` on the
    profiler each step). Each rank writes ``profile_{rank}.json`` into ``output_trace_dir``.

    Source: torch.profiler.profile, whose arguments these are.
    """

    activities: list[str] | None = None
    schedule_option: dict[str, int] | None = None
    on_trace_ready: Callable[..., Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None

    def build(self) -> Any:
        """Make torch's profiler of these settings, for use outside ``accelerator.profile()``."""
        return _worker_side("runtime.profiling", "build_profiler")(self)


@dataclass(frozen=True)
class Handlers:
    """The handlers of one Accelerator, at most one of a kind."""

    given: tuple[KwargsHandler, ...] = ()

    @staticmethod
    def of(handlers: Iterable[Any] | KwargsHandler | None) -> Handlers:
        """Check what a person gave as ``kwargs_handlers``: several, or one by itself.

        Errors: ConfigError for what is no handler, and for two of a kind.
        """
        found: dict[type, KwargsHandler] = {}
        kinds = {kind.__name__: kind for kind in KwargsHandler.__subclasses__()}
        if not isinstance(handlers, Iterable):
            handlers = () if handlers is None else (handlers,)
        for given in handlers:
            one = adopt(given, kinds.get(type(given).__name__, KwargsHandler))
            if not isinstance(one, KwargsHandler):
                raise ConfigError(
                    f"kwargs_handlers has {one!r}, which is no handler",
                    "each entry is a KwargsHandler: AutocastKwargs, GradScalerKwargs, ...",
                    "write kwargs_handlers=[DistributedDataParallelKwargs(...)]",
                )
            if type(one) in found:
                raise ConfigError(
                    f"kwargs_handlers has two {type(one).__name__}",
                    "nobody could say which of them counts",
                    "put the settings of both into one",
                )
            found[type(one)] = one
        return Handlers(tuple(found.values()))

    def find(self, kind: type[Handler]) -> Handler | None:
        """Give the handler of ``kind``, if there is one."""
        for one in self.given:
            if isinstance(one, kind):
                return one
        return None

    def kwargs(self, kind: type[KwargsHandler]) -> dict[str, Any]:
        """Give the changed fields of the handler of ``kind``; nothing without one."""
        one = self.find(kind)
        return {} if one is None else one.to_kwargs()

    def strategy(self, given: Strategy | None) -> Strategy | None:
        """Give the strategy asked for, with what DistributedDataParallelKwargs say of gradients.

        Errors: ConfigError for DDP that is asked for twice, and for gradients that cannot so.
        """
        ddp = self.find(DistributedDataParallelKwargs)
        if ddp is None:
            return given
        if given is not None and not isinstance(given, DDP):
            return sent_as(given, ddp.to_wish())
        if given is not None:
            raise ConfigError(
                f"strategy={given!r} and DistributedDataParallelKwargs are both given",
                "both say how gradients meet, and nobody could say which of them counts",
                "write the settings into strategy=DDP(...), or leave strategy out",
            )
        return ddp.to_wish()


def _worker_side(module: str, name: str) -> Callable[..., Any]:
    """Enter by name where torch is: a handler itself is plain data."""
    found: Callable[..., Any] = getattr(importlib.import_module(f"notebook_accel.{module}"), name)
    return found


def _duration(given: Any) -> timedelta | None:
    value = given
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        value = timedelta(seconds=value)
    if value is None or (isinstance(value, timedelta) and value > timedelta(0)):
        return value
    wrong = "not above zero" if isinstance(value, timedelta) else kind_of(value)
    raise ConfigError(
        f"timeout={given!r} is {wrong}",
        "a collective that waits longer than this time ends the run",
        "write a number of seconds, or datetime.timedelta(minutes=30)",
    )
