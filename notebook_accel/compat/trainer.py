"""Lets transformers' Trainer train with this package in place of accelerate."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from notebook_accel.data.skip import skip_first_batches
from notebook_accel.events import context
from notebook_accel.runtime.accelerator import Accelerator
from notebook_accel.runtime.faces import AcceleratorState, PartialState


@contextmanager
def use_in_trainer() -> Iterator[None]:
    """Let TrainingArguments and Trainer that are made inside the block use our runtime.

    Write it inside the function that you launch, around both of them and around ``train()``. What
    the Trainer logs is drawn as the run's curves.

    Ranks: all ranks enter it.
    """
    PartialState()  # the ranks join before anybody asks who they are
    trainer = importlib.import_module("transformers.trainer")
    arguments = importlib.import_module("transformers.training_args")
    callbacks = [*trainer.DEFAULT_CALLBACKS, _curves(trainer.TrainerCallback)]
    new = (
        (trainer, "Accelerator", TrainerAccelerator),
        (trainer, "DEFAULT_CALLBACKS", callbacks),
        (trainer, "skip_first_batches", skip_first_batches),
        (arguments, "AcceleratorState", AcceleratorState),
        (arguments, "PartialState", PartialState),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in new]
    try:
        for module, name, value in new:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


class TrainerAccelerator(Accelerator):
    """The Accelerator of a Trainer, whose logs are the curve.

    The Trainer divides its losses by the accumulation before it hands them to ``backward``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self._live is not None:
            self._live.ignore_losses()


def _curves(base: type) -> type:
    """Make the callback that sends what a Trainer logs to the run's curves."""

    def on_log(
        self: Any, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any
    ) -> None:
        worker = context.current()
        if worker is None or not state.is_world_process_zero:
            return
        for name, value in logs.items():
            if isinstance(value, (int, float)):
                worker.emitter.metric(name, state.global_step, float(value))

    return type("NotebookAccelCurves", (base,), {"on_log": on_log})
