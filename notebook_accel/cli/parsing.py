"""How commands read their words: both spellings of an option, near misses, 80 columns of help."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

_WIDTH = 80
_HELP_AT = 30
_CHOICES_FIT = 22
_USAGE_LINES = 6
_SPELLED_TWICE = re.compile(r"^argument ([^:/]+)[^:]*: ")
_CHOICE = re.compile(r"invalid choice: '?(?P<word>[^']*?)'? \(choose from (?P<known>.*)\)")


class Help(argparse.HelpFormatter):
    """Help that fits 80 columns and names an option once, not in both of its spellings."""

    def __init__(self, prog: str, **options: Any) -> None:
        width = min(_WIDTH, shutil.get_terminal_size().columns) - 2
        super().__init__(prog, max_help_position=_HELP_AT, width=width)

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        """Name every option only where that stays short."""
        whole = super()._format_usage(usage, actions, groups, prefix)
        if usage is not None or whole.count("\n") < _USAGE_LINES:
            return whole
        others = [action for action in actions if not action.option_strings]
        short = super()._format_usage(usage, others, [], prefix)
        return short.replace(self._prog, f"{self._prog} [options]", 1)

    def _format_action(self, action: argparse.Action) -> str:
        """List commands without a line that stands for all of them."""
        lines = super()._format_action(action)
        return lines.partition("\n")[2] if action.nargs == argparse.PARSER else lines

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = ", ".join(one_spelling(action.option_strings))
        if action.nargs == 0:
            return names
        return (
            f"{names} {self._format_args(action, self._get_default_metavar_for_optional(action))}"
        )

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kind = getattr(action.type, "__name__", "")
        return {"int": "N", "float": "X"}.get(
            kind, "VALUE" if kind in ("", "str") else kind.upper()
        )

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Any:
        """Write {a,b} only where it is short: long lists of choices stand in the help."""
        if action.metavar is None and action.choices is not None:
            listed = "{" + ",".join(map(str, action.choices)) + "}"
            metavar = listed if len(listed) <= _CHOICES_FIT else default_metavar
            action = argparse.Action([], "", metavar=metavar)
        return super()._metavar_formatter(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """A parser that takes --an_option and --an-option alike and proposes what was meant."""

    answers: Mapping[str, str] = {}  # to words of other programs: what is said instead of a guess

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", Help)
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Declare an argument, an option in both of its spellings."""
        return super().add_argument(*both_spellings(names), **options)

    def parse_args(self, words: Any = None, namespace: Any = None) -> Any:
        """Read ``words``; a word that nothing takes ends the program with the nearest option."""
        options, left = self.parse_known_args(words, namespace)
        if left:
            self.error(f"unknown option {left[0]}{self._nearest(left[0])}")
        return options

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the options are listed; exit code 2."""
        message = _SPELLED_TWICE.sub(r"\1: ", message)
        wrong = _CHOICE.search(message)
        if wrong is not None:
            known = re.findall(r"[^\s,']+", wrong["known"])
            near = did_you_mean(wrong["word"], known)
            message = f"unknown word {wrong['word']}; known are {', '.join(known)}{near}"
        self.exit(2, f"{self.prog}: {message}\n  do:  {self.prog} --help lists the options\n")

    def _nearest(self, word: str) -> str:
        if word in self.answers:
            return f": {self.answers[word]}"
        known = [name for parser in parsers(self) for name in parser._option_string_actions]
        return did_you_mean(word.partition("=")[0], known)


def parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """List a parser and those of the commands below it."""
    below = (action.choices for action in parser._actions if action.nargs == argparse.PARSER)
    inner = [one for choices in below for one in dict(choices or {}).values()]
    return [parser, *(each for one in inner for each in parsers(one))]


def sentence(help: str) -> str:
    """Write a command's help as a sentence."""
    return f"{help[0].upper()}{help[1:]}."


def kind_of(action: argparse.Action) -> str:
    """Say in a letter what follows an option: a number or a word."""
    return {int: "N", count: "N", float: "X"}.get(action.type, "VALUE")


def count(text: str) -> int:
    """Read a number of things: at least one."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of things: write 1 or more")
    return int(text)


def both_spellings(names: Iterable[str]) -> list[str]:
    """Give each long option with underscores and with hyphens, as written first."""
    spelled: dict[str, None] = {}
    for name in names:
        spelled[name] = None
        if name.startswith("--"):
            spelled["--" + name[2:].replace("-", "_")] = None
            spelled["--" + name[2:].replace("_", "-")] = None
    return list(spelled)


def one_spelling(names: Sequence[str]) -> list[str]:
    """Leave out those of ``names`` that are another spelling of one before."""
    kept: dict[str, str] = {}
    for name in names:
        kept.setdefault(name.replace("_", "-"), name)
    return list(kept.values())


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Propose the nearest of ``known``, as the end of a sentence; "" if none is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
