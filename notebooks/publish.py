"""Write the repository's public address wherever a reader needs it, or that there is none.

The address has one place: ``Repository`` under ``[project.urls]`` in pyproject.toml. ``python
notebooks/publish.py`` writes what follows from it between the marks of the README and the host
pages (``<!-- address: badges -->``, ``<!-- /address -->``), and after ``SOURCE =`` in the install
cells of notebooks. ``--check`` writes nothing, and fails where one of them says something else.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = "notebooks/1_beginner/01_quickstart.ipynb"
INSTALLING = (QUICKSTART, "notebooks/2_developer/10_kaggle_colab.ipynb")
BRANCH = "main"  # of the repository; pip takes the default branch, so this is to be that one
# What only the marked places may say.
RESERVED = (
    "OWNER/REPOSITORY",
    "mybinder.org/v2/gh/",
    "colab.research.google.com/github/",
    "kaggle.com/kernels/welcome",
    "<!-- address",  # a mark without an end, or of an unknown name
    "<!-- /address",
)
_GITHUB = re.compile(r"https://github\.com/([\w-]+/[\w.-]+(?<!\.git))")
_MARKED = re.compile(
    r"(<!-- address: (badges|install|binder|package) -->\n)(?:(?!<!--).)*(<!-- /address -->)",
    re.DOTALL,
)


class NotPublishable(Exception):
    """What the files say does not follow from the address."""


def repository(root: Path) -> str | None:
    """``OWNER/REPOSITORY`` as pyproject.toml has it; None where it names no address.

    Errors: NotPublishable when the address is not one that Binder, Colab and Kaggle open.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get("Repository")
    if address is None:
        return None
    found = _GITHUB.fullmatch(address)
    if found is None:
        raise NotPublishable(
            f"pyproject.toml has Repository = {address!r}\n"
            "  why: Colab's and Kaggle's links are made of a GitHub repository's owner and name\n"
            '  do:  write it as "https://github.com/owner/name", without .git or a slash at the end'
        )
    return found[1]


def links(repository: str) -> dict[str, str]:
    """Where each host opens the quickstart."""
    file = f"{repository}/blob/{BRANCH}/{QUICKSTART}"
    folded = QUICKSTART.replace("/", "%2F")
    return {
        "Binder": f"https://mybinder.org/v2/gh/{repository}/{BRANCH}?labpath={folded}",
        "Colab": f"https://colab.research.google.com/github/{file}",
        "Kaggle": f"https://kaggle.com/kernels/welcome?src=https://github.com/{file}",
    }


def texts(repository: str | None) -> dict[str, str]:
    """What stands between the marks, by their names."""
    if repository is None:
        return {
            "badges": "This project has no public address yet. Badges that open the quickstart on"
            " Binder, Colab and Kaggle\ncome here from `notebooks/publish.py`, once"
            " `pyproject.toml` names one.",
            "install": "The project has no public address yet: its wheel is the way.",
            "binder": "Binder builds from a public repository, and this project has no public"
            " address yet. Push a copy of it to one of\nyours, and enter its address at"
            f" [mybinder.org](https://mybinder.org), with the file\n`{QUICKSTART}`.",
            "package": "the wheel that `make wheel` builds, as `./` and its file's name: commit it"
            " at the top of your repository.",
        }
    source = f"git+https://github.com/{repository}"
    images = {
        "Binder": "https://mybinder.org/badge_logo.svg",
        "Colab": "https://colab.research.google.com/assets/colab-badge.svg",
        "Kaggle": "https://kaggle.com/static/images/open-in-kaggle.svg",
    }
    opened = links(repository)
    return {
        "badges": "\n".join(
            f"[![Open in {host}]({image})]({opened[host]})" for host, image in images.items()
        ),
        "install": f"Or install what the repository has:\n\n```text\n%pip install {source}\n```",
        "binder": "Open the quickstart by the badge in the README, or by its address:\n\n"
        f"```text\n{opened['Binder']}\n```",
        "package": f"`notebook-accel @ {source}`.",
    }


def cell_with(source: str, repository: str | None) -> str:
    """An install cell, or all of a notebook's text, with the address after ``SOURCE =``."""
    value = "None" if repository is None else f'"git+https://github.com/{repository}"'
    return re.sub(r"^SOURCE = .*$", f"SOURCE = {value}", source, flags=re.MULTILINE)


def page_with(page: str, repository: str | None) -> str:
    """A page with what belongs between its marks."""
    told = texts(repository)
    return _MARKED.sub(lambda mark: f"{mark[1]}{told[mark[2]]}\n{mark[3]}", page)


def notebook_with(text: str, repository: str | None) -> str:
    """The text of an .ipynb with the address in its install cell."""
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        cell.source = cell_with(cell.source, repository)
    return str(nbformat.writes(notebook)) + "\n"


def stale(root: Path, repository: str | None) -> Iterator[tuple[Path, str]]:
    """Each file that does not say what follows from the address, with the text that does."""
    ways = {".md": page_with, ".py": cell_with, ".ipynb": notebook_with}
    notebooks = [root / name for name in INSTALLING]
    for path in [
        root / "README.md",
        *sorted(root.glob("docs/hosts/*.md")),
        *notebooks,
        *(path.with_suffix(".py") for path in notebooks),
    ]:
        before = path.read_text(encoding="utf-8")
        after = ways[path.suffix](before, repository)
        if after != before:
            yield path, after


def strays(root: Path) -> Iterator[str]:
    """What is written by hand though it belongs to the marks, and marks that are gone."""
    seen = set()
    for path in [root / "README.md", *sorted(root.glob("docs/**/*.md"))]:
        if "decisions" in path.parts:
            continue
        page = path.read_text(encoding="utf-8")
        seen.update(name for _, name, _ in _MARKED.findall(page))
        unmarked = _MARKED.sub("", page)
        yield from (f"{path.relative_to(root)}: {one}" for one in RESERVED if one in unmarked)
    yield from (f"no page has the mark {name!r}" for name in sorted(set(texts(None)) - seen))
    for name in INSTALLING:
        if "\nSOURCE = " not in (root / name).with_suffix(".py").read_text(encoding="utf-8"):
            yield f"{name}: no line SOURCE = in its install cell"


def check(root: Path) -> None:
    """Fail where a file says something else than pyproject.toml's address, or its absence.

    Errors: NotPublishable, which names the files.
    """
    address = repository(root)
    wrong = [str(path.relative_to(root)) for path, _ in stale(root, address)] + list(strays(root))
    if wrong:
        here = "names no address" if address is None else f"names github.com/{address}"
        raise NotPublishable(
            f"pyproject.toml {here}, and these say something else: {', '.join(wrong)}\n"
            "  why: a reader would be sent where nothing is, or where something else is\n"
            "  do:  run `python notebooks/publish.py`, and leave such links to its marks"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write, or check, what follows from pyproject.toml."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where it differs")
    asked = parser.parse_args(arguments)
    try:
        if not asked.check:
            for path, text in stale(ROOT, repository(ROOT)):
                path.write_text(text, encoding="utf-8")
                print(path.relative_to(ROOT))
        check(ROOT)
    except NotPublishable as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
