"""A picker's skin: core ipywidgets over a ``State``, the subset that 7.7 and 8 share.

Controls hold nothing: a change goes to ``pick``, and ``show`` brings every control to the state
that comes of it. Traits change, boxes stay, so that the keyboard's focus stays too.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from notebook_accel.config.settings import SETTINGS
from notebook_accel.ui import menu, picker_html, picker_text, skin
from notebook_accel.ui.choices import devices_of
from notebook_accel.ui.picker_state import LABELS, State
from notebook_accel.ui.place import place

_WIDE = {"description_width": "7.5em"}
_MOST = 10_000  # of what has no end: a field needs one
_LABEL_GAP = "0 0 0 calc(7.5em + 9px)"
_QUESTION_WIDTH = "calc(100% - 7.5em - 12px)"
_QUESTION_GAP = "1px 0 1px calc(7.5em + 9px)"


class Skin(skin.Skin):
    """The controls of one picker. ``pick`` takes settings by name, like ``Picker.choose``."""

    def __init__(
        self,
        state: State,
        pick: Callable[..., Any],
        time: Callable[[], Any],
        refresh: Callable[[], Any],
    ) -> None:
        super().__init__(lambda: self.show(self._shown))
        self._pick = pick
        self._controls: dict[str, Any] = {name: _MAKERS[name](self, state) for name in state.asked}
        self._told, self._numbers, self._code = _html(), _html(), _html()
        buttons = [self.button("Look again", refresh, icon="refresh", layout=_button_layout())]
        if "mixed_precision" in state.asked:
            measuring = self.button(
                "Time the precisions", time, "Measuring...", icon="clock-o",
                layout=_button_layout(),
            )  # fmt: skip
            buttons.insert(0, measuring)
        asked = widgets.VBox([part for one in self._controls.values() for part in one.parts])
        told = widgets.VBox([self._told, self._numbers])
        for column in (asked, told):
            column.add_class("nba-side")
        columns = widgets.HBox([asked, told], layout=widgets.Layout(flex_flow="row wrap"))
        last = widgets.HBox([*buttons, *_keys()])
        self.box = widgets.VBox(
            [_html(picker_html.STYLE), columns, self._code, self.problem, last],
            layout=widgets.Layout(margin="4px 0"),
        )
        self.box.add_class("nba-picker")
        self.show(state)

    def show(self, state: State) -> None:
        """Bring every control to ``state``."""
        self._shown = state
        with self.showing():
            for control in self._controls.values():
                control.show(state)
        self._told.value = picker_html.told(state)
        self._numbers.value = picker_html.numbers(state)
        self._code.value = picker_html.code(state)

    def picked(self, **values: Any) -> None:
        """A control was moved by a person; what is callable is a value that may be refused."""
        self.asked(lambda: self._pick(**{n: v() if callable(v) else v for n, v in values.items()}))


class _Numbers:
    """A whole number."""

    def __init__(self, skin: Skin, state: State, name: str) -> None:
        self._name = name
        least = int(SETTINGS[name].at_least or 0)
        self._field = widgets.BoundedIntText(
            value=least, min=least, max=least, description=LABELS[name], style=_WIDE,
            layout=widgets.Layout(width="13em"),
        )  # fmt: skip
        self._field.observe(lambda change: skin.picked(**{name: change["new"]}), "value")
        self._range = _html(margin="0 0 0 8px")
        row = widgets.Layout(align_items="center")
        self.parts = [widgets.HBox([_explained(self._field, name), self._range], layout=row)]

    def show(self, state: State) -> None:
        counts_ranks = self._name == "num_processes"
        value = state.values[self._name]
        self._field.max = state.most_processes if counts_ranks else max(_MOST, value)
        self._field.value = value
        self._range.value = picker_text.processes_range(state) if counts_ranks else ""


class _Radio:
    """One of several, all of them visible with what there is to say about each."""

    def __init__(
        self,
        skin: Skin,
        name: str,
        options: Callable[[State], list[tuple[str, Any]]],
        value: Callable[[State], Any],
    ) -> None:
        self._options, self._value = options, value
        self.field = widgets.RadioButtons(
            options=[], description=LABELS[name], style=_WIDE, layout=widgets.Layout(width="auto")
        )
        _explained(self.field, name)
        self.field.observe(lambda change: skin.picked(**{name: change["new"]}), "value")
        self.parts = [self.field]

    def show(self, state: State) -> None:
        options = self._options(state)
        if list(self.field.options) != options:
            self.field.options = options
        self.field.value = self._value(state)


class _Precision(_Radio):
    """Precisions, each with how the device computes it."""

    def __init__(self, skin: Skin, state: State) -> None:
        super().__init__(
            skin, "mixed_precision", _precision_options, lambda state: state.choice.mixed_precision
        )
        self._absent = _html(margin=_LABEL_GAP)
        self.parts = [self.field, self._absent]

    def show(self, state: State) -> None:
        super().show(state)
        self._absent.value = picker_html.absent(state)


class _Strategy:
    """Strategies by their words, and under them the questions of the one that is picked."""

    def __init__(self, skin: Skin, state: State) -> None:
        self._skin = skin
        self._words = _Radio(
            skin, "strategy", _strategy_options, lambda state: menu.word_of(state.choice.strategy)
        )
        self._questions = widgets.VBox()
        self._fields: dict[str, Any] = {}
        self._asked: tuple[str, ...] = ()
        self.parts = [self._words.field, self._questions]

    def show(self, state: State) -> None:
        self._words.show(state)
        strategy, ranks = state.choice.strategy, state.choice.num_processes
        entry = menu.entry_of(strategy)
        asks = () if entry is None or ranks == 1 else entry.asks
        asked = (menu.word_of(strategy), *(ask.field for ask in asks))
        if asked != self._asked:
            self._asked = asked
            self._fields = {ask.field: self._field(ask) for ask in asks}
            self._questions.children = tuple(self._fields.values())
        wish = menu.wish_of(strategy, ranks)
        self._now = (strategy, ranks)
        for ask in asks:
            field = self._fields[ask.field]
            if not ask.options:
                divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
                if list(field.options) != divisors:
                    field.options = divisors
            field.value = getattr(wish, ask.field)

    def _field(self, ask: menu.Ask) -> Any:
        style = {"description_width": "8.5em"}
        layout = widgets.Layout(margin=_QUESTION_GAP, width=_QUESTION_WIDTH, max_width="24em")
        if ask.options == menu.YES_NO:
            made: Any = widgets.Checkbox(description=ask.label, indent=False, layout=layout)
        else:
            made = widgets.Dropdown(
                options=list(ask.options), description=ask.label, style=style, layout=layout
            )
        made.observe(lambda change: self._answered(ask.field, change["new"]), "value")
        return made

    def _answered(self, field: str, value: Any) -> None:
        self._skin.picked(strategy=lambda: menu.answered(*self._now, field, value))


class _Device:
    """A kind of device; where there are several GPUs, each can be taken or left."""

    def __init__(self, skin: Skin, state: State) -> None:
        self._skin = skin
        self._kind = _Radio(
            skin, "device", lambda state: [(o.label, o.value) for o in state.places], _kind
        )
        self._boxes: dict[int, Any] = {}
        self._list = widgets.VBox(layout=widgets.Layout(margin="0 0 0 2px"))  # as radios stand
        self._row = widgets.HBox([widgets.Label("GPUs"), self._list])
        self.parts = [self._kind.field, self._row]

    def show(self, state: State) -> None:
        self._kind.show(state)
        used = devices_of(state.choice.device, state.machine)
        taken = {one.index for one in used if one.kind == "cuda"}
        if list(self._boxes) != [one.value for one in state.gpus]:
            self._boxes = {one.value: self._box() for one in state.gpus}
            self._list.children = tuple(self._boxes.values())
        for one in state.gpus:
            box = self._boxes[one.value]
            box.description, box.value = one.label, one.value in taken
            # The last one stays: a run without devices is the CPU's, which is picked above.
            box.disabled = taken == {one.value}
        self._row.layout.display = "" if taken and self._boxes else "none"

    def _box(self) -> Any:
        box = widgets.Checkbox(indent=False, layout=widgets.Layout(width="auto"))
        box.observe(self._took, "value")
        return box

    def _took(self, change: Mapping[str, Any]) -> None:
        taken = [index for index, box in self._boxes.items() if box.value]
        self._skin.picked(device=taken)


def _kind(state: State) -> str:
    device = state.choice.device
    return device if isinstance(device, str) else "cuda"


def _strategy_options(state: State) -> list[tuple[str, str]]:
    words = menu.offered_words()
    now = menu.word_of(state.choice.strategy)
    words += [] if now in words else [now]  # a strategy of another package
    return [(picker_html.strategy_label(one), one) for one in words]


def _precision_options(state: State) -> list[tuple[str, str]]:
    return [
        (picker_html.standing_label(one), one.precision)
        for one in state.standings
        if one.can_be_picked
    ]


def _explained(control: Any, name: str) -> Any:
    """Tell what a setting is when the pointer rests on its label; 7.7 calls this otherwise."""
    trait = "tooltip" if control.has_trait("tooltip") else "description_tooltip"
    control.set_trait(trait, SETTINGS[name].help)
    return control


def _html(value: str = "", margin: str = "0") -> Any:
    return widgets.HTML(value, layout=widgets.Layout(margin=margin))


def _button_layout() -> Any:
    return widgets.Layout(width="auto", margin="6px 8px 2px 0")


def _keys() -> list[Any]:
    """Give what lets arrow keys move in radios, where the page surely can draw it."""
    if place().surface != "canvas" or importlib.util.find_spec("anywidget") is None:
        return []
    code = (Path(__file__).parent / "front" / "picker.js").read_text("utf-8")
    base = importlib.import_module("anywidget").AnyWidget
    return [type("PickerKeys", (base,), {"_esm": code})()]


_MAKERS: dict[str, Callable[[Skin, State], Any]] = {
    "device": _Device,
    "num_processes": lambda skin, state: _Numbers(skin, state, "num_processes"),
    "mixed_precision": _Precision,
    "strategy": _Strategy,
    "gradient_accumulation_steps": lambda skin, state: _Numbers(
        skin, state, "gradient_accumulation_steps"
    ),
}
