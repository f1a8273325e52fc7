"""Trackers shaped like Weights & Biases: a run with a config and ``log(values, step)``."""

from __future__ import annotations

from typing import Any

from notebook_accel.runtime.trackers.base import GeneralTracker, load_package, plain


class HostedTracker(GeneralTracker):
    """What these backends have in common; ``kwargs`` go to the ``init`` of their package."""

    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._kwargs = kwargs

    @property
    def tracker(self) -> Any:
        """The run."""
        return self.run

    def start(self) -> None:
        """Open the run."""
        self._package = load_package(self.name, self.name)
        self.run = self._package.init(project=self.run_name, **self._kwargs)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration with the run."""
        self.run.config.update(plain(values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values``; ``kwargs`` go to the run's ``log``."""
        self.run.log(values, step=step, **kwargs)

    def finish(self) -> None:
        """Close the run, when everything has arrived."""
        self.run.finish()


class WandBTracker(HostedTracker):
    """Logs to Weights & Biases; ``kwargs`` go to ``wandb.init``.

    Source: https://docs.wandb.ai/ref/python
    """

    name = "wandb"

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration with the run, over what an earlier one left."""
        self.run.config.update(plain(values), allow_val_change=True)

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log each list of images."""
        images = {name: [self._package.Image(one) for one in many] for name, many in values.items()}
        self.log(images, step=step, **kwargs)

    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Log a table, of ``columns`` and ``data`` or of a data frame."""
        table = self._package.Table(columns=columns, data=data, dataframe=dataframe)
        self.log({table_name: table}, step=step, **kwargs)


class TrackioTracker(HostedTracker):
    """Logs to Trackio, on this machine or in a Space; ``kwargs`` go to ``trackio.init``.

    Source: https://huggingface.co/docs/trackio
    """

    name = "trackio"


class SwanLabTracker(HostedTracker):
    """Logs to SwanLab; ``kwargs`` go to ``swanlab.init``.

    Source: https://docs.swanlab.cn/en/api
    """

    name = "swanlab"

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values``, words as its own kind of text."""
        text = self._package.Text
        said = {name: text(one) if isinstance(one, str) else one for name, one in values.items()}
        super().log(said, step, **kwargs)

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log each list of images; ``kwargs`` go to ``swanlab.Image``."""
        image = self._package.Image
        shown = {name: [image(one, **kwargs) for one in many] for name, many in values.items()}
        self.log(shown, step)
