"""``notebooks/publish.py``: one command writes the public address everywhere."""

import importlib.util
import shutil
from pathlib import Path

import jupytext
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = "notebooks/1_beginner/01_quickstart"


@pytest.fixture
def publish():
    spec = importlib.util.spec_from_file_location("publish", ROOT / "notebooks" / "publish.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path):
    for folder in ("docs/hosts", "notebooks/1_beginner", "notebooks/2_developer"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def test_badges_install_cells_and_pages_get_the_address_and_can_be_given_another(publish, copy):
    before = (copy / "README.md").read_text()
    for repository in ("ada/one", "grace.h/two"):
        publish.publish(copy, repository, "main")
        readme = (copy / "README.md").read_text()
        for place in (
            "mybinder.org/v2/gh/",
            "colab.research.google.com/github/",
            "src=https://github.com/",
        ):
            assert readme.count(place + repository) == 1
        assert readme.count(QUICKSTART + ".ipynb") >= 3
        kaggle = (copy / "docs/hosts/kaggle.md").read_text()
        assert f"git+https://github.com/{repository}" in kaggle
        pair = jupytext.read(copy / f"{QUICKSTART}.py")
        stored = nbformat.read(copy / f"{QUICKSTART}.ipynb", as_version=4)
        line = f'SOURCE = "git+https://github.com/{repository}"'
        assert [c.source for c in pair.cells] == [c.source for c in stored.cells]
        assert any(line in cell.source for cell in stored.cells)
    assert "ada/one" not in readme
    assert publish._BADGES.sub("", readme) == before
    assert publish.publish(copy, "grace.h/two", "main") == []


def test_what_is_no_repository_is_refused(publish, capsys):
    with pytest.raises(SystemExit):
        publish.main(["https://github.com/ada/one"])
    assert "is not of the form OWNER/REPOSITORY" in capsys.readouterr().err
