"""The documentation: what its pages show is what happens, and nothing in it leads nowhere.

Blocks fenced ``python`` run in a kernel, a page from top to bottom; ``py`` blocks need what is not
here (a GPU, a page of somebody else's) and are type-checked with the names that they leave open.
The README is a page too; its cells run in tests/notebooks/test_readme.py.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbclient import NotebookClient

from notebook_accel.cli.main import COMMANDS, command
from notebook_accel.cli.parsing import Parser
from notebook_accel.errors import Explained

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "decisions" not in path.parts)
READ = [README, *PAGES]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# What blocks for other places take from the page around them.
OPEN = """
from typing import Any
import torch
from torch import nn
from torch.utils.data import DataLoader
from notebook_accel import DDP, Accelerator, notebook_launcher
accelerator: Accelerator
main: Any
trainer: Any
model: nn.Module
net: nn.Module
batch: Any
x: torch.Tensor
data: Any
logits: Any
labels: Any
num_tokens: Any
cross_entropy: Any
"""


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [body for name, body in _BLOCK.findall(text) if name == language]


def having(language: str) -> list[Path]:
    return [page for page in READ if blocks(page, language)]


def named(page: Path) -> str:
    return page.name if page == README else str(page.relative_to(DOCS))


def lines(page: Path) -> list[list[str]]:
    """The words of each line for a shell, with what a variable stands for as a number."""
    text = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
    text = re.sub(r'"\$(\(\(.*?\)\)|\w+)"', "1", text)
    ours = re.findall(r"^(?:notebook-accel|make) .+$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in ours]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", [page for page in having("python") if page != README], ids=named)
def test_its_cells_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTEBOOK_ACCEL_RUNS", str(tmp_path / "runs"))
    cells = [nbformat.v4.new_code_cell(block) for block in blocks(page, "python")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_what_cannot_run_here_is_at_least_well_typed(tmp_path: Path) -> None:
    for page in having("py"):
        for number, block in enumerate(blocks(page, "py")):
            (tmp_path / f"{page.stem.replace('-', '_')}_{number}.py").write_text(OPEN + block)
    command = [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports"]
    command += ["--no-incremental", "--disable-error-code=no-redef", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", having("bash"), ids=named)
def test_its_shell_commands_are_ours_with_options_that_they_take(page: Path) -> None:
    for program, name, *words in lines(page):
        if program == "make":
            assert name in targets(), f"make {name}"
            continue
        assert name in COMMANDS, f"notebook-accel {name}"
        parser = Parser(prog=name)
        command(name).configure(parser)
        try:
            parser.parse_args(words)
        except (SystemExit, Explained) as error:
            pytest.fail(f"{shlex.join(words)}: {error}")


def test_what_they_call_make_for_in_passing_exists() -> None:
    for page in [*READ, ROOT / "notebooks" / "README.md"]:
        text = page.read_text(encoding="utf-8")
        asked = {word for words in re.findall(r"`make ([\w -]+)`", text) for word in words.split()}
        assert asked <= targets(), named(page) if page in READ else page.name


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    found = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert found == set(phony.split())
    return found


@pytest.mark.parametrize(("host", "rank"), [("algo-1", 0), ("algo-2", 1)])
def test_sagemakers_variables_make_the_launch_of_two_machines(
    tmp_path: Path, host: str, rank: int
) -> None:
    (script,) = blocks(DOCS / "hosts" / "sagemaker.md", "bash")
    here = tmp_path / "notebook-accel"
    here.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from notebook_accel.cli.main import main\nsys.exit(main())\n"
    )
    here.chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / "train.py").touch()
    env = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "SM_HOSTS": '["algo-2","algo-1"]',
        "SM_CURRENT_HOST": host,
        "SM_NUM_GPUS": "4",
    }
    dry = script.replace("notebook-accel launch", "notebook-accel launch --dry_run")
    done = subprocess.run(
        ["bash", "-c", dry], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert f"machine {rank} of 2" in done.stdout and "algo-1" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_make_docs_builds_a_site_without_a_warning_in_which_no_link_leads_nowhere(
    tmp_path: Path,
) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    # Of the lessons two, each with links to pages of the site; this environment instead of .venv.
    lessons = ["notebooks/1_beginner/02_devices.ipynb", "notebooks/2_developer/02_counting.ipynb"]
    command = ["make", "-o", ".venv/.engines", "docs", f"RUN={sys.executable}"]
    command += [f"SITE={tmp_path}", f"LESSONS={' '.join(lessons)}"]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement on stderr
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=360)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr.replace("[IPKernelApp] WARNING", "")
    page = (tmp_path / "reference" / "training" / "index.html").read_text(encoding="utf-8")
    assert "gather_for_metrics" in page
    listed = (tmp_path / "notebooks" / "index.html").read_text(encoding="utf-8")
    rendered = [one.removeprefix("notebooks/").replace(".ipynb", ".html") for one in lessons]
    assert re.findall(r'href="([12]_[^"]+)"', listed) == rendered
    assert list(dead_links(tmp_path)) == []


def dead_links(site: Path) -> Iterator[str]:
    """Links between pages of the site, lessons included, to what is not there."""
    lessons = {path.relative_to(ROOT / "notebooks") for path in ROOT.glob("notebooks/*/*.ipynb")}
    left_out = {site / "notebooks" / path.with_suffix(".html") for path in lessons}
    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            if re.match(r"\w+:|//", link) or page.name == "404.html":
                continue
            target = Path(os.path.normpath(page.parent / unquote(link)))
            if target not in left_out and not target.exists():
                yield f"{page.relative_to(site)}: {link}"


def test_every_public_name_is_on_a_page_of_the_reference() -> None:
    from notebook_accel import _MODULES, _WHERE

    pages = (DOCS / "reference").glob("*.md")
    shown = {
        line.removeprefix("::: notebook_accel.")
        for page in pages
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("::: ")
    }
    missing = [
        name for name, module in _WHERE.items() if not shown & {module, f"{module}.{name}"}
    ] + [name for name, module in _MODULES.items() if module not in shown]
    assert missing == []


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [named(page) for page in PAGES if f": {named(page)}" not in menu] == []
