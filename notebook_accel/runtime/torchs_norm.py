"""torch's own norm of gradients, where a rank sees a part of them, or sees them scaled.

``torch.nn.utils.clip_grad_norm_`` measures what its arguments hold. Under DDP that is everything,
and under FSDP too. In stages it is one stage's, beside divided layers a mixture that torch refuses
in its own words, under DeepSpeed nothing, and under fp16 it is multiplied by the loss scale.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from notebook_accel.errors import RuntimeMisuse
from notebook_accel.events import rails
from notebook_accel.events.lines import ours_between, persons_frame
from notebook_accel.runtime.prepare import Wardrobe
from notebook_accel.strategies.base import Engine

NUM_LOOKS = 4  # at scaled gradients; a part is refused always
_FIX = "write accelerator.clip_grad_norm_(model.parameters(), max_norm)"


class TorchsNorm:
    """Looks at the gradients of one Accelerator's models when torch measures them."""

    def __init__(self, engine: Engine, wardrobe: Wardrobe) -> None:
        self._engine = engine
        self._wardrobe = wardrobe
        self._left = NUM_LOOKS if engine.scales else 0
        _watch_torch()
        _looking.add(self)

    def look(self, gradients: list[Tensor]) -> None:
        """Refuse gradients that are a part of what ranks have together; warn of scaled ones.

        Errors: RuntimeMisuse.
        """
        given = set(map(id, gradients))
        mine = [one for model in self._wardrobe.models for one in model.parameters()]
        met = [one for one in mine if id(one.grad) in given]
        if given and not met:  # of a model that is not ours
            return
        if not self._engine.has_whole_gradients(met):
            raise RuntimeMisuse(
                "torch's own norm of gradients was asked for, by clip_grad_norm_ or get_total_norm",
                "no rank has all gradients under this strategy, and torch measures what is there: "
                "ranks would clip by different norms",
                _FIX,
            )
        if self._left and met and not any(one.is_settled for one in self._wardrobe.optimizers):
            self._left -= 1
            rails.warn(
                "scaled-norm",
                "torch's own clip_grad_norm_ measures gradients of a scaled loss",
                "fp16 losses are multiplied by a large scale, which goes at the step: what is left "
                "of the bound then is next to nothing",
                _FIX,
                *rails.line_of(persons_frame(sys._getframe(1))),
            )


_looking: weakref.WeakSet[TorchsNorm] = weakref.WeakSet()


@functools.cache  # once a process: torch is one for all Accelerators
def _watch_torch() -> None:
    # What clip_grad_norm_ calls, however a person has imported that.
    measure: Callable[..., Tensor] = clip_grad._get_total_norm

    @functools.wraps(measure)
    def measured(tensors: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not torch.compiler.is_compiling() and not _asked_by_us():
            tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            for one in list(_looking):
                one.look(tensors)
        return measure(tensors, *args, **kwargs)

    clip_grad._get_total_norm = measured
    torch.nn.utils.get_total_norm = measured


def _asked_by_us() -> bool:
    frame = sys._getframe(2)
    person = persons_frame(frame)
    return person is not None and ours_between(frame, person)
