"""Who opened the device: found with plain files in the place of devices, in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from notebook_accel.launch import openers
from notebook_accel.launch.start import spoiled_accelerator


def told(script: str, folder: Path) -> str:
    """Run ``script`` as a person's file in ``folder`` and give what it printed."""
    file = folder / "persons.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=100, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def package(folder: Path, name: str, code: str) -> str:
    """Install a package where packages lie, so that its lines are not the person's own."""
    home = folder / "site-packages" / name
    home.mkdir(parents=True)
    (home / "__init__.py").write_text(code)
    return f"import sys; sys.path.insert(0, {str(home.parent)!r})\n"


def start(folder: Path) -> str:
    return f"from notebook_accel import watch_devices\nw = watch_devices('^{folder}/device')\n"


def test_an_import_that_opens_a_device_is_named_with_the_line_that_imports_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "device0").touch()
    path = package(tmp_path, "eager", f"kept = open('{tmp_path}/device0')")
    said = told(path + start(tmp_path) + "import eager\nprint(w)", tmp_path)
    assert said == (
        f"DeviceWatch: {tmp_path}/device0 was opened by eager, imported, "
        f"at File {tmp_path}/persons.py:4\n"
    )


def test_a_device_opened_by_c_code_in_an_import_is_named_too(tmp_path: Path) -> None:
    """No audit event tells of it: the file is seen to be open after the import."""
    (tmp_path / "device0").touch()
    inner = package(
        tmp_path, "inner", f"import ctypes\nctypes.CDLL(None).open(b'{tmp_path}/device0', 0)"
    )
    package(tmp_path, "outer", "import inner")
    said = told(inner + start(tmp_path) + "import outer\nprint(w.openings)\nprint(w)", tmp_path)
    assert said.splitlines()[-1] == (
        f"DeviceWatch: {tmp_path}/device0 was opened by outer > inner, imported, "
        f"at File {tmp_path}/persons.py:4"
    )


def test_the_first_initialization_of_cuda_is_named_also_when_torch_comes_later(
    tmp_path: Path,
) -> None:
    """A torch without CUDA refuses; the call that asked is the same."""
    path = package(
        tmp_path, "trainer", "def prepare():\n    import torch\n    torch.cuda._lazy_init()\n"
    )
    script = (
        path + start(tmp_path) + "import contextlib, trainer\n"
        "with contextlib.suppress(AssertionError):\n    trainer.prepare()\nprint(w.openings)"
    )
    said = told(script, tmp_path)
    assert "what='CUDA was initialized'" in said
    assert "packages=('trainer',)" in said
    assert f"place='File {tmp_path}/persons.py:6'" in said


def test_a_call_that_succeeds_is_noted_once_and_torch_has_its_function_back(
    tmp_path: Path,
) -> None:
    script = (
        "import torch\n"
        "calls = []\n"
        "def plain(): calls.append(1)\n"
        "torch.cuda._lazy_init = torch.cuda.random._lazy_init = plain\n"
        + start(tmp_path)
        + "assert torch.cuda._lazy_init is not plain\n"
        "torch.cuda.random._lazy_init()\n"
        "assert torch.cuda._lazy_init is torch.cuda.random._lazy_init is plain\n"
        "torch.cuda._lazy_init()\n"
        "print(len(calls), len(w.openings), w.first)"
    )
    said = told(script, tmp_path)
    assert said == f"2 1 CUDA was initialized, at File {tmp_path}/persons.py:8\n"


def test_what_was_open_before_and_what_comes_after_the_watch_is_told_apart(
    tmp_path: Path,
) -> None:
    for name in ("device0", "device1"):
        (tmp_path / name).touch()
    script = (
        f"before = open('{tmp_path}/device0')\n"
        + start(tmp_path)
        + f"w.stop()\nafter = open('{tmp_path}/device1')\nimport sys\n"
        "print(w, w in sys.meta_path)"
    )
    said = told(script, tmp_path)
    assert said == f"DeviceWatch: {tmp_path}/device0 was open before the watch began False\n"


def test_a_second_call_gives_the_same_watch_and_stopping_allows_a_new_one() -> None:
    from notebook_accel.launch.openers import watch_devices, watched

    watch = watch_devices()
    try:
        assert watch_devices() is watch is watched()
    finally:
        watch.stop()
    assert watched() is None


def test_an_open_device_spoils_forks_and_reading_a_gpus_load_does_not(tmp_path: Path) -> None:
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-uvm-tools"):
        (tmp_path / name).touch()
    files = openers.DEVICE_FILES.replace("/dev/", f"{tmp_path}/")
    with (tmp_path / "nvidiactl").open(), (tmp_path / "nvidia-uvm-tools").open():
        assert spoiled_accelerator(files) == ""
    for name in ("nvidia0", "nvidia-uvm"):
        with (tmp_path / name).open():
            assert spoiled_accelerator(files) == f"{tmp_path / name} is open in this kernel"
