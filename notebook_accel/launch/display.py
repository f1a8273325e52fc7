"""Rich output across the process border: ``display()``, updates, and ``tqdm.notebook``.

A worker has no connection to the notebook; what it would publish goes up as a Display event and
the kernel publishes it under the cell that launched. One way only: a widget made in a worker
shows and moves, but hears no clicks. Only rank 0 forwards, so that a figure appears once.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from notebook_accel.events.emitter import Emitter
from notebook_accel.events.lines import ipython
from notebook_accel.events.model import Display
from notebook_accel.events.sinks import Sink
from notebook_accel.launch import streams

FORWARDED = {
    "display_data",
    "update_display_data",
    "clear_output",
    "comm_open",
    "comm_msg",
    "comm_close",
}


def forward(emitter: Emitter, enabled: bool, in_notebook: bool) -> None:
    """Send what this worker publishes through ``emitter``, or nowhere if not ``enabled``.

    A forked worker has the kernel's own shell and keeps its formatters; a fresh one gets a small
    shell of its own (``in_notebook`` says whether the launching process is a notebook kernel).
    """
    kernel = getattr(ipython(), "kernel", None)
    if kernel is not None:
        kernel.session.send = _session_sender(emitter, enabled)
    elif in_notebook:
        _fresh_shell(emitter, enabled)


def _session_sender(emitter: Emitter, enabled: bool) -> Any:
    """Replace a kernel session's ``send``: the one place all its publishing goes through."""

    def send(
        stream: Any,
        msg_or_type: Any,
        content: Any = None,
        parent: Any = None,
        ident: Any = None,
        buffers: Any = None,
        track: bool = False,
        header: Any = None,
        metadata: Any = None,
    ) -> dict[str, Any]:
        msg_type = msg_or_type
        if isinstance(msg_or_type, dict):
            msg_type = msg_or_type["msg_type"]
            content = msg_or_type["content"]
            metadata = msg_or_type.get("metadata")
        _publish(emitter, enabled, msg_type, content, metadata, buffers)
        return {
            "header": {"msg_id": ""},
            "msg_id": "",
            "msg_type": msg_type,
            "parent_header": {},
            "metadata": metadata or {},
            "content": content or {},
        }

    return send


def _publish(
    emitter: Emitter, enabled: bool, msg_type: str, content: Any, metadata: Any, buffers: Any
) -> None:
    if enabled and msg_type in FORWARDED:
        raw = [bytes(buffer) for buffer in buffers or []]
        streams.flush()
        emitter.send(Display(emitter.rank, msg_type, dict(content or {}), metadata or {}, raw))


def _fresh_shell(emitter: Emitter, enabled: bool) -> None:
    """Give a worker without a kernel just enough of one for display() and tqdm.notebook."""
    import comm
    from comm.base_comm import BaseComm
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config, SingletonConfigurable

    class Publisher(DisplayPublisher):
        def publish(self, data: Any, metadata: Any = None, *args: Any, **more: Any) -> None:
            content = {
                "data": data,
                "metadata": metadata or {},
                "transient": more.get("transient") or {},
            }
            kind = "update_display_data" if more.get("update") else "display_data"
            _publish(emitter, enabled, kind, content, None, None)

        def clear_output(self, wait: bool = False) -> None:
            _publish(emitter, enabled, "clear_output", {"wait": wait}, None, None)

    class WorkerShell(InteractiveShell):
        def __init__(self) -> None:
            SingletonConfigurable.__init__(self)
            self.display_formatter = DisplayFormatter(parent=self)
            self.display_pub = Publisher(parent=self)  # type: ignore[no-untyped-call]
            self.user_ns = sys.modules["__main__"].__dict__
            self.config = Config({"IPKernelApp": {}})  # what tqdm.auto looks for

    class WorkerComm(BaseComm):
        def publish_msg(
            self,
            msg_type: str,
            data: Any = None,
            metadata: Any = None,
            buffers: Any = None,
            **keys: Any,
        ) -> None:
            content = {"data": data or {}, "comm_id": self.comm_id, **keys}
            _publish(emitter, enabled, msg_type, content, metadata, buffers)

    InteractiveShell._instance = WorkerShell()  # type: ignore[assignment]
    comm.create_comm = WorkerComm
    _serve_old_widgets(emitter, enabled)


def _serve_old_widgets(emitter: Emitter, enabled: bool) -> None:
    """Let ipywidgets 7 publish in a worker without a kernel: its comms ask for one."""
    module = sys.modules.get("ipykernel.comm")
    if module is None or hasattr(module.Comm, "publish_msg"):
        return
    ignore: Any = lambda comm: None  # noqa: E731
    module.Comm.kernel = SimpleNamespace(
        session=SimpleNamespace(send=_session_sender(emitter, enabled)),
        iopub_socket=None,
        get_parent=lambda channel: {},
        comm_manager=SimpleNamespace(register_comm=ignore, unregister_comm=ignore),
    )


class Cell:
    """The cell that is running when this is made; things can be published under it later on."""

    def __init__(self) -> None:
        shell = ipython()
        self.kernel = getattr(shell, "kernel", None)
        self._parent = _parent_of(shell, self.kernel)

    def publish(
        self, msg_type: str, content: Any, metadata: Any = None, buffers: Any = None
    ) -> None:
        """Send one message to the notebook as if the cell still ran; only where there is one."""
        assert self.kernel is not None
        topic = getattr(self.kernel, "topic", None)
        self.kernel.session.send(
            self.kernel.iopub_socket,
            msg_type,
            content,
            metadata=metadata,
            parent=self._parent,
            ident=topic(msg_type) if callable(topic) else None,
            buffers=buffers,
        )

    def write(self, stream: str, text: str) -> None:
        """Write text under the cell, whichever cell runs now; outside a notebook just write."""
        if self.kernel is None:
            streams.write_here(stream, text)
        else:
            streams.flush()  # what the kernel itself has printed came before
            self.publish("stream", {"name": stream, "text": text})


class Republisher(Sink):
    """A sink in the kernel that publishes the workers' rich output under the launching cell."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def handle(self, event: Any) -> None:
        """Publish one rich output; outside a notebook print its plain text."""
        if not isinstance(event, Display):
            return
        if self._cell.kernel is None:
            text = event.content.get("data", {})
            if isinstance(text, dict) and "text/plain" in text:
                print(text["text/plain"])
            return
        self._cell.publish(event.msg_type, event.content, event.metadata, event.buffers or None)


def _parent_of(shell: Any, kernel: Any) -> Any:
    for owner in (kernel, shell):
        if hasattr(owner, "get_parent"):
            return owner.get_parent()
    return {}
