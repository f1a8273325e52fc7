"""Where configuration files lie when nobody names one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "NOTEBOOK_ACCEL_CONFIG"
OFF = "off"


def default_path(env: Mapping[str, str] | None = None) -> Path:
    """Give where our default file lies, whether or not it is there.

    NOTEBOOK_ACCEL_CONFIG names it; else it is in the user's folder for configuration.
    """
    env = os.environ if env is None else env
    if env.get(VARIABLE) not in (None, "", OFF):
        return at_home(env[VARIABLE])
    home = at_home("~")
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = Path(env.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        folder = at_home(env.get("XDG_CONFIG_HOME") or "~/.config")
    return folder / "notebook_accel" / "config.yaml"


def accelerates_path(env: Mapping[str, str] | None = None) -> Path:
    """Give where Accelerate keeps its default file."""
    env = os.environ if env is None else env
    if env.get("HF_HOME"):
        return at_home(env["HF_HOME"]) / "accelerate" / "default_config.yaml"
    cache = at_home(env.get("XDG_CACHE_HOME") or "~/.cache")
    return cache / "huggingface" / "accelerate" / "default_config.yaml"


def find_default(env: Mapping[str, str] | None = None) -> Path | None:
    """Find the file that counts when none is named: ours, else Accelerate's, else none.

    A file that NOTEBOOK_ACCEL_CONFIG names counts, there or not; "off" is no file at all.
    """
    env = os.environ if env is None else env
    named = env.get(VARIABLE)
    if named:
        return None if named == OFF else default_path(env)
    theirs = accelerates_path(env)
    old = theirs.with_name("default_config.json")
    places = (default_path(env), theirs, old)
    # unlike Path.is_file, a folder that this user may not look into is no error
    return next((path for path in places if os.path.isfile(path)), None)


def named_or_default(name: str | None) -> Path | None:
    """Give the file that was named, else the one that counts when none is."""
    return at_home(name) if name else find_default()


def at_home(path: str | os.PathLike[str]) -> Path:
    """Replace a leading ~; where nobody knows the user's home it stays, and is no error."""
    return Path(os.path.expanduser(path))
