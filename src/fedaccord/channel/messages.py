"""What the key holder and those who ask it say to each other: one JSON object in one frame, bounded before it is read.

A frame is its length in four bytes, big-endian, and so many bytes of JSON. Every field is named beforehand with its type; what is unknown,
missing, given twice or of another type is refused, as are numbers that JSON does not have.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from fedaccord.core.errors import NetworkError

MOST_BYTES = 1 << 20  # of a frame
MOST_ROUND = 1 << 53


def malformed(what: str) -> NetworkError:
    """E402."""
    return NetworkError("E402", what, "a private sum", "See that both sides run the same version")


def decoded(data: str | bytes, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The object, whose fields are exactly these, of exactly these types. E402 for everything else."""
    if len(data) > MOST_BYTES:
        raise malformed(f"a message of {len(data)} bytes, at most {MOST_BYTES} are read")
    try:
        found = json.loads(data, object_pairs_hook=_each_once, parse_constant=_no_number)
    except NetworkError:
        raise
    except (ValueError, RecursionError) as problem:
        raise malformed(f"a message that is no JSON: {problem!s:.80}") from None
    return checked(found, kinds)


def checked(found: object, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The same of what was decoded before, as an object inside another one."""
    if not isinstance(found, dict):
        raise malformed(f"a message that is a {type(found).__name__} and no object")
    unknown, missing = sorted(found.keys() - kinds.keys()), sorted(kinds.keys() - found.keys())
    if unknown or missing:
        raise malformed(f"a message with {f'the unknown field {unknown[0]!r:.40}' if unknown else f'no field {missing[0]!r}'}")
    for name, kind in kinds.items():
        if type(found[name]) is not kind:
            raise malformed(f"the field {name!r} is a {type(found[name]).__name__} and no {kind.__name__}")
    return found


def send(connection: socket.socket, message: bytes, until: float) -> None:
    """One frame, by the time `until` of the monotonic clock. TimeoutError or OSError as they come."""
    _allow(connection, until)
    connection.sendall(len(message).to_bytes(4, "big") + message)


def receive(connection: socket.socket, until: float) -> bytes:
    """One frame. E402 for one that says it is too long, EOFError where it ends early, TimeoutError or OSError as they come."""
    length = int.from_bytes(_exactly(connection, 4, until), "big")
    if length > MOST_BYTES:
        raise malformed(f"a message of {length} bytes, at most {MOST_BYTES} are read")
    return _exactly(connection, length, until)


def _exactly(connection: socket.socket, count: int, until: float) -> bytes:
    parts, missing = [], count
    while missing:
        _allow(connection, until)
        part = connection.recv(min(missing, 1 << 16))
        if not part:
            raise EOFError("the other side has closed the connection")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _allow(connection: socket.socket, until: float) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise malformed("a message that gives a field twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise malformed(f"a message that holds {name}")
