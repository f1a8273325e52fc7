"""The store at which the ranks of a run meet, and what each of them must know of it."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from notebook_accel.errors import ConfigError
from notebook_accel.launch.addresses import LOOPBACK

if TYPE_CHECKING:
    from notebook_accel.launch.run import Order


def serve(order: Order, stack: contextlib.ExitStack) -> tuple[int, dict[str, str]]:
    """Bind the socket on which rank 0 will serve the store; give it and what workers must know.

    Bound here and handed over, so that no other program can take the port in between. Where an
    agent serves the store already there is nothing to bind: -1.
    """
    env = {
        "MASTER_ADDR": order.master_addr,
        "MASTER_PORT": str(order.port or 0),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # every rank is a client of the store
    }
    if order.agent_store:
        return -1, env
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        env["GLOO_SOCKET_IFNAME"] = LOOPBACK
    listener = stack.enter_context(listen(order.master_addr, order.port or 0))
    env["MASTER_PORT"] = str(listener.getsockname()[1])
    return listener.fileno(), env


def listen(host: str, port: int) -> socket.socket:
    """Listen at ``host``; port 0 takes a free one.

    Errors: ConfigError when the port is taken, or the address is not this machine's.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"port {port} on {host} cannot be used: {error.strerror}",
            "another program, perhaps another notebook's run, listens there",
            "leave out use_port: a free port is taken",
        ) from error
    listener.listen(128)
    return listener
