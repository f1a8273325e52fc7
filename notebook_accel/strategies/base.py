"""The machine that trains: what every strategy does, and what one device does.

``Engine`` is the single device; strategies override the verbs that they do differently. It is
complete when made: there is no set-up call to forget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from notebook_accel.config.kinds import DistributedType
from notebook_accel.config.wishes import Strategy
from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.ranks import watch
from notebook_accel.ranks.world import World
from notebook_accel.strategies.calls import called_with
from notebook_accel.strategies.compiled import compile_model, uncompiled
from notebook_accel.strategies.precision import Precision, mix, plain_forward, upcast_outputs

_ZERO_GRAD = Optimizer.zero_grad


@dataclass(frozen=True)
class Parts:
    """What belongs together and is wrapped together."""

    models: tuple[nn.Module, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    schedulers: tuple[LRScheduler, ...] = ()


@dataclass(frozen=True)
class Layout:
    """Who does what, by purpose.

    ``data_rank`` of ``data_size`` readers reads its own samples; ``readers`` is the data rank of
    each rank where several read the same, else empty. ``loss_owner`` tells whether this rank's loss
    is a real one. ``shard_rank``, ``tensor_rank``, ``pipeline_rank`` and ``sequence_rank`` are its
    places along the axes that divide parameters, layers, stages and sequences. Gradients are
    averaged over ``num_averaged`` ranks, if these are more than the readers.
    """

    data_rank: int = 0
    data_size: int = 1
    loss_owner: bool = True
    readers: tuple[int, ...] = ()
    shard_rank: int = 0
    tensor_rank: int = 0
    pipeline_rank: int = 0
    sequence_rank: int = 0
    num_averaged: int = 1

    @property
    def averages(self) -> bool:
        """Whether gradients are averaged over several ranks."""
        return max(self.num_averaged, self.data_size) > 1


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """List the parameters of all groups of an optimizer."""
    return [one for group in optimizer.param_groups for one in group["params"]]


def move_state(optimizer: Optimizer, device: torch.device) -> None:
    """Bring an optimizer's state to ``device``, where its parameters are now."""
    if optimizer.state and device.type != "cpu":
        optimizer.load_state_dict(optimizer.state_dict())  # reloading its own state moves it


