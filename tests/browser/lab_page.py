"""A notebook open in JupyterLab, driven as a person would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server import JupyterServer

# Code cells of the notebook in front, as the front end's own objects.
CELLS = """window.jupyterapp.shell.currentWidget.content.widgets
    .filter(widget => widget.model.type === 'code')"""


class LabPage:
    """One browser page with one notebook; cells are counted over code cells."""

    def __init__(self, page: Any, server: JupyterServer) -> None:
        self.page, self.server = page, server
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self._complain(str(error)))

    def open(self, name: str, timeout_s: float = 60) -> LabPage:
        """Open a notebook and wait until its kernel is idle."""
        self._go(f"{self.server.url}/lab/tree/{name}?reset&token={self.server.token}", timeout_s)
        return self

    def _go(self, address: str, timeout_s: float) -> None:
        self.address = address
        self.page.goto(address, timeout=1000 * timeout_s)
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=1000 * timeout_s)
        self.page.wait_for_function(
            """() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel
                ?.status === 'idle'""",
            timeout=1000 * timeout_s,
        )

    def reload(self) -> LabPage:
        """Load the page again, as after a click on reload."""
        self._go(self.address, timeout_s=60)
        return self

    def _complain(self, text: str) -> None:
        # Notebook 7 trips over these two of its own.
        if "reading 'schema'" not in text and "filebrowser:open-path" not in text:
            self.complaints.append(text)

    def command(self, name: str) -> None:
        """Give a command by its id, as the menus do; does not wait for its end."""
        self.page.evaluate("name => { window.jupyterapp.commands.execute(name); }", name)

    def num_cells(self) -> int:
        """How many code cells there are."""
        return int(self.page.evaluate(f"() => {CELLS}.length"))

    def index_of(self, text: str) -> int:
        """The first code cell whose source contains ``text``."""
        index = self.page.evaluate(
            f"text => {CELLS}.findIndex(cell => cell.model.sharedModel.source.includes(text))",
            text,
        )
        assert index >= 0, f"no cell contains {text!r}"
        return int(index)

    def show(self, index: int) -> None:
        """Scroll to a code cell: Lab paints only what is near."""
        self.page.evaluate(
            f"""index => {{
                const notebook = window.jupyterapp.shell.currentWidget.content;
                return notebook.scrollToItem(notebook.widgets.indexOf({CELLS}[index]), 'start');
            }}""",
            index,
        )

    def wait_done(self, index: int, timeout_s: float = 120) -> None:
        """Wait until a code cell has run."""
        self.page.wait_for_function(
            f"""index => {{
                const model = {CELLS}[index].model;
                return model.executionCount !== null && model.executionState === 'idle';
            }}""",
            arg=index,
            timeout=1000 * timeout_s,
        )

    def is_done(self, index: int) -> bool:
        """True once a code cell has run."""
        return bool(
            self.page.evaluate(
                f"""index => {CELLS}[index].model.executionCount !== null
                    && {CELLS}[index].model.executionState === 'idle'""",
                index,
            )
        )

    def outputs(self, index: int) -> list[dict[str, Any]]:
        """A cell's outputs as they would be saved."""
        return list(self.page.evaluate(f"i => {CELLS}[i].model.toJSON().outputs", index))

    def painted_images(self, index: int) -> int:
        """How many images of a cell the browser has really loaded and shows."""
        return int(
            self.page.evaluate(
                f"""index => [...{CELLS}[index].node.querySelectorAll('.jp-OutputArea-output img')]
                    .filter(image => image.complete && image.naturalWidth > 0
                        && image.getBoundingClientRect().width > 100).length""",
                index,
            )
        )

    def save(self) -> None:
        """Save the notebook and wait until it lies on the disk."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    def shot(self, path: Path) -> Path:
        """Take a picture of the page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(path))
        return path
