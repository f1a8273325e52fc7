"""The Accelerator: what a training loop holds in its hand. It delegates and decides nothing.

argument > launch > environment        World.join()
              │                            │
              └────────▶ build(wish, world, precision) ─▶ Engine
                                                           │
loader ─ Passes ─▶ Clock ─▶ dressed optimizer ─ step ──────┘
                                 │
                                 └─ after each step: clock, live events, stop agreement
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from notebook_accel.config import training
from notebook_accel.config.accumulation import GradientAccumulationPlugin, chosen_accumulation
from notebook_accel.config.adoption import adopted
from notebook_accel.config.dynamo import TorchDynamoPlugin, chosen_plugin
from notebook_accel.config.fields import check_switches
from notebook_accel.config.fp8 import chosen_recipe
from notebook_accel.config.handlers import (
    AutocastKwargs,
    GradScalerKwargs,
    Handlers,
    InitProcessGroupKwargs,
    KwargsHandler,
)
from notebook_accel.config.loading import DataLoaderConfiguration
from notebook_accel.config.misuse import needs
from notebook_accel.config.parallelism import ParallelismConfig
from notebook_accel.config.project import ProjectConfiguration
from notebook_accel.config.strategy import Ways, chosen_strategy, settled
from notebook_accel.config.wishes import Strategy
from notebook_accel.data.loader import cannot_travel
from notebook_accel.errors import ConfigError
from notebook_accel.events import context
from notebook_accel.ranks.world import World
from notebook_accel.runtime.accumulation import Accumulation, Seed, models_of
from notebook_accel.runtime.among_ranks import AmongRanks
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.explain import Explaining
from notebook_accel.runtime.faces import faces_of
from notebook_accel.runtime.feeding import Feeding
from notebook_accel.runtime.guards import Guards
from notebook_accel.runtime.keeping import Keeping
from notebook_accel.runtime.live import live_events
from notebook_accel.runtime.memory import clear_device_cache
from notebook_accel.runtime.normalizing import Normalizing
from notebook_accel.runtime.prepare import Wardrobe
from notebook_accel.runtime.profiling import Profiling
from notebook_accel.runtime.recording import Recording
from notebook_accel.runtime.sharing import Plugins
from notebook_accel.runtime.showing import Showing
from notebook_accel.runtime.stepping import Stepping
from notebook_accel.runtime.uncaught import leave_our_frames_out
from notebook_accel.strategies.compiled import known_compiler
from notebook_accel.strategies.precision import Precision
from notebook_accel.strategies.registry import build

_NO_GRAPH = "gradients are computed back through the operations that made the loss tensor"


class Accelerator(
    AmongRanks, Feeding, Showing, Explaining, Keeping, Profiling, Recording, Normalizing, Stepping
):
    """Makes an ordinary training loop run on whatever there is: one process or many.

    ``mixed_precision`` is "no", "bf16", "fp16" or "fp8"; ``gradient_accumulation_steps`` counts the
    micro-batches of one optimizer step. Left out, they are what the launch or the environment
    says. ``cpu`` keeps to the CPU; ``device_placement=False`` leaves models and batches where
    they are. ``strategy`` is a wish of ``config.wishes``; ``kwargs_handlers`` go through to torch.
    A prepared scheduler steps once a rank at each update, as schedules counted in one process's
    batches need it; ``schedule_in_updates`` makes it one step an update on any number of ranks.
    ``log_with`` names trackers ("jsonl", "tensorboard", "wandb", ..., "all") or holds them;
    ``project_dir`` or ``project_config`` say where files go. ``dynamo_backend`` or
    ``dynamo_plugin`` compile prepared models. ``dataloader_config`` says how loaders read
    (``split_batches`` is a short form of its field), ``rng_types`` which random numbers ranks share
    at the start of each pass.

    Ranks: every rank makes one; several Accelerators of one process do not touch each other.
    Errors: ConfigError for values that cannot be; NotHere for what no part of this package does.
    """

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool | None = None,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int | None = None,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        rng_types: Iterable[Any] | None = None,
        log_with: Any = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Iterable[KwargsHandler] | None = None,
        dynamo_backend: Any = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        deepspeed_plugins: Any = None,
        parallelism_config: ParallelismConfig | None = None,
        *,
        strategy: Strategy | str | None = None,
        schedule_in_updates: bool = False,
    ) -> None:
        leave_our_frames_out()
        check_switches("Accelerator", cpu=cpu, device_placement=device_placement)
        plugins = {
            "fsdp_plugin": fsdp_plugin,
            "deepspeed_plugin": deepspeed_plugin,
            "deepspeed_plugins": deepspeed_plugins,
            "megatron_lm_plugin": megatron_lm_plugin,
            "torch_tp_plugin": torch_tp_plugin,
        }
        worker = context.current()
        launch = {} if worker is None else worker.settings
        plugin = chosen_accumulation(gradient_accumulation_plugin, gradient_accumulation_steps)
        asked = training.settings_of(
            launch, mixed_precision=mixed_precision, gradient_accumulation_steps=plugin.num_steps
        )
        flags = None if worker is None else worker.flags
        self._handlers = Handlers.of(kwargs_handlers)
        self._dynamo = known_compiler(chosen_plugin(dynamo_backend, dynamo_plugin))
        super().__init__(World.join(cpu, **self._handlers.kwargs(InitProcessGroupKwargs)), flags)
        self.device_placement = device_placement
        self._choose_loading(dataloader_config, split_batches, rng_types)
        ways = Ways(strategy, plugins, parallelism_config, launch.get("wish"))
        chosen = chosen_strategy(ways, self._handlers, asked, self._world.size)
        asked = settled(asked, chosen.wish)
        precision, num_steps = str(asked.mixed_precision), asked.gradient_accumulation_steps
        numbers = Precision(
            precision,
            self._world.device,
            scaler=self._handlers.kwargs(GradScalerKwargs),
            cast=self._handlers.kwargs(AutocastKwargs),
            recipe=chosen_recipe(self._handlers, asked),
        )
        self._engine = build(chosen.wish, self._world, numbers)
        self._readers, self._joined = self._engine.layout.readers, self._engine.joined
        self._clock, self._seed = Clock(num_steps, self._passes, plugin), Seed()
        self._wardrobe = Wardrobe(
            self._engine,
            self._clock,
            self._passes,
            self._after_step,
            step_scheduler_with_optimizer,
            schedule_in_updates or self.split_batches,
            self.dataloader_config,
            self.rng_types,
        )
        self._guards = Guards(self._world, self._engine, self._clock)
        project = adopted("project_config", project_config, ProjectConfiguration)
        self.project_configuration = project or ProjectConfiguration()
        if project_dir is not None and self.project_configuration.project_dir is None:
            self.project_configuration.set_directories(project_dir)
        self._begin_keeping()
        self._choose_trackers(log_with)
        self._plugins = Plugins(self._engine.kind, chosen.plugin, chosen.axes, self._engine.follow)
        faces = faces_of(self, self._clock, plugin, precision, self._dynamo, self._plugins)
        self.state, self.gradient_state = faces
        self._live = live_events(self._engine.layout, self._world, self._wardrobe)
        if worker is not None and self._live is not None:
            worker.at_exit.append(self._live.finish)
            worker.salvage.append(self._salvage)

    @property
    def mixed_precision(self) -> str:
        """In what forward passes run: "no", "bf16", "fp16" or "fp8"."""
        return self._engine.precision.name

    @property
    def gradient_accumulation_steps(self) -> int:
        """How many micro-batches make one optimizer step; a change counts from the next window."""
        return self._clock.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self._clock.num_steps = training.setting_of("gradient_accumulation_steps", value)

    @property
    def sync_gradients(self) -> bool:
        """Whether this micro-batch closes its window: gradients meet and optimizers step."""
        return self._clock.sync

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.gradient_state._set_sync_gradients(value)

    def prepare(self, *objects: Any, device_placement: list[bool] | None = None) -> Any:
        """Make models, optimizers, schedulers and loaders work together on every rank.

        Gives one object for one, a tuple in the same order for several; anything else comes back
        as it is. ``device_placement`` says for each object whether to move it.

        Ranks: all ranks call it with the same kinds of objects in the same order.
        """
        self._check_process()
        if device_placement is None:
            device_placement = [self.device_placement] * len(objects)
        if len(device_placement) != len(objects):
            raise ConfigError(
                f"device_placement has {len(device_placement)} entries for {len(objects)} objects",
                "it says for each object of prepare() whether to move it to the device",
                "give one True or False an object, or leave it out",
            )
        dressed = self._wardrobe.dress(objects, device_placement)
        for one in dressed:
            self._compile(one)
        self._guards.prepared(objects, dressed, self._wardrobe)
        return dressed[0] if len(dressed) == 1 else tuple(dressed)

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Prepare one model; ``evaluation_mode`` skips what only training needs.

        Ranks: all ranks call it.
        """
        self._check_process()
        put = self.device_placement if device_placement is None else device_placement
        if evaluation_mode:
            return self._compile(self._engine.place_for_evaluation(model, put))
        prepared: nn.Module = self.prepare(model, device_placement=[put])
        return prepared

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        """Prepare one optimizer."""
        put = self.device_placement if device_placement is None else device_placement
        return self.prepare(optimizer, device_placement=[put])

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Prepare one scheduler, after its optimizer."""
        return self.prepare(scheduler)

    def prepare_data_loader(
        self,
        data_loader: Any,
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Any = None,
    ) -> Any:
        """Prepare one loader; ``slice_fn_for_dispatch`` is not needed: no batch is ever cut."""
        put = self.device_placement if device_placement is None else device_placement
        return self.prepare(data_loader, device_placement=[put])

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients of ``loss``, weighted by the accumulation window.

        In a launched run this is also where the live curve gets the loss, as it is given here.

        Ranks: all ranks call it for the micro-batch that closes a window.
        """
        if self._pid != os.getpid():
            self._check_process()
        if not isinstance(loss, Tensor):
            needs(Tensor, loss, "backward()", _NO_GRAPH, "pass the loss itself, not loss.item()")
        if self._live is not None:
            self._live.note(loss, sys._getframe(1))
        self._guards.backward()
        divisor = self._clock.backward()
        if divisor != 1 and (kwargs or loss.dim()):
            loss = loss / divisor
        elif divisor != 1:  # the same number, without a division and its backward
            kwargs["gradient"] = self._seed.of(loss, divisor)
        self._engine.backward(loss, **kwargs)

    def accumulate(self, *models: nn.Module | Sequence[nn.Module]) -> Accumulation:
        """Count one micro-batch for ``models``, one by one or in a list, inside the block.

        Until the window is full, gradients stay on their rank and optimizers do not step.

        Ranks: all ranks enter it for each batch.
        Errors: RuntimeMisuse for what is no model.
        """
        return Accumulation(self._clock, self._engine, models_of(models))

    def no_sync(self, model: nn.Module) -> Any:
        """Keep the gradients of backward passes inside the block on their rank."""
        return self._engine.no_sync(model)

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> Any:
        """Run code outside a prepared model in this precision, inside the block."""
        handler = {} if autocast_handler is None else autocast_handler.to_kwargs()
        return self._engine.autocast(**handler)

    def upcast_outputs(self, model: nn.Module, upcast: bool = True) -> None:
        """Say whether ``model``'s half-precision outputs are made float32, as they are at first.

        Without it they stay in the compute dtype: half the memory, and losses in that dtype.
        """
        self._engine.upcast_outputs(model, upcast)

    def clip_grad_norm_(
        self, parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2
    ) -> Tensor:
        """Scale gradients so that their norm is at most ``max_norm``; give the norm before.

        Inside an open window nothing is scaled: the sum is not whole yet.

        Units: without loss scale.
        Ranks: all ranks call it.
        """
        parameters = self._settled(parameters)
        if not self._clock.sync:
            return self._engine.grad_norm(parameters, norm_type)
        return self._engine.clip_grad_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Iterable[Tensor] | Tensor, clip_value: float) -> None:
        """Limit every element of the gradients to ``[-clip_value, clip_value]``.

        Inside an open window nothing is limited: the sum is not whole yet.
        """
        parameters = self._settled(parameters)
        if self._clock.sync:
            self._engine.clip_grad_value(parameters, clip_value)

    def free_memory(self, *objects: Any) -> list[None]:
        """Forget everything prepared; gives a None for each object, to be assigned in its place."""
        self._wardrobe.clear()
        self._engine.release()
        self._clock.reset()
        self._passes.active.clear()
        self._memory.clear()
        nothing: list[None] = [None] * len(objects)
        del objects
        clear_device_cache(garbage_collection=True)
        return nothing

    clear = free_memory

    def __reduce__(self) -> Any:
        raise cannot_travel("Accelerator")

    def _after_step(self, num_steps: int) -> None:
        self._clock.stepped(num_steps)
        if self._live is not None:
            self._live.stepped(self._clock.step, self._passes.current, self._clock.weight)
        self._stop.boundary()

    def _settled(self, parameters: Iterable[Tensor] | Tensor) -> list[Tensor]:
        """List ``parameters``, their gradients being what the next step would use."""
        given = [parameters] if isinstance(parameters, Tensor) else parameters
        needs(
            Iterable,
            given,
            "clipping gradients",
            "it scales the gradients of parameters that it is given one by one",
            "write accelerator.clip_grad_norm_(model.parameters(), ...)",
        )
        listed = self._engine.current(given)
        if self._clock.sync and (self._engine.scales or self._clock.rescale is not None):
            wanted = set(map(id, listed))
            for optimizer in self._wardrobe.optimizers:
                if any(id(one) in wanted for one in self._engine.trained(optimizer.inner)):
                    optimizer.settle()
        return listed

    def _salvage(self) -> list[Any]:
        if self._engine.shares_states:  # what one rank has of a model is nothing to go on with
            return []
        return [self._engine.unwrap(model) for model in self._wardrobe.models]
