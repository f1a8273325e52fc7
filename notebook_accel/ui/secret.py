"""Show a token to the person at the screen, and to nobody who reads the notebook later.

What a cell prints is saved with the notebook. A widget's value is not: the file keeps a reference
to it and our words. The widget is closed, and its value gone, as soon as it has served.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from notebook_accel.events.lines import ipython

KEPT = "(The token stood here while the run waited for the other machines.)"


def show(tokens: Sequence[str]) -> Callable[[], None]:
    """Show ``tokens``, one a machine; give the call that takes them away.

    Where there is no notebook they are written to stderr.
    """
    lines = [f"token: {token}" for token in tokens]
    if getattr(ipython(), "kernel", None) is None:
        print("\n".join(lines), file=sys.stderr, flush=True)
        return lambda: None
    import ipywidgets
    from IPython import display

    widget: Any = ipywidgets.HTML("<br>".join(f"<code>{line}</code>" for line in lines))
    view = {"model_id": widget.model_id, "version_major": 2, "version_minor": 0}
    bundle = {"application/vnd.jupyter.widget-view+json": view, "text/plain": KEPT}
    publish: Any = display.display
    shown = publish(bundle, raw=True, display_id=True)

    def hide() -> None:
        widget.close()
        if shown is not None:
            shown.update({"text/plain": KEPT}, raw=True)

    return hide
