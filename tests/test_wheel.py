"""A wheel, built and installed beside nothing of this checkout, runs the lessons."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import jupytext
import pytest

REPOSITORY = Path(__file__).parent.parent
LESSONS = {
    "toy_classifier": [
        "device: cpu | processes: 1",
        "epoch 0  loss 0.479",
        "epoch 1  loss 0.149",
        "epoch 2  loss 0.077",
    ],
    "scoring": ["scored 150 examples, accuracy 0.39"],
    "accumulation": ["batches: 8 | optimizer updates: 2"],
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(*command: object, cwd: Path, timeout: float = 240, **variables: str) -> str:
    """Run ``command`` where nothing leads back to this checkout; return what it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env.update(variables)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it; dependencies are borrowed from this one."""
    room = tmp_path_factory.mktemp("wheel")
    run("make", "wheel", f"PYTHON={sys.executable}", f"DIST={room}", cwd=REPOSITORY)
    (wheel,) = room.glob("notebook_accel-*.whl")
    run(sys.executable, "-m", "venv", room / "env", cwd=room)
    python = room / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", wheel, cwd=room)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=room)
    (Path(site.strip()) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return room


def test_the_package_comes_from_the_wheel_with_its_type_marker(clean: Path) -> None:
    code = (
        "import pathlib, notebook_accel as n; p = pathlib.Path(n.__file__).parent;"
        "print(p, (p / 'py.typed').exists())"
    )
    where, typed = run(clean / "env/bin/python", "-c", code, cwd=clean).split()
    assert Path(where).is_relative_to(clean)
    assert typed == "True"


def test_the_command_is_installed(clean: Path) -> None:
    command = clean / "env/bin/notebook-accel"
    assert run(command, "--version", cwd=clean).startswith("notebook-accel 0.")


def test_every_lesson_is_known_here() -> None:
    names = {path.stem for path in (REPOSITORY / "tests" / "lessons").glob("[a-z]*.py")}
    assert names == set(LESSONS)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_prints_its_lines(clean: Path, lesson: str) -> None:
    script = clean / f"{lesson}.py"
    script.write_text((REPOSITORY / "tests" / "lessons" / f"{lesson}.py").read_text())
    printed = run(clean / "env/bin/python", script, cwd=clean).splitlines()
    assert [line for line in printed if line in LESSONS[lesson]] == LESSONS[lesson]


def test_accelerates_names_come_with_it_and_with_stubs(clean: Path) -> None:
    code = (
        "import pathlib, sysconfig; from notebook_accel.utils.operations import gather;"
        "site = pathlib.Path(sysconfig.get_path('purelib')) / 'notebook_accel-stubs';"
        "print((site / 'utils' / '__init__.pyi').exists(), (site / 'py.typed').read_text())"
    )
    said = run(clean / "env" / "bin" / "python", "-c", code, cwd=clean)
    assert said.split() == ["True", "partial"]


def test_the_install_cell_installs_the_wheel_that_lies_beside_the_notebook(clean: Path) -> None:
    lesson = jupytext.read(REPOSITORY / "notebooks" / "1_beginner" / "01_quickstart.py")
    (cell,) = [cell.source for cell in lesson.cells if "SOURCE = " in cell.source]
    told = "import notebook_accel as n; print(n.__version__, n.__file__)"
    run(sys.executable, "-m", "venv", clean / "bare", cwd=clean)
    python = clean / "bare" / "bin" / "python"
    for _ in ("installs", "finds it there"):
        # Its dependencies are an index's to give, and not asked for here.
        said = run(python, "-c", f"{cell}\n{told}", cwd=clean, PIP_NO_DEPS="1").split()
        (wheel,) = clean.glob("notebook_accel-*.whl")
        assert wheel.name.startswith(f"notebook_accel-{said[0]}-")
        assert Path(said[1]).is_relative_to(clean / "bare")
