"""A progress bar once a machine, for loops that are not the training loop."""

from __future__ import annotations

from typing import Any

from notebook_accel.errors import ConfigError
from notebook_accel.ranks.place import placement_here


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """Make a tqdm bar (of a notebook where there is one) that only one rank a machine shows.

    ``main_process_only=False`` shows every rank's. Everything else goes to ``tqdm.auto.tqdm``.

    Errors: ConfigError for a first argument that is no iterable but a boolean.
    """
    if args and isinstance(args[0], bool):
        raise ConfigError(
            f"tqdm got {args[0]} as what to iterate",
            "its first argument is the iterable",
            f"write tqdm(iterable, main_process_only={args[0]})",
        )
    from tqdm.auto import tqdm as bar

    if main_process_only and placement_here().local_rank != 0:
        kwargs["disable"] = True
    return bar(*args, **kwargs)
