"""Pickers: choose in a cell what to train on, see what it means, and launch with it.

A picker is a frozen ``State`` that picks replace, with a skin of widgets where there is a front
end for them. What was picked survives running the cell again, and is nobody else's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.wishes import Strategy
from notebook_accel.errors import ConfigError
from notebook_accel.launch import doctor
from notebook_accel.launch.advice import sizes_of
from notebook_accel.launch.machine import Machine, read_machine
from notebook_accel.launch.timing import Timings, time_precisions
from notebook_accel.ui.choices import refuse_impossible
from notebook_accel.ui.outputs import view_bundle
from notebook_accel.ui.picker_state import State, check_names
from notebook_accel.ui.picker_text import text
from notebook_accel.ui.place import cell_id, hears_controls

AnyPicker = TypeVar("AnyPicker", bound="Picker")
# What was picked in this kernel, by the picker's kind and name, its cell and what it is about:
# (what the cell gave, wishes).
_kept: dict[tuple[Any, ...], tuple[dict[str, Any], Mapping[str, Any]]] = {}


class Picker:
    """What all pickers share: the choice, in every form that something takes it in.

    ``notebook_launcher(main, config=picker)`` launches with it, ``Accelerator(
    **picker.accelerator_kwargs)`` takes the part of the loop, ``picker.code`` is the line that
    reproduces it. Which GPU is a launch's to say: an Accelerator without one takes the first.
    Without widgets, ``print(picker)`` shows the same and ``choose`` picks.
    """

    asks: ClassVar[tuple[str, ...]] = ()
    _skin: Any

    def __init__(
        self,
        given: Mapping[str, Any],
        about: Mapping[str, Any],
        *,
        name: str = "",
        batch_size: int | None = None,
        model: Any = None,
        machine: Machine | None = None,
    ) -> None:
        given = {key: value for key, value in given.items() if value is not None}
        kind = type(self).__name__
        check_names(kind, self.asks, given)
        kernel = read_kernel() if machine is None else ()
        machine = read_machine() if machine is None else machine
        for setting, wish in {**about, **given}.items():
            refuse_impossible(setting, wish, machine)
        key = (kind, name, cell_id(), batch_size, repr(about))
        earlier, wishes = _kept.get(key, (given, given))
        state = State(
            kind,
            self.asks,
            machine,
            {**about, **(wishes if earlier == given else given)},
            batch_size,
            None if model is None else sizes_of(model),
            kernel=kernel,
        )
        self._hold(key, given, state)
        self._become(state)

    @property
    def values(self) -> dict[str, Any]:
        """The settings of this picker, by name."""
        return self._state.values

    @property
    def run_config(self) -> RunConfig:
        """The choice as a ``RunConfig``; the launcher asks for it."""
        return self._state.run_config

    @property
    def wish(self) -> Strategy | None:
        """The strategy, where it is more than a word; the launcher asks for it too."""
        return self._state.wish

    @property
    def accelerator_kwargs(self) -> dict[str, Any]:
        """The arguments for ``Accelerator`` that follow from the choice."""
        return self._state.accelerator_kwargs

    @property
    def code(self) -> str:
        """The line that makes the same choice without a picker."""
        return self._state.code

    @property
    def findings(self) -> list[str]:
        """What should be known before a launch, as shown."""
        return list(map(str, self._state.outlook.findings))

    @property
    def widget(self) -> Any:
        """The controls as one ipywidgets box, for a layout of your own."""
        if self._skin is None:
            from notebook_accel.ui.picker_widgets import Skin  # only where controls are wanted

            self._skin = Skin(self._state, self.choose, self.time, self.refresh)
        return self._skin.box

    def choose(self: AnyPicker, **values: Any) -> AnyPicker:
        """Pick without widgets: ``picker.choose(num_processes=2)``; None goes back to the default.

        Errors: ConfigError for a setting that is not asked here or a value that cannot be.
        """
        state = self._state.pick(values)
        self._become(replace(state, kernel=read_kernel()) if state.kernel else state)
        return self

    def refresh(self: AnyPicker) -> AnyPicker:
        """Look again: memory that is free now, GPUs that came or went, what the kernel opened."""
        self._become(
            replace(self._state, machine=read_machine(), firm=frozenset(), kernel=read_kernel())
        )
        return self

    def time(self) -> Timings:
        """Measure matrix products in each precision on the chosen device, in a child process.

        Units: it takes about a second, after the seconds in which the child imports torch.
        Errors: LaunchError with what the child said, when it could not.
        """
        state = self._state
        names = [one.precision for one in state.standings if one.can_be_picked]
        timings = time_precisions(state.timed_device, names)
        self._become(replace(self._state, timings=timings))
        return timings

    def _become(self, state: State) -> None:
        _ = state.outlook  # whatever is wrong is said before anything changes
        self._state = state
        _kept[self._key] = (self._given, {k: v for k, v in state.wishes.items() if k in self.asks})
        if self._skin is not None:
            self._skin.show(state)

    def __repr__(self) -> str:
        return text(self._state)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The controls where a front end can show them, the text everywhere."""
        said = text(self._state)
        return view_bundle(self.widget, said) if hears_controls() else {"text/plain": said}

    def __reduce__(self) -> Any:
        """A function that uses a picker takes the choice along to its worker, without controls."""
        return self._of, (self._key, self._given, self._state)

    @classmethod
    def _of(
        cls: type[AnyPicker], key: tuple[Any, ...], given: dict[str, Any], state: State
    ) -> AnyPicker:
        """Make one of a choice that was made."""
        picker = cls.__new__(cls)
        picker._hold(key, given, state)
        return picker

    def _hold(self, key: tuple[Any, ...], given: dict[str, Any], state: State) -> None:
        self._key, self._given, self._state = key, given, state
        self._skin = None


