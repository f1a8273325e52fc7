"""Run the quickstart through a real kernel and show its output as it comes: ``make demo``."""

from __future__ import annotations

import base64
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

HERE = Path(__file__).resolve().parent
NOTEBOOK = HERE / "1_beginner" / "01_quickstart.ipynb"
OUT = HERE.parent / "out" / "demo"
CELL_TIMEOUT_S = 300
WANTED_ACCURACY = 0.97


class DemoFailed(Exception):
    """The demo did not show what it promises; the message says what happened."""


class Screen:
    """The notebook's output on a terminal: its text, and its progress line in one place."""

    LINE_EVERY_S = 2.0  # where a line cannot be rewritten

    def __init__(self) -> None:
        self._rewrites = sys.stdout.isatty()
        self._open = False
        self._due = 0.0

    def say(self, text: str) -> None:
        """Print whole text, on a line of its own."""
        if self._open:
            sys.stdout.write("\r\x1b[K")
            self._open = False
        sys.stdout.write(text)
        sys.stdout.flush()

    def progress(self, line: str) -> None:
        """Show the newest progress line in place of the one before."""
        if self._rewrites:
            self.say("")
            sys.stdout.write(f"  {line}")
            sys.stdout.flush()
            self._open = True
        elif time.monotonic() >= self._due:
            self._due = time.monotonic() + self.LINE_EVERY_S
            self.say(f"  {line}\n")


class WatchedNotebook(NotebookClient):
    """Executes a notebook and tells a screen what each cell says, as it says it."""

    def __init__(self, notebook: Any, screen: Screen, **options: Any) -> None:
        super().__init__(notebook, **options)
        self._screen = screen

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Show text and progress, then let the notebook keep it."""
        content = msg["content"]
        if cell.metadata.get("quiet"):
            pass
        elif msg["msg_type"] == "stream":
            self._screen.say(content["text"])
        elif msg["msg_type"] == "update_display_data" and "text/html" in content["data"]:
            self._screen.progress(content["data"]["text/plain"].splitlines()[0])
        return super().process_message(msg, cell, cell_index)


def heading_of(cell: Any) -> str:
    """The heading in a markdown cell, if it has one."""
    lines = cell.source.splitlines() if cell.cell_type == "markdown" else []
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")


def execute(notebook: Any, screen: Screen) -> None:
    """Run every cell in one fresh kernel, announcing the headings.

    Errors: DemoFailed when a cell raises, takes too long, or the kernel dies.
    """
    client = WatchedNotebook(
        notebook,
        screen,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=40"],  # errors; not that TCP can be listened to
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    )
    try:
        with client.setup_kernel():
            for index, cell in enumerate(notebook.cells):
                if heading := heading_of(cell):
                    screen.say(f"\n{heading}\n")
                client.execute_cell(cell, index)
    except CellExecutionError as error:
        raise DemoFailed(f"a cell raised {error.ename}: {error.evalue}") from error
    except (CellTimeoutError, DeadKernelError) as error:
        raise DemoFailed(f"{type(error).__name__}: {error}") from error


def save_picture(notebook: Any, path: Path) -> None:
    """Write the last picture of the launching cell to a file.

    Errors: DemoFailed when the cell left no picture.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code" and "notebook_launcher(main" in cell.source:
            for output in reversed(cell.outputs):
                if image := output.get("data", {}).get("image/png"):
                    path.write_bytes(base64.b64decode(image))
                    return
    raise DemoFailed("the launching cell left no picture of its curve")


def demo() -> None:
    """Run the quickstart, check it, and say where everything lies."""
    OUT.mkdir(parents=True, exist_ok=True)
    executed, picture = OUT / NOTEBOOK.name, OUT / "loss.png"
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # Ask the kernel for the number rather than read it out of a sentence.
    probe = nbformat.v4.new_code_cell("print(accuracy)", metadata={"quiet": True})
    notebook.cells.append(probe)
    start = time.monotonic()
    screen = Screen()
    try:
        execute(notebook, screen)
    finally:
        notebook.cells.remove(probe)
        nbformat.write(notebook, executed)
    wall_s = time.monotonic() - start
    accuracy = float(probe.outputs[0].text)
    if not accuracy >= WANTED_ACCURACY:
        raise DemoFailed(f"accuracy {accuracy:.4f} is below {WANTED_ACCURACY}")
    save_picture(notebook, picture)
    screen.say(
        f"\naccuracy   {accuracy:.4f}\n"
        f"wall time  {wall_s:.1f} s\n"
        f"notebook   {executed.relative_to(HERE.parent)}\n"
        f"picture    {picture.relative_to(HERE.parent)}\n"
    )


if __name__ == "__main__":
    try:
        demo()
    except DemoFailed as failure:
        sys.exit(f"\nthe demo failed: {failure}\nwhat was executed: {OUT / NOTEBOOK.name}")
