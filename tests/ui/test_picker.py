"""The pickers themselves: what they give, keep and refuse, with and without widgets."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import ipywidgets
import pytest
from torch import nn

from notebook_accel import (
    Accelerator,
    DevicePicker,
    LaunchPicker,
    PrecisionPicker,
    RunConfig,
    notebook_launcher,
)
from notebook_accel.config.wishes import FSDP
from notebook_accel.errors import ConfigError, NotHere
from notebook_accel.launch.machine import Machine
from notebook_accel.ui import picker as picker_module
from notebook_accel.ui.picker_state import LAUNCHER_TAKES
from tests.support import hardware


@pytest.fixture(autouse=True)
def nothing_picked_before() -> Iterator[None]:
    yield
    picker_module._kept.clear()


def refusal(picker: picker_module.Picker, **values: object) -> ConfigError:
    before = picker.values
    with pytest.raises(ConfigError) as caught:
        picker.choose(**values)
    assert picker.values == before
    return caught.value


def test_a_launch_picker_gives_its_choice_in_every_form() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE).choose(device=1, mixed_precision="no")
    assert picker.values == {
        "device": 1,
        "num_processes": 1,
        "mixed_precision": "no",
        "strategy": "auto",
        "gradient_accumulation_steps": 1,
    }
    assert picker.run_config == RunConfig(
        device=1, num_processes=1, mixed_precision="no", gradient_accumulation_steps=1
    )
    assert picker.accelerator_kwargs == {"mixed_precision": "no", "gradient_accumulation_steps": 1}
    picker.choose(device="cpu")
    assert picker.accelerator_kwargs["cpu"] is True


def test_each_picker_answers_its_own_question_only() -> None:
    device = DevicePicker(machine=hardware.A100S).choose(device=[0, 2])
    assert device.values == {"device": [0, 2]}
    assert device.run_config.given() == {"device": [0, 2]}
    assert device.accelerator_kwargs == {}
    assert device.code == "notebook_launcher(main, device=[0, 2])"
    precision = PrecisionPicker(device="cpu", machine=hardware.KAGGLE)
    assert precision.values == {"mixed_precision": "no"}
    assert precision.accelerator_kwargs == {"mixed_precision": "no"}
    assert PrecisionPicker(machine=hardware.KAGGLE).values == {"mixed_precision": "fp16"}
    error = refusal(precision, num_processes=2)
    assert error.what == "PrecisionPicker does not ask 'num_processes'"
    assert error.why == "what it asks: mixed_precision"


def test_the_line_reproduces_the_choice() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE)
    assert picker.code == (
        'notebook_launcher(main, device="cuda", num_processes=2, mixed_precision="fp16")'
    )
    picker.choose(gradient_accumulation_steps=4, device=0)
    assert picker.code == (
        "notebook_launcher(main, config=RunConfig("
        'device=0, num_processes=1, mixed_precision="fp16", gradient_accumulation_steps=4))'
    )
    config = eval(picker.code.split("config=")[1][:-1], {"RunConfig": RunConfig})
    assert config == picker.run_config
    picker.choose(strategy="ddp", gradient_accumulation_steps=None)
    assert picker.code == (
        'notebook_launcher(main, device=0, num_processes=1, mixed_precision="fp16", strategy="ddp")'
    )
    assert picker.run_config["strategy"] == picker.accelerator_kwargs["strategy"] == "ddp"


def test_the_line_uses_arguments_that_the_launcher_has() -> None:
    assert set(inspect.signature(notebook_launcher).parameters) >= LAUNCHER_TAKES


def test_a_choice_that_cannot_be_changes_nothing() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE).choose(num_processes=1)
    assert "num_processes=3, but 2 CUDA devices" in refusal(picker, num_processes=3).what
    assert "mixed_precision='fp17' is not known" in refusal(picker, mixed_precision="fp17").what
    assert "there is no GPU 7" in refusal(picker, device=7).what
    error = refusal(picker, color="red")
    assert error.what == "LaunchPicker does not ask 'color'"
    assert error.fix == "write device=..."
    assert refusal(picker, precision="bf16").fix == "write mixed_precision=..."


def test_none_goes_back_to_the_default() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE).choose(num_processes=1)
    assert picker.choose(num_processes=None).values["num_processes"] == 2
    picker.choose(mixed_precision="no")
    assert "float32 is your choice; fp16 suits most" in repr(picker)
    assert "fp16 is preselected" in repr(picker.choose(mixed_precision=None))


def test_what_no_longer_fits_gives_way_to_the_newer_pick() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE).choose(num_processes=2)
    picker.choose(device=0)
    assert picker.values["num_processes"] == 1
    assert picker.findings == [
        "note: num_processes=2, but 1 CUDA device to use; now num_processes=1"
    ]
    picker.choose(mixed_precision="no")
    assert picker.findings == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: LaunchPicker(batch_size=32), lambda: LaunchPicker(batch_size=64)),
        (lambda: LaunchPicker(batch_size=32), LaunchPicker),
        (lambda: PrecisionPicker(device="cpu"), PrecisionPicker),
        (lambda: LaunchPicker(name="a"), lambda: LaunchPicker(name="b")),
    ],
)
def test_pickers_about_different_things_do_not_share_a_choice(
    one: Callable[[], picker_module.Picker], other: Callable[[], picker_module.Picker]
) -> None:
    usual = other().values
    one().choose(mixed_precision="bf16")
    assert other().values == usual
    assert one().values["mixed_precision"] == "bf16"


def test_running_the_cell_again_keeps_what_was_picked() -> None:
    LaunchPicker(machine=hardware.KAGGLE).choose(num_processes=1, mixed_precision="no")
    again = LaunchPicker(machine=hardware.KAGGLE)
    assert (again.values["num_processes"], again.values["mixed_precision"]) == (1, "no")
    other = LaunchPicker(machine=hardware.KAGGLE, name="other")
    assert other.values["num_processes"] == 2
    assert PrecisionPicker(machine=hardware.KAGGLE).values == {"mixed_precision": "fp16"}


def test_a_cell_that_was_edited_starts_from_what_it_now_says() -> None:
    LaunchPicker(num_processes=1, machine=hardware.KAGGLE).choose(num_processes=2)
    assert LaunchPicker(num_processes=1, machine=hardware.KAGGLE).values["num_processes"] == 2
    edited = LaunchPicker(num_processes=1, mixed_precision="no", machine=hardware.KAGGLE)
    assert edited.values["num_processes"] == 1


def test_a_changed_machine_drops_what_it_cannot_do_and_says_so() -> None:
    LaunchPicker(machine=hardware.KAGGLE).choose(device=1, gradient_accumulation_steps=4)
    moved = LaunchPicker(machine=hardware.PLAIN_CPU)
    assert moved.values["device"] == "cpu"
    assert moved.values["gradient_accumulation_steps"] == 4
    assert moved.findings[0] == "note: device=1: there is no GPU 1; now device='cpu'"


def test_looking_again_reads_this_machine() -> None:
    picker = LaunchPicker(machine=hardware.A100S).choose(device=[1, 2])
    picker.refresh()
    assert picker.findings[0].startswith("note: device=[1, 2]: there is no GPU 1; now device=")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: LaunchPicker(num_processes=0), "num_processes=0"),
        (lambda: PrecisionPicker(mixed_precision="fp17"), "mixed_precision='fp17'"),
        (lambda: PrecisionPicker(device="gpuu"), "device='gpuu'"),
        (lambda: LaunchPicker(batch_size=0), "batch_size=0 is no number of samples"),
        (lambda: LaunchPicker(batch_size=2.5), "batch_size=2.5 is no number of samples"),
        (lambda: LaunchPicker(model="net"), "model='net' has no size"),
        (lambda: LaunchPicker(strategy="ddpp"), "strategy='ddpp' is not known"),
        (lambda: LaunchPicker(strategy=5), "strategy=5 is no strategy"),
        (lambda: LaunchPicker(strategy=FSDP), "strategy=FSDP is a class"),
        (lambda: DevicePicker(device="xpu"), "device='xpu' asks for what is not here yet"),
        (lambda: DevicePicker(device="fake:64"), "device='fake:64' is nothing to pick"),
        (lambda: DevicePicker(device=[0, 0]), "device=[0, 0]: "),
        (lambda: PrecisionPicker(device=-1), "there is no GPU -1"),
        (lambda: PrecisionPicker(device=[]), "device=[] is not a list of GPU numbers"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(make: object, what: str) -> None:
    with pytest.raises((ConfigError, NotHere)) as caught:
        make()  # type: ignore[operator]
    assert what in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize("device", ["mps", 7, [1, 2], "cuda"])
def test_what_another_machine_has_is_a_note_as_notebooks_travel(device: object) -> None:
    picker = LaunchPicker(device=device, machine=hardware.PLAIN_CPU)  # type: ignore[arg-type]
    assert picker.values["device"] == "cpu"
    assert picker.findings[0].endswith("; now device='cpu'")


@pytest.mark.parametrize(
    ("machine", "taken"),
    [
        (hardware.PLAIN_CPU, "'auto', 'auto-or-cpu', 'cpu'"),
        (hardware.KAGGLE, "'auto', 'auto-or-cpu', 'gpu', 'cuda', 'cpu', 0, 1"),
        (hardware.MAC, "'auto', 'auto-or-cpu', 'mps', 'cpu'"),
    ],
)
def test_what_an_error_proposes_as_a_device_can_be_picked(machine: Machine, taken: str) -> None:
    with pytest.raises(ConfigError) as made:
        DevicePicker(device=True, machine=machine)
    error = refusal(DevicePicker(machine=machine), device=True)
    assert str(error) == str(made.value)
    assert error.fix == f"pass one of {taken}"
    for value in eval(f"[{taken}]"):
        DevicePicker(machine=machine).choose(device=value)


def test_an_accelerator_takes_its_part() -> None:
    picker = LaunchPicker(machine=hardware.AMX_CPU, gradient_accumulation_steps=4)
    accelerator = Accelerator(**picker.accelerator_kwargs)
    assert accelerator.gradient_accumulation_steps == 4
    assert str(accelerator.device) == "cpu"


def test_a_picker_travels_as_its_choice() -> None:
    picker = LaunchPicker(batch_size=32, machine=hardware.KAGGLE).choose(device=1)
    _ = picker.widget
    copy = pickle.loads(pickle.dumps(picker))
    assert copy.values == picker.values
    assert copy.accelerator_kwargs == picker.accelerator_kwargs
    assert repr(copy) == repr(picker)


def test_it_prints_itself_as_text() -> None:
    picker = LaunchPicker(batch_size=32, model=125_000_000, machine=hardware.KAGGLE)
    lines = repr(picker).splitlines()
    assert lines[0] == "LaunchPicker"
    for line in (
        '  mixed_precision              "fp16"  native (tensor cores, sm_75)',
        "  2 ranks on 2 x Tesla T4, 2 threads each",
        "  one update sees 32 x 2 ranks = 64 samples",
        "  together         2.5 GB  2.8 GB  2.8 GB",
        '  choose(device=...)                       "cuda", "cpu", 0, 1',
        "  choose(num_processes=...)                1 to 2",
        '  choose(mixed_precision=...)              "no" native, "bf16" emulated, "fp16" native, '
        '"fp8" absent',
        '  choose(strategy=...)                     "auto", "ddp", "fsdp", "deepspeed", '
        '"megatron_lm",',
        f"  {'':41}TensorParallel(size=2), Pipeline(stages=2), SequenceParallel(size=2)",
        "  tensor x 2         ?                    needs a plan",
        "  choose(gradient_accumulation_steps=...)  1 or more",
        f"  {picker.code}",
    ):
        assert line in lines, line
    assert all(len(line) < 130 for line in lines)
    assert picker._repr_mimebundle_() == {"text/plain": repr(picker)}


def test_a_cpu_takes_as_many_processes_as_a_person_could_mean_and_says_so() -> None:
    picker = LaunchPicker(machine=hardware.PLAIN_CPU).choose(num_processes=40)
    assert picker.values["num_processes"] == 40
    assert "  choose(num_processes=...)                1 to 64" in repr(picker).splitlines()
    error = refusal(picker, num_processes=10**9)  # which would be laid out rank by rank
    assert error.what == "num_processes=1,000,000,000 on 4 cores is not offered"
    assert error.fix.startswith("pick 64 or fewer; notebook_launcher itself starts")
    made = LaunchPicker(num_processes=10**9, machine=hardware.PLAIN_CPU, name="slip")
    assert made.findings[0].endswith("is not offered; now num_processes=1")
    many = hardware.machine(num_cores=96)
    assert LaunchPicker(machine=many).choose(num_processes=384).values["num_processes"] == 384


def test_text_names_each_gpu_and_lists_of_them() -> None:
    text = repr(DevicePicker(machine=hardware.A100S).choose(device=[0, 2]))
    assert "[0, 2]" in text.splitlines()[1]
    assert "  here  GPU 0: NVIDIA A100-SXM4-80GB, 84.0 of 85.0 GB free" in text.splitlines()
    assert "        GPU 3: NVIDIA A100-SXM4-80GB, 84.0 of 85.0 GB free" in text.splitlines()
    assert 'choose(device=...)  "cuda", "cpu", 0, 1, 2, 3, [0, 3]' in text


def test_it_opens_nothing_and_imports_no_torch() -> None:
    code = (
        "import sys; from notebook_accel import LaunchPicker; print(LaunchPicker(model=1000)); "
        "sys.exit('torch' in sys.modules or 'ipywidgets' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_how_workers_start_is_told_with_its_reason_as_it_is_now() -> None:
    code = """
