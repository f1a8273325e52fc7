"""Shell completion as a shell does it, and the page of the docs that is made from the parsers."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from notebook_accel.cli.completion import everything, parsers
from notebook_accel.cli.main import COMMANDS
from notebook_accel.cli.manual import manual
from tests.cli.typing_in import ROOT, surroundings, typed

COMPLETE = r"""
source "$1"
complete=$(complete -p notebook-accel)
function=${complete#*-F }
COMP_WORDS=(notebook-accel "${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
${function%% *}
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = typed("completion", "bash", then="sys.exit(code + ('torch' in sys.modules))")
    assert done.returncode == 0, done.stderr
    path = tmp_path_factory.mktemp("completion") / "notebook-accel"
    path.write_text(done.stdout)
    return path


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


@needs_bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("la",), {"launch"}),
        (("config", "sh"), {"show"}),
        (("launch", "--fsdp_v"), {"--fsdp_version"}),
        (("launch", "--mixed_precision", ""), {"no", "fp16", "bf16", "fp8"}),
        (("estimate-memory", "--library_name", "t"), {"timm", "transformers"}),
        (("env", "--config_file", "here"), {"here.yaml"}),
        (("launch", "here"), {"here.yaml"}),
    ],
)
def test_bash_offers_commands_options_values_and_files(
    words: tuple[str, ...], offered: set[str], script: Path, tmp_path: Path
) -> None:
    (tmp_path / "here.yaml").touch()
    line = ["bash", "-c", COMPLETE, "bash", str(script), *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert set(done.stdout.split()) == offered, done.stderr


@needs_bash
def test_every_command_is_offered(script: Path) -> None:
    line = ["bash", "-c", COMPLETE, "bash", str(script), ""]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert set(COMMANDS) <= set(done.stdout.split())


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_get_a_script_of_their_own(shell: str) -> None:
    done = typed("completion", shell)
    assert done.returncode == 0 and "estimate-memory" in done.stdout


def test_without_shtab_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "shtab.py").write_text("raise ImportError('no shtab')")
    path = os.pathsep.join([str(tmp_path), surroundings()["PYTHONPATH"]])
    done = typed("completion", "bash", env=surroundings({"PYTHONPATH": path}))
    assert done.returncode == 1
    assert "pip install 'notebook-accel[completion]'" in done.stderr


def test_the_page_of_the_docs_is_what_the_parsers_say() -> None:
    written = (ROOT / "docs/cli.md").read_text()
    assert written == manual(), "run: python -m notebook_accel.cli.manual > docs/cli.md"


def test_every_argument_of_our_commands_has_help() -> None:
    """``launch`` keeps some for ``--help_all``, and has tests of its own."""
    silent = [
        f"{parser.prog}: {action.dest}"
        for parser in parsers(everything())
        for action in parser._actions
        if not action.help and action.nargs != argparse.PARSER
        if not (action.dest.startswith("setting:") or parser.prog.endswith("launch"))
    ]
    assert silent == []
