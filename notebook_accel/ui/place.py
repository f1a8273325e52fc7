"""Where am I: what this process can show to a person.

By capability first, by name second; nothing of the host is imported to find out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TextIO, cast

from notebook_accel.errors import ConfigError
from notebook_accel.events.lines import ipython

Surface = Literal["png", "text", "off"]
OVERRIDE = "NOTEBOOK_ACCEL_UI"
_CHOICES = ("png", "text", "off")


@dataclass(frozen=True)
class Place:
    """What is there: ``surface`` is how to draw, ``host`` the name of the front end's home.

    ``rewrites`` is true where a carriage return goes back to the start of the line.
    """

    surface: Surface
    host: str
    rewrites: bool = False


def place(env: Mapping[str, str] | None = None, stream: TextIO | None = None) -> Place:
    """Find out where this process shows things; ``NOTEBOOK_ACCEL_UI`` (png, text, off) overrides.

    Errors: ConfigError for another value of the variable.
    """
    env = os.environ if env is None else env
    stream = sys.stderr if stream is None else stream
    kernel = has_kernel()
    surface: Surface = "png" if kernel else "text"
    wish = env.get(OVERRIDE, "").strip().lower()
    if wish:
        if wish not in _CHOICES:
            raise ConfigError(
                f"{OVERRIDE}={wish} is not a way to show a run",
                f"known are {', '.join(_CHOICES)}",
                f'set os.environ["{OVERRIDE}"] = "text", or delete the variable',
            )
        surface = cast(Surface, wish)
    if surface == "png" and not kernel:
        surface = "text"  # a picture needs a front end that listens
    return Place(surface, _host(env, kernel), not kernel and _is_terminal(stream))


def has_kernel() -> bool:
    """True when this process is a Jupyter kernel, in any front end."""
    return getattr(ipython(), "kernel", None) is not None


def _is_terminal(stream: TextIO) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _host(env: Mapping[str, str], kernel: bool) -> str:
    if "KAGGLE_KERNEL_RUN_TYPE" in env:  # Kaggle's image is built on Colab's: ask for it first
        return "kaggle"
    if "COLAB_RELEASE_TAG" in env or "google.colab" in sys.modules:
        return "colab"
    if not kernel:
        return "terminal"
    if "VSCODE_PID" in env or "__vsc_ipynb_file__" in getattr(ipython(), "user_ns", {}):
        return "vscode"
    return "jupyter" if "JPY_SESSION_NAME" in env else "kernel"
