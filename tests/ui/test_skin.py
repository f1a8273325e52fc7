"""What skins share: who moved a control, what goes wrong, and what a button says meanwhile."""

from __future__ import annotations

from typing import Any

from notebook_accel.errors import ConfigError
from notebook_accel.ui.skin import Skin


def fail() -> None:
    raise ConfigError("<two> is no number", "it is a word", "write 2")


def test_what_the_skin_shows_by_itself_is_asked_by_nobody() -> None:
    done: list[str] = []
    skin = Skin(lambda: None)
    with skin.showing():
        skin.asked(lambda: done.append("skin"))
    skin.asked(lambda: done.append("person"))
    assert done == ["person"]


def test_what_goes_wrong_is_said_in_place_after_what_is_still_so_and_until_the_next_showing() -> (
    None
):
    skin = Skin(lambda: shown.append("again"))
    shown: list[str] = []
    skin.asked(fail)
    assert shown == ["again"]
    assert "&lt;two&gt; is no number<br>" in skin.problem.value
    assert 'role="alert"' in skin.problem.value
    with skin.showing():
        pass
    assert skin.problem.value == ""


def test_a_long_button_is_off_and_says_what_goes_on_also_when_that_fails() -> None:
    skin = Skin(lambda: None)
    seen: list[Any] = []

    def look() -> None:
        seen.append((button.description, button.disabled))
        fail()

    button = skin.button("Run it", look, "Running...")
    button.click()
    assert seen == [("Running...", True)]
    assert (button.description, button.disabled) == ("Run it", False)
    quick = skin.button("Look", lambda: seen.append(quick.disabled))
    quick.click()
    assert seen[-1] is False, "the keyboard's focus stays on it"
