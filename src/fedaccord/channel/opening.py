"""What the key holder answers: the rules by which it opens a sum, without process or socket.

Roles are told apart by their tokens: clients enrol, once each, with the secret of their masks; the server that aggregates asks for a sum
to be opened. A sum is opened when it is declared for at least `min_clients` different enrolled clients, in a round later than any that
was tried before, and when, without their masks, it lies within the range that so many numbers in [-1, 1] can have. A round is used up
before its sum is decrypted, whatever comes of it: answers to several sums of one round could be subtracted from each other.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedaccord.channel.fixed_point import SCALE, from_fixed
from fedaccord.channel.masks import SECRET_BYTES, mask
from fedaccord.channel.messages import MOST_ROUND, checked, decoded
from fedaccord.channel.paillier import PrivateKey
from fedaccord.core.errors import ConfigError, NetworkError

MIN_CLIENTS = 5
MOST_CLIENTS = 1_000_000  # that may enrol

Reason = Literal["malformed", "not_allowed", "foreign_key", "repeated_client", "not_enrolled", "too_few", "repeated_round", "out_of_range"]


class Refused(Exception):
    """The answer is no; `reason` is one word of `Reason`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def check_min_clients(min_clients: int) -> None:
    """E203 for sums of fewer than five."""
    if min_clients < MIN_CLIENTS:
        what = f"sums of {min_clients} clients would be opened, at least {MIN_CLIENTS} belong in one"
        raise ConfigError("E203", what, "min_clients", f"Use {MIN_CLIENTS} or more")


@dataclass(frozen=True)
class Held:
    """What the holder keeps, in memory or in its file."""

    key: PrivateKey
    last_round: int = 0  # the latest that was tried
    secrets: Mapping[int, bytes] = field(default_factory=dict)  # client -> of its masks


class Holder:
    """Answers requests one after another; `keep` is told of every change before the answer is given."""

    def __init__(
        self,
        held: Held,
        server_token: str,
        client_token: str,
        min_clients: int = MIN_CLIENTS,
        keep: Callable[[Held], None] = lambda held: None,
    ) -> None:
        check_min_clients(min_clients)
        self._held, self._tokens, self._min_clients, self._keep = held, {"open": server_token, "enrol": client_token}, min_clients, keep

    def answer(self, request: bytes) -> bytes:
        """JSON: {"sum": number}, {"enrolled": how many}, or {"refused": reason, "detail": why}. Raises what `keep` raises, nothing else."""
        try:
            found = self._answered(request)
        except NetworkError as error:
            found = {"refused": "malformed", "detail": error.what}
        except Refused as no:
            found = {"refused": no.reason, "detail": no.detail}
        return json.dumps(found).encode()

    def _answered(self, request: bytes) -> dict[str, Any]:
        told = decoded(request, {"do": str, "token": str, "body": dict})
        token = self._tokens.get(told["do"])
        if token is None or not hmac.compare_digest(token.encode(), told["token"].encode(errors="replace")):
            raise Refused("not_allowed", "the token does not allow this")
        if told["do"] == "enrol":
            return {"enrolled": self._enrol(checked(told["body"], {"clients": list})["clients"])}
        asked = checked(told["body"], {"key": str, "round": int, "clients": list, "sum": str})
        return {"sum": self._open(asked["key"], asked["round"], asked["clients"], asked["sum"])}

    def _enrol(self, clients: list[Any]) -> int:
        new = dict[int, bytes]()
        for pair in clients:
            if not (isinstance(pair, list) and len(pair) == 2 and _is_client(pair[0]) and isinstance(pair[1], str)):
                raise Refused("malformed", "an enrolment is a list of pairs, client and secret")
            client, secret = pair[0], _secret(pair[1])
            if not hmac.compare_digest(self._held.secrets.get(client, new.get(client, secret)), secret):
                raise Refused("not_allowed", f"client {client} has enrolled before, with another secret")
            new[client] = secret
        together = {**self._held.secrets, **new}
        if len(together) > MOST_CLIENTS:
            raise Refused("not_allowed", f"more than {MOST_CLIENTS} clients")
        if len(together) > len(self._held.secrets):
            self._change(replace(self._held, secrets=together))
        return len(together)

    def _open(self, key: str, round: int, clients: list[Any], text: str) -> float:
        held = self._held
        if key != held.key.public.fingerprint:
            raise Refused("foreign_key", "the sum is one under another key")
        if not 0 < round <= MOST_ROUND or not all(_is_client(client) for client in clients):
            raise Refused("malformed", "a round counts from 1, and clients from 0")
        if len(set(clients)) < len(clients):
            raise Refused("repeated_client", "a client is declared twice")
        if len(clients) < self._min_clients:
            raise Refused("too_few", f"{len(clients)} clients, a sum is opened from {self._min_clients}")
        strangers = [client for client in clients if client not in held.secrets]
        if strangers:
            raise Refused("not_enrolled", f"client {strangers[0]} has not enrolled")
        ciphertext = held.key.public.read(text)
        if round <= held.last_round:
            raise Refused("repeated_round", f"round {round} after a sum of round {held.last_round} was asked for")
        self._change(replace(held, last_round=round))
        masks = sum(mask(held.secrets[client], client, round, held.key.public) for client in clients)
        n = held.key.public.n
        units = (held.key.decrypt(ciphertext) - masks) % n
        units = units - n if units > n // 2 else units
        if abs(units) > len(clients) * SCALE:
            raise Refused("out_of_range", "the sum is not one of these clients' numbers of this round, each taken once")
        return from_fixed(units)

    def _change(self, held: Held) -> None:
        self._keep(held)
        self._held = held


def _is_client(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_ROUND


def _secret(text: str) -> bytes:
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise Refused("malformed", f"a secret has {SECRET_BYTES} bytes, in hexadecimal digits")
    return secret
