"""How DeepSpeed is begun on ranks that are there, and kept from saying what nobody needs."""

from __future__ import annotations

import copy
import gc
import importlib
import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from notebook_accel.config.deepspeed_file import AUTO
from notebook_accel.config.environment import lend, patch_environment
from notebook_accel.config.installed import version_of
from notebook_accel.errors import ConfigError
from notebook_accel.events import context
from notebook_accel.ranks.collectives import map_tensors
from notebook_accel.ranks.world import World, leave_at_exit, when_left
from notebook_accel.strategies.base import Parts, parameters_of
from notebook_accel.strategies.dummies import DummyOptim, DummyScheduler
from notebook_accel.strategies.precision import MixedForward

_LOGGER = "DeepSpeed"
_OLDER_NAMES = ("all_gather_into_tensor", "reduce_scatter_tensor")  # of torch's, which it calls


def deepspeed_on(world: World) -> Any:
    """Import DeepSpeed for the device of ``world``, on its process group.

    Ranks: all ranks call it.
    Errors: ConfigError for one that is too old.
    """
    if not dist.is_initialized():  # alone: DeepSpeed wants a group all the same
        comm = "nccl" if world.device.type == "cuda" else "gloo"
        store: Any = vars(dist)["HashStore"]()  # torch's stubs do not name it
        dist.init_process_group(comm, store=store, rank=0, world_size=1)
        leave_at_exit()
    with quiet(), patch_environment(ds_accelerator=world.device.type):
        import deepspeed
        from deepspeed.ops import __compatible_ops__

        if not hasattr(deepspeed.DeepSpeedEngine, "managed_gradient_accumulation"):
            raise ConfigError(
                f"deepspeed {version_of('deepspeed')} is installed",
                "its engine cannot be told when a window of micro-batches is over",
                "pip install 'notebook-accel[deepspeed]', which is 0.19.8 or newer",
            )
        if world.device.type == "cpu":
            # It sums no gradients, and the first run would compile it for more than a minute.
            __compatible_ops__["deepspeed_shm_comm"] = False
            # It asks for fp16 in hardware; torch computes in it on every CPU.
            deepspeed.get_accelerator().is_fp16_supported = lambda: True
        _forget_other_groups(deepspeed)
        deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)
    # It looks there for the number of this rank's device, also in forward passes.
    device = world.placement.local_rank if world.device.index is None else world.device.index
    take_back, worker = lend("LOCAL_RANK", device), context.current()
    if worker is None:
        when_left(take_back)
    else:
        worker.at_exit.append(take_back)
    for name in _OLDER_NAMES:
        warnings.filterwarnings("ignore", rf".*torch\.distributed\.{name}.* is deprecated")
    return deepspeed


def _forget_other_groups(deepspeed: Any) -> None:
    """Let DeepSpeed forget the process group of a run before, in this process or its parent."""
    comm, groups = deepspeed.comm.comm, deepspeed.utils.groups
    mine = os.getpid(), dist.group.WORLD
    if _known and _known[0] != mine:
        if _known[0][0] != mine[0]:
            # In a fork the end of its parent's groups would wait for threads that are not there.
            _inherited.append((_known[0], comm.cdb, dict(vars(groups))))
        comm.cdb = None
        importlib.reload(groups)
        gc.collect()  # a group must end before the next fork
    _known[:] = [mine]


_known: list[tuple[int, Any]] = []  # the process and its group that DeepSpeed knows
_inherited: list[Any] = []


def paired(parts: Parts) -> list[Optimizer | None]:
    """Give for each model the optimizer that trains it; None where nobody does.

    Errors: ConfigError for an optimizer without its model, and for two of one model.
    """
    owner = {id(one): i for i, model in enumerate(parts.models) for one in model.parameters()}
    pairs: list[Optimizer | None] = [None] * len(parts.models)
    for optimizer in parts.optimizers:
        owners = {owner.get(id(one)) for one in parameters_of(optimizer)}
        index = owners.pop() if len(owners) == 1 else None
        if index is None or pairs[index] is not None:
            raise ConfigError(
                f"prepare() got {type(optimizer).__name__} without the one model that it trains",
                "DeepSpeed takes a model and its optimizer together, one of each",
                "write model, optimizer = accelerator.prepare(model, optimizer), in one call",
            )
        pairs[index] = optimizer
    return pairs


