"""Optimizer states, gradients and parameters in shards, by DeepSpeed's ZeRO.

DeepSpeed holds the model and its optimizer; the runtime keeps what it does under every strategy:
windows of micro-batches, clipping, schedules, checkpoints. A window is closed at the first of clip
and step: then gradients are averaged, and DeepSpeed steps with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.deepspeed_filled import filled
from notebook_accel.config.kinds import DistributedType
from notebook_accel.config.wishes import Strategy
from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.events import context
from notebook_accel.events.pulse import BACKWARD
from notebook_accel.ranks import watch
from notebook_accel.ranks.world import World
from notebook_accel.strategies import sharding, zero_parts
from notebook_accel.strategies.base import Engine, Layout, Parts
from notebook_accel.strategies.batchnorm import let_batch_norms_meet
from notebook_accel.strategies.buffers import follow_first
from notebook_accel.strategies.compiled import uncompiled
from notebook_accel.strategies.dummies import DummyScheduler
from notebook_accel.strategies.homecoming import HOME
from notebook_accel.strategies.precision import Precision, plain_forward
from notebook_accel.strategies.zero_parts import Held
from notebook_accel.strategies.zero_scale import LossScale, scaling_of
from notebook_accel.strategies.zero_start import (
    CastForward,
    deepspeed_on,
    initialized,
    made_scheduler,
    paired,
    width_of,
)

_WHAT = {
    0: "parameters",
    1: "optimizer states",
    2: "gradients and optimizer states",
    3: "parameters, gradients and optimizer states",
}


class ZeroEngine(Engine):
    """ZeRO by DeepSpeed, on the process group that is there."""

    kind = DistributedType.DEEPSPEED
    shares_states = True
    wish: DeepSpeed

    def __init__(self, wish: DeepSpeed, world: World, precision: Precision) -> None:
        super().__init__(wish, world, precision)
        self.layout = Layout(world.rank, world.size)
        self._scaling = {} if precision.scaler is None else scaling_of(precision.scaler)
        if precision.scaler is not None:
            precision.scaler = LossScale(self._scaling, self._loss_scaler)  # type: ignore[assignment]
        self.deepspeed = deepspeed_on(world)
        self._held: list[Held] = []
        self._closed: set[int] = set()  # optimizers whose window is closed, and not stepped yet
        self._fed = False  # whether gradients wait
        self._strayed = False  # whether some came that were not fed

    def release(self) -> None:
        """Let go of all models."""
        for held in self._held:
            held.engine.destroy()
        self._held.clear()

    def follow(self, wish: Strategy) -> None:
        """Take another wish for what is wrapped from now on.

        Errors: ConfigError for one that is not DeepSpeed's.
        """
        if not isinstance(wish, DeepSpeed):
            raise ConfigError(
                f"the selected plugin asks for {type(wish).__name__}",
                "one Accelerator trains all its models under DeepSpeed, or none",
                "write a zero_stage of 1, 2 or 3 into each of its plugins",
            )
        wish.check_fit(self.world.placement, self.precision.name)
        self.wish = wish

    # ── wrapping ──────────────────────────────────────────────────────────────────────────────

    def wrap(self, parts: Parts, device_placement: bool = True) -> Parts:
        """Give each model, with the optimizer that trains it, into DeepSpeed's hands.

        Ranks: all ranks call it with the same parts; models start as rank 0 has them.
        Errors: ConfigError for an optimizer whose model is not among them.
        """
        pairs = paired(parts)
        optimizers = {id(one): one for one in parts.optimizers}
        models: list[nn.Module] = []
        for model, optimizer in zip(parts.models, pairs, strict=True):
            if optimizer is None and self.wish.zero_stage != 3:  # there is nothing to cut up
                models.append(self.place(model, device_placement))
                continue
            held = self._take(model, optimizer)
            self._held.append(held)
            if held.optimizer is not None:
                optimizers[id(optimizer)] = held.optimizer
            models.append(held.engine)
        return Parts(tuple(models), tuple(optimizers.values()), parts.schedulers)

    def _take(self, model: nn.Module, optimizer: Optimizer | None) -> Held:
        inner = uncompiled(model)
        if self._training and optimizer is not None and self.precision.name == "fp16":
            raise ConfigError(
                "two models are trained in fp16 under DeepSpeed",
                "each has a loss scale of its own, and a loss of both can only have one",
                'use mixed_precision="bf16"',
            )
        config = filled(self.wish, self.precision.name, self._scaling, width_of(inner))
        given = [] if optimizer is None else optimizer.param_groups
        groups = tuple(tuple(group["params"]) for group in given)
        for probe in [one for group in groups for one in group if one.requires_grad][-1:]:
            probe.register_hook(self._came)
        dtypes = {name: one.dtype for name, one in inner.state_dict().items() if _is_float(one)}
        if not any(hasattr(one, "ds_id") for one in inner.parameters()):
            inner.to(self.world.device)
            sharding.start_alike(inner, self.world)
        let_batch_norms_meet(inner, self.world.device)
        self.mix(model)
        engine, own = initialized(self.deepspeed, inner, optimizer, config, self.wish.config)
        context.encoders[type(engine)] = attrgetter("module")
        follow_first(engine, None, self.world.device, partial(self.syncs, engine), self._pulse)
        named = [*inner.named_parameters(), *inner.named_buffers()]
        formats = {id(one): dtypes.get(name, one.dtype) for name, one in named}
        HOME.expect(inner, lambda one: zero_parts.whole_tensor(one).to(formats[id(one)]))
        return Held(engine, self.wish.stage, own, optimizer, groups, dtypes)

    def mix(self, model: nn.Module) -> nn.Module:
        """Let ``model``'s forward take what is not yet in this engine's precision."""
        inner = plain_forward(uncompiled(model))
        if self.precision.dtype is not None:
            inner.forward = CastForward(inner.forward, self.precision)
        return model

    def unwrap(self, model: nn.Module, keep_fp32_wrapper: bool = True) -> nn.Module:
        """Give the person's own module back; in stage 3 its parameters are in shards."""
        held = self._of_model(model)
        return super().unwrap(model if held is None else held.engine.module, keep_fp32_wrapper)

    def describe(self, model: nn.Module) -> str:
        """Say what became of ``model``."""
        held = self._of_model(model)
        if held is None:
            return ""
        what = _WHAT[held.stage if held.optimizer is not None else 0]
        return f"ZeRO stage {held.stage} of DeepSpeed: {what} over {self.world.size} ranks"

    def schedule(self, scheduler: DummyScheduler) -> Any:
        """Make the scheduler that ``scheduler`` stands for."""
        moved = getattr(scheduler.optimizer, "inner", scheduler.optimizer)
        whose = [one.optimizer for one in self._held if moved in (one.given, one.optimizer)]
        return made_scheduler(scheduler, whose[0] if whose else None, self.wish.config)

    # ── gradients ─────────────────────────────────────────────────────────────────────────────

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients of ``loss``; ranks wait for each other where they are averaged."""
        gradient = kwargs.pop("gradient", None)
        if gradient is not None:
            loss = loss * gradient
        self._fed, self._strayed = True, False
        with watch.meeting(self._pulse, BACKWARD):
            if len(self._training) == 1:
                self._training[0].engine.backward(loss, scale_wrt_gas=False, **kwargs)
            else:
                loss.backward(**kwargs)  # type: ignore[no-untyped-call]

    def _came(self, gradient: Tensor) -> None:
        self._strayed = not self._fed

    def zero_grad(self, optimizer: Optimizer, set_to_none: bool = True) -> None:
        """Clear gradients; after a step DeepSpeed has done so itself."""
        held = self._of_optimizer(optimizer)
        self._strayed = False
        if held is None:
            super().zero_grad(optimizer, set_to_none)
        elif self._fed:
            zero_parts.forget_gradients(held.engine)
            self._closed.discard(id(held.optimizer))
            self._fed = len(self._training) > 1

    def forget_pending(self, model: nn.Module) -> None:
        """Drop what micro-batches of a window that will never be whole have left."""
        held = self._of_model(model)
        if held is not None and held.optimizer is not None:
            zero_parts.forget_gradients(held.engine)
            self._closed.discard(id(held.optimizer))

    def trained(self, optimizer: Optimizer) -> list[Tensor]:
        """List the parameters that ``optimizer`` trains, as the model has them."""
        held = self._of_optimizer(optimizer)
        if held is None:
            return super().trained(optimizer)
        return [one for group in held.groups for one in group]

    def numel(self, parameter: Tensor) -> int:
        """Count the elements of the whole of ``parameter``."""
        return zero_parts.numel(parameter)

    def has_whole_gradients(self, parameters: Sequence[Tensor]) -> bool:
        """DeepSpeed averages them and cuts them up by itself: no."""
        return False

    def grad_norm(self, parameters: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
        """Give NaN: before a window is whole, no rank knows what its gradients will be."""
        return torch.full((), float("nan"), device=self.world.device)

    def clip_grad_norm(
        self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0
    ) -> Tensor:
        """Scale gradients so that their norm is at most ``max_norm``; give the norm before.

        Ranks: all ranks call it.
        """
        listed = list(parameters)
        held = self._closed_for(listed)
        if held is None:
            return super().clip_grad_norm(listed, max_norm, norm_type)
        pieces = zero_parts.gradients(held.engine, listed) if self._fed else []
        norm = zero_parts.total_norm(held.engine, pieces, norm_type)
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        if bool(torch.isfinite(norm)):  # an overflow stays one, for DeepSpeed to find
            for one in pieces:
                one.mul_(factor.to(one.device))
        return norm

    def clip_grad_value(self, parameters: Iterable[Tensor], clip_value: float) -> None:
        """Limit every element of every gradient to ``[-clip_value, clip_value]``."""
        listed = list(parameters)
        held = self._closed_for(listed)
        if held is None:
            super().clip_grad_value(listed, clip_value)
            return
        limit = clip_value * zero_parts.scale(held.engine)
        for one in zero_parts.gradients(held.engine, listed) if self._fed else ():
            one.clamp_(-limit, limit)

    def scale_gradients(self, optimizer: Optimizer, factor: float | Tensor) -> None:
        """Multiply the averaged gradients of ``optimizer``'s parameters by ``factor``."""
        held = self._of_optimizer(optimizer)
        if held is None:
            super().scale_gradients(optimizer, factor)
            return
        self._close(held)
        for one in zero_parts.gradients(held.engine):
            one.mul_(factor.to(one.device) if isinstance(factor, Tensor) else factor)

    def step(
        self, optimizer: Optimizer, closure: Callable[[], Any] | None = None
    ) -> tuple[bool, Any]:
        """Update parameters; tell whether that happened (an overflow skips it), and the loss.

        Errors: RuntimeMisuse for a closure, and for gradients of a backward that was not ours.
        """
        held = self._of_optimizer(optimizer)
        if held is None:
            return super().step(optimizer, closure)
        if closure is not None:
            raise RuntimeMisuse(
                "optimizer.step(closure) under DeepSpeed",
                "it averages and cuts up gradients before the step, a closure makes them inside",
                "call accelerator.backward(loss), then step() without a closure",
            )
        if self._strayed:
            raise RuntimeMisuse(
                "optimizer.step() under DeepSpeed after loss.backward()",
                "gradients are averaged and cut up in accelerator.backward: those of any other "
                "backward train nothing",
                "write accelerator.backward(loss) in place of loss.backward()",
            )
        if not self._fed:
            return True, None
        self._close(held)
        self._closed.discard(id(held.optimizer))
        self._fed = len(self._training) > 1
        return zero_parts.update(held.engine), None

    def _close(self, held: Held) -> None:
        if id(held.optimizer) not in self._closed:
            zero_parts.close_window(held.engine)
            self._closed.add(id(held.optimizer))

    def _closed_for(self, parameters: list[Tensor]) -> Held | None:
        """Find who trains ``parameters``, its window closed."""
        wanted = set(map(id, parameters))
        for held in self._held:
            if any(id(one) in wanted for group in held.groups for one in group):
                if self._fed:
                    self._close(held)
                return held
        return None

    # ── states ────────────────────────────────────────────────────────────────────────────────

    @property
    def scales(self) -> bool:
        """Whether the runtime must take a loss scale off gradients: DeepSpeed does it itself."""
        return False

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Give the model's whole state on the first rank of each machine, nothing on others.

        Ranks: all ranks call it.
        """
        held = self._of_model(model)
        if held is None:
            return super().state_dict(model)
        return zero_parts.model_state(held.engine.module, held.dtypes, self._keeps)

    def load_into(self, model: nn.Module, state: dict[str, Any], strict: bool) -> Any:
        """Load a whole state; each rank takes its parts.

        Ranks: all ranks call it.
        """
        held = self._of_model(model)
        if held is None:
            return super().load_into(model, state, strict)
        return zero_parts.load_model(held.engine, state, strict)

    def _state_of(self, optimizer: Optimizer, keep: bool) -> dict[str, Any]:
        """Give the optimizer's whole state, in torch's form."""
        held = self._of_optimizer(optimizer)
        if held is None:
            return super()._state_of(optimizer, keep)
        return zero_parts.optimizer_state(held.engine, optimizer, held.groups, keep)

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load a whole state in torch's form; each rank takes its parts.

        Ranks: all ranks call it.
        """
        held = self._of_optimizer(optimizer)
        if held is None:
            super().load_optimizer_state(optimizer, state)
            return
        zero_parts.load_optimizer_state(held.engine, optimizer, held.groups, state)

    def _loss_scaler(self) -> Any:
        found = [one.engine.optimizer.loss_scaler for one in self._training]
        return found[0] if found else None

    @property
    def _training(self) -> list[Held]:
        return [one for one in self._held if one.optimizer is not None]

    def _of_model(self, model: nn.Module) -> Held | None:
        inner = uncompiled(model)
        found = (one for one in self._held if inner is one.engine or inner is one.engine.module)
        return next(found, None)

    def _of_optimizer(self, optimizer: Optimizer) -> Held | None:
        return next((one for one in self._held if one.optimizer is optimizer), None)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
