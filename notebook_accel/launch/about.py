"""What is written down of a launch before it starts; what may be is ``events.discretion``'s say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from notebook_accel.config.wishes import Strategy
from notebook_accel.events import discretion, shelf
from notebook_accel.events.story import About
from notebook_accel.launch.plan import LaunchPlan
from notebook_accel.launch.start import Job


def about(
    job: Job, plan: LaunchPlan, method: str, asked: Mapping[str, Any], env: Mapping[str, str]
) -> About:
    """Describe a launch of ``job`` for its record; settings that are None were not asked for."""
    config = {
        "num_processes": plan.placements[0].size,
        "start_method": method,
        "num_threads": plan.num_threads,
        "seed": _seed(),
        **asked,
    }
    if "wish" in config:  # a strategy that is more than a word
        config["strategy"] = config.pop("wish")
    return About(
        shelf.new_id(),
        function_name(job.function),
        plan.device_words,
        method,
        len(plan.placements),
        config={
            name: _described(value, name) for name, value in config.items() if value is not None
        },
        arguments={
            name: _described(value, name)
            for name, value in discretion.named(job.function, job.args, job.kwargs).items()
        },
        environment=discretion.environment({**plan.env, **env}),
    )


def _described(value: Any, name: str) -> Any:
    try:
        if isinstance(value, Strategy):
            value = repr(value)
        return discretion.described(value, name)
    except Exception:  # a person's object that does not like to be looked at: no reason to fail
        return f"<{type(value).__name__}>"


def _seed() -> int | None:
    """The seed of torch's random numbers, if none was drawn since; workers start from them too."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    seed = int(torch.initial_seed())
    fresh = torch.Generator().manual_seed(seed).get_state()
    return seed if torch.equal(fresh, torch.get_rng_state()) else None


def hider(job: Job, env: Mapping[str, str]) -> Callable[[str], str]:
    """Give what dots out of a text the secrets that this launch was given."""
    return discretion.hider({**discretion.named(job.function, job.args, job.kwargs), **env})


def function_name(function: Callable[..., Any]) -> str:
    """Name a function as its author would."""
    inner = getattr(function, "func", function)  # of a functools.partial
    return str(getattr(inner, "__qualname__", type(inner).__name__)).rpartition("<locals>.")[2]
