"""Show a token to the person at the screen, and to nobody who reads the notebook later.

What a cell prints is saved with the notebook. A widget's value is not: the file keeps a reference
to it and our words. The widget is closed, and its value gone, as soon as it has served.

A client that draws no widgets (a console, papermill, an older page) gets the token as text, which
is replaced once it has served. A file saved in between holds it; it lets one machine in, once, and
only while this cell waits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from notebook_accel.events.lines import ipython
from notebook_accel.ui.outputs import view_bundle
from notebook_accel.ui.place import OVERRIDE, place

STANDS = (
    "(The token stands here while the run waits for the other machines. Where nothing is seen of "
    f'it, os.environ["{OVERRIDE}"] = "text" and the cell once more write it as text.)'
)
KEPT = "(The token stood here while the run waited for the other machines.)"


def show(tokens: Sequence[str]) -> Callable[[], None]:
    """Show ``tokens``, one a machine; give the call that takes them away.

    Where there is no notebook they are written to stderr.
    """
    lines = [f"token: {token}" for token in tokens]
    if getattr(ipython(), "kernel", None) is None:
        print("\n".join(lines), file=sys.stderr, flush=True)
        return lambda: None
    from IPython import display

    here = place()
    if here.surface == "canvas" or here.may_have_widgets:
        bundle, close = _widget(lines)
    else:
        bundle, close = {"text/plain": "\n".join(lines)}, lambda: None
    publish: Any = display.display
    shown = publish(bundle, raw=True, display_id=True)

    def hide() -> None:
        close()
        if shown is not None:
            shown.update({"text/plain": KEPT}, raw=True)

    return hide


def _widget(lines: Sequence[str]) -> tuple[dict[str, Any], Callable[[], None]]:
    """Give what to display for a widget of ``lines`` to appear, and the call that closes it."""
    import ipywidgets

    widget: Any = ipywidgets.HTML("<br>".join(f"<code>{line}</code>" for line in lines))
    return view_bundle(widget, STANDS), widget.close
