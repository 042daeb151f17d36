"""messages.py: frames and objects that are bounded and strict."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.channel.messages import MOST_BYTES, decoded, receive, send
from fedaccord.core.errors import NetworkError

KINDS = {"a": int, "b": str}


def soon() -> float:
    return time.monotonic() + 5


def test_an_object_with_the_named_fields_is_read() -> None:
    assert decoded('{"a": 1, "b": "x"}', KINDS) == {"a": 1, "b": "x"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "1",
        "null",
        '{"a": 1}',
        '{"a": 1, "b": "x", "c": 0}',
        '{"a": 1, "a": 2, "b": "x"}',
        '{"a": true, "b": "x"}',
        '{"a": 1.0, "b": "x"}',
        '{"a": "1", "b": "x"}',
        '{"a": 1, "b": null}',
        '{"a": NaN, "b": "x"}',
        '{"a": -Infinity, "b": "x"}',
        '{"a": ' + "9" * 5000 + ', "b": "x"}',
        '{"a": 1, "b": ' + "[" * 100_000 + "}",
        '{"a": 1, "b": "' + "x" * MOST_BYTES + '"}',
        b"\xff\xfe\x00",
        b'{"a": 1, "b": "\xff"}',
    ],
)
def test_everything_else_is_refused(text: str | bytes) -> None:
    with pytest.raises(NetworkError, match="E402"):
        decoded(text, KINDS)


def test_a_number_that_json_does_not_have_is_refused_wherever_it_stands() -> None:
    for name in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(NetworkError, match=f"E402 a message that holds {name}"):
            decoded(f'{{"a": [0, [{name}]]}}', {"a": list})


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda each: json.dumps(each).encode()))
def test_no_bytes_raise_anything_but_a_refusal(data: bytes) -> None:
    with pytest.raises(NetworkError):
        decoded(data, KINDS)


def test_a_frame_arrives_as_it_was_sent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        data = bytes(range(256)) * 1024
        sender = threading.Thread(target=send, args=(ours, data, soon()))
        sender.start()
        assert receive(theirs, soon()) == data
        sender.join()


def test_a_frame_that_says_it_is_too_long_is_refused_before_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall((MOST_BYTES + 1).to_bytes(4, "big"))
        with pytest.raises(NetworkError, match="E402"):
            receive(theirs, soon())


def test_a_frame_that_ends_early_is_an_end() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall((10).to_bytes(4, "big") + b"abc")
        ours.close()
        with pytest.raises(EOFError):
            receive(theirs, soon())


def test_a_frame_that_trickles_does_not_outlast_the_deadline() -> None:
    """Each byte comes in time, all of them do not."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = threading.Event()

        def trickle() -> None:
            ours.sendall((1000).to_bytes(4, "big"))
            while not done.wait(0.05):
                ours.sendall(b"x")

        sender = threading.Thread(target=trickle)
        sender.start()
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            receive(theirs, started + 0.5)
        done.set()
        sender.join()
        assert time.monotonic() - started < 3
