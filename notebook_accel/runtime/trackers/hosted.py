"""Trackers shaped like Weights & Biases: a run with a config and ``log(values, step)``."""

from __future__ import annotations

from typing import Any

from notebook_accel.runtime.trackers.base import GeneralTracker, load_package, plain


class WandBTracker(GeneralTracker):
    """Logs to Weights & Biases; ``kwargs`` go to ``wandb.init``.

    Source: https://docs.wandb.ai/ref/python
    """

    name = "wandb"
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
        self._wandb = load_package("wandb", self.name)
        self.run = self._wandb.init(project=self.run_name, **self._kwargs)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration with the run."""
        self.run.config.update(plain(values), allow_val_change=True)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values``; ``kwargs`` go to the run's ``log`` (``commit``...)."""
        self.run.log(values, step=step, **kwargs)

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log each list of images."""
        images = {name: [self._wandb.Image(one) for one in many] for name, many in values.items()}
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
        table = self._wandb.Table(columns=columns, data=data, dataframe=dataframe)
        self.log({table_name: table}, step=step, **kwargs)

    def finish(self) -> None:
        """Close the run, when everything has arrived."""
        self.run.finish()


class TrackioTracker(GeneralTracker):
    """Logs to Trackio, on this machine or in a Space; ``kwargs`` go to ``trackio.init``.

    Source: https://huggingface.co/docs/trackio
    """

    name = "trackio"
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
        self.run = load_package("trackio", self.name).init(project=self.run_name, **self._kwargs)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration with the run."""
        self.run.config.update(plain(values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values``."""
        self.run.log(values, step=step, **kwargs)

    def finish(self) -> None:
        """Close the run."""
        self.run.finish()


class SwanLabTracker(GeneralTracker):
    """Logs to SwanLab; ``kwargs`` go to ``swanlab.init``.

    Source: https://docs.swanlab.cn/en/api
    """

    name = "swanlab"
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
        self._swanlab = load_package("swanlab", self.name)
        self.run = self._swanlab.init(project=self.run_name, **self._kwargs)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration with the run."""
        self.run.config.update(plain(values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values``, words as its own kind of text."""
        text = self._swanlab.Text
        said = {name: text(one) if isinstance(one, str) else one for name, one in values.items()}
        self.run.log(said, step=step, **kwargs)

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log each list of images; ``kwargs`` go to ``swanlab.Image``."""
        self.run.log(
            {
                name: [self._swanlab.Image(one, **kwargs) for one in many]
                for name, many in values.items()
            },
            step=step,
        )

    def finish(self) -> None:
        """Close the run."""
        self.run.finish()
