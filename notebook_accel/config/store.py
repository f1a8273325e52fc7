"""Configuration files: ours and Accelerate's, YAML and JSON, read by one reader and written."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notebook_accel.config.sources import Source

if TYPE_CHECKING:
    from notebook_accel.config.resolve import RunConfig

VARIABLE = "NOTEBOOK_ACCEL_CONFIG"


@dataclass(frozen=True)
class ConfigFile:
    """What a file says: values of settings, and the line of each."""

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)

    def layer(self) -> dict[str, tuple[Any, Source]]:
        """Give its values, each with its place."""
        return {
            name: (value, Source("file", name, str(self.path), self.lines.get(name, 0)))
            for name, value in self.values.items()
        }


def read(path: str | os.PathLike[str]) -> ConfigFile:
    """Read a configuration file, ours or Accelerate's.

    Errors: ConfigError with file and line.
    """
    import yaml

    from notebook_accel.config.settings import by_key

    found = yaml.safe_load(Path(path).read_text()) or {}
    flat = {}
    for key, value in found.items():
        inner = value.items() if isinstance(value, dict) else [(None, value)]
        for below, one in inner:
            name = f"{key}.{below}" if below else key
            if name in by_key():
                flat[by_key()[name].name] = one
    return ConfigFile(Path(path), flat)


def write(
    config: RunConfig, path: str | os.PathLike[str], accelerate: bool = False
) -> tuple[str, ...]:
    """Write what ``config`` was given; give the names that Accelerate's file has no place for."""
    import yaml

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(yaml.safe_dump(config.given(), sort_keys=False))
    return ()


def default_path(env: Mapping[str, str] | None = None) -> Path:
    """Give where our default file lies, whether or not it is there."""
    env = os.environ if env is None else env
    if env.get(VARIABLE):
        return Path(env[VARIABLE]).expanduser()
    home = Path.home()
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = Path(env.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        folder = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    return folder / "notebook_accel" / "config.yaml"


def accelerates_path(env: Mapping[str, str] | None = None) -> Path:
    """Give where Accelerate keeps its default file."""
    env = os.environ if env is None else env
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]).expanduser() / "accelerate" / "default_config.yaml"
    cache = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()
    return cache / "huggingface" / "accelerate" / "default_config.yaml"


def find_default(env: Mapping[str, str] | None = None) -> Path | None:
    """Find the file that counts when none is named: ours, else Accelerate's, else none."""
    env = os.environ if env is None else env
    if env.get(VARIABLE):
        return None if env[VARIABLE] == "off" else default_path(env)
    places = (default_path(env), accelerates_path(env))
    return next((path for path in places if path.is_file()), None)
