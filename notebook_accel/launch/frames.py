"""Frames between two machines that share a token: who speaks, and that nothing was changed.

A handshake proves to each side that the other has the token, which itself never travels:

    joiner ── hello, nonce ──▶ notebook
    joiner ◀── hello, nonce ── notebook
    joiner ── frame 0: what it is ──▶ notebook      keys from the token and both nonces
    joiner ◀── frame 0: welcome, or why not ── notebook

A frame is its length, a MAC (HMAC-SHA-256 over its number, its length and its body) and the body.
Each direction has a key of its own, both derived by HKDF from the token with the two nonces as
salt. So a frame of another session, another direction, another place in the order, or with one
bit changed has a wrong MAC, and the first wrong MAC ends the connection. Nothing is unpickled
before both sides have proven that they have the token.

Frames are authenticated, not encrypted: who can listen on the way can read them.

Source: RFC 2104 (HMAC), RFC 5869 (HKDF), ISO/IEC 9798-4 (mutual authentication, three passes).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import pickle
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from notebook_accel.errors import ConfigError, LaunchError

HELLO = b"notebook-accel join 1\n"
NONCE_BYTES = 32
TOKEN_BYTES = 16
MAX_GREETING = 1 << 13  # all that is read of somebody who has proven nothing yet
MAX_BODY = 1 << 20
GREET_S = 5.0
SEND_S = 60.0
READ_BYTES = 1 << 20
_HEADER = struct.Struct("!I32s")
_PLACE = struct.Struct("!QI")
_NO = _HEADER.pack(0, bytes(32))  # "I know no such token": no frame is empty
_MORE, _LAST, _PIECE = b"+", b".", b"#"
_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}


class Unwelcome(Exception):
    """A connection that was not let in; its text is the reason."""


# ── tokens ────────────────────────────────────────────────────────────────────────────────────


def new_token() -> str:
    """Make a token of 128 random bits, in letters and digits that are easy to copy."""
    text = base64.b32encode(secrets.token_bytes(TOKEN_BYTES)).decode().rstrip("=")
    return "-".join(text[start : start + 5] for start in range(0, len(text), 5))


def secret_of(token: str) -> bytes:
    """Read a token; case, spaces and hyphens do not matter.

    Errors: ConfigError for what cannot be a token.
    """
    text = "".join(token.split()).replace("-", "").upper()
    try:
        secret = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        secret = b""
    if len(secret) != TOKEN_BYTES:
        raise ConfigError(
            f"this is not a token: {len(text)} characters",
            "a token has 26 letters and digits (A to Z, 2 to 7), in groups of five",
            "copy all of the token that the notebook shows",
        )
    return secret


@dataclass
class Token:
    """One token: it lets one machine in, once, until ``expires_at`` (monotonic seconds)."""

    text: str
    expires_at: float
    used: bool = False

    def refusal(self) -> str:
        """Say why it lets nobody in any more; "" if it does."""
        if self.used:
            return "its token was used already"
        return "its token has expired" if time.monotonic() > self.expires_at else ""


@dataclass(frozen=True)
class Keys:
    """One session's keys, from the joiner to the notebook and back."""

    up: bytes
    down: bytes


def keys(secret: bytes, salt: bytes) -> Keys:
    """Derive the keys of a session whose nonces are ``salt``."""
    prk = hmac.digest(salt, secret, "sha256")
    up, down = (hmac.digest(prk, label + b"\x01", "sha256") for label in (b"up", b"down"))
    return Keys(up, down)


def mac(key: bytes, number: int, body: bytes) -> bytes:
    """Give the code that proves that ``body`` is frame ``number`` of the owner of ``key``."""
    return hmac.new(key, _PLACE.pack(number, len(body)) + body, hashlib.sha256).digest()


