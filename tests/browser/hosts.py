"""The other homes of a notebook, on the same server: Notebook 7 and Voila."""

from __future__ import annotations

from typing import Any

from lab_page import LabPage
from server import JupyterServer


class NotebookPage(LabPage):
    """A notebook open in Notebook 7; cells are driven as in Lab, whose objects it uses."""

    # It logs these of its own accord.
    HARMLESS = ("reading 'schema'", "filebrowser:open-path")

    def open(self, name: str, timeout_s: float = 60) -> NotebookPage:
        """Open a notebook and wait until its kernel is idle."""
        self._go(f"{self.server.url}/notebooks/{name}?token={self.server.token}", timeout_s)
        return self


class VoilaPage:
    """A notebook as an application: it runs when the page opens, and no code is shown."""

    def __init__(self, page: Any, server: JupyterServer) -> None:
        self.page, self.server = page, server

    def open(self, name: str, timeout_s: float = 90) -> VoilaPage:
        """Open the application and wait until its controls are there."""
        address = f"{self.server.url}/voila/render/{name}?token={self.server.token}"
        self.page.goto(address, timeout=1000 * timeout_s)
        self.page.wait_for_selector(".nba-picker input", timeout=1000 * timeout_s)
        return self
