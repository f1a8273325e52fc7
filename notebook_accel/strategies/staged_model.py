"""What a person meets of a model in stages: its forward, and its state.

A prepared model's forward runs the stages. Its own state has only this rank's parameters: giving it
away is refused, and loading leaves out what other ranks have.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from notebook_accel.errors import RuntimeMisuse
from notebook_accel.events.lines import ours_between, persons_frame
from notebook_accel.ranks.hooks import Hook
from notebook_accel.strategies.precision import MixedForward, Precision


class Stages(Protocol):
    """What runs a model in stages."""

    def evaluate(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the stages forward."""

    def foreign(self, model: nn.Module) -> dict[str, Tensor]:
        """Give what stands in ``model`` for parameters that other ranks have, by name."""

    def is_divided(self, model: nn.Module) -> bool:
        """Whether this rank has let go of what other ranks have of ``model``."""


class StagedForward(MixedForward):
    """A prepared model's forward: the stages', where nothing is trained.

    A deep copy (an average of weights) has the plain forward again, and can be trained nowhere.
    """

    def __init__(self, forward: Any, precision: Precision, engine: Stages) -> None:
        super().__init__(forward, precision)
        self.engine = engine

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stages forward.

        Errors: RuntimeMisuse where gradients are asked for.
        """
        model = self.forward.__self__
        if model.training and torch.is_grad_enabled():
            raise RuntimeMisuse(
                "a model under strategy=Pipeline(...) is called to be trained",
                "its output would have no gradients: forward and backward of micro-batches take "
                "turns over the ranks",
                "write loss = accelerator.forward_backward(model, (inputs, targets), loss_fn); to "
                "evaluate, call it after model.eval() or under torch.no_grad()",
            )
        return self.engine.evaluate(model, args, kwargs)

    def __reduce__(self) -> Any:
        if not self.engine.is_divided(self.forward.__self__):
            return super().__reduce__()
        raise RuntimeMisuse(
            "a model in stages was pickled",
            "this rank holds only its own stages",
            "write accelerator.get_state_dict(model), on all ranks; a model that is returned comes "
            "home whole",
        )


def watch_states(model: nn.Module, engine: Stages) -> None:
    """Let ``model`` refuse its state while ``engine`` has divided it, and load its own part of one.

    The hooks ask the model's forward, so that they know the engine of the Accelerator that has the
    model now.
    """

    def refuse(model: nn.Module, prefix: str, keep_vars: bool) -> None:
        found = _engine(model)
        if found is not engine or not found.is_divided(model):
            return
        frame = sys._getframe(2)  # beyond this and the hook
        person = persons_frame(frame)
        if person is not None and not ours_between(frame, person):
            raise RuntimeMisuse(
                "model.state_dict() of a model in stages",
                "this rank holds only its own stages",
                "write accelerator.get_state_dict(model), on all ranks",
            )

    others = Others()
    model.register_state_dict_pre_hook(Hook(refuse))  # type: ignore[no-untyped-call]
    model.register_load_state_dict_pre_hook(Hook(others.leave_out))  # type: ignore[no-untyped-call]
    model.register_load_state_dict_post_hook(Hook(others.forgive))  # type: ignore[no-untyped-call]


def refuse_of_another(model: nn.Module, engine: Stages) -> None:
    """Refuse a model of which another engine has let go.

    Errors: RuntimeMisuse.
    """
    other = _engine(model)
    if other is not None and other is not engine and other.is_divided(model):
        raise RuntimeMisuse(
            f"{type(model).__name__} is in the stages of another Accelerator",
            "this rank holds only some of its parameters",
            "build the model again; get_state_dict(model) of that Accelerator, on all ranks, "
            "gives its state",
        )


def _engine(model: nn.Module) -> Stages | None:
    forward = vars(model).get("forward")
    return forward.engine if isinstance(forward, StagedForward) else None


class Others:
    """What a model leaves out of a state that it loads: the parameters of other ranks."""

    def __init__(self) -> None:
        self._left: set[str] = set()

    def leave_out(self, model: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take them out of ``state``; those of another shape stay, to be complained of."""
        engine = _engine(model)
        foreign = {} if engine is None else engine.foreign(model)
        self._left = {
            prefix + name
            for name, one in foreign.items()
            if prefix + name in state and state[prefix + name].shape == one.shape
        }
        for name in self._left:
            del state[name]

    def forgive(self, model: nn.Module, incompatible: Any) -> None:
        """Call those not missing."""
        missing = incompatible.missing_keys
        missing[:] = [name for name in missing if name not in self._left]
