"""Execute notebooks and write each one as a page with its outputs: ``make docs``.

``python notebooks/render.py [notebook ...]`` writes ``out/notebooks/<level>/<name>.html`` and the
executed notebook beside it; without names it takes all of them, and adds a table of contents.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "out" / "notebooks"
CELL_TIMEOUT_S = 300
_WIDGET = "application/vnd.jupyter.widget-view+json"
_TO_NOTEBOOK = re.compile(r"(\]\((?!\w+://)[^)#]+)\.ipynb(?=[)#])")


def sources() -> list[Path]:
    """Every notebook of the repository, in reading order."""
    return sorted(path for path in HERE.glob("[0-9]_*/*.ipynb"))


def executed(path: Path) -> Any:
    """Run a notebook from top to bottom in a fresh kernel and give it with its outputs.

    Errors: CellExecutionError when a cell raises; CellTimeoutError.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=40"],  # errors; not that TCP can be listened to
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,  # a page has no kernel to talk to: it shows what stays
    ).execute()
    return notebook


def title_of(notebook: Any) -> str:
    """The first heading."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found.group(1) if found else "untitled"


def page_of(notebook: Any) -> str:
    """A notebook as HTML: links lead to pages, widgets are what they left to read."""
    shown = nbformat.from_dict(notebook)
    for cell in shown.cells:
        if cell.cell_type == "markdown":
            cell.source = _TO_NOTEBOOK.sub(r"\1.html", cell.source)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(_WIDGET, None)
    exporter = HTMLExporter(template_name="page", extra_template_basedirs=[str(HERE)])
    page, _ = exporter.from_notebook_node(shown, {"metadata": {"name": title_of(notebook)}})
    return str(page)


def contents(pages: Sequence[tuple[str, Path]]) -> str:
    """The table of contents: a list of links for each level."""
    parts = ['<!doctype html><meta charset="utf-8"><title>Notebooks</title>']
    parts.append("<style>body{font:16px/1.6 sans-serif;max-width:40rem;margin:2rem auto}</style>")
    for level in sorted({page.parent.name for _, page in pages}):
        items = "".join(
            f'<li><a href="{level}/{page.name}">{html.escape(title)}</a></li>'
            for title, page in pages
            if page.parent.name == level
        )
        parts.append(f"<h2>{level[2:].capitalize()}</h2><ol>{items}</ol>")
    return "\n".join(parts)


def render(path: Path) -> tuple[str, Path]:
    """Execute one notebook and write its page; gives its title and where the page lies."""
    began = time.monotonic()
    notebook = executed(path)
    page = OUT / path.parent.name / f"{path.stem}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, page.with_suffix(".ipynb"))
    page.write_text(page_of(notebook), encoding="utf-8")
    print(f"{time.monotonic() - began:6.1f} s  {page.relative_to(HERE.parent)}", flush=True)
    return title_of(notebook), page


def main(arguments: Sequence[str] | None = None) -> None:
    """Render what is named, or everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of them")
    asked = parser.parse_args(arguments).notebooks
    pages = [render(path.resolve()) for path in asked or sources()]
    if not asked:
        (OUT / "index.html").write_text(contents(pages), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