from torch import distributed as dist
from notebook_accel import DevicePicker, LaunchPicker, PrecisionPicker
picker = LaunchPicker()
print(picker)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(picker.choose(num_processes=1), DevicePicker(), PrecisionPicker(), sep="---")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    before, device, precision = done.stdout.split("---")
    before, after = before.split("LaunchPicker\n")[1:]
    assert "  workers start by fork: no accelerator is open in this process\n" in before
    fact = "a process group of torch.distributed is open in this process"
    assert f"  workers start by forkserver: {fact}\n" in after
    assert f"  workers start by forkserver: {fact}\n" in device
    assert "workers start" not in precision


def test_what_another_launcher_left_in_the_environment_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    picker = DevicePicker()
    assert not any("RANK" in one for one in picker.findings)
    monkeypatch.setenv("RANK", "0")
    (said,) = (one for one in picker.choose(device="cpu").findings if "RANK" in one)
    assert said.startswith("note: RANK=0 in the environment: that is what a launched worker has")
    assert "unset them" in said


def test_another_machine_is_not_told_how_this_kernel_starts_workers() -> None:
    picker = LaunchPicker(machine=hardware.KAGGLE)
    assert "workers start" not in repr(picker.choose(num_processes=1))
    assert "workers start by " in repr(picker.refresh()), "which is this one then"


