"""Where am I: what this process can show to a person.

By capability first, by name second; nothing of the host is imported to find out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, cast

from notebook_accel.errors import ConfigError
from notebook_accel.events import context
from notebook_accel.events.lines import ipython

Surface = Literal["canvas", "png", "text", "off"]
OVERRIDE = "NOTEBOOK_ACCEL_UI"
_CHOICES = ("canvas", "png", "text", "off")
_EXTENSION = "share/jupyter/labextensions/anywidget/package.json"


@dataclass(frozen=True)
class Place:
    """What is there: ``surface`` is how to draw, ``host`` the name of the front end's home.

    "png" with ``may_have_widgets`` is a page that can perhaps do more: it has to say so first.
    ``rewrites`` is true where a carriage return goes back to the start of the line.
    """

    surface: Surface
    host: str
    rewrites: bool = False
    may_have_widgets: bool = False


def place(env: Mapping[str, str] | None = None, stream: TextIO | None = None) -> Place:
    """Find out where this process shows things.

    ``NOTEBOOK_ACCEL_UI`` (canvas, png, text, off) overrides.

    Errors: ConfigError for another value of the variable.
    """
    env = os.environ if env is None else env
    stream = sys.stderr if stream is None else stream
    kernel = has_kernel()
    host = _host(env, kernel)
    from_page = kernel and cell_id() != ""
    surface: Surface = "text"
    if kernel:
        surface = "canvas" if from_page and _lab_can_draw(env) else "png"
    wish = env.get(OVERRIDE, "").strip().lower()
    if wish:
        if wish not in _CHOICES:
            raise ConfigError(
                f"{OVERRIDE}={wish} is not a way to show a run",
                f"known are {', '.join(_CHOICES)}",
                f'set os.environ["{OVERRIDE}"] = "text", or delete the variable',
            )
        surface = cast(Surface, wish)
    if surface in ("canvas", "png") and not kernel:
        surface = "text"  # a picture needs a front end that listens
    may = surface == "png" and not wish and (from_page or host in ("colab", "vscode"))
    return Place(surface, host, not kernel and _is_terminal(stream), may)


def hears_controls() -> bool:
    """True where controls can be shown, and moving them is heard: not by what a worker shows."""
    in_worker = context.current() is not None
    return has_kernel() and not in_worker and place().surface not in ("text", "off")


def has_kernel() -> bool:
    """True when this process is a Jupyter kernel, in any front end."""
    return getattr(ipython(), "kernel", None) is not None


def cell_id() -> str:
    """Which cell of its notebook runs; "" where nobody says so.

    Pages of JupyterLab and Notebook 7 do; nbconvert, papermill and older pages do not.
    """
    shell = ipython()
    owners: tuple[Any, ...] = (shell, getattr(shell, "kernel", None))
    for owner in owners:
        if hasattr(owner, "get_parent"):
            parent: Any = owner.get_parent()
            return str(((parent or {}).get("metadata") or {}).get("cellId", ""))
    return ""


def _lab_can_draw(env: Mapping[str, str]) -> bool:
    """Whether the page has what draws: its server is of this environment, which has it.

    A server of another environment may have it or not: the page is asked then.
    """
    server = env.get("JPY_PARENT_PID", "")
    try:
        words = Path(f"/proc/{int(server)}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):  # no server, or no /proc
        return False
    same = Path(os.fsdecode(words[0])).parent == Path(sys.executable).parent
    return same and (Path(sys.prefix) / _EXTENSION).exists()


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
