"""The connection between two machines: who gets in, and what a forger meets."""

from __future__ import annotations

import hmac
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from notebook_accel.errors import ConfigError, LaunchError
from notebook_accel.launch import frames, likeness
from notebook_accel.launch.frames import Channel, Opener, Sealer, Token, Unwelcome

KEY = b"k" * 32
MINE = {"python": "3.11", "torch": "2.13.0"}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    host, joiner = socket.socketpair()
    with host, joiner:
        yield host, joiner


def valid(text: str | None = None) -> Token:
    return Token(text or frames.new_token(), time.monotonic() + 60)


def meet(
    pair: tuple[socket.socket, socket.socket],
    tokens: list[Token],
    token: str,
    objection: Any = lambda facts: "",
) -> tuple[Any, Any]:
    """Let both sides of a handshake run; give what each got, or its exception."""
    host, joiner = pair
    got: list[Any] = [None, None]

    def side(index: int, call: Any) -> None:
        try:
            got[index] = call()
        except Exception as error:
            got[index] = error
            pair[index].shutdown(socket.SHUT_RDWR)

    threads = [
        threading.Thread(
            target=side, args=(0, lambda: frames.admit(host, tokens, MINE, objection))
        ),
        threading.Thread(target=side, args=(1, lambda: frames.enter(joiner, token, {"name": "b"}))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return got[0], got[1]


def channels(pair: tuple[socket.socket, socket.socket]) -> tuple[Channel, Channel]:
    token = valid()
    (host, _, _), (joiner, _) = meet(pair, [token], token.text)
    return host, joiner


def test_two_machines_with_the_same_token_know_each_other(pair: Any) -> None:
    token = valid()
    (host, which, theirs), (joiner, mine) = meet(pair, [valid(), token], token.text)
    assert which is token and theirs == {"name": "b"}
    assert mine == {**MINE, "refused": ""}

    def talk() -> None:
        joiner.send({"rank": 2, "text": "x" * 3_000_000})
        joiner.send_bytes(memoryview(b"abc"))

    thread = threading.Thread(target=talk)
    thread.start()
    come: list[Any] = []
    while len(come) < 2:
        come += host.receive(5)
    thread.join(20)
    assert come[0]["text"] == "x" * 3_000_000
    assert come[1] == b"abc"
    host.send("stop")
    assert joiner.receive(5) == ["stop"]
    assert host.receive() == []


def test_a_wrong_token_opens_nothing_and_both_sides_say_so(pair: Any) -> None:
    host, joiner = meet(pair, [valid()], frames.new_token())
    assert isinstance(host, Unwelcome) and str(host) == "its token is wrong"
    assert isinstance(joiner, LaunchError)
    assert joiner.what == "this machine was not let in: the notebook knows no such token"


def test_a_used_and_an_expired_token_are_told_apart(pair: Any) -> None:
    used, late = valid(), Token(frames.new_token(), time.monotonic() - 1)
    used.used = True
    host, joiner = meet(pair, [used, late], used.text)
    assert str(host) == "its token was used already"
    assert joiner.what.endswith("its token was used already")
    first, second = socket.socketpair()
    with first, second:
        host, joiner = meet((first, second), [used, late], late.text)
    assert str(host) == "its token has expired"
    assert joiner.what.endswith("its token has expired")


def test_what_cannot_be_a_token_is_refused_before_anything_is_sent(pair: Any) -> None:
    with pytest.raises(ConfigError, match="this is not a token: 5 characters"):
        frames.enter(pair[1], "hello", {})
    pair[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        pair[0].recv(1)


def test_a_token_may_be_typed_in_any_shape() -> None:
    token = frames.new_token()
    assert frames.secret_of(f" {token.lower().replace('-', ' ')}\n") == frames.secret_of(token)
    assert len(frames.secret_of(token)) * 8 == 128
    assert frames.new_token() != token


def test_an_objection_reaches_both_sides_and_uses_no_token_up(pair: Any) -> None:
    token = valid()
    mine, theirs = likeness.facts(), {**likeness.facts(), "python": "3.9"}
    host, joiner = meet(pair, [token], token.text, lambda facts: likeness.objection(mine, theirs))
    assert str(host).startswith(f"it has python 3.9, the notebook has {mine['python']}: ")
    assert "a function's code is read by the same version of Python" in joiner.what
    assert not token.used


@pytest.mark.parametrize("name", ["python", "torch", "notebook_accel", "cloudpickle"])
def test_machines_must_have_the_same_versions(name: str) -> None:
    mine = likeness.facts()
    assert likeness.objection(mine, mine) == ""
    assert f"it has {name} 0" in likeness.objection(mine, {**mine, name: "0"})


def test_a_joiner_that_does_not_meet_the_maker_of_its_token_sends_nothing_more(pair: Any) -> None:
    """Somebody who took the notebook's place knows the protocol, not the token."""
    host, joiner = pair
    caught: list[Any] = []

    def enter() -> None:
        try:
            frames.enter(joiner, frames.new_token(), {"name": "b"})
        except LaunchError as error:
            caught.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    host.recv(1000)
    host.sendall(frames.HELLO + b"n" * frames.NONCE_BYTES)
    host.recv(1000)
    host.sendall(Sealer(KEY).seal(b'{"refused": ""}'))
    thread.join(20)
    assert "a wrong code" in caught[0].what


def test_frames_of_one_handshake_are_worth_nothing_in_another(pair: Any) -> None:
    """A listener repeats, word by word, what a joiner with a good token has sent."""
    token = valid()
    host, joiner = pair
    said: list[bytes] = []
    real_sendall = joiner.sendall

    class Tapped:
        def __getattr__(self, name: str) -> Any:
            return getattr(joiner, name)

        def sendall(self, data: bytes) -> None:
            said.append(bytes(data))
            real_sendall(data)

    meet((host, Tapped()), [token], token.text)  # type: ignore[arg-type]
    first, second = socket.socketpair()
    with first, second:
        second.sendall(said[0])
        second.sendall(said[1])
        with pytest.raises(Unwelcome, match="its token is wrong"):
            frames.admit(first, [token], MINE, lambda facts: "")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n" + b"x" * 60, "speaks another protocol"),
        (frames.HELLO + bytes(frames.NONCE_BYTES) + b"\xff" * 36, "a frame of 4294967295 bytes"),
        (frames.HELLO, "the connection ended after 22 of 54 bytes"),
    ],
)
def test_a_joiner_says_what_it_met_in_the_notebooks_place(
    pair: Any, answer: bytes, words: str
) -> None:
    host, joiner = pair
    host.sendall(answer)
    host.shutdown(socket.SHUT_WR)
    with pytest.raises(LaunchError, match=words) as caught:
        frames.enter(joiner, frames.new_token(), {"name": "b"})
    assert caught.value.what.startswith("this machine was not let in: ")
    assert caught.value.why.startswith("a token lets one machine into one run, once")


def greet_with(data: bytes, then_close: bool = True) -> str:
    """Send ``data`` to a waiting notebook; give why it lets nobody in."""
    host, stranger = socket.socketpair()
    with host, stranger:
        stranger.sendall(data)
        if then_close:
            stranger.shutdown(socket.SHUT_WR)
        with pytest.raises(Unwelcome) as caught:
            frames.admit(host, [valid()], MINE, lambda facts: "")
    return str(caught.value)


def test_strangers_are_sent_away() -> None:
    hello = frames.HELLO + bytes(frames.NONCE_BYTES)
    assert greet_with(b"GET / HTTP/1.1\r\n" + b"x" * 60) == "it speaks no such protocol"
    newer = frames.HELLO.replace(b" 1", b" 2") + bytes(frames.NONCE_BYTES)
    assert greet_with(newer) == "it speaks another version of this protocol"
    assert greet_with(hello[:10]) == f"the connection ended after 10 of {len(hello)} bytes"
    assert greet_with(hello) == "the connection ended after 0 of 36 bytes"
    huge = (1 << 30).to_bytes(4, "big") + bytes(32)
    assert "sent a frame of 1073741824 bytes before it had proven anything" in greet_with(
        hello + huge
    )


def test_somebody_who_says_nothing_does_not_hold_up_the_notebook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "GREET_S", 0.1)
    assert greet_with(b"n", then_close=False).startswith("it sent nothing more after 1 of")


