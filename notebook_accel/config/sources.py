"""Where a value came from, and how it would be written there: the other half of every message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
        return self.kind

    @property
    def rank(self) -> int:
        """How strong it is: argument > environment > file > default."""
        return _RANKS[self.kind]

    def quote(self, name: str, value: Any) -> str:
        """Write the setting ``name`` as the person wrote it there."""
        if self.kind == "environment":
            return f"{self.name}={value}"
        if self.kind == "option":
            return f"--{self.name} {value}"
        if self.kind == "file":
            return f"{self.path}, line {self.line}: {self.name or name}: {value}"
        text = repr(value)
        return f"{name}={text if len(text) <= 60 else f'{text[:57]}...'}"

    def advise(self, name: str, value: Any) -> str:
        """Say how ``value`` is written there."""
        if self.kind == "environment":
            return f"set {self.name}={value}, or unset it"
        if self.kind == "option":
            return f"write --{self.name} {value}"
        if self.kind == "file":
            return f"write {(self.name or name).rpartition('.')[2]}: {value}"
        return f"write {name}={value!r}"


ARGUMENT = Source("argument")
DEFAULT = Source("default")
