"""ClearML: a task with titled series, tables and images."""

from __future__ import annotations

from typing import Any

from notebook_accel.runtime.trackers.base import GeneralTracker, load_package, plain

SERIES = ("train", "eval", "test")


class ClearMLTracker(GeneralTracker):
    """Logs to ClearML; ``kwargs`` go to ``Task.init``. A task that runs already is used, and kept.

    A name that begins with ``train_``, ``eval_`` or ``test_`` is drawn as that series of one chart.

    Source: https://clear.ml/docs/latest/docs/references/sdk/logger
    """

    name = "clearml"
    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._kwargs = kwargs

    @property
    def tracker(self) -> Any:
        """The task."""
        return self.task

    def start(self) -> None:
        """Take the task that is running, or open one."""
        tasks = load_package("clearml", self.name).Task
        running = tasks.current_task()
        self._opened = running is None
        given = {"project_name": self.run_name, **self._kwargs}
        self.task = tasks.init(**given) if running is None else running

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration with the task."""
        self.task.connect_configuration(plain(values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log the numbers as points at ``step``, or as single values without one."""
        logger = self.task.get_logger()
        for name, value in values.items():
            value = plain(value)
            if not isinstance(value, (int, float)):
                logger.report_text(f"{name}: {value}")
            elif step is None:
                logger.report_single_value(name=name, value=value, **kwargs)
            else:
                title, series = _title_and_series(name)
                logger.report_scalar(
                    title=title, series=series, value=value, iteration=step, **kwargs
                )

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log each image."""
        for name, image in values.items():
            title, series = _title_and_series(name)
            self.task.get_logger().report_image(
                title=title, series=series, iteration=step, image=image, **kwargs
            )

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
        table = dataframe if dataframe is not None else [columns or [], *(data or [])]
        title, series = _title_and_series(table_name)
        self.task.get_logger().report_table(
            title=title, series=series, table_plot=table, iteration=step, **kwargs
        )

    def finish(self) -> None:
        """Close the task, if it was opened here."""
        if self._opened:
            self.task.close()


def _title_and_series(name: str) -> tuple[str, str]:
    for series in SERIES:
        if name.startswith(f"{series}_"):
            return name[len(series) + 1 :], series
    return name, "train"