def test_a_timing_shows_how_fast_each_precision_is_here() -> None:
    picker = PrecisionPicker(device="cpu")
    timings = picker.time()
    assert [row.precision for row in timings.rows] == ["no", "bf16", "fp16"]
    assert timings.rows[0].speed == 1
    assert all(row.seconds > 0 for row in timings.rows)
    assert f"{timings.size} x {timings.size} matrices on one CPU thread" in repr(picker)
    assert "speed (float32 is 1)" in repr(picker)


def test_a_module_gives_its_memory() -> None:
    picker = PrecisionPicker(model=nn.Linear(1000, 1000), device="cpu", machine=hardware.PLAIN_CPU)
    assert "  weights          4.0 MB  4.0 MB  4.0 MB" in repr(picker).splitlines()


def test_widgets_of_both_generations_are_enough() -> None:
    """Nothing that exists only in ipywidgets 8 is used; the Colab test runs this with 7.7."""
    box = LaunchPicker(machine=hardware.KAGGLE).widget
    assert isinstance(box, ipywidgets.VBox)


def test_the_readme_shows_what_two_t4s_are_shown() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    picker = LaunchPicker(batch_size=32, model=125_000_000, machine=hardware.KAGGLE)
    assert f"```text\n{picker!r}\n```" in readme
