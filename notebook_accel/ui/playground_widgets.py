"""The playground's skin: core ipywidgets over one exchange, the subset that 7.7 and 8 share.

Controls hold nothing: a change goes to ``choose``, and ``show`` brings every control to what comes
of it. Nothing runs before the button is pressed, so that a person can guess first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from notebook_accel.errors import ConfigError
from notebook_accel.ui import exchange_html, exchange_text, skin
from notebook_accel.ui.exchange import MEANING

if TYPE_CHECKING:
    from notebook_accel.ui.playground import Playground

MOST_RANKS = 4  # as many rows of controls as fit beside the picture
_WIDE = {"description_width": "5.5em"}


class Skin(skin.Skin):
    """The controls of one playground."""

    def __init__(self, playground: Playground) -> None:
        super().__init__(self.show)
        self._playground = playground
        self._operation = widgets.ToggleButtons(
            options=list(MEANING), tooltips=[one.format(source=0) for one in MEANING.values()],
            style={"button_width": "auto"},
        )  # fmt: skip
        self._num_ranks = widgets.IntSlider(
            min=2, max=MOST_RANKS, description="ranks", style=_WIDE, continuous_update=False
        )
        self._source = widgets.Dropdown(options=[0, 1], description="source", style=_WIDE)
        self._rows = [_Row(self, rank) for rank in range(MOST_RANKS)]
        self._button = self.button(
            "Run it", playground.run, "Running...", icon="play", button_style="primary",
            tooltip="Start these processes and let them meet",
        )  # fmt: skip
        self._picture = widgets.HTML()
        self._operation.observe(lambda one: self.choose(operation=one["new"]), "value")
        self._num_ranks.observe(lambda one: self.choose(num_ranks=one["new"]), "value")
        self._source.observe(lambda one: self.choose(source=one["new"]), "value")
        asked = [self._num_ranks, self._source, *(row.box for row in self._rows)]
        self.box = widgets.VBox(
            [self._operation, *asked, self._button, self.problem, self._picture],
            layout=widgets.Layout(margin="4px 0"),
        )
        self.show()

    def show(self) -> None:
        """Bring every control to the playground's exchange."""
        shown = self._playground.exchange
        with self.showing():
            self._operation.value = shown.operation
            self._num_ranks.value = min(shown.num_ranks, MOST_RANKS)
            self._source.options = list(range(shown.num_ranks))
            self._source.value = shown.source
            _let_be_seen(self._source, shown.operation == "broadcast")
            for row in self._rows:
                row.show()
        self._picture.value = exchange_html.picture(shown)

    def choose(self, **wanted: Any) -> None:
        """A control was moved by a person."""
        self.asked(lambda: self._playground.choose(**wanted))

    def numbers(self, rank: int, text: str) -> None:
        """A person wrote what ``rank`` brings."""
        self.asked(lambda: self._brings(rank, text))

    def absence(self, rank: int, is_there: bool) -> None:
        """A person let ``rank`` come, or kept it away."""
        absent = set(self._playground.exchange.absent)
        self.choose(absent=absent - {rank} if is_there else absent | {rank})

    def _brings(self, rank: int, text: str) -> None:
        buffers: list[Any] = list(self._playground.exchange.before)
        buffers[rank] = _numbers(text)
        self._playground.choose(buffers=buffers)

    @property
    def exchange(self) -> Any:
        """What is shown now."""
        return self._playground.exchange


class _Row:
    """What one rank brings, and whether it comes."""

    def __init__(self, skin: Skin, rank: int) -> None:
        self._skin, self._rank = skin, rank
        self._text = widgets.Text(
            description=f"rank {rank}", style=_WIDE, continuous_update=False,
            layout=widgets.Layout(width="20em"),
        )  # fmt: skip
        self._comes = widgets.Checkbox(
            value=True, description="takes part", indent=False,
            layout=widgets.Layout(width="auto", margin="0 0 0 12px"),
        )  # fmt: skip
        self._text.observe(lambda one: skin.numbers(rank, one["new"]), "value")
        self._comes.observe(lambda one: skin.absence(rank, one["new"]), "value")
        row = widgets.Layout(align_items="center")
        self.box = widgets.HBox([self._text, self._comes], layout=row)

    def show(self) -> None:
        shown = self._skin.exchange
        is_there = self._rank < shown.num_ranks
        _let_be_seen(self.box, is_there)
        if is_there:
            self._text.value = ", ".join(map(exchange_text.number, shown.before[self._rank]))
            self._comes.value = self._rank not in shown.absent


def _numbers(text: str) -> list[float]:
    words = text.replace(",", " ").split()
    try:
        return [float(word) if "." in word or "e" in word else int(word) for word in words]
    except ValueError:
        raise ConfigError(
            f"{text!r:.60} is not a list of numbers",
            "a rank brings numbers, with commas or spaces between them",
            "write, for example, 1, 2, 3",
        ) from None


def _let_be_seen(widget: Any, is_seen: bool) -> None:
    widget.layout.display = None if is_seen else "none"
