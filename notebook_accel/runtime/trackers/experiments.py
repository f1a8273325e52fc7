"""Trackers with calls of their own for parameters and numbers: MLflow, Comet, Aim, DVCLive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

from notebook_accel.runtime.trackers.base import (
    GeneralTracker,
    flat,
    load_package,
    numbers,
    plain,
)

MLFLOW_BATCH = 100
MLFLOW_LONGEST = 6000


class MLflowTracker(GeneralTracker):
    """Logs to MLflow, wherever its tracking URI points.

    ``logging_dir`` is where a new experiment keeps its artifacts; ``run_id`` goes on with a run.
    The names of the environment that MLflow itself reads (``MLFLOW_TRACKING_URI``,
    ``MLFLOW_RUN_ID``...) count where an argument is left out.

    Source: https://mlflow.org/docs/latest/ml/tracking; at most 100 parameters a call, of at most
    6000 characters each.
    """

    name = "mlflow"
    requires_logging_directory = False
    needs_steps = True

    def __init__(
        self,
        experiment_name: str | None = None,
        logging_dir: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        tags: dict[str, Any] | None = None,
        nested_run: bool = False,
        run_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__()
        self.experiment_name = experiment_name
        self.logging_dir = logging_dir
        self._run = {
            "run_id": run_id,
            "run_name": run_name,
            "nested": nested_run,
            "tags": tags,
            "description": description,
        }

    @property
    def tracker(self) -> Any:
        """The active run."""
        return self.active_run

    def start(self) -> None:
        """Open the run, in an experiment that is made if it is not there."""
        self._mlflow = load_package("mlflow", self.name)
        name, place = self.experiment_name, self.logging_dir
        experiment = None if name is None else self._mlflow.get_experiment_by_name(name)
        if name is not None and experiment is None and place is not None:
            self._mlflow.create_experiment(name, artifact_location=os.fspath(place))
        if name is not None:
            self._mlflow.set_experiment(name)
        self.active_run = self._mlflow.start_run(**self._run)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration as parameters, nested ones under names with dots."""
        entries = {name: str(value)[:MLFLOW_LONGEST] for name, value in flat(values).items()}
        for batch in _batches(entries, MLFLOW_BATCH):
            self._mlflow.log_params(batch)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log those of ``values`` that are numbers: MLflow keeps no others."""
        self._mlflow.log_metrics(numbers(values), step=step, **kwargs)

    def log_figure(self, figure: Any, artifact_file: str, **save_kwargs: Any) -> None:
        """Keep a figure as an artifact."""
        self._mlflow.log_figure(figure, artifact_file, **save_kwargs)

    def log_artifact(self, local_path: str, artifact_path: str | None = None) -> None:
        """Keep a file as an artifact."""
        self._mlflow.log_artifact(local_path, artifact_path)

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Keep the files of a directory as artifacts."""
        self._mlflow.log_artifacts(local_dir, artifact_path)

    def finish(self) -> None:
        """Close the run."""
        self._mlflow.end_run()


class CometMLTracker(GeneralTracker):
    """Logs to Comet; ``kwargs`` go to ``comet_ml.start``.

    Source: https://www.comet.com/docs/v2/api-and-sdk/python-sdk
    """

    name = "comet_ml"
    requires_logging_directory = False

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._kwargs = kwargs

    @property
    def tracker(self) -> Any:
        """The experiment."""
        return self.writer

    def start(self) -> None:
        """Open the experiment."""
        comet = load_package("comet_ml", self.name)
        self.writer = comet.start(project=self.run_name, **self._kwargs)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration as parameters."""
        self.writer.log_parameters(plain(values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log numbers as metrics, dicts as metrics together, everything else as other values."""
        if step is not None:
            self.writer.set_step(step)
        for name, value in values.items():
            value = plain(value)
            if isinstance(value, (int, float)):
                self.writer.log_metric(name, value, step=step, **kwargs)
            elif isinstance(value, dict):
                self.writer.log_metrics(value, step=step, **kwargs)
            else:
                self.writer.log_other(name, value, **kwargs)

    def finish(self) -> None:
        """Close the experiment."""
        self.writer.end()


class AimTracker(GeneralTracker):
    """Logs to an Aim repository in ``logging_dir``; ``kwargs`` go to ``aim.Run``.

    Source: https://aimstack.readthedocs.io
    """

    name = "aim"
    requires_logging_directory = True

    def __init__(
        self, run_name: str, logging_dir: str | os.PathLike[str] = ".", **kwargs: Any
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self.logging_dir = logging_dir
        self._kwargs = kwargs

    @property
    def tracker(self) -> Any:
        """The run."""
        return self.writer

    def start(self) -> None:
        """Open the run."""
        self._aim = load_package("aim", self.name)
        self.writer = self._aim.Run(repo=os.fspath(self.logging_dir), **self._kwargs)
        self.writer.name = self.run_name

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration as hyperparameters."""
        self.writer["hparams"] = plain(values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Track each of ``values``, words as Aim's text; ``kwargs`` go to ``track``."""
        for name, value in values.items():
            tracked = self._aim.Text(value) if isinstance(value, str) else value
            self.writer.track(tracked, name=name, step=step, **kwargs)

    def log_images(
        self, values: dict[str, Any], step: int | None = None, kwargs: Any = None
    ) -> None:
        """Track images, each given alone or with its caption.

        ``kwargs`` holds arguments of ``aim.Image`` and ``track``, under these two names.
        """
        given = kwargs or {}
        for name, value in values.items():
            image, caption = value if isinstance(value, tuple) else (value, "")
            shown = self._aim.Image(image, caption=caption, **given.get("aim_image", {}))
            self.writer.track(shown, name=name, step=step, **given.get("track", {}))

    def finish(self) -> None:
        """Close the run."""
        self.writer.close()


class DVCLiveTracker(GeneralTracker):
    """Logs to DVCLive; ``kwargs`` go to ``dvclive.Live``, unless a ``live`` is given.

    Source: https://dvc.org/doc/dvclive
    """

    name = "dvclive"
    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, live: Any = None, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.live = live
        self._kwargs = kwargs

    @property
    def tracker(self) -> Any:
        """The ``Live`` object."""
        return self.live

    def start(self) -> None:
        """Open the run."""
        if self.live is None:
            self.live = load_package("dvclive", self.name).Live(**self._kwargs)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration as parameters."""
        self.live.log_params(plain(values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log each of ``values``, then advance the step."""
        if step is not None:
            self.live.step = step
        for name, value in values.items():
            value = plain(value)
            if not isinstance(value, (int, float, str)):
                value = str(value)
            self.live.log_metric(name, value, **kwargs)
        self.live.next_step()

    def finish(self) -> None:
        """Close the run."""
        self.live.end()


def _batches(entries: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    left = iter(entries.items())
    while batch := dict(islice(left, size)):
        yield batch
