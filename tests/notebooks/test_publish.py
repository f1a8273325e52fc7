"""``notebooks/publish.py``: one address, or none, in the badges, install cells and host pages."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import jupytext
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = "notebooks/1_beginner/01_quickstart"
# A link of somebody else's, which no address of ours may overwrite.
FOREIGN = "\nSee [their examples](https://github.com/somebody/else).\n"


@pytest.fixture
def publish():
    spec = importlib.util.spec_from_file_location("publish", ROOT / "notebooks" / "publish.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(publish, tmp_path, monkeypatch):
    """What the command reads and writes, elsewhere, in the state without an address."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for folder in ("notebooks/1_beginner", "notebooks/2_developer"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    kaggle = tmp_path / "docs/hosts/kaggle.md"
    kaggle.write_text(kaggle.read_text() + FOREIGN)
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    say_where_it_is(tmp_path, None)
    publish.main([])
    return tmp_path


def say_where_it_is(root, address):
    path = root / "pyproject.toml"
    kept = path.read_text().split("[project.urls]")[0]
    said = "" if address is None else f'[project.urls]\nRepository = "{address}"\n'
    path.write_text(kept.split("[project.optional-dependencies]")[0] + said)


def texts(root):
    files = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("notebooks/*/*")]
    return {path.relative_to(root): path.read_text() for path in files if path.is_file()}


def refused(publish, capsys):
    with pytest.raises(SystemExit):
        publish.main(["--check"])
    return capsys.readouterr().err


def test_this_repository_is_in_one_of_the_two_states(publish):
    publish.check(ROOT)


def test_without_an_address_there_is_no_badge_no_source_and_no_place_left_to_fill(publish, copy):
    publish.main(["--check"])
    readme = (copy / "README.md").read_text()
    assert "Badges that open the quickstart" in readme and "[![Open in" not in readme
    assert "SOURCE = None\n" in (copy / f"{QUICKSTART}.py").read_text()
    for path, text in texts(copy).items():
        if "decisions" not in path.parts:
            assert "OWNER/REPOSITORY" not in text and "git+https" not in text, path
    assert "badge in the README" not in (copy / "docs/hosts/binder.md").read_text()


def test_with_one_badges_cells_and_pages_have_it_and_without_it_again_nothing_is_left(
    publish, copy, capsys
):
    without = texts(copy)
    for repository in ("ada/one", "grace-h/two.three"):
        say_where_it_is(copy, f"https://github.com/{repository}")
        assert f"names github.com/{repository}, and these say" in refused(publish, capsys)
        publish.main([])
        publish.main(["--check"])
        source = f"git+https://github.com/{repository}"
        readme = (copy / "README.md").read_text()
        for link in publish.links(repository).values():
            assert readme.count(f"({link})") == 1
        for host in ("colab", "kaggle", "databricks"):
            assert f"\n%pip install {source}\n" in (copy / f"docs/hosts/{host}.md").read_text()
        binder = (copy / "docs/hosts/binder.md").read_text()
        assert publish.links(repository)["Binder"] in binder and "badge in the README" in binder
        assert f"notebook-accel @ {source}`" in binder
        assert FOREIGN in (copy / "docs/hosts/kaggle.md").read_text()
        for name in publish.INSTALLING:
            stored = nbformat.read(copy / name, as_version=4)
            pair = jupytext.read((copy / name).with_suffix(".py"))
            assert [c.source for c in pair.cells] == [c.source for c in stored.cells]
            assert sum(f'SOURCE = "{source}"\n' in cell.source for cell in stored.cells) == 1
    assert "ada/one" not in "".join(texts(copy).values())
    say_where_it_is(copy, None)
    publish.main([])
    assert texts(copy) == without


@pytest.mark.parametrize(
    "address",
    [
        "https://github.com/ada/one.git",
        "https://github.com/ada/one/",
        "https://gitlab.com/ada/one",
        "git@github.com:ada/one",
        "ada/one",
    ],
)
def test_an_address_that_makes_dead_links_is_refused_and_nothing_is_written(
    publish, copy, capsys, address
):
    before = texts(copy)
    say_where_it_is(copy, address)
    with pytest.raises(SystemExit):
        publish.main([])
    said = capsys.readouterr().err
    assert f"Repository = '{address}'" in said and "without .git" in said
    assert texts(copy) == before


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        (f"{QUICKSTART}.py", "SOURCE = None", 'SOURCE = "notebook-accel"', QUICKSTART),
        (f"{QUICKSTART}.ipynb", "SOURCE = None", "SOURCE = 1", QUICKSTART),
        (f"{QUICKSTART}.py", "SOURCE = None", "", "no line SOURCE = in its install cell"),
        ("README.md", "This project has no", "It has no", "README.md"),
        ("README.md", "<!-- address: badges -->", "", "README.md: <!-- /address"),
        ("README.md", "<!-- /address -->", "", "README.md: <!-- address"),
        ("docs/hosts/colab.md", "# Colab", "OWNER/REPOSITORY", "colab.md: OWNER/REPOSITORY"),
        ("docs/faq.md", "# Questions", "https://mybinder.org/v2/gh/ada/one", "faq.md: mybinder"),
        ("docs/hosts/binder.md", "address: package", "address: wheel", "the mark 'package'"),
    ],
)
def test_any_other_state_is_refused_by_the_name_of_what_is_wrong(
    publish, copy, capsys, name, old, new, told
):
    path = copy / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    said = refused(publish, capsys)
    assert "pyproject.toml names no address, and these say something else" in said
    assert told in said and "do:  run `python notebooks/publish.py`" in said


def test_the_notebooks_that_install_have_the_same_cell(publish):
    cells = {
        cell.source
        for name in publish.INSTALLING
        for cell in nbformat.read(ROOT / name, as_version=4).cells
        if "SOURCE = " in cell.source and cell.cell_type == "code"
    }
    assert len(cells) == 1
