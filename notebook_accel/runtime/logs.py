"""Log lines that know their rank: once a run, or from every rank, also before there is a run."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from notebook_accel.config.training import from_env
from notebook_accel.ranks.place import placement_here
from notebook_accel.ranks.world import World

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:  # Python 3.10 knows the class, but not its parameter
    _Adapter = logging.LoggerAdapter


class MultiProcessAdapter(_Adapter):
    """A logger whose calls take ``main_process_only`` (the default) and ``in_order``.

    With ``main_process_only=False`` every rank logs its line; ``in_order=True`` makes them wait for
    each other, rank 0 first. Among several ranks a line begins with its rank.

    Ranks: any, and no Accelerator is needed; with ``in_order`` all ranks call it.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})
        self._said: set[Any] = set()

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log a line on the ranks that were asked for."""
        main_process_only = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the person's line, not this one
        if in_order and not main_process_only:
            world = World.join()
            for rank in range(world.size):
                if rank == world.rank and self.isEnabledFor(level):
                    self._say(level, msg, args, kwargs)
                world.wait()
        elif self.isEnabledFor(level) and not (main_process_only and placement_here().rank != 0):
            self._say(level, msg, args, kwargs)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the rank before the line, if there are several."""
        place = placement_here()
        return (msg if place.size == 1 else f"[RANK {place.rank}] {msg}"), kwargs

    def warning_once(self, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log a warning, the first time it is said."""
        said = (msg, args)
        if said not in self._said:
            self._said.add(said)
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            self.warning(msg, *args, **kwargs)

    def _say(self, level: int, msg: object, args: Any, kwargs: Any) -> None:
        msg, kwargs = self.process(msg, kwargs)
        kwargs["stacklevel"] += 1
        self.logger.log(level, msg, *args, **kwargs)


def get_logger(name: str, log_level: str | None = None) -> MultiProcessAdapter:
    """Give a logger that says things once a run.

    ``log_level`` ("INFO"...), else the environment's ACCELERATE_LOG_LEVEL, becomes the level of
    this logger alone; without either it inherits one, as loggers do.
    """
    logger = logging.getLogger(name)
    level = log_level or from_env("log_level")
    if level is not None:
        logger.setLevel(level.upper())
    return MultiProcessAdapter(logger)
