"""The same tests in kernels with other packages: Colab's, and ipykernel 7.3.

Colab has an older IPython, ipykernel and widgets; ipykernel 7.0 to 7.3 calls widgets back in
another thread than 7.4.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.kernels import PYTHON_VARIABLE, ROOT

PACKAGES = {
    "colab": ["ipykernel==6.17.1", "ipython==7.34.0", "ipywidgets==7.7.1", "jupyter-client<8"],
    "ipykernel 7.3": ["ipykernel==7.3.0"],
}
CORE = [
    "tests/kernel/test_output.py",
    "tests/kernel/test_blame.py",
    "tests/kernel/test_fork_safety.py::test_a_worker_cannot_reach_the_kernels_event_loop",
    "tests/kernel/test_launches.py::test_a_run_in_the_background_prints_under_its_own_cell_and_is_waited_for",
    "tests/kernel/test_launches.py::test_a_run_in_the_background_is_awaited_in_a_cell",
    "tests/kernel/test_launches.py::test_a_run_in_the_background_can_be_ended",
    "tests/kernel/test_interrupts.py::test_the_partial_result_of_an_interrupted_run_is_kept",
    "tests/kernel/test_interrupts.py::test_an_interrupt_during_the_start_leaves_nothing",
    "tests/kernel/test_what_travels.py::test_a_module_of_a_cell_comes_back_as_the_kernels_own_class",
    "tests/kernel/test_ways_out.py",
    "tests/kernel/test_panel.py",
    "tests/kernel/test_pickers.py",
]


@pytest.fixture(scope="module", params=PACKAGES)
def other_python(request, tmp_path_factory):
    """An interpreter whose first packages are these, and whose others are the ones of here."""
    packages = PACKAGES[request.param]
    folder = tmp_path_factory.mktemp("other") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", *packages, "setuptools"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip cannot install {packages}: {done.stderr.strip()[-300:]}")
    (site,) = Path(folder).glob("lib/python*/site-packages")
    (site / "outer.pth").write_text(sysconfig.get_paths()["purelib"])
    return python


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_core_of_these_tests_passes_with_other_packages(other_python):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", *CORE],
        cwd=ROOT,
        env={**os.environ, PYTHON_VARIABLE: str(other_python)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("other_python", ["colab"], indirect=True)
def test_pickers_need_nothing_that_only_newer_widgets_have(other_python):
    files = ["tests/ui/test_picker.py", "tests/ui/test_picker_widgets.py"]
    shown = "import ipywidgets, pytest, sys; print('ipywidgets', ipywidgets.__version__); "
    run = f"sys.exit(pytest.main(['-q', '--tb=short', *{files}]))"
    done = subprocess.run(
        [other_python, "-c", shown + run],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "ipywidgets 7.7.1" in done.stdout
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
