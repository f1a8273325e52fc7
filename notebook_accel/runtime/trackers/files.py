"""Trackers without an account: a file of JSON lines, or a table, in the run's own directory."""

from __future__ import annotations

import csv
import json
import os
import time
from pathlib import Path
from typing import Any

from notebook_accel.runtime.trackers.base import GeneralTracker, flat, plain


class FileTracker(GeneralTracker):
    """What these trackers have in common: one file, ``{logging_dir}/{run_name}.{name}``."""

    requires_logging_directory = True
    needs_steps = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str] = ".") -> None:
        super().__init__()
        self.run_name = run_name
        self.path = Path(logging_dir) / f"{run_name}.{self.name}"

    @property
    def tracker(self) -> Path:
        """The file."""
        return self.path

    def start(self) -> None:
        """Make the directory."""
        self.path.parent.mkdir(parents=True, exist_ok=True)


class JSONLTracker(FileTracker):
    """Appends one JSON object a log to ``{logging_dir}/{run_name}.jsonl``.

    The configuration is a line with the key ``config``; every other line has ``time``, ``step`` and
    the values. A line is whole in the file when ``log`` returns; a run that is started again
    appends to its file.

    Units: ``time`` in seconds since 1970.
    """

    name = "jsonl"

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Add a line with the configuration."""
        self._append({"time": time.time(), "config": plain(values)})

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Add a line with ``values``."""
        self._append({"time": time.time(), "step": step, **plain(values), **plain(kwargs)})

    def _append(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


class CSVTracker(FileTracker):
    """Appends one row a log to ``{logging_dir}/{run_name}.csv``.

    A name that comes later gets a column of its own: the file is then written anew, at once. The
    configuration goes to ``{run_name}.config.json`` beside it. A run that is started again appends
    to its file.

    Units: ``time`` in seconds since 1970.
    """

    name = "csv"

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str] = ".") -> None:
        super().__init__(run_name, logging_dir)
        self._columns = ["time", "step"]

    def start(self) -> None:
        """Make the directory, and go on with a file that is there."""
        super().start()
        if self.path.exists() and self.path.stat().st_size:
            with self.path.open(newline="", encoding="utf-8") as file:
                self._columns = next(csv.reader(file), self._columns)
        else:
            self._write(self.path, [])

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Write the configuration into a file beside the table."""
        config = self.path.with_name(f"{self.path.stem}.config.json")
        config.write_text(json.dumps(plain(values), indent=2, ensure_ascii=False))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Add a row with ``values``."""
        row = {"time": time.time(), "step": step, **flat(values), **flat(kwargs)}
        new = [name for name in row if name not in self._columns]
        if new:
            self._widen(new)
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _widen(self, new: list[str]) -> None:
        with self.path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self._columns = [*self._columns, *new]
        wider = self.path.with_name(f"{self.path.name}.new")
        self._write(wider, rows)
        os.replace(wider, self.path)

    def _write(self, path: Path, rows: list[dict[str, Any]]) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
