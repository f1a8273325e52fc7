"""The learning rates of prepared optimizers, read when news is sent: a few times a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.optim import Optimizer

MAX_CURVES = 4
_OWN_NAMES = {"lr", "learning_rate", "learning rate"}


class LearningRates:
    """Tells the rates that have changed since they were last asked for.

    ``lr`` is the first parameter group's; a group whose rate is a different one gets a curve of
    its own, ``lr/2`` and so on. ``optimizers`` gives those that are prepared by now.
    """

    def __init__(self, optimizers: Callable[[], Sequence[Optimizer]]) -> None:
        self._optimizers = optimizers
        self._names: dict[int, str] = {}  # number of a parameter group -> its curve
        self._told: dict[str, float] = {}
        self._is_wanted = True

    def leave_to(self, name: str) -> None:
        """Be silent from now on if ``name`` is a curve of the person's that says the same."""
        if name.lower().rpartition("/")[2] in _OWN_NAMES:
            self._is_wanted = False

    def news(self, step: int) -> list[tuple[str, int, float]]:
        """Give the points of curves that have moved, at optimizer step ``step``.

        A rate that lies on a device is left out: reading it would make the loop wait.
        """
        points = []
        for name, rate in self._rates() if self._is_wanted else ():
            if self._told.get(name) != rate:
                self._told[name] = rate
                points.append((name, step, rate))
        return points

    def _rates(self) -> list[tuple[str, float]]:
        found = [
            _number(group.get("lr"))
            for optimizer in self._optimizers()
            for group in optimizer.param_groups
        ]
        first = next((rate for rate in found if rate is not None), None)
        if first is None:
            return []
        rates = []
        for number, rate in enumerate(found):
            if rate is None:
                continue
            if number not in self._names:
                if self._names and (rate == first or len(self._names) == MAX_CURVES):
                    continue
                following = len(self._names) + 1
                self._names[number] = "lr" if following == 1 else f"lr/{following}"
            rates.append((self._names[number], rate))
        return rates


def _number(rate: object) -> float | None:
    if isinstance(rate, Tensor):
        return float(rate) if rate.device.type == "cpu" else None
    return float(rate) if isinstance(rate, (int, float)) else None
