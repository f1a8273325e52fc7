"""Let this machine take part in the run of a notebook that waits for it."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path

from notebook_accel.errors import ConfigError
from notebook_accel.launch import joining
from notebook_accel.launch.lead import check_address

VARIABLE = "NOTEBOOK_ACCEL_TOKEN"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the address and where the token comes from: never the command line itself."""
    parser.add_argument("address", metavar="HOST:PORT", help="where the notebook waits")
    parser.add_argument(
        "--token_file",
        type=Path,
        metavar="PATH",
        help=f"read the token from a file (default: {VARIABLE}, else a prompt)",
    )
    parser.add_argument(
        "--trusted_network",
        action="store_true",
        help="allow an address that is not loopback: the ranks' own connections are not protected",
    )


def run(options: argparse.Namespace) -> int:
    """Join, and stay until the run is over."""
    host, port = _split(options.address)
    check_address(host, options.trusted_network)
    print(joining.join(host, port, _token(options.token_file)))
    return 0


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{address!r} is not HOST:PORT",
            "the notebook listens at one port of one address",
            "copy the line that the notebook shows: notebook-accel join HOST:PORT",
        )
    return host, int(port)


def _token(path: Path | None) -> str:
    """Read the token where no process list shows it; the ranks do not inherit it."""
    given = os.environ.pop(VARIABLE, "")
    if path is not None:
        try:
            return path.read_text()
        except OSError as error:
            raise ConfigError(
                f"the token cannot be read from {path}: {error.strerror}",
                "--token_file names a file that holds nothing but the token",
                f"write the token there, set {VARIABLE}, or leave it out to be asked",
            ) from error
    if given:
        return given
    if not sys.stdin.isatty():
        raise ConfigError(
            "there is no token, and nobody to ask for it",
            "a token on the command line would stand in every process list",
            f"set {VARIABLE}, pass --token_file, or run the line in a terminal",
        )
    return getpass.getpass("token: ")