def read_kernel() -> tuple[doctor.Finding, ...]:
    """Ask the doctor what this kernel has opened, how workers would start, what others left."""
    return (*doctor.opened(), *doctor.start_methods(), *doctor.leftovers())


class DevicePicker(Picker):
    """Choose what to train on: GPUs by name with their free memory, or the CPU.

    ``device`` is what is picked at first; ``name`` tells several pickers of a notebook apart.
    ``machine`` is what to choose from, this machine by default.

    Errors: ConfigError for a device that no machine has.
    """

    asks = ("device",)

    def __init__(
        self,
        *,
        device: str | int | list[int] | None = None,
        name: str = "",
        machine: Machine | None = None,
    ) -> None:
        super().__init__({"device": device}, {}, name=name, machine=machine)


class PrecisionPicker(Picker):
    """Choose the numbers in which forward and backward passes run.

    Each is marked by how the device computes it: native, emulated, or absent. Preselected is bf16
    where it is native, fp16 on older GPUs, none on a CPU. ``device`` is what it is about (default:
    the accelerators that are here, else the CPU). ``model``, or its number of parameters, shows
    what a rank holds in memory.

    Errors: ConfigError for a precision or a device that no machine has.
    """

    asks = ("mixed_precision",)

    def __init__(
        self,
        *,
        mixed_precision: str | None = None,
        device: str | int | list[int] | None = None,
        model: Any = None,
        name: str = "",
        machine: Machine | None = None,
    ) -> None:
        about = {} if device is None else {"device": device}
        given = {"mixed_precision": mixed_precision}
        super().__init__(given, about, name=name, model=model, machine=machine)


class LaunchPicker(Picker):
    """Choose all that a launch needs: device, processes, precision, accumulation, strategy.

    ``batch_size`` is the loader's, on each rank; with it the picker tells what one update sees.
    ``model``, or its number of parameters, shows what a rank holds in memory, by precision and by
    strategy (``advise(model, batch)`` counts activations too). The settings are what is picked at
    first, ``strategy`` by a word or as a wish; ``name`` tells several pickers of a notebook apart.

    Errors: ConfigError for a value that no machine could have.
    """

    asks = (
        "device",
        "num_processes",
        "mixed_precision",
        "strategy",
        "gradient_accumulation_steps",
    )

    def __init__(
        self,
        batch_size: int | None = None,
        model: Any = None,
        *,
        device: str | int | list[int] | None = None,
        num_processes: int | None = None,
        mixed_precision: str | None = None,
        strategy: str | Strategy | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str = "",
        machine: Machine | None = None,
    ) -> None:
        _check_batch_size(batch_size)
        given = {
            "device": device,
            "num_processes": num_processes,
            "mixed_precision": mixed_precision,
            "strategy": strategy,
            "gradient_accumulation_steps": gradient_accumulation_steps,
        }
        super().__init__(given, {}, name=name, batch_size=batch_size, model=model, machine=machine)


def _check_batch_size(batch_size: Any) -> None:
    if batch_size is None or (type(batch_size) is int and batch_size > 0):
        return
    raise ConfigError(
        f"batch_size={batch_size!r:.60} is no number of samples",
        "it is what each rank's loader puts into a batch",
        "write, for example, LaunchPicker(batch_size=32)",
    )