class Sealer:
    """Makes frames."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def seal(self, body: bytes) -> bytes:
        """Give the next frame."""
        assert 0 < len(body) <= MAX_BODY
        code = mac(self._key, self._number, body)
        self._number += 1
        return _HEADER.pack(len(body), code) + body


class Opener:
    """Takes frames apart, and refuses the first that is not what the other side sent next."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add what was read; give the bodies that are now whole.

        Errors: LaunchError for a frame that is too long or has a wrong code.
        """
        self._buffer += data
        bodies = []
        while len(self._buffer) >= _HEADER.size:
            length, code = _HEADER.unpack_from(self._buffer)
            if not 0 < length <= MAX_BODY:
                raise _tampered(f"a frame of {length} bytes")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            body = bytes(memoryview(self._buffer)[_HEADER.size : end])
            if not hmac.compare_digest(code, mac(self._key, self._number, body)):
                raise _tampered(f"frame {self._number} with a wrong code")
            self._number += 1
            bodies.append(body)
            del self._buffer[:end]
        return bodies


def _tampered(what: str) -> LaunchError:
    return LaunchError(
        f"the connection between the machines brought {what}",
        "something on the way changed, repeated or invented data; nothing of it was used",
        "look at what lies between the machines, and start the run again with a new token",
    )


# ── the connection after the handshake ────────────────────────────────────────────────────────


class Channel:
    """An authenticated connection: messages, and pieces of files between them."""

    def __init__(self, sock: socket.socket, sealer: Sealer, opener: Opener) -> None:
        self._sock = sock
        self._sealer = sealer
        self._opener = opener
        self._parts: list[bytes] = []
        sock.settimeout(SEND_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _ALIVE.items():  # a machine that has no power says no goodbye
            if hasattr(socket, name) and sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def fileno(self) -> int:
        """The descriptor that is readable when something has come."""
        return self._sock.fileno()

    @property
    def here(self) -> str:
        """The address of this end."""
        return str(self._sock.getsockname()[0])

    def send(self, message: Any) -> None:
        """Send one message.

        Errors: OSError when the other side is gone.
        """
        data = pickle.dumps(message, protocol=5)
        step = MAX_BODY - 1
        for start in range(0, len(data), step):
            mark = _LAST if start + step >= len(data) else _MORE
            self._sock.sendall(self._sealer.seal(mark + data[start : start + step]))

    def send_bytes(self, data: memoryview) -> None:
        """Send a file's content; a message before it says what it is.

        Errors: OSError when the other side is gone.
        """
        step = MAX_BODY - 1
        for start in range(0, len(data), step):
            self._sock.sendall(self._sealer.seal(_PIECE + data[start : start + step]))

    def receive(self, timeout_s: float = 0.0) -> list[Any]:
        """Give what has come, waiting ``timeout_s`` at most: messages, and pieces as bytes.

        Errors: ConnectionError when the other side is gone; LaunchError for a forged frame.
        """
        if not select.select([self._sock], [], [], timeout_s)[0]:
            return []
        data = self._sock.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError("the connection was closed")
        come: list[Any] = []
        for body in self._opener.feed(data):
            if body[:1] == _PIECE:
                come.append(body[1:])
                continue
            self._parts.append(body[1:])
            if body[:1] == _LAST:
                come.append(pickle.loads(b"".join(self._parts)))
                self._parts.clear()
        return come

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()


# ── the handshake ─────────────────────────────────────────────────────────────────────────────


def admit(
    sock: socket.socket,
    tokens: list[Token],
    mine: dict[str, Any],
    objection: Callable[[dict[str, Any]], str],
) -> tuple[Channel, Token, dict[str, Any]]:
    """Let one machine in that has a valid token and that ``objection`` finds nothing against.

    ``mine`` is what it is told of this side. Gives the connection, the token (which is not yet
    used up) and what the other side says it is.

    Errors: Unwelcome with the reason.
    """
    deadline = time.monotonic() + GREET_S
    hello = _read(sock, len(HELLO) + NONCE_BYTES, deadline)
    if not hello.startswith(HELLO):
        ours = hello.startswith(HELLO[:-2])
        raise Unwelcome(f"it speaks {'another version of this' if ours else 'no such'} protocol")
    nonce = secrets.token_bytes(NONCE_BYTES)
    sock.sendall(HELLO + nonce)
    length, code = _HEADER.unpack(_read(sock, _HEADER.size, deadline))
    if not 0 < length <= MAX_GREETING:
        raise Unwelcome(f"it sent a frame of {length} bytes before it had proven anything")
    body = _read(sock, length, deadline)
    salt = hello + nonce
    token = None
    for one in tokens:  # all of them, whichever it is
        if hmac.compare_digest(code, mac(keys(secret_of(one.text), salt).up, 0, body)):
            token = one
    if token is None:
        sock.sendall(_NO)
        raise Unwelcome("its token is wrong")
    theirs = json.loads(body)
    pair = keys(secret_of(token.text), salt)
    sealer, opener = Sealer(pair.down), Opener(pair.up)
    opener.feed(_HEADER.pack(length, code) + body)
    refusal = token.refusal() or objection(theirs)
    sock.sendall(sealer.seal(json.dumps({**mine, "refused": refusal}).encode()))
    if refusal:
        raise Unwelcome(refusal)
    return Channel(sock, sealer, opener), token, theirs


def enter(sock: socket.socket, token: str, mine: dict[str, Any]) -> tuple[Channel, dict[str, Any]]:
    """Prove the token to the notebook at the other end of ``sock``, and that it has it as well.

    Gives the connection and what the notebook says of itself.

    Errors: LaunchError when it refuses, or cannot prove that it made the token; OSError.
    """
    secret = secret_of(token)
    deadline = time.monotonic() + GREET_S * 2
    nonce = secrets.token_bytes(NONCE_BYTES)
    try:
        sock.sendall(HELLO + nonce)
        hello = _read(sock, len(HELLO) + NONCE_BYTES, deadline)
        if not hello.startswith(HELLO):
            raise Unwelcome("what listens there speaks another protocol, or another version of it")
        pair = keys(secret, HELLO + nonce + hello[-NONCE_BYTES:])
        sealer, opener = Sealer(pair.up), Opener(pair.down)
        sock.sendall(sealer.seal(json.dumps(mine).encode()))
        head = _read(sock, _HEADER.size, deadline)
        if head == _NO:
            raise Unwelcome("the notebook knows no such token")
        length = _HEADER.unpack(head)[0]
        if length > MAX_GREETING:
            raise Unwelcome(f"it answered with a frame of {length} bytes")
        (body,) = opener.feed(head + _read(sock, length, deadline))
    except Unwelcome as reason:
        raise not_let_in(str(reason)) from None
    theirs = json.loads(body)
    if theirs["refused"]:
        raise not_let_in(theirs["refused"])
    return Channel(sock, sealer, opener), theirs


def not_let_in(reason: str) -> LaunchError:
    """Make the joiner's error for a refusal."""
    return LaunchError(
        f"this machine was not let in: {reason}",
        "a token lets one machine into one run, once, while its notebook waits",
        "copy the line and the token that the notebook shows now",
    )


def _read(sock: socket.socket, count: int, deadline: float) -> bytes:
    """Read ``count`` bytes of somebody unknown, until ``deadline``."""
    data = b""
    while len(data) < count:
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            part = sock.recv(count - len(data))
        except TimeoutError:
            raise Unwelcome(f"it sent nothing more after {len(data)} of {count} bytes") from None
        except OSError as error:
            raise Unwelcome(f"the connection broke: {error}") from None
        if not part:
            raise Unwelcome(f"the connection ended after {len(data)} of {count} bytes")
        data += part
    return data
