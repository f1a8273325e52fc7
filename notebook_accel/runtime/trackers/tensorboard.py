"""TensorBoard: event files in the run's directory, by the package tensorboard or tensorboardX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from notebook_accel.runtime.trackers.base import GeneralTracker, flat, load_package, plain


class TensorBoardTracker(GeneralTracker):
    """Writes scalars, texts and images to ``{logging_dir}/{run_name}``.

    ``kwargs`` go to ``SummaryWriter``. The configuration becomes hyperparameters, and a file
    ``hparams.yml`` beside the events.
    """

    name = "tensorboard"
    requires_logging_directory = True
    needs_steps = True

    def __init__(
        self, run_name: str, logging_dir: str | os.PathLike[str] = ".", **kwargs: Any
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self.logging_dir = Path(logging_dir) / run_name
        self._kwargs = kwargs

    @property
    def tracker(self) -> Any:
        """The ``SummaryWriter``."""
        return self.writer

    def start(self) -> None:
        """Open the writer."""
        self.writer = _writer_class()(self.logging_dir, **self._kwargs)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration as hyperparameters and as a file."""
        self.writer.add_hparams(flat(values), {})
        self.writer.flush()
        path = self.logging_dir / "hparams.yml"
        path.write_text(yaml.safe_dump(plain(values), sort_keys=False))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Write numbers as scalars, dicts as scalars of one chart, everything else as text."""
        for name, value in values.items():
            value = plain(value)
            if isinstance(value, (int, float)):
                self.writer.add_scalar(name, value, step, **kwargs)
            elif isinstance(value, dict):
                self.writer.add_scalars(name, value, step, **kwargs)
            else:
                self.writer.add_text(name, str(value), step, **kwargs)
        self.writer.flush()

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Write each batch of images; ``kwargs`` go to ``add_images`` (``dataformats``...)."""
        for name, images in values.items():
            self.writer.add_images(name, images, step, **kwargs)

    def finish(self) -> None:
        """Write what is left and close the files."""
        self.writer.close()


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # the package tensorboard is not there; its smaller sister may be
        return load_package("tensorboardX", "tensorboard").SummaryWriter
    return SummaryWriter