def test_a_flipped_bit_anywhere_in_a_frame_is_found() -> None:
    frame = Sealer(KEY).seal(b"body")
    assert Opener(KEY).feed(frame) == [b"body"]
    for position in range(4, len(frame)):
        forged = bytearray(frame)
        forged[position] ^= 1
        with pytest.raises(LaunchError, match="frame 0 with a wrong code"):
            Opener(KEY).feed(bytes(forged))


def test_a_repeated_a_dropped_and_a_swapped_frame_are_found() -> None:
    sealer = Sealer(KEY)
    one, two = sealer.seal(b"one"), sealer.seal(b"two")
    for wrong in (one + one, two, two + one):
        with pytest.raises(LaunchError, match="a wrong code"):
            Opener(KEY).feed(wrong)
    assert Opener(KEY).feed(one + two) == [b"one", b"two"]


def test_a_frame_of_the_other_direction_is_found() -> None:
    pair = frames.keys(frames.secret_of(frames.new_token()), b"salt")
    with pytest.raises(LaunchError, match="a wrong code"):
        Opener(pair.down).feed(Sealer(pair.up).seal(b"body"))


def test_a_frame_that_claims_too_much_is_refused_before_it_is_read() -> None:
    with pytest.raises(LaunchError, match="a frame of 4294967295 bytes"):
        Opener(KEY).feed(b"\xff" * 36)
    with pytest.raises(LaunchError, match="a frame of 0 bytes"):
        Opener(KEY).feed(bytes(36))


def test_a_connection_that_ends_within_a_frame_gives_nothing_of_it(pair: Any) -> None:
    host, joiner = channels(pair)
    whole = Sealer(KEY).seal(pickle.dumps("secret"))
    assert Opener(KEY).feed(whole[:-1]) == []
    joiner.close()
    with pytest.raises(ConnectionError, match="the connection was closed"):
        host.receive(5)


def test_nothing_is_unpickled_of_a_frame_with_a_wrong_code(pair: Any) -> None:
    host, _ = channels(pair)
    evil = b"." + pickle.dumps(_Bomb())
    pair[1].sendall(Sealer(KEY).seal(evil))
    with pytest.raises(LaunchError, match="a wrong code"):
        host.receive(5)
    assert _Bomb.went_off == 0
    pickle.loads(evil[1:])
    assert _Bomb.went_off == 1  # the test would have seen it


class _Bomb:
    went_off = 0

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    _Bomb.went_off += 1


def test_keys_are_derived_as_rfc_5869_says() -> None:
    """Test case 1 of its appendix, with this file's own labels taken out of the way."""
    prk = hmac.digest(bytes(range(13)), b"\x0b" * 22, "sha256")
    assert prk.hex() == "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"
    pair = frames.keys(b"\x0b" * 22, bytes(range(13)))
    assert pair.up == hmac.digest(prk, b"up\x01", "sha256")
    assert pair.down != pair.up
