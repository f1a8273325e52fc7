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
        return Path(env[VARIABLE]).expanduser()
    home = Path.home()
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = Path(env.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        folder = Path(env.get("XDG_CONFIG_HOME") or home / ".config").expanduser()
    return folder / "notebook_accel" / "config.yaml"


def accelerates_path(env: Mapping[str, str] | None = None) -> Path:
    """Give where Accelerate keeps its default file."""
    env = os.environ if env is None else env
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]).expanduser() / "accelerate" / "default_config.yaml"
    cache = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()
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
    return next((path for path in (default_path(env), theirs, old) if path.is_file()), None)
