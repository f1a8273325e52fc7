"""One Jupyter server and one browser for the session, one page and kernel a test."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lab_page import LabPage
from server import JupyterServer

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
# By test and theme; git leaves them out, CI keeps them.
_SHOTS = Path(__file__).resolve().parents[2] / "out" / "browser"


@pytest.fixture(autouse=True)
def leave_nothing_behind():
    """The browser's driver starts threads when it likes, and lives for the session."""


@pytest.fixture(scope="session")
def browser():
    if not CHROMIUM:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="session", params=["light", "dark"])
def theme(request):
    return request.param


@pytest.fixture(scope="session")
def server(browser, theme, tmp_path_factory):
    base = tmp_path_factory.mktemp(theme)
    server = JupyterServer(base / "root", base / "home", f"JupyterLab {theme.title()}").start()
    yield server
    server.stop()


@pytest.fixture
def open_notebook(server, browser):
    """``open_notebook(path, kind)``: a copy of a notebook, open with a fresh kernel."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    names = []

    def open_notebook(path, kind=LabPage):
        names.append(path.name)
        (server.root / path.name).write_bytes(path.read_bytes())
        return kind(context.new_page(), server).open(path.name)

    yield open_notebook
    context.close()
    for name in names:
        server.shut_down_kernel_of(name)


@pytest.fixture
def shots(theme):
    """``shots(name)``: the file for a picture of the page, for a person to look at."""
    _SHOTS.mkdir(parents=True, exist_ok=True)
    return lambda name: _SHOTS / f"{name}_{theme}.png"
