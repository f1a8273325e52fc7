"""Where a project keeps its files, and how many checkpoints it keeps."""

from __future__ import annotations

import os
from dataclasses import dataclass

from notebook_accel.errors import ConfigError


@dataclass
class ProjectConfiguration:
    """Where checkpoints and logs of a project go.

    With ``automatic_checkpoint_naming``, ``save_state()`` writes
    ``project_dir/checkpoints/checkpoint_{iteration}`` and counts on; ``load_state()`` loads the
    newest complete one and counts on behind it. ``total_limit`` is how many of them are kept.
    ``save_on_each_node`` writes on every machine, for folders that machines do not share.

    Errors: ConfigError for a limit below 1.
    """

    project_dir: str | None = None
    logging_dir: str | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False

    def __post_init__(self) -> None:
        if self.total_limit is not None and self.total_limit < 1:
            raise ConfigError(
                f"total_limit={self.total_limit} keeps no checkpoint",
                "it is how many checkpoints of automatic naming stay on disk",
                "write total_limit=1 to keep the newest only, or None to keep all",
            )
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | os.PathLike[str] | None = None) -> None:
        """Set the project's folder; logs go there too, unless they have a folder of their own."""
        self.project_dir = None if project_dir is None else os.fspath(project_dir)
        if self.logging_dir is None:
            self.logging_dir = self.project_dir
