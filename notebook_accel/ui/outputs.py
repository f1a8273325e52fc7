"""What a cell shows: bundles of one thing in several forms, shown once and updated in place."""

from __future__ import annotations

import base64
import importlib
from typing import Any


def view_bundle(widget: Any, text: str) -> dict[str, Any]:
    """The bundle that makes a page draw ``widget``; what draws none shows ``text``."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view, "text/plain": text}


def picture(
    image: bytes, title: str, facts: str, width_px: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The bundle that stays in a saved notebook, and its metadata: an image, and it as text."""
    bundle = {
        "image/png": base64.b64encode(image).decode(),
        "text/plain": f"{title}\n{facts}",
    }
    return bundle, {"image/png": {"width": width_px}}


def publish(bundle: dict[str, Any], handle: Any, metadata: dict[str, Any] | None = None) -> Any:
    """Show a bundle in the cell, in place of what ``handle`` showed before."""
    show: Any = importlib.import_module("IPython.display").display
    if handle is None:
        return show(bundle, raw=True, metadata=metadata or {}, display_id=True)
    handle.update(bundle, raw=True, metadata=metadata or {})
    return handle
