"""Starts the key holder and talks to it: a process of its own, since whoever sums must not be able to decrypt.

    with KeyHolder(file=Path("key.json")) as holder:
        holder.public.to_json()          # for the clients
        holder.enrol({3: secret})        # a client, once
        holder.open(round, clients, sum) # the server that aggregates, once a round

Whoever starts it knows both tokens and the folder of its socket, which its own user alone may enter. Where the two roles must be kept
apart, someone else than the server starts it, and gives each side its token alone. Against another process of the same user, or root on
the same machine, which can read its memory, nothing here helps: it then runs on another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from fedaccord.channel.messages import malformed, receive, send
from fedaccord.channel.opening import MIN_CLIENTS, check_min_clients
from fedaccord.channel.paillier import DEFAULT_BITS, PublicKey, check_bits, require_paillier
from fedaccord.core.errors import ConfigError, DeadlineError, FedaccordError, NetworkError, StorageError, WorkerDied
from fedaccord.core.reports import number

START = 120.0  # seconds for a process to start and to find its primes
ENROLLED_AT_ONCE = 5_000  # clients in one message


class Answer(NamedTuple):
    """Of the key holder to a sum: the sum, or one word of `opening.Reason` and why."""

    sum: float | None
    reason: str | None = None
    detail: str = ""


class Link(NamedTuple):
    """One role's way to a key holder."""

    address: str
    token: str
    deadline: float  # seconds for one call, whatever happens

    def call(self, do: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request. E501 past the deadline, E401 where nobody answers, E402 for an answer that is none."""
        request = json.dumps({"do": do, "token": self.token, "body": body}).encode()
        until = time.monotonic() + self.deadline
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                _connect(connection, self.address, until)
                send(connection, request, until)
                answer = receive(connection, until)
        except TimeoutError:
            what = f"no answer within {self.deadline:g} s"
            raise DeadlineError("E501", what, "the key holder", "See what keeps its process, or give it a longer deadline") from None
        except (OSError, EOFError) as problem:
            raise NetworkError("E401", f"no answer: {problem}", "the key holder", "See whether its process runs") from None
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise malformed("an answer of the key holder that is no object")
        return found


class KeyHolder:
    """A key holder on this machine, from `start` (or `with`) to `close`; it ends with this process in any case.

    bits: 3072, or 2048. min_clients: of a sum that is opened, at least 5. file: keeps key, last round and enrolments beyond the
    process, readable for its owner alone; left out: they end with it. deadline: seconds for each call.

    Raises E209 without the extra `privacy`, E203 for other sizes; `start` E208, E322, E323 for the file. Later calls raise E501 where
    it does not answer in time and E702 where it has died.
    """

    def __init__(
        self, bits: int = DEFAULT_BITS, min_clients: int = MIN_CLIENTS, file: str | Path | None = None, deadline: float = 10.0
    ) -> None:
        require_paillier()
        check_bits(bits)
        check_min_clients(min_clients)
        self.bits, self.min_clients, self.file, self.deadline = bits, min_clients, file, deadline
        self._end: Callable[[], object] = lambda: None

    def __enter__(self) -> KeyHolder:
        self.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the process and wait for its public key."""
        address = os.path.join(tempfile.mkdtemp(prefix="fedaccord-key-"), "socket")
        self.for_server, self.for_clients = (Link(address, secrets.token_hex(32), self.deadline) for _ in range(2))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedaccord.channel.key_holder_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(each) for each in sys.path)},
            start_new_session=True,  # the terminal's Ctrl-C does not reach it
        )
        self._end = weakref.finalize(self, _ended, self.process, os.path.dirname(address))
        settings = {
            "address": address,
            "server_token": self.for_server.token,
            "client_token": self.for_clients.token,
            "bits": self.bits,
            "min_clients": self.min_clients,
            "file": "" if self.file is None else os.path.abspath(self.file),
        }
        try:
            self.public = _public_key(self.process, json.dumps(settings))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process. Whatever is called afterwards raises E702."""
        self._end()

    def enrol(self, secrets: Mapping[int, bytes]) -> None:
        """As clients: the secret of each one's masks; the same one again changes nothing. E208 where the holder refuses."""
        clients = [[client, secret.hex()] for client, secret in secrets.items()]
        for start in range(0, len(clients), ENROLLED_AT_ONCE):
            found = self._asked(self.for_clients, "enrol", {"clients": clients[start : start + ENROLLED_AT_ONCE]})
            if "refused" in found:
                raise ConfigError("E208", f"the key holder refuses to enrol: {found.get('detail')!s:.200}", "a private sum")

    def open(self, round: int, clients: Sequence[int], ciphertext: int) -> Answer:
        """As the server: the sum of these clients' numbers of the round, or why the holder does not say it."""
        body = {"key": self.public.fingerprint, "round": round, "clients": list(clients), "sum": self.public.written(ciphertext)}
        found = self._asked(self.for_server, "open", body)
        if "refused" in found:
            return Answer(None, f"{found['refused']!s:.40}", f"{found.get('detail')!s:.200}")
        total = number(found.get("sum"))
        if total is None:
            raise malformed("an answer of the key holder without a sum")
        return Answer(total)

    def _asked(self, link: Link, do: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            found = link.call(do, body)
        except NetworkError as error:
            if error.code == "E401" and (code := _exit_code(self.process)) is not None:
                remedy = "Start another; sums under its key stay closed unless it had a file"
                raise WorkerDied("E702", f"the key holder has ended ({_shown(code)})", "a private sum", remedy) from None
            raise
        if "failed" in found:
            raise _as_error({"kind": "StorageError", "error": found["failed"]})
        return found


def _connect(connection: socket.socket, address: str, until: float) -> None:
    """TimeoutError at the time `until`, if as many as the system lets wait are waiting; of those further ones it refuses at once."""
    connection.setblocking(False)
    while True:
        try:
            return connection.connect(address)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError from None
            time.sleep(0.01)


def _public_key(process: subprocess.Popen[bytes], settings: str) -> PublicKey:
    """What the process says first. E501 where it takes too long, E702 where it ends before, else the error that it reports."""
    assert process.stdin is not None and process.stdout is not None
    said, until = b"", time.monotonic() + START
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(settings.encode() + b"\n")
        process.stdin.flush()
    while not said.endswith(b"\n"):
        if not wait([process.stdout.fileno()], max(0.0, until - time.monotonic())):
            raise DeadlineError(
                "E501", f"the key holder has made no key within {START:g} s", "a private sum", "Try again, or use 2,048 bits"
            )
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            what = f"the key holder ended before it had a key ({_shown(_exit_code(process))})"
            raise WorkerDied("E702", what, "a private sum", "Its last words are on stderr")
        said += part
    found = json.loads(said)
    if "error" in found:
        raise _as_error(found)
    return PublicKey.of_json(found["public"])


def _as_error(found: Mapping[str, Any]) -> FedaccordError:
    kinds: dict[str, type[FedaccordError]] = {"ConfigError": ConfigError, "StorageError": StorageError}
    return kinds.get(found["kind"], FedaccordError)(**found["error"])


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """None while it lives; one that has just closed its socket is given a second to end."""
    try:
        return process.wait(1.0)
    except subprocess.TimeoutExpired:
        return None


def _shown(code: int | None) -> str:
    return "it still runs" if code is None else f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _ended(process: subprocess.Popen[bytes], folder: str) -> None:
    """It ends by itself when its stdin does, unless something holds it up."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()
    if _exit_code(process) is None:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
