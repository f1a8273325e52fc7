"""From micro-batches to optimizer steps: may gradients meet now, and what does a loss weigh?

A *window* is the micro-batches that make one optimizer step. Its divisor is fixed when it opens:
the steps that were asked for, or fewer when the loader has fewer batches left, so that a short last
window equals the big batch that it stands for. A loader that does not know its length can only say
at its last batch that the window is short: then gradients are corrected by ``rescale``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch import Tensor

from notebook_accel.config.accumulation import GradientAccumulationPlugin
from notebook_accel.data.loader import Pass, Passes


class Window:
    """The micro-batches of one optimizer step, as far as they have come.

    If losses are weighed by what they count, ``count`` is that of this rank so far and ``unit``
    by what losses are divided meanwhile. ``begun_in`` is the pass that the first one came from.
    """

    __slots__ = ("begun_in", "count", "size", "sync", "taken", "unit", "used")

    def __init__(self) -> None:
        self.size = 1
        self.taken = 0
        self.sync = True  # nothing open
        self.used = False  # whether a backward has left gradients in it
        self.begun_in: Pass | None = None
        self.count: Tensor | None = None
        self.unit: Tensor | None = None


class Clock:
    """Counts micro-batches and optimizer steps of one Accelerator.

    ``step`` is the number of finished optimizer steps; ``sync`` whether gradients meet and
    optimizers step now; ``rescale`` by how much summed gradients must be multiplied before anybody
    looks at them (None: not at all), and ``weight`` by how much the mean of a window's losses, if
    they are weighed by what they count. Different sets of models may be accumulated side by side (a
    GAN): each set has its own window, and ``window`` is the one entered last. ``forget_gradients``
    is called when a window will never be whole, because its loop was left.
    """

    def __init__(
        self, num_steps: int, passes: Passes, plugin: GradientAccumulationPlugin | None = None
    ) -> None:
        plugin = plugin or GradientAccumulationPlugin()
        self.num_steps = num_steps
        self.step = 0
        self.passes = passes
        self.forget_gradients: Callable[[], None] = lambda: None
        self.keeps_apart = not plugin.sync_each_batch
        self._ends_with_loader = plugin.sync_with_dataloader
        self._adjusts_schedulers = bool(plugin.adjust_scheduler)
        self.reset()

    def reset(self) -> None:
        """Forget open windows, as if no micro-batch had come yet."""
        self._windows: dict[Hashable, Window] = {}
        self._loose = False  # gradients were added while sync was driven from outside
        self.window: Window | None = None
        self.sync = True
        self.rescale: float | Tensor | None = None
        self.weight: Tensor | None = None

    @property
    def divisor(self) -> int:
        """By how much the loss of a micro-batch is divided."""
        return self.num_steps if self.window is None else self.window.size

    @property
    def schedule_steps(self) -> int:
        """How far the step that is due moves a schedule: by one, or by its micro-batches."""
        if not self._adjusts_schedulers:
            return 1
        return self.num_steps if self.window is None else self.window.taken

    @property
    def pending(self) -> bool:
        """Whether gradients of earlier micro-batches wait for the rest of their window."""
        window = self.window
        return self._loose if window is None else window.used and window.size > 1

    def advance(self, key: Hashable) -> None:
        """Take the next micro-batch of the models ``key``; opens a window if none is open."""
        self.rescale = self.weight = None
        if self.num_steps == 1 and not self._windows:  # every micro-batch is a window
            self.sync = True
            return
        window = self._windows.get(key)
        if window is None or self._dropped(window):
            window = self._windows[key] = Window()
        one = self.passes.current if self._ends_with_loader else None
        if window.sync:
            left = None if one is None else one.left
            window.size = self.num_steps if left is None else min(self.num_steps, left)
            window.taken, window.used, window.count, window.begun_in = 0, False, None, one
        window.taken += 1
        ends_here = one is not None and one.is_last
        window.sync = ends_here or window.taken >= window.size
        if ends_here and window.taken < window.size:
            self.rescale = window.size / window.taken
        self.window = window
        self.sync = window.sync

    def backward(self) -> int:
        """Note that gradients are added; gives the divisor of their loss."""
        window = self.window
        if window is None or self._dropped(window):
            if not self.sync:
                self._loose = True
            return self.num_steps
        window.used = True
        return window.size

    def weigh(self, count: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
        """Note that this micro-batch's loss is a sum over ``count`` things; gives its divisor.

        ``total`` adds a number up over the ranks. How many things the window has is known at its
        last micro-batch: until then sums are divided by those of its first, to be of a usual size.
        """
        window = self.window
        if window is None or window.size == 1:
            return total(count)
        if window.count is None or window.unit is None:
            window.count, window.unit = count, total(count)
        else:
            window.count = window.count + count
        if window.sync:
            self.weight = window.unit * window.taken / total(window.count)
            self.rescale = self.weight * window.size / window.taken
        return window.unit

    def drive(self, sync: bool) -> None:
        """Let somebody outside say whether the next step is one; windows then have no say in it."""
        self.sync = sync
        self.rescale = None

    def stepped(self, num_steps: int) -> None:
        """Note that an optimizer has now made ``num_steps`` steps; the furthest one counts."""
        self._loose = False
        if num_steps > self.step:
            self.step = num_steps

    def _dropped(self, window: Window) -> bool:
        """Drop all windows if the loop that began ``window`` was left in the middle of it."""
        begun, current = window.begun_in, self.passes.current
        if window.sync or current is begun or begun is None or begun.is_last:
            return False
        begun_anew = current is not None and current.loader is begun.loader
        if begun in self.passes.active and not begun_anew:  # another loop inside it, say
            return False
        self.reset()
        self.forget_gradients()
        return True
