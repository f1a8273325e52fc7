"""The skin: real ipywidgets, moved as a front end moves them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ipywidgets
import pytest

from notebook_accel import DevicePicker, LaunchPicker, PrecisionPicker
from notebook_accel.ui import picker as picker_module
from notebook_accel.ui.picker import Picker
from tests.support import hardware


@pytest.fixture(autouse=True)
def nothing_picked_before() -> Iterator[None]:
    yield
    picker_module._kept.clear()


def parts(picker: Picker, kind: type) -> list[Any]:
    """All controls of one kind, in reading order."""

    def walk(widget: Any) -> Iterator[Any]:
        if isinstance(widget, kind):
            yield widget
        for child in getattr(widget, "children", ()):
            yield from walk(child)

    return list(walk(picker.widget))


def control(picker: Picker, description: str) -> Any:
    kinds = (ipywidgets.RadioButtons, ipywidgets.BoundedIntText, ipywidgets.Checkbox)
    buttons = (ipywidgets.Button,)
    (found,) = [
        one for one in parts(picker, (*kinds, *buttons)) if one.description.startswith(description)
    ]
    return found


def shown(picker: Picker) -> str:
    return "\n".join(one.value for one in parts(picker, ipywidgets.HTML))


def test_controls_show_the_choice_in_reading_order() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE)
    kinds = (ipywidgets.RadioButtons, ipywidgets.BoundedIntText, ipywidgets.Checkbox)
    assert [(one.description, one.value) for one in parts(picker, kinds)] == [
        ("Device", "cuda"),
        ("GPU 0: Tesla T4, 15.0 of 16.0 GB free", True),
        ("GPU 1: Tesla T4, 15.0 of 16.0 GB free", True),
        ("Processes", 2),
        ("Precision", "fp16"),
        ("Strategy", "auto"),
        ("Accumulation", 1),
    ]


def test_moving_a_control_is_a_pick_and_everything_follows() -> None:
    picker = LaunchPicker(batch_size=32, machine=hardware.KAGGLE)
    control(picker, "Device").value = "cpu"
    control(picker, "Processes").value = 4
    control(picker, "Accumulation").value = 2
    assert picker.values == {
        "device": "cpu",
        "num_processes": 4,
        "mixed_precision": "no",
        "strategy": "auto",
        "gradient_accumulation_steps": 2,
    }
    assert control(picker, "Precision").value == "no"
    assert "32 x 4 ranks x 2 micro-batches = 256 samples" in shown(picker)
    assert "num_processes=4" in shown(picker)


def test_choosing_in_code_moves_the_controls() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE)
    _ = picker.widget
    picker.choose(device=1, mixed_precision="bf16")
    assert not control(picker, "GPU 0").value
    assert control(picker, "GPU 1").value
    assert control(picker, "Processes").value == control(picker, "Processes").max == 1
    assert control(picker, "Precision").value == "bf16"
    assert "<strong>warning:</strong> bf16 is emulated here" in shown(picker)


def test_gpus_are_taken_and_left_and_the_last_one_stays() -> None:
    picker = LaunchPicker(machine=hardware.A100S)
    for number in (1, 3):
        control(picker, f"GPU {number}").value = False
    assert picker.values["device"] == [0, 2]
    assert picker.values["num_processes"] == 2
    control(picker, "GPU 0").value = False
    assert picker.values["device"] == 2
    assert control(picker, "GPU 2").disabled
    for number in (0, 1, 3):
        control(picker, f"GPU {number}").value = True
    assert picker.values["device"] == "cuda"
    assert not control(picker, "GPU 2").disabled


def test_the_cpu_hides_the_gpus() -> None:
    picker = DevicePicker(machine=hardware.KAGGLE)
    row = next(
        box
        for box in parts(picker, ipywidgets.HBox)
        if control(picker, "GPU 0")
        in [inner for part in box.children for inner in getattr(part, "children", ())]
    )
    assert row.layout.display == ""
    control(picker, "Device").value = "cpu"
    assert row.layout.display == "none"


def test_precisions_carry_their_mark_in_words() -> None:
    picker = PrecisionPicker(machine=hardware.T4)
    assert [label for label, _ in control(picker, "Precision").options] == [
        "no ● float32 throughout",
        "bf16 ◐ emulated (sm_75; native from sm_80)",
        "fp16 ● native (tensor cores, sm_75)",
    ]
    assert "fp8 ○ absent (needs torchao, the extra fp8)" in shown(picker)


def test_a_change_of_device_changes_the_marks_and_keeps_the_boxes() -> None:
    picker = LaunchPicker(machine=hardware.UNLIKE)
    before = parts(picker, ipywidgets.Widget)
    control(picker, "GPU 1").value = False
    assert control(picker, "Precision").value == "bf16"
    assert parts(picker, ipywidgets.Widget) == before


def test_a_person_is_never_shown_an_impossible_number() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE)
    control(picker, "Processes").value = 99
    assert picker.values["num_processes"] == 2
    control(picker, "Processes").value = 0
    assert picker.values["num_processes"] == 1


def test_the_range_of_processes_is_said_and_is_that_of_choose() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE)
    assert "1 to 2" in shown(picker).splitlines()
    picker.choose(device="cpu")
    assert "1 to 64" in shown(picker).splitlines()
    control(picker, "Processes").value = 40
    assert picker.values["num_processes"] == 40
    control(picker, "Processes").value = 10_000_000
    assert picker.values["num_processes"] == 64


def test_a_number_chosen_in_code_is_shown_however_large() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE)
    picker.choose(gradient_accumulation_steps=2_000_000)
    assert control(picker, "Accumulation").value == 2_000_000


def test_what_goes_wrong_under_a_button_is_said_in_place() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE)  # there is no such GPU to measure
    control(picker, "Time").click()
    assert '<div role="alert"><p><strong>error:</strong>' in shown(picker)
    button = control(picker, "Time")
    assert (button.description, button.disabled) == ("Time the precisions", False)
    picker.choose(device="cpu")
    assert 'role="alert"' not in shown(picker)


def test_the_time_button_shows_numbers() -> None:
    picker = PrecisionPicker(device="cpu")
    control(picker, "Time").click()
    assert "speed (float32 is 1)" in shown(picker)
    control(picker, "Look again").click()
    assert "speed (float32 is 1)" in shown(picker)


def test_what_is_told_is_escaped() -> None:
    evil = hardware.machine(*hardware.gpus(1, "<b>GPU</b>", (8, 0)))
    assert "&lt;b&gt;GPU&lt;/b&gt;" in shown(LaunchPicker(machine=evil))


def test_no_text_has_a_color_of_its_own() -> None:
    text = shown(LaunchPicker(machine=hardware.KAGGLE, model=10**9))
    assert "color:" not in text.replace("color: inherit", "").replace("currentColor", "")
    assert 'role="status"' in text


def test_showing_it_twice_shows_the_same_controls() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE)
    assert picker.widget is picker.widget
