"""Which address and which network interface of this machine lead to another one."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
NOT_FOUND = "{host} cannot be found from this machine: the name stands for no address here"
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` can only be this machine itself."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def is_number(host: str) -> bool:
    """Tell whether ``host`` says an address itself, and is no name to be looked up elsewhere."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def unknown(host: str) -> str:
    """Say that this machine cannot find ``host``, if that is so."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):  # no address, or no name that could have one
        return NOT_FOUND.format(host=host)
    return ""


def towards(host: str, port: int) -> str:
    """Give the address from which this machine reaches ``host``; "" if it does not know the way.

    Nothing is sent.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return ""


def interface_of(address: str) -> str:
    """Name the interface that has ``address``; "" where the system does not tell."""
    if is_loopback(address) and sys.platform == "darwin":
        return LOOPBACK
    if sys.platform != "linux":
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                request = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]
                if socket.inet_ntoa(found) == address:
                    return name
    return ""


def talking_through(address: str) -> dict[str, str]:
    """Give the variables that keep the ranks' own connections on the interface of ``address``.

    Without them gloo takes the one that the host's name stands for, which is often another.
    """
    name = interface_of(address)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}
