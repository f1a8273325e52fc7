"""A picker's skin: core ipywidgets over a ``State``, the subset that 7.7 and 8 share.

Controls hold nothing: a change goes to ``pick``, and ``show`` brings every control to the state
that comes of it. Traits change, boxes stay, so that the keyboard's focus stays too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets

from notebook_accel.errors import Explained
from notebook_accel.ui import picker_html
from notebook_accel.ui.choices import devices_of, offered
from notebook_accel.ui.picker_state import LABELS, State

VIEW = "application/vnd.jupyter.widget-view+json"
_WIDE = {"description_width": "7.5em"}
_LABEL_GAP = "0 0 0 calc(7.5em + 4px)"


def view_bundle(skin: Skin) -> dict[str, Any]:
    """What a front end shows the skin by; ipywidgets 7 and 8 write it alike."""
    return {VIEW: {"version_major": 2, "version_minor": 0, "model_id": skin.box.model_id}}


class Skin:
    """The controls of one picker. ``pick`` takes settings by name, like ``Picker.choose``."""

    def __init__(
        self,
        state: State,
        pick: Callable[..., Any],
        time: Callable[[], Any],
        refresh: Callable[[], Any],
    ) -> None:
        self._pick, self._is_showing = pick, False
        self._controls: dict[str, Any] = {name: _MAKERS[name](self, state) for name in state.asked}
        self._meaning, self._code, self._problem = _html(), _html(), _html()
        self._measured = _html()
        buttons = [_button("Look again", "refresh", lambda: self._try(refresh))]
        if "mixed_precision" in state.asked:
            self._time_button = _button("Time the precisions", "clock-o", lambda: self._time(time))
            buttons.insert(0, self._time_button)
        asked = widgets.VBox([part for one in self._controls.values() for part in one.parts])
        told = widgets.VBox([self._meaning, self._measured, self._problem])
        for column in (asked, told):
            column.add_class("nba-side")
        columns = widgets.HBox([asked, told], layout=widgets.Layout(flex_flow="row wrap"))
        self.box = widgets.VBox(
            [_html(picker_html.STYLE), columns, self._code, widgets.HBox(buttons)],
            layout=widgets.Layout(margin="4px 0"),
        )
        self.box.add_class("nba-picker")
        self.show(state)

    def show(self, state: State) -> None:
        """Bring every control to ``state``."""
        self._is_showing = True
        try:
            for control in self._controls.values():
                control.show(state)
        finally:
            self._is_showing = False
        self._meaning.value = picker_html.meaning(state)
        self._measured.value = picker_html.measured(state)
        self._code.value = picker_html.code(state)
        self._problem.value = ""

    def picked(self, **values: Any) -> None:
        """A control was moved by a person."""
        if not self._is_showing:
            self._try(lambda: self._pick(**values))

    def _try(self, action: Callable[[], Any]) -> None:
        """Do it; what is wrong is said in place, since nobody reads what a callback raises."""
        try:
            action()
        except Explained as error:
            self._problem.value = picker_html.problem(str(error))

    def _time(self, time: Callable[[], Any]) -> None:
        button = self._time_button
        before = button.description
        button.description, button.disabled = "Measuring...", True
        try:
            self._try(time)
        finally:
            button.description, button.disabled = before, False


class _Numbers:
    """A whole number of at least 1."""

    def __init__(self, skin: Skin, state: State, name: str) -> None:
        self._name = name
        self._field = widgets.BoundedIntText(
            value=1, min=1, max=1, description=LABELS[name], style=_WIDE,
            layout=widgets.Layout(width="13em"),
        )  # fmt: skip
        self._field.observe(lambda change: skin.picked(**{name: change["new"]}), "value")
        self.parts = [self._field, _help(name)]

    def show(self, state: State) -> None:
        most = state.most_processes if self._name == "num_processes" else 100_000
        value = state.values[self._name]
        self._field.max = max(most, value)  # a smaller maximum would cut a larger value first
        self._field.value = value
        self._field.max = max(most, value)


class _Radio:
    """One of several, all of them visible with what there is to say about each."""

    def __init__(self, skin: Skin, name: str, options: Callable[[State], list[tuple[str, Any]]]):
        self._name, self._options = name, options
        self.field = widgets.RadioButtons(
            options=[], description=LABELS[name], style=_WIDE, layout=widgets.Layout(width="auto")
        )
        self.field.observe(lambda change: skin.picked(**{name: change["new"]}), "value")

    def show(self, state: State, value: Any) -> None:
        options = self._options(state)
        if list(self.field.options) != options:
            self.field.options = options
        self.field.value = value


class _Words(_Radio):
    """A setting that is one of some words."""

    def __init__(self, skin: Skin, state: State, name: str) -> None:
        super().__init__(skin, name, lambda state: [(str(one), one) for one in offered(name)])
        self.parts = [self.field, _help(name)]

    def show(self, state: State, value: Any = None) -> None:
        super().show(state, state.values[self._name])


class _Precision(_Radio):
    """Precisions, each with how the device computes it."""

    def __init__(self, skin: Skin, state: State) -> None:
        super().__init__(skin, "mixed_precision", _precision_options)
        self._absent = _html(margin=_LABEL_GAP)
        self.parts = [self.field, self._absent]

    def show(self, state: State, value: Any = None) -> None:
        super().show(state, state.choice.mixed_precision)
        self._absent.value = picker_html.absent(state)


class _Device:
    """A kind of device; where there are several GPUs, each can be taken or left."""

    def __init__(self, skin: Skin, state: State) -> None:
        self._skin = skin
        self._kind = _Radio(
            skin, "device", lambda state: [(o.label, o.value) for o in state.places]
        )
        self._boxes: dict[int, Any] = {}
        self._list = widgets.VBox(layout=widgets.Layout(margin=_LABEL_GAP))
        self.parts = [self._kind.field, self._list]

    def show(self, state: State) -> None:
        device = state.choice.device
        self._kind.show(state, device if isinstance(device, str) else "cuda")
        taken = {one.index for one in devices_of(device, state.machine) if one.kind == "cuda"}
        if list(self._boxes) != [one.value for one in state.gpus]:
            self._boxes = {one.value: self._box() for one in state.gpus}
            self._list.children = tuple(self._boxes.values())
        for one in state.gpus:
            box = self._boxes[one.value]
            box.description, box.value = one.label, one.value in taken
            # The last one stays: a run without devices is the CPU's, which is picked above.
            box.disabled = taken == {one.value}
        self._list.layout.display = "" if taken else "none"

    def _box(self) -> Any:
        box = widgets.Checkbox(indent=False, layout=widgets.Layout(width="auto"))
        box.observe(self._took, "value")
        return box

    def _took(self, change: Mapping[str, Any]) -> None:
        taken = [index for index, box in self._boxes.items() if box.value]
        self._skin.picked(device=taken)


def _precision_options(state: State) -> list[tuple[str, str]]:
    return [
        (picker_html.standing_label(one), one.precision)
        for one in state.standings
        if one.can_be_picked
    ]


def _help(name: str) -> Any:
    return _html(picker_html.help_words(name), margin=_LABEL_GAP)


def _html(value: str = "", margin: str = "0") -> Any:
    return widgets.HTML(value, layout=widgets.Layout(margin=margin))


def _button(text: str, icon: str, action: Callable[[], None]) -> Any:
    button = widgets.Button(
        description=text, icon=icon, layout=widgets.Layout(width="auto", margin="6px 8px 2px 0")
    )
    button.on_click(lambda _: action())
    return button


_MAKERS: dict[str, Callable[[Skin, State], Any]] = {
    "device": _Device,
    "num_processes": lambda skin, state: _Numbers(skin, state, "num_processes"),
    "mixed_precision": _Precision,
    "strategy": lambda skin, state: _Words(skin, state, "strategy"),
    "gradient_accumulation_steps": lambda skin, state: _Numbers(
        skin, state, "gradient_accumulation_steps"
    ),
}
