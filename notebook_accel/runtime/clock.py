"""From micro-batches to optimizer steps: may gradients meet now, and what does a loss weigh?

A *window* is the micro-batches that make one optimizer step. Its divisor is fixed when it opens:
the steps that were asked for, or fewer when the loader has fewer batches left, so that a short last
window equals the big batch that it stands for. A loader that does not know its length can only say
at its last batch that the window is short: then gradients are corrected by ``rescale``.
"""

from __future__ import annotations

from collections.abc import Hashable

from notebook_accel.data.loader import Passes


class Window:
    """The micro-batches of one optimizer step, as far as they have come."""

    __slots__ = ("rescale", "size", "sync", "taken", "used")

    def __init__(self) -> None:
        self.size = 1
        self.taken = 0
        self.sync = True  # nothing open
        self.rescale = 1.0
        self.used = False  # whether a backward has left gradients in it


class Clock:
    """Counts micro-batches and optimizer steps of one Accelerator.

    ``step`` is the number of finished optimizer steps. Different sets of models may be accumulated
    side by side (a GAN): each set has its own window, and ``window`` is the one entered last.
    """

    def __init__(self, num_steps: int, passes: Passes) -> None:
        self.num_steps = num_steps
        self.step = 0
        self.passes = passes
        self.reset()

    def reset(self) -> None:
        """Forget open windows, as if no micro-batch had come yet."""
        self._windows: dict[Hashable, Window] = {}
        self.window: Window | None = None
        self.sync = True

    @property
    def divisor(self) -> int:
        """By how much the loss of a micro-batch is divided."""
        return self.num_steps if self.window is None else self.window.size

    @property
    def rescale(self) -> float:
        """By how much summed gradients must be multiplied before anybody looks at them."""
        return 1.0 if self.window is None else self.window.rescale

    @property
    def pending(self) -> bool:
        """Whether gradients of earlier micro-batches wait for the rest of their window."""
        return self.window is not None and self.window.used and self.window.size > 1

    def advance(self, key: Hashable) -> None:
        """Take the next micro-batch of the models ``key``; opens a window if none is open."""
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = Window()
        one = self.passes.current
        if window.sync:
            left = None if one is None else one.left
            window.size = self.num_steps if left is None else min(self.num_steps, left)
            window.taken, window.rescale, window.used = 0, 1.0, False
        window.taken += 1
        ends_here = one is not None and one.is_last
        window.sync = ends_here or window.taken >= window.size
        if window.taken < window.size and ends_here:
            window.rescale = window.size / window.taken
        self.window = window
        self.sync = window.sync

    def backward(self) -> None:
        """Note that gradients were added."""
        if self.window is not None:
            self.window.used = True

    def stepped(self, num_steps: int) -> None:
        """Note that an optimizer has now made ``num_steps`` steps; the furthest one counts."""
        self.step = max(self.step, num_steps)
