"""A playground for collectives: what ranks hold before and after one, on real processes.

``playground.all_reduce(num_ranks=3)`` starts three workers that meet over gloo, lets each bring its
buffer, and draws what each holds then. A rank can be kept away, to see a hang and how it is told.
``playground.show()`` is the same with controls.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from notebook_accel.ui.exchange import Exchange, exchange
from notebook_accel.ui.outputs import view_bundle
from notebook_accel.ui.place import hears_controls

__all__ = ["Playground", "all_gather", "all_reduce", "broadcast", "reduce_scatter", "show"]


def all_reduce(
    buffers: Sequence[Any] | None = None, *, num_ranks: int = 2, absent: Collection[int] = ()
) -> Exchange:
    """Let every rank get the sum of all buffers, place by place.

    ``buffers`` holds one list of numbers for each rank; None: some that tell the ranks apart.
    ``absent`` names ranks that do not take part, which leaves the others waiting.

    Errors: ConfigError for buffers that are none, or ranks that do not exist.
    """
    return exchange("all_reduce", buffers, num_ranks, absent=absent).run()


def all_gather(
    buffers: Sequence[Any] | None = None, *, num_ranks: int = 2, absent: Collection[int] = ()
) -> Exchange:
    """Let every rank get all buffers, one after the other in rank order.

    The arguments and Errors are those of ``all_reduce``.
    """
    return exchange("all_gather", buffers, num_ranks, absent=absent).run()


def reduce_scatter(
    buffers: Sequence[Any] | None = None, *, num_ranks: int = 2, absent: Collection[int] = ()
) -> Exchange:
    """Sum the buffers place by place and let each rank get its own part of the sum.

    Shapes: each buffer is as long as there are ranks, or a multiple of it.
    The arguments and Errors are those of ``all_reduce``.
    """
    return exchange("reduce_scatter", buffers, num_ranks, absent=absent).run()


def broadcast(
    buffers: Sequence[Any] | None = None,
    *,
    num_ranks: int = 2,
    source: int = 0,
    absent: Collection[int] = (),
) -> Exchange:
    """Let every rank get the buffer of rank ``source``.

    The other arguments and Errors are those of ``all_reduce``.
    """
    return exchange("broadcast", buffers, num_ranks, source, absent).run()


def show(operation: str = "all_reduce", num_ranks: int = 3) -> Playground:
    """Show controls: pick a collective, edit the buffers, keep ranks away, run it.

    Errors: ConfigError for a collective or a number of ranks that the playground does not have.
    """
    return Playground(exchange(operation, num_ranks=num_ranks))


class Playground:
    """Controls over one exchange; ``exchange`` is what they show now, ``run`` carries it out.

    Without widgets it shows the buffers, and the functions of this module do the rest.
    """

    def __init__(self, shown: Exchange) -> None:
        self.exchange = shown
        self._skin: Any = None

    @property
    def widget(self) -> Any:
        """The controls as one ipywidgets box."""
        if self._skin is None:
            from notebook_accel.ui.playground_widgets import Skin  # only where they are wanted

            self._skin = Skin(self)
        return self._skin.box

    def choose(self, **wanted: Any) -> Playground:
        """Set the stage anew: ``operation``, ``buffers``, ``num_ranks``, ``source``, ``absent``.

        Errors: ConfigError, as ``all_reduce``; everything stays as it was then.
        """
        now = self.exchange
        keeps_buffers = not wanted.keys() & {"operation", "num_ranks"}
        num_ranks = wanted.get("num_ranks", now.num_ranks)
        kept: dict[str, Any] = {
            "operation": now.operation,
            "buffers": now.before if keeps_buffers else None,
            "num_ranks": num_ranks,
            "source": min(now.source, num_ranks - 1),
            "absent": () if "num_ranks" in wanted else now.absent,
        }
        return self._become(exchange(**{**kept, **wanted}))

    def run(self) -> Exchange:
        """Carry out what is on the stage, on real processes, and give it."""
        self._become(self.exchange.run())
        return self.exchange

    def _become(self, shown: Exchange) -> Playground:
        self.exchange = shown
        if self._skin is not None:
            self._skin.show()
        return self

    def __repr__(self) -> str:
        return repr(self.exchange)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The controls where a page can show them, the picture and the text everywhere."""
        shown = view_bundle(self.widget, repr(self)) if hears_controls() else {}
        return {"text/plain": repr(self), "text/html": self.exchange._repr_html_(), **shown}
