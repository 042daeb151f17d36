"""The process that holds the private key. It makes the key itself, answers on a socket, and ends when whoever started it is gone."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedaccord.channel import key_file
from fedaccord.channel.messages import decoded, receive, send
from fedaccord.channel.opening import Held, Holder
from fedaccord.channel.paillier import PrivateKey
from fedaccord.core.errors import ConfigError, FedaccordError

PATIENCE = 5.0  # seconds for one request to arrive


class Door(socketserver.ThreadingUnixStreamServer):
    """One request a connection."""

    daemon_threads, block_on_close, request_queue_size = True, False, 64

    def __init__(self, address: str, holder: Holder) -> None:
        self._holder, self._one_at_a_time = holder, threading.Lock()
        super().__init__(address, _Request)

    def answer(self, request: bytes) -> bytes:
        with self._one_at_a_time:
            return self._holder.answer(request)


class _Request(socketserver.BaseRequestHandler):
    server: Door

    def handle(self) -> None:
        until = time.monotonic() + PATIENCE
        try:
            request = receive(self.request, until)
        except FedaccordError as error:
            reply = json.dumps({"refused": "malformed", "detail": error.what}).encode()
        except (OSError, EOFError):
            return
        else:
            try:
                reply = self.server.answer(request)
            except FedaccordError as error:  # its file cannot be written
                reply = json.dumps({"failed": error.record()}).encode()
        try:
            send(self.request, reply, until + PATIENCE)
        except OSError:
            return


def serve() -> None:
    """Settings come as one line of JSON on stdin, which stays open as long as the process is wanted; the public key leaves on stdout."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no key on the disk
    kinds = {"address": str, "server_token": str, "client_token": str, "bits": int, "min_clients": int, "file": str}
    settings = decoded(sys.stdin.buffer.readline(), kinds)
    try:
        try:
            held, keep = _held(settings["bits"], settings["file"])
            holder = Holder(held, settings["server_token"], settings["client_token"], settings["min_clients"], keep)
            door = Door(settings["address"], holder)
        except FedaccordError as error:
            _say({"error": error.record(), "kind": type(error).__name__})
            return
        threading.Thread(target=door.serve_forever, daemon=True).start()
        _say({"public": held.key.public.to_json()})
        sys.stdin.buffer.read()
    finally:
        shutil.rmtree(os.path.dirname(settings["address"]), ignore_errors=True)


def _held(bits: int, file: str) -> tuple[Held, Callable[[Held], None]]:
    """What it holds from the start, and how it keeps what changes. E208 where the file's key has another size than the one asked for."""
    if not file:
        return Held(PrivateKey.generate(bits)), lambda held: None
    path = Path(file)
    keep = partial(key_file.write, path)
    held = key_file.read(path)
    if held is None:
        held = Held(PrivateKey.generate(bits))
        keep(held)
    if held.key.public.bits != bits:
        raise ConfigError("E208", f"the file holds a key of {held.key.public.bits} bits, not of {bits}", file, "Name another file")
    return held, keep


def _say(fact: dict[str, Any]) -> None:
    print(json.dumps(fact), flush=True)


if __name__ == "__main__":
    serve()
