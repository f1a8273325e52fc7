"""All that a picker is, in one frozen value: from it follow the words, the code and the controls.

facts ─▶ State ─▶ text twin (picker_text), HTML (picker_html), controls (picker_widgets)
           ▲  └─▶ code, run_config, accelerator_kwargs
a pick ────┘
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.settings import SETTINGS, nearest
from notebook_accel.config.sizes import Sizes
from notebook_accel.config.wishes import Strategy
from notebook_accel.config.written import literal
from notebook_accel.errors import ConfigError
from notebook_accel.launch import doctor
from notebook_accel.launch.machine import Machine
from notebook_accel.launch.precisions import Standing
from notebook_accel.launch.timing import Timings
from notebook_accel.ui import choices, outlook
from notebook_accel.ui.choices import Choice, Decision, Option
from notebook_accel.ui.outlook import Outlook

LABELS = {
    "device": "Device",
    "num_processes": "Processes",
    "mixed_precision": "Precision",
    "strategy": "Strategy",
    "gradient_accumulation_steps": "Accumulation",
}
AUTO_STRATEGY = ("strategy", "auto")  # what happens without a word
# What ``notebook_launcher`` takes as arguments of its own; the rest travels in a RunConfig.
LAUNCHER_TAKES = {"device", "num_processes", "mixed_precision", "strategy"}
ALWAYS_SHOWN = {"device", "num_processes", "mixed_precision"}  # in the line, defaults too


@dataclass(frozen=True)
class State:
    """What a picker asks (``asked``, settings by name), what was picked, and what is there.

    ``firm`` are the wishes of the last pick: they cannot be dropped, the others can. ``kernel`` is
    what the doctor says of the kernel that would launch; nothing, if ``machine`` is another.
    """

    kind: str
    asked: tuple[str, ...]
    machine: Machine
    wishes: Mapping[str, Any]
    batch_size: int | None = None
    sizes: Sizes | None = None
    timings: Timings | None = None
    firm: frozenset[str] = frozenset()
    kernel: tuple[doctor.Finding, ...] = ()

    @cached_property
    def decision(self) -> Decision:
        """The choice, with what was dropped on the way."""
        return choices.decide(self.wishes, self.machine, self.firm)

    @property
    def choice(self) -> Choice:
        """A value for every setting."""
        return self.decision.choice

    @cached_property
    def outlook(self) -> Outlook:
        """What the choice means."""
        return outlook.outlook(
            self.choice, self.machine, self.asked, self.wishes, self.decision.dropped,
            self.batch_size, self.sizes, self.kernel,
        )  # fmt: skip

    @property
    def places(self) -> list[Option]:
        """Kinds of device to choose from."""
        return choices.places(self.machine)

    @property
    def gpus(self) -> list[Option]:
        """GPUs to take or leave, where there are several."""
        return choices.gpus(self.machine)

    @property
    def standings(self) -> list[Standing]:
        """How each precision runs on the devices of the choice."""
        return choices.standings(self.choice, self.machine)

    @property
    def most_processes(self) -> int:
        """The largest number of ranks."""
        return choices.most_processes(self.choice, self.machine)

    @property
    def values(self) -> dict[str, Any]:
        """The settings that were asked for."""
        return self.choice.settings(self.asked)

    @property
    def fresh_timings(self) -> Timings | None:
        """What was measured, if it was on the device that is chosen now."""
        is_fresh = self.timings is not None and self.timings.device == self.timed_device
        return self.timings if is_fresh else None

    @property
    def timed_device(self) -> str:
        """The device to measure, as torch calls it."""
        return choices.planned(self.choice, self.machine).placements[0].device

    def pick(self, values: Mapping[str, Any]) -> State:
        """Take further wishes; None forgets one.

        Errors: ConfigError for a setting that is not asked here, or a value that cannot be.
        """
        check_names(self.kind, self.asked, values)
        kept = {name: wish for name, wish in self.wishes.items() if name not in self.dropped}
        wishes = {name: wish for name, wish in {**kept, **values}.items() if wish is not None}
        state = replace(self, wishes=wishes, firm=frozenset(values))
        _ = state.decision  # raises here, before anything changes
        return state

    @property
    def dropped(self) -> Collection[str]:
        """Names of the wishes that could not be kept."""
        return self.decision.dropped.keys()

    @property
    def run_config(self) -> RunConfig:
        """The choice as the launcher takes it, but for a strategy that is more than a word."""
        return RunConfig(
            **{
                name: value
                for name, value in self.values.items()
                if (name, value) != AUTO_STRATEGY and not isinstance(value, Strategy)
            }
        )

    @property
    def wish(self) -> Strategy | None:
        """The strategy, where it is more than a word of the setting."""
        found = self.values.get("strategy")
        return found if isinstance(found, Strategy) else None

    @property
    def accelerator_kwargs(self) -> dict[str, Any]:
        """The choice as far as it is a training loop's own."""
        values = self.values
        loops = ("mixed_precision", "gradient_accumulation_steps", "strategy")
        kwargs = {name: values[name] for name in loops if name in values}
        kwargs = {name: value for name, value in kwargs.items() if (name, value) != AUTO_STRATEGY}
        return {**kwargs, "cpu": True} if values.get("device") == "cpu" else kwargs

    @property
    def code(self) -> str:
        """The line that reproduces the choice."""
        shown = {
            name: value
            for name, value in self.values.items()
            if name in ALWAYS_SHOWN or value != SETTINGS[name].default
        }
        words = {name: f"{name}={literal(value)}" for name, value in shown.items()}
        if shown.keys() <= LAUNCHER_TAKES:
            return f"notebook_launcher(main, {', '.join(words.values())})"
        wish = f"{words.pop('strategy')}, " if self.wish is not None else ""
        return f"notebook_launcher(main, {wish}config=RunConfig({', '.join(words.values())}))"


def check_names(kind: str, asked: Sequence[str], values: Iterable[str]) -> None:
    """Refuse settings that a picker does not ask.

    Errors: ConfigError listing those that it does.
    """
    unknown = [name for name in values if name not in asked]
    if unknown:
        meant = nearest(unknown[0], asked) or asked[0]
        raise ConfigError(
            f"{kind} does not ask {unknown[0]!r}",
            f"what it asks: {', '.join(asked)}",
            f"write {meant}=...",
        )
