"""Where a value came from, and how it is written there: every message about a value needs both."""

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
        """Show the setting ``name`` as the person wrote it there."""
        written = self.write(name, value)
        return f"{self.path}, line {self.line}: {written}" if self.kind == "file" else written

    def write(self, name: str, value: Any) -> str:
        """Write the setting ``name`` as it is written there."""
        if self.kind == "environment":
            return f"{self.name}={self.show(value)}"
        if self.kind == "option":
            return f"--{self.name} {self.show(value)}"
        if self.kind == "file":
            return f"{(self.name or name).rpartition('.')[2]}: {self.show(value)}"
        return f"{name}={self.show(value)}"

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
