"""Where a value came from, and how it is written there: every message about a value needs both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from notebook_accel.config.settings import SETTINGS, alone

# What beats what.
_RANKS = {"default": 0, "file": 1, "environment": 2, "option": 3, "argument": 3}


@dataclass(frozen=True)
class Source:
    """Where a value came from.

    ``kind`` is "argument", "option" (of the command line), "environment", "file" or "default";
    ``name`` is the option, the variable or the key, ``path`` and ``line`` the place in a file.
    """

    kind: str
    name: str = ""
    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        if self.kind == "environment":
            return f"environment variable {self.name}"
        if self.kind == "file":
            return f"file {self.path}, line {self.line}" if self.line else f"file {self.path}"
        return f"option --{self.name}" if self.kind == "option" else self.kind

    @property
    def is_asked(self) -> bool:
        """Whether the call itself says it, or the command line."""
        return self.kind in ("argument", "option")

    @property
    def rank(self) -> int:
        """How strong it is: argument > environment > file > default."""
        return _RANKS[self.kind]

    def quote(self, name: str, value: Any) -> str:
        """Show the setting ``name`` as the person wrote it there."""
        written = self.write(name, value)
        return f"{self.path}, line {self.line}: {written}" if self.kind == "file" else written

    def write(self, name: str, value: Any) -> str:
        """Write the setting ``name`` as it is written there."""
        text = self.show(value)
        if self.kind == "option":
            return self._option(name, text)
        if self.kind == "environment":
            return self._variable(name, text)
        between = ": " if self.kind == "file" else "="
        return f"{self.call(name)}{between}{text}"

    def call(self, name: str) -> str:
        """Give what the setting ``name`` is called there."""
        if self.kind == "option":
            return f"--{self.name}"
        if self.kind == "environment":
            return self.name
        return (self.name or name).rpartition(".")[2] if self.kind == "file" else name

    def like(self, name: str) -> Source:
        """Give the place of this kind where the setting ``name`` would be written."""
        one = SETTINGS[name]
        if self.kind == "option" and one.has_option:
            accelerates = [one.yaml] if one.yaml in one.flags else [*alone(one)]
            return Source("option", next(iter(accelerates), name))  # which more people know
        variables = [*one.env, *(word.env for word in one.words if word.env)]
        if self.kind == "environment" and variables:
            return Source("environment", variables[0])
        return Source("file", "", self.path) if self.kind == "file" else ARGUMENT

    def _variable(self, name: str, text: str) -> str:
        words = SETTINGS[name].words if name in SETTINGS else ()
        if any(word.env == self.name for word in words):
            variable = next((word.env for word in words if word.value == text), "")
            return f"{variable}=true" if variable else f"{self.name}=false"
        return f"{self.name}={text}"

    def _option(self, name: str, text: str) -> str:
        without_word = alone(SETTINGS[name]) if name in SETTINGS else {}
        if self.name not in without_word:
            return f"--{self.name} {text}"
        if without_word[self.name] == text:
            return f"--{self.name}"
        flag = next((flag for flag, says in without_word.items() if says == text), "")
        return f"--{flag}" if flag else f"--{name} {text}"

    def show(self, value: Any) -> str:
        """Write a value: a Python value in an argument, plain text elsewhere."""
        if self.kind in ("argument", "default"):
            text = repr(value)
        elif isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, (list, tuple)):
            text = ",".join(map(self.show, value))
            text = f"[{text}]" if self.kind == "file" else text
        else:
            text = str(value)
        return text if len(text) <= 60 else f"{text[:57]}..."


ARGUMENT = Source("argument")
DEFAULT = Source("default")
# What was chosen: setting -> its value, and where it was said.
Found = dict[str, tuple[Any, Source]]
