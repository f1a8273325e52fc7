"""What skins of core ipywidgets share: controls over a state that is somebody else's.

Controls hold nothing. A person's change goes to ``asked``, which does what follows or says in place
why that cannot be; inside ``showing`` the skin brings its controls to the state, and hears nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import ipywidgets as widgets

from notebook_accel.errors import Explained


class Skin:
    """The controls of one thing. ``problem`` is where it says what went wrong.

    ``again`` shows what is still so after a wish that could not be kept.
    """

    def __init__(self, again: Callable[[], None]) -> None:
        self.problem = widgets.HTML()
        self._again = again
        self._is_showing = False

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Take changes of controls in this block as the skin's own; earlier problems are over."""
        self._is_showing = True
        try:
            yield
        finally:
            self._is_showing = False
        self.problem.value = ""

    def asked(self, action: Callable[[], Any]) -> None:
        """A control moved: do what a person asks by that, if it was a person."""
        if not self._is_showing:
            self.attempt(action)

    def attempt(self, action: Callable[[], Any]) -> None:
        """Do it; what is wrong is said in place, since nobody reads what a callback raises."""
        try:
            action()
        except Explained as error:
            self._again()
            self.problem.value = _alert(str(error))

    def button(self, text: str, action: Callable[[], Any], busy: str = "", **how: Any) -> Any:
        """Make a button; while its action runs it says ``busy``, if anything, and is off."""
        made = widgets.Button(description=text, **how)

        def clicked(_: Any) -> None:
            if not busy:  # a button that is off for a moment loses the keyboard's focus
                self.attempt(action)
                return
            made.description, made.disabled = busy, True
            try:
                self.attempt(action)
            finally:
                made.description, made.disabled = text, False

        made.on_click(clicked)
        return made


def _alert(text: str) -> str:
    """Write what went wrong, why, and what to do, for a page that reads it aloud."""
    lines = "<br>".join(map(escape, text.splitlines()))
    return f'<div role="alert"><p><strong>error:</strong> {lines}</p></div>'
