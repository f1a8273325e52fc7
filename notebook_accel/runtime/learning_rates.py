"""The learning rates of prepared optimizers: with which one each step was made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.optim import Optimizer

MAX_CURVES = 4
_OWN_NAMES = {"lr", "learning_rate", "learning rate"}


class LearningRates:
    """Notes rates as points of curves, few enough and so that a line through them is true.

    A rate that never changes is one point, no curve. Another holds until it changes: there is a
    point before each change, one behind it, and one at the newest step. ``lr`` is the first
    parameter group's; a group whose rate is a different one gets a curve of its own, ``lr/2`` and
    so on. ``optimizers`` gives those prepared by now.
    """

    def __init__(self, optimizers: Callable[[], Sequence[Optimizer]]) -> None:
        self._optimizers = optimizers
        self._names: dict[int, str] = {}  # number of a parameter group -> its curve
        self._newest: dict[str, float] = {}  # at the last step
        self._settings: list[object] | None = None  # as they were found then, if plain numbers
        self._moved: set[str] = set()  # curves that have changed
        self._drawn: dict[str, int] = {}  # step of each curve's last point
        self._points: list[tuple[str, int, float]] = []
        self._step = 0
        self._is_wanted = True

    def leave_to(self, name: str) -> None:
        """Be silent from now on if ``name`` is a curve of the person's that says the same."""
        if name.lower().rpartition("/")[2] in _OWN_NAMES:
            self._is_wanted = False
            self._newest = {}

    def stepped(self, step: int) -> None:
        """Note the rates that optimizer step ``step`` was made with.

        A rate that lies on a device is left out: reading it would make the loop wait.
        """
        if not self._is_wanted:
            return
        settings = [group.get("lr") for one in self._optimizers() for group in one.param_groups]
        if settings != self._settings:  # at nearly every step they are the same
            self._settings = settings if all(type(one) is float for one in settings) else None
            self._note(step, dict(self._rates(settings)))
        self._step = step

    def news(self) -> list[tuple[str, int, float]]:
        """Give the points since the last time, of a curve the newest step's among them."""
        for name, rate in self._newest.items():
            if name in self._moved:
                self._draw(name, self._step, rate)
        points, self._points = self._points, []
        return points

    def _note(self, step: int, rates: dict[str, float]) -> None:
        for name, rate in rates.items():
            before = self._newest.get(name)
            if before != rate:
                if before is not None:
                    self._moved.add(name)
                    self._draw(name, self._step, before)
                self._draw(name, step, rate)
        self._newest = rates

    def _draw(self, name: str, step: int, rate: float) -> None:
        if self._drawn.get(name) != step:
            self._drawn[name] = step
            self._points.append((name, step, rate))

    def _rates(self, settings: list[object]) -> list[tuple[str, float]]:
        found = [_number(one) for one in settings]
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
