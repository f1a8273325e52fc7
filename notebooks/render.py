"""Execute notebooks and write each one as a page with its outputs.

``python notebooks/render.py OUT [notebook ...]`` writes ``OUT/<level>/<name>.html`` and the
executed notebook beside it, of all notebooks or of those that are named, and lists the pages that
are there in ``OUT/index.html``.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from latex2mathml.converter import convert
from nbclient import NotebookClient
from nbconvert import HTMLExporter

HERE = Path(__file__).resolve().parent
CELL_TIMEOUT_S = 300
_WIDGET = "application/vnd.jupyter.widget-view+json"
_TEX = re.compile(r"```.*?```|`[^`]*`|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+)\$", re.DOTALL)
_TO_NOTEBOOK = re.compile(r"(\]\((?!\w+://)[^)#]+)\.ipynb(?=[)#])")
_TO_DOCS = re.compile(r"\]\(\.\./\.\./docs/([^)#]+)\.md(?=[)#])")  # the site's pages are folders


def sources() -> list[Path]:
    """Every notebook of the repository, in reading order."""
    return sorted(path for path in HERE.glob("[0-9]_*/*.ipynb"))


def executed(path: Path) -> Any:
    """Run a notebook from top to bottom in a fresh kernel and give it with its outputs.

    Errors: CellExecutionError when a cell raises; CellTimeoutError.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=40"],  # errors; not that TCP can be listened to
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,  # a page has no kernel to talk to: it shows what stays
    )
    with tempfile.TemporaryDirectory() as records:  # "the last run" is one of this notebook's
        client.execute(env={**os.environ, "NOTEBOOK_ACCEL_RUNS": records})
    return notebook


def title_of(notebook: Any) -> str:
    """The first heading."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found.group(1) if found else "untitled"


def formulas(text: str) -> str:
    """The same Markdown with its TeX as MathML, which browsers draw without a script's help."""

    def drawn(found: re.Match[str]) -> str:
        block, inline = found["block"], found["inline"]
        if block is None and inline is None:
            return found[0]  # code
        if block is None:
            return str(convert(inline))
        return f"\n{convert(block, display='block')}\n"

    return _TEX.sub(drawn, text)


def page_of(notebook: Any) -> str:
    """A notebook as HTML: links lead to pages, widgets are what they left to read."""
    shown = nbformat.from_dict(notebook)
    for cell in shown.cells:
        if cell.cell_type == "markdown":
            text = _TO_NOTEBOOK.sub(r"\1.html", cell.source)
            cell.source = formulas(_TO_DOCS.sub(r"](../../\1/index.html", text))
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(_WIDGET, None)
    exporter = HTMLExporter(template_name="page", extra_template_basedirs=[str(HERE)])
    page, _ = exporter.from_notebook_node(shown, {"metadata": {"name": title_of(notebook)}})
    return str(page)


def render(path: Path, out: Path) -> Path:
    """Execute one notebook and write its page below ``out``; gives where it lies."""
    began = time.monotonic()
    notebook = executed(path)
    page = out / path.parent.name / f"{path.stem}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, page.with_suffix(".ipynb"))
    page.write_text(page_of(notebook), encoding="utf-8")
    print(f"{time.monotonic() - began:6.1f} s  {page}", flush=True)
    return page


def index(out: Path) -> Path:
    """Write the page that leads to every rendered lesson below ``out``."""
    lines = ["# Lessons, at three depths"]
    level = ""
    for path in sources():
        page = Path(path.parent.name) / path.name
        if not (out / page).exists():  # the executed notebook, beside its own page
            continue
        if page.parent.name != level:
            level = page.parent.name
            lines.append(f"\n## {level.partition('_')[2].capitalize()}\n")
        lines.append(f"- [{title_of(nbformat.read(path, as_version=4))}]({page.as_posix()})")
    written = out / "index.html"
    cell = nbformat.v4.new_markdown_cell("\n".join(lines))
    written.write_text(page_of(nbformat.v4.new_notebook(cells=[cell])), encoding="utf-8")
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Render what is named, or everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the folder for the pages")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of them")
    asked = parser.parse_args(arguments)
    for path in asked.notebooks or sources():
        render(path.resolve(), asked.out)
    print(f"all of them: {index(asked.out)}")


if __name__ == "__main__":
    main()
