"""``notebook-accel join`` as a person types it, without a notebook at the other end."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from notebook_accel.launch import frames
from tests.cli.typing_in import typed

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        return int(finder.getsockname()[1])


def test_the_token_is_no_option_for_it_would_stand_in_process_lists() -> None:
    done = typed("join", "127.0.0.1:1", "--token", "ABCDE")
    assert done.returncode == 2
    assert "unknown option --token" in done.stderr
    assert "--token-file" in typed("join", "--help").stdout.replace("_", "-")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:http", ":80", "host:70000"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    done = typed("join", address)
    assert done.returncode == 2
    assert f"{address!r} is not HOST:PORT" in done.stderr
    assert "copy the line that the notebook shows" in done.stderr


def test_a_network_must_be_said_to_be_trusted() -> None:
    done = typed("join", "192.0.2.7:80")
    assert done.returncode == 2
    assert "192.0.2.7 is not a loopback address" in done.stderr
    assert "neither authenticated nor encrypted" in done.stderr
    assert "--trusted-network" in done.stderr


def test_without_a_token_and_a_person_it_says_where_to_put_it() -> None:
    env = {name: value for name, value in os.environ.items() if name != "NOTEBOOK_ACCEL_TOKEN"}
    done = subprocess.run(
        [sys.executable, "-m", "notebook_accel", "join", "127.0.0.1:1"],
        env={**env, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "there is no token, and nobody to ask for it" in done.stderr
    assert "set NOTEBOOK_ACCEL_TOKEN, pass --token_file" in done.stderr


def test_a_token_comes_from_a_file_and_a_missing_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "token"
    missing = typed("join", "127.0.0.1:1", "--token_file", str(file))
    assert missing.returncode == 2
    assert f"the token cannot be read from {file}" in missing.stderr
    file.write_text(frames.new_token() + "\n")
    done = typed("join", f"127.0.0.1:{free_port()}", "--token-file", str(file))
    assert done.returncode == 1
    assert "no notebook waits at 127.0.0.1:" in done.stderr
    file.write_text("hello")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        done = typed("join", address, "--token-file", str(file))
    assert "this is not a token: 5 characters" in done.stderr


def test_the_prompt_shows_nothing_of_what_is_typed() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "notebook_accel", "join", f"127.0.0.1:{free_port()}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    token = frames.new_token()
    try:
        while b"token: " not in said:
            said += os.read(ours, 1000)
        os.write(ours, token.encode() + b"\n")
        while True:
            try:
                said += os.read(ours, 1000) or b""
            except OSError:  # it has ended
                break
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"no notebook waits at" in said
    assert token.encode() not in said