class Engine:
    """The single-device engine: moves, computes, scales, clips, steps.

    ``kind`` is what Accelerate calls a way to share a model; None where each rank has the whole.
    ``shares_states`` says that no rank alone knows a whole state, so that saving takes all ranks.
    ``clips_at`` is the norm that the gradients of every update are cut to, whatever the loop does.
    ``overflows_apart`` says that ranks hold unlike gradients when their loss scale is removed.
    """

    kind: DistributedType | None = None
    shares_states = False
    clips_at: float | None = None
    overflows_apart = False

    def __init__(self, wish: Strategy, world: World, precision: Precision) -> None:
        self.wish = wish
        self.world = world
        self.precision = precision
        if world.rank == 0:
            precision.announce()
        self.layout = Layout()
        self._pulse = watch.pulse()
        self._apart: set[int] = set()  # models whose gradients stay apart whatever windows say
        self._ran: set[int] = set()  # optimizers that the loss scaler let step

    @property
    def scales(self) -> bool:
        """Whether gradients carry a loss scale until ``unscale``."""
        return self.precision.scaler is not None

    def release(self) -> None:
        """Let go of everything that was wrapped, so that its memory can be freed."""

    def follow(self, wish: Strategy) -> None:
        """Take another wish of this engine's kind for what is wrapped from now on.

        Errors: ConfigError for one of another kind.
        """
        asked, own = type(wish).__name__, type(self.wish).__name__
        if asked != own:
            raise ConfigError(
                f"the selected plugin asks for {asked}",
                f"this Accelerator trains all its models under {own}",
                "make a second Accelerator, or let all of its plugins ask for the same",
            )
        self.wish = wish

    def wrap(self, parts: Parts, device_placement: bool = True) -> Parts:
        """Make models, optimizers and schedulers ready to train together.

        Ranks: all ranks call it with the same parts; models start as data rank 0 has them.
        """
        models = tuple(self.place(model, device_placement) for model in parts.models)
        for optimizer in parts.optimizers:
            if device_placement:
                move_state(optimizer, self.world.device)
            if self.scales:
                optimizer.register_step_post_hook(self._note_step)
        return Parts(models, parts.optimizers, parts.schedulers)

    def place(self, model: nn.Module, device_placement: bool = True) -> nn.Module:
        """Move ``model`` to the device and let its forward run in this engine's precision."""
        if device_placement:
            model.to(self.world.device)
        return self.mix(model)

    def mix(self, model: nn.Module) -> nn.Module:
        """Let ``model``'s forward run in this engine's precision."""
        mix(uncompiled(model), self.precision)
        if self.precision.eight_bits is not None and self.world.rank == 0:
            self.precision.eight_bits.note_of_none(uncompiled(model))
        return model

    def place_for_evaluation(self, model: nn.Module, device_placement: bool = True) -> nn.Module:
        """Do what ``place`` does, less what only training needs."""
        return Engine.place(self, model, device_placement)

    def unwrap(self, model: nn.Module, keep_fp32_wrapper: bool = True) -> nn.Module:
        """Give the person's own module back."""
        if not keep_fp32_wrapper:
            plain_forward(uncompiled(model))
        return model

    def compile(self, model: nn.Module, regional: bool, arguments: Mapping[str, Any]) -> None:
        """Compile what ``wrap`` made of a model, with arguments of ``torch.compile``.

        ``regional`` compiles its repeated blocks one by one.
        """
        compile_model(self.unwrap(model), regional, arguments)

    def describe(self, model: nn.Module) -> str:
        """Say in a few words what became of ``model``; nothing if it is as it was."""
        return ""

    @property
    def mesh(self) -> Any:
        """The mesh of ranks, where they are laid out along named axes; else None."""
        return None

    def cutter(self) -> Callable[[Any], Any] | None:
        """Make what gives this rank's part of each batch of one loader; None: it has the whole."""
        return None

    def joined(self, tree: Any) -> Any:
        """Put together what several ranks have of the same samples, before these are gathered."""
        return tree

    @contextmanager
    def sequences_cut(self, buffers: Any, dims: Any, kept_cut: Any) -> Iterator[None]:
        """Cut sequences in place inside the block, where the loop is to cut them; not here."""
        yield

    def upcast_outputs(self, model: nn.Module, upcast: bool) -> None:
        """Say whether half-precision outputs of ``model`` are made float32."""
        upcast_outputs(uncompiled(self.unwrap(model)), upcast)

    def set_sync(self, model: nn.Module, sync: bool) -> None:
        """Say whether the next backward through ``model`` averages gradients over ranks.

        Inside ``no_sync`` it changes nothing.
        """

    def syncs(self, model: nn.Module) -> bool:
        """Whether the next backward through ``model`` averages gradients over ranks."""
        return True

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """Keep gradients of this rank to itself inside the block, also through whole windows."""
        if self._is_apart(model):
            yield
            return
        before = self.syncs(model)
        self.set_sync(model, False)
        self._apart.add(id(uncompiled(model)))
        try:
            yield
        finally:
            self._apart.discard(id(uncompiled(model)))
            self.set_sync(model, before)

    def _is_apart(self, model: nn.Module) -> bool:
        return id(uncompiled(model)) in self._apart

    def autocast(self, **cast: Any) -> Any:
        """Give the context in which forward passes run in this engine's precision.

        ``cast`` are arguments of ``torch.autocast`` for this once.
        """
        return self.precision.autocast(**cast)

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients of ``loss``, scaled where the precision needs it."""
        if self.precision.scaler is not None:
            loss = self.precision.scaler.scale(loss)
        loss.backward(**kwargs)  # type: ignore[no-untyped-call]

    def forward_backward(
        self, model: nn.Module, batch: Any, loss_fn: Callable[[Any, Any], Tensor], weight: float
    ) -> Tensor:
        """Run ``loss_fn(model(inputs), targets)`` and its backward, the loss times ``weight``.

        Shapes: ``batch`` is ``(inputs, targets)``; the returned loss is unweighted, detached.
        """
        inputs, targets = batch
        args, kwargs = called_with(inputs)
        loss = loss_fn(model(*args, **kwargs), targets)
        self.backward(loss * weight)
        return loss.detach()

    def zero_grad(self, optimizer: Optimizer, set_to_none: bool = True) -> None:
        """Clear the gradients of ``optimizer``'s parameters."""
        if not set_to_none or getattr(optimizer.zero_grad, "__func__", None) is not _ZERO_GRAD:
            optimizer.zero_grad(set_to_none=set_to_none)
            return
        # What torch's does, less its mark for the profiler: on a small model that mark costs more
        # than everything else of ours in a training step.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def scale_gradients(self, optimizer: Optimizer, factor: float | Tensor) -> None:
        """Multiply the averaged gradients of ``optimizer``'s parameters by ``factor``."""
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def unscale(self, optimizer: Optimizer) -> None:
        """Remove the loss scale from the gradients; once between two steps."""
        if self.precision.scaler is not None:
            self.precision.scaler.unscale_(optimizer)
            if self.overflows_apart:  # an overflow on any rank is one on all
                found = self.precision.scaler.overflow(optimizer, self.world.device)
                watch.all_reduce(found, dist.ReduceOp.MAX)

    def forget(self, optimizer: Optimizer) -> None:
        """Note that gradients were unscaled, and then cleared without a step."""
        if self.precision.scaler is not None:
            self.precision.scaler.forget(optimizer)

    def forget_pending(self, model: nn.Module) -> None:
        """Drop gradients of an open window that lie elsewhere than in its parameters."""

    def current(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Give what is trained in place of ``parameters``, which may be from before ``wrap``."""
        return list(parameters)

    def trained(self, optimizer: Optimizer) -> list[Tensor]:
        """List the parameters that ``optimizer`` trains, as the model has them."""
        return parameters_of(optimizer)

    def numel(self, parameter: Tensor) -> int:
        """Count the elements of the whole of ``parameter``."""
        return parameter.numel()

    def schedule(self, scheduler: Any) -> Any:
        """Make the scheduler that a stand-in of an engine's own configuration stands for."""
        return scheduler

    def has_whole_gradients(self, parameters: Sequence[Tensor]) -> bool:
        """Whether torch's functions find all there is in the gradients of ``parameters``."""
        return True

    def grad_norm(self, parameters: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
        """Measure the norm of all gradients together."""
        grads = [one.grad for one in parameters if one.grad is not None]
        return torch.nn.utils.get_total_norm(grads, norm_type)

    def clip_grad_norm(
        self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0
    ) -> Tensor:
        """Scale gradients so that their norm is at most ``max_norm``; give the norm before.

        Source: Pascanu, Mikolov, Bengio 2013, algorithm 1.
        """
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value(self, parameters: Iterable[Tensor], clip_value: float) -> None:
        """Limit every element of every gradient to ``[-clip_value, clip_value]``."""
        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def step(
        self, optimizer: Optimizer, closure: Callable[[], Any] | None = None
    ) -> tuple[bool, Any]:
        """Update parameters; tell whether that happened (an overflow skips it), and the loss.

        Errors: RuntimeMisuse for a closure under fp16 loss scaling.
        """
        scaler = self.precision.scaler
        if scaler is None:
            # step(None) would be right too, but not every optimizer takes a closure.
            return True, optimizer.step() if closure is None else optimizer.step(closure)
        if closure is not None:
            raise RuntimeMisuse(
                "optimizer.step(closure) under mixed_precision='fp16'",
                "loss scaling must see the gradients before the step, a closure makes them inside",
                "use mixed_precision='bf16', or step without a closure",
            )
        self._ran.discard(id(optimizer))
        scaler.step(optimizer)
        return id(optimizer) in self._ran, None

    @property
    def _keeps(self) -> bool:
        """Whether this rank is the one of its machine that keeps whole states."""
        return self.world.placement.local_rank == 0

    def kept_state(self, model: nn.Module) -> dict[str, Any]:
        """Give the model's state as a checkpoint keeps it: whole, or this rank's parts of it."""
        return self.state_dict(model)

    def kept_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Give the optimizer's state as a checkpoint keeps it: whole, or this rank's parts."""
        return self._state_of(optimizer, self._keeps)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Give the optimizer's state to the person."""
        return self._state_of(optimizer, keep=True)

    def _state_of(self, optimizer: Optimizer, keep: bool) -> dict[str, Any]:
        """Give the optimizer's state; a rank that is not to ``keep`` it may give nothing.

        Ranks: all ranks call it, where they share states.
        """
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load what ``optimizer_state`` or ``kept_optimizer_state`` gave."""
        optimizer.load_state_dict(state)

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Give the model's whole state, with the keys of the person's own module.

        Ranks: all ranks call it.
        """
        return self.unwrap(model).state_dict()

    def load_into(self, model: nn.Module, state: dict[str, Any], strict: bool) -> Any:
        """Load a state whose names and parts are those of ``unwrap(model)``; gives what torch does.

        Ranks: all ranks call it.
        """
        return self.unwrap(model).load_state_dict(state, strict=strict)

    def load_state_dict(self, model: nn.Module, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` gave, or the plain module's state.

        Ranks: all ranks call it.
        """
        self.load_into(model, state, strict=True)

    def _note_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._ran.add(id(optimizer))
