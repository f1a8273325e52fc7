"""Write the repository's public address wherever a reader needs it, once there is one.

``python notebooks/publish.py OWNER/REPOSITORY [--branch main]`` puts badges for Binder, Colab and
Kaggle under the README's title, and the address into the notebooks' install cells and the host
pages. Running it again with another address replaces the first.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = "notebooks/1_beginner/01_quickstart.ipynb"
_PLACE = "OWNER/REPOSITORY"
_BADGES = re.compile(r"<!-- badges -->.*?<!-- /badges -->\n\n", re.DOTALL)
_ADDRESS = re.compile(r"(github\.com/|/v2/gh/)[\w.-]+/[\w.-]+?(?=\)|/|\s|$)", re.MULTILINE)
# The line as it stands in a .py file, and as a .ipynb holds it.
_SOURCE = re.compile(r'SOURCE = (\\?")[^"\\]*(\\?")')


def badges(repository: str, branch: str) -> str:
    """Markdown of the three badges, each of which opens the quickstart."""
    path = f"github/{repository}/blob/{branch}/{QUICKSTART}"
    places = {
        "Binder": (
            "https://mybinder.org/badge_logo.svg",
            f"https://mybinder.org/v2/gh/{repository}/{branch}"
            f"?labpath={QUICKSTART.replace('/', '%2F')}",
        ),
        "Colab": (
            "https://colab.research.google.com/assets/colab-badge.svg",
            f"https://colab.research.google.com/{path}",
        ),
        "Kaggle": (
            "https://kaggle.com/static/images/open-in-kaggle.svg",
            f"https://kaggle.com/kernels/welcome?src=https://github.com/{path.split('/', 1)[1]}",
        ),
    }
    lines = [f"[![Open in {name}]({image})]({link})" for name, (image, link) in places.items()]
    return "\n".join(["<!-- badges -->", *lines, "<!-- /badges -->"]) + "\n\n"


def publish(root: Path, repository: str, branch: str) -> list[Path]:
    """Write the address into the files below ``root``; give those that changed."""
    source = f"git+https://github.com/{repository}"
    changed = []
    for path in [
        root / "README.md",
        *sorted(root.glob("docs/hosts/*.md")),
        *sorted(root.glob("notebooks/[0-9]_*/*.*")),
    ]:
        before = path.read_text(encoding="utf-8")
        if path.name == "README.md":
            title, rest = _BADGES.sub("", before).split("\n\n", 1)
            after = f"{title}\n\n{badges(repository, branch)}{rest}"
        elif path.suffix == ".md":
            after = _ADDRESS.sub(lambda found: found[1] + repository, before)
        else:
            after = _SOURCE.sub(lambda found: f"SOURCE = {found[1]}{source}{found[2]}", before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    return changed


def main(arguments: Sequence[str] | None = None) -> None:
    """Publish what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", help=_PLACE)
    parser.add_argument("--branch", default="main")
    asked = parser.parse_args(arguments)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", asked.repository):
        parser.error(f"{asked.repository!r} is not of the form {_PLACE}")
    for path in publish(ROOT, asked.repository, asked.branch):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
