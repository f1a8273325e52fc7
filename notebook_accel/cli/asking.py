"""How a person is asked: menus where the terminal can draw them, numbered lines everywhere else.

Colab's ``!``, a pipe, an editor's dumb terminal and a missing questionary all get the lines. The
``!`` of other notebooks looks like a terminal, but nobody can type there: it would wait for ever.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from notebook_accel.cli.wizard import Option, Question
from notebook_accel.config.installed import is_installed
from notebook_accel.errors import ConfigError

_DUMB = ("", "dumb", "unknown")
_BY_OPTIONS = (
    "or say all by options: notebook-accel config --num_processes 2 --mixed_precision bf16"
)


def asker() -> Callable[[Question], Any]:
    """Choose how to ask.

    Errors: ConfigError in a cell, where nobody can answer; what it gives raises it when the input
    ends.
    """
    if "COLAB_RELEASE_TAG" in os.environ:
        return by_numbers
    if "JPY_PARENT_PID" in os.environ and sys.stdin.isatty():
        raise ConfigError(
            "questions cannot be answered in a cell",
            "what a cell starts with ! has a terminal in which nobody can type",
            f"run it in a terminal; {_BY_OPTIONS}",
        )
    if os.environ.get("TERM", "") in _DUMB or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return by_numbers
    return by_menu if is_installed("questionary") else by_numbers


def by_menu(question: Question) -> Any:
    """Ask by questionary: arrow keys and Enter."""
    import questionary

    if question.options:
        values = [one.value for one in question.options]
        choices = [questionary.Choice(one.label, i) for i, one in enumerate(question.options)]
        first = choices[values.index(question.default)]
        asked = questionary.select(question.text, choices, default=first, qmark="-")
        return values[asked.unsafe_ask()]

    def accepts(text: str) -> bool | str:
        try:
            question.check(text)
        except ConfigError as error:
            return f"{error.what}: {error.fix or error.why}"
        return True

    asked = questionary.text(question.text, _written(question.default), accepts, qmark="-")
    return question.check(asked.unsafe_ask())


def by_numbers(question: Question) -> Any:
    """Ask by plain lines; the answer is a number or the word itself, and nothing is the default."""
    print(f"\n{question.text}")
    answers = _answers(question)
    width = 0 if _are_numbers(question) else max(map(len, answers)) + 1
    for typed, one in answers.items():
        mark = "*" if one.value == question.default else " "
        print(f"  {typed if width else '':>{width}} {mark} {one.label}")
    words = {_written(one.value).lower(): one for one in question.options}
    while True:
        text = _line(question)
        if text == "":
            text = _written(question.default)
        if not question.options:
            try:
                return question.check(text)
            except ConfigError as error:
                print(f"  {error.what}: {error.fix or error.why}")
                continue
        found = words.get(text.lower()) or answers.get(text)
        if found is not None:
            return found.value
        known = list(answers)
        few = ", ".join(known) if _are_numbers(question) else f"a number from 1 to {known[-1]}"
        print(f"  {text!r} is none of them: write {few}")


def _answers(question: Question) -> dict[str, Option]:
    """Give what is typed for each option: its place in the list, or the number that it is."""
    if _are_numbers(question):  # places beside numbers would say something else with the same word
        return {str(one.value): one for one in question.options}
    return {str(number): one for number, one in enumerate(question.options, 1)}


def _are_numbers(question: Question) -> bool:
    return all(type(one.value) is int for one in question.options)


def _line(question: Question) -> str:
    shown = _written(question.default)
    if question.options:
        answers = _answers(question).items()
        shown = next(typed for typed, one in answers if one.value == question.default)
    try:
        return input(f"[{shown}]: " if shown else ": ").strip()
    except EOFError:
        raise ConfigError(
            f"nobody answers: {question.text}",
            "the input of this command has ended",
            f"run it in a terminal; {_BY_OPTIONS}",
        ) from None


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
