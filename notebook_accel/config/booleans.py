"""One reading of yes and no, for environment variables, files and arguments alike."""

from __future__ import annotations

from notebook_accel.errors import ConfigError

YES = frozenset({"1", "true", "t", "yes", "y", "on"})
NO = frozenset({"0", "false", "f", "no", "n", "off"})


def read_boolean(value: str | bool | int, name: str = "the value") -> bool:
    """Read yes or no, in whatever case it is written; ``name`` says what it is the value of.

    Errors: ConfigError (a ValueError) listing the words that are understood.
    """
    word = str(value).strip().lower()
    if word in YES:
        return True
    if word in NO:
        return False
    raise ConfigError(
        f"{name} is {value!r}, which is neither yes nor no",
        "yes is one of " + ", ".join(sorted(YES)) + "; no is one of " + ", ".join(sorted(NO)),
        'write "1" or "0"',
    )