def initialized(
    deepspeed: Any,
    model: nn.Module,
    optimizer: Optimizer | None,
    config: dict[str, Any],
    asked: Mapping[str, Any],
) -> tuple[Any, Optimizer | None]:
    """Give ``model`` and ``optimizer`` into DeepSpeed's hands; gives its engine, and who steps.

    Without an optimizer the model only answers.

    Errors: ConfigError where the configuration and ``optimizer`` do not fit.
    """
    section = asked.get("optimizer")
    given: dict[str, Any] = {"optimizer": optimizer}
    if optimizer is None:
        given = {}
    elif isinstance(optimizer, DummyOptim):
        own = _optimizer_section(section, optimizer)
        on_cpu = deepspeed.accelerator.get_accelerator().device_name() == "cpu"
        if on_cpu and str(own.get("type")).lower() in ("adam", "adamw"):
            # Of its own Adam the first run would compile a part, for more than a minute.
            own["params"].setdefault("torch_adam", True)
        config = {**config, "optimizer": own}
        given = {"model_parameters": optimizer.param_groups}
    elif section is not None:
        raise ConfigError(
            f"DeepSpeed's configuration has an optimizer, and prepare() got "
            f"{type(optimizer).__name__}",
            "one model can only be trained by one of them",
            "take the section out of the configuration, or prepare DummyOptim(model.parameters())",
        )
    with quiet(), redirect_stdout(io.StringIO()):  # it prints memory statistics
        try:
            engine = deepspeed.initialize(
                model=model, config=config, dist_init_required=False, **given
            )[0]
        except (AssertionError, ValueError, NotImplementedError) as reason:
            raise ConfigError(
                f"DeepSpeed refuses this configuration: {_first_lines(reason)}",
                "it was asked for ZeRO stage "
                f"{config['zero_optimization']['stage']} of {type(model).__name__}",
                "change what it names in the configuration",
            ) from reason
    return engine, None if optimizer is None else engine.basic_optimizer


def width_of(model: nn.Module) -> int | None:
    """Give the width of a model that says it, as transformers' do."""
    config = getattr(model, "config", None)
    for owner in (config, getattr(config, "text_config", None)):
        sizes = getattr(owner, "hidden_sizes", None)
        width = max(sizes) if sizes else getattr(owner, "hidden_size", None)
        if isinstance(width, int):
            return width
    return None


def _first_lines(reason: Exception) -> str:
    return " ".join(str(reason).split())[:300]


def _optimizer_section(section: Mapping[str, Any] | None, dummy: DummyOptim) -> dict[str, Any]:
    if section is None:
        raise ConfigError(
            "prepare() got a DummyOptim, and DeepSpeed's configuration has no optimizer",
            "it stands for the one that is described there",
            'write "optimizer": {"type": "AdamW", "params": {"lr": "auto"}} into the '
            "configuration, or prepare an optimizer of torch.optim",
        )
    whole = copy.deepcopy(dict(section))
    parameters = whole.setdefault("params", {})
    for name, value in {"lr": dummy.lr, "weight_decay": dummy.weight_decay}.items():
        if parameters.get(name) == AUTO:
            parameters[name] = value
    for name, value in list(parameters.items()):
        if value == AUTO:
            del parameters[name]  # the optimizer's own default
    return whole


def made_scheduler(
    dummy: DummyScheduler, optimizer: Optimizer | None, asked: Mapping[str, Any]
) -> Any:
    """Make the scheduler that ``dummy`` stands for.

    Errors: ConfigError if nobody describes one, or DeepSpeed has none of its name.
    """
    if optimizer is None:
        raise ConfigError(
            "prepare() got a DummyScheduler without its optimizer",
            "a schedule moves the learning rates of an optimizer",
            "write accelerator.prepare(model, optimizer, scheduler), in one call",
        )
    if dummy.lr_scheduler_callable is not None:
        return dummy.lr_scheduler_callable(optimizer)
    section = asked.get("scheduler")
    if section is None:
        raise ConfigError(
            "prepare() got a DummyScheduler, and DeepSpeed's configuration has no scheduler",
            "it stands for the one that is described there",
            'write "scheduler": {"type": "WarmupLR", "params": {...}} into the configuration, or '
            "prepare a scheduler of torch.optim.lr_scheduler",
        )
    from deepspeed.runtime import lr_schedules

    known = lr_schedules.VALID_LR_SCHEDULES
    if section.get("type") not in known:
        raise ConfigError(
            f"DeepSpeed has no scheduler {section.get('type')!r}",
            "it has " + ", ".join(known),
            "write one of them as scheduler.type",
        )
    parameters = dict(section.get("params", {}))
    fillings = {
        "warmup_min_lr": 0,
        "warmup_max_lr": max(group["lr"] for group in optimizer.param_groups),
        "warmup_num_steps": dummy.warmup_num_steps,
        "total_num_steps": dummy.total_num_steps,
    }
    for name, value in list(parameters.items()):
        if value == AUTO and fillings.get(name) is None:
            raise ConfigError(
                f'DeepSpeed\'s configuration has scheduler.params.{name}="auto"',
                "nothing in the run says what it should be",
                f"write a value there, or DummyScheduler(optimizer, {name}=...)",
            )
        parameters[name] = fillings[name] if value == AUTO else value
    with quiet():  # it warns of its own first look at the rate
        return getattr(lr_schedules, section["type"])(optimizer, **parameters)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep DeepSpeed's lines about its own start out of the run; its errors are errors."""
    logger = logging.getLogger(_LOGGER)
    before = logger.level or logging.WARNING
    if before >= logging.WARNING:  # nobody wants to read all
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(before)


class CastForward(MixedForward):
    """A forward whose floating inputs come in the compute dtype, as parameters are in it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward in the compute dtype."""
        args, kwargs = map_tensors(self._cast, (args, kwargs))
        return super().__call__(*args, **kwargs)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.precision.dtype) if tensor.is_floating_point() else tensor
