"""Settings objects of Accelerate's own, taken as ours: libraries made for it bring them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from notebook_accel.errors import ConfigError

Kind = TypeVar("Kind")


def adopt(value: Any, kind: type[Kind]) -> Any:
    """Give ``value`` as a ``kind`` if its class has the same name: what was changed in it counts.

    Anything else comes back as it is, for others to judge.
    """
    alike = type(value).__name__ == kind.__name__ and is_dataclass(value)
    if isinstance(value, kind) or not alike:
        return value
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    changed = {
        one.name: getattr(value, one.name)
        for one in fields(value)
        if one.name in known and getattr(value, one.name) != one.default
    }
    return kind(**changed)


def adopted(name: str, value: Any, kind: type[Kind]) -> Kind | None:
    """Give what a person passed as the argument ``name``, as a ``kind``; None for nothing.

    Errors: ConfigError for a value of another kind.
    """
    ours = adopt(value, kind)
    if ours is not None and not isinstance(ours, kind):
        raise ConfigError(
            f"{name}={value!r} is no {kind.__name__}",
            "its settings are read by their names from an object of that class",
            f"write {name}={kind.__name__}(...)",
        )
    return ours
