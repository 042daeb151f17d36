"""A sum of one number a client, in [-1, 1] each, that the server computes on ciphertexts and that only a key holder can open.

Each client encrypts its number, in fixed point and behind a mask of its own for this round (`masks`), under the key holder's public key.
The server multiplies the ciphertexts and randomises the product; the holder decrypts it, takes off the masks of the clients that are
declared, and says the sum, or why not (`opening`).

What this protects. Whoever has the ciphertexts and not the private key (the server, its disk, its network) learns of no client's number
more than the sum of a round tells. A server that departs from the protocol gains nothing by it: a ciphertext taken five times or with
powers of two as weights, zeros that it encrypted itself, a client left out or in, two sums of one round, an earlier round's ciphertext
are refused, since the masks fit the declared clients alone, each once, in this round alone.

What it does not. The key holder, had it the single ciphertexts, could open each: server and holder together know everything. Clients that
tell each other, or the server, their numbers leave the rest of the sum bare: four of five give away the fifth, and so does a server that
may enrol clients of its own, which is why enrolling takes a token that it should not have. Sums of other rounds over nearly the same
clients tell something about those who differ. Nobody is kept from lying about a number within [-1, 1], and one client that sends garbage
costs the round its sum, without being named. Where all clients are simulated in the server's own process, nothing is hidden from it.

Masks and encryption are two locks: whoever has a client's secret still needs the key, and whoever has the key still needs the secrets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fedaccord.channel.fixed_point import to_fixed
from fedaccord.channel.key_holder import KeyHolder
from fedaccord.channel.masks import mask, new_secret
from fedaccord.channel.messages import MOST_ROUND, decoded, malformed
from fedaccord.channel.paillier import PublicKey
from fedaccord.core.errors import NetworkError


class Contribution(NamedTuple):
    """What one client sends for the sum of one round."""

    client: int
    round: int
    key: str  # fingerprint of the public key
    ciphertext: str  # hexadecimal digits

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def of_json(cls, text: str | bytes) -> Contribution:
        """E402 for anything but what `to_json` writes; the ciphertext is looked at when it is summed."""
        found = cls(**decoded(text, {"client": int, "round": int, "key": str, "ciphertext": str}))
        if not (0 <= found.client <= MOST_ROUND and 0 < found.round <= MOST_ROUND):
            raise malformed("a contribution whose client is negative, or whose round does not count from 1")
        return found


@dataclass(frozen=True)
class Opened:
    """What comes of the sum of one round."""

    sum: float | None  # None: it stays closed
    count: int  # clients in it
    reason: str | None = None  # one word of `opening.Reason`
    detail: str = ""
    left_out: Mapping[int, str] = field(default_factory=dict)  # client -> why its contribution could not be summed


def contribution(public: PublicKey, secret: bytes, client: int, round: int, value: float) -> Contribution:
    """What a client does: clip, round, mask, encrypt. Once a round. E203 where the value is no finite number."""
    ciphertext = public.encrypt(to_fixed(value) + mask(secret, client, round, public))
    return Contribution(client, round, public.fingerprint, public.written(ciphertext))


class PrivateSum:
    """Both sides in one process, as a simulation has them: clients that know the public key and their secrets, and the server."""

    def __init__(self, holder: KeyHolder) -> None:
        """holder: started. It is the caller's to close."""
        self._holder, self._secrets = holder, dict[int, bytes]()

    def contribute(self, round: int, values: Mapping[int, float]) -> tuple[Contribution, ...]:
        """As the clients: one contribution each; who takes part for the first time enrols. E203 where a value is no finite number."""
        new = {client: new_secret() for client in values if client not in self._secrets}
        self._holder.enrol(new)
        self._secrets |= new
        public = self._holder.public
        return tuple(contribution(public, self._secrets[client], client, round, value) for client, value in values.items())

    def open_sum(self, round: int, contributions: Iterable[Contribution]) -> Opened:
        """As the server: sum up what can be summed, and ask the holder. Raises for nothing that clients sent; E501, E702 for the holder."""
        public, usable, left_out = self._holder.public, dict[int, int](), dict[int, str]()
        for each in contributions:
            try:
                ciphertext = _summable(each, round, public, usable)
            except NetworkError as error:
                left_out[each.client] = error.what
            else:
                usable[each.client] = ciphertext
        if len(usable) < self._holder.min_clients:  # the holder would refuse as well, but is not shown a sum of few
            detail = f"{len(usable)} clients, a sum is opened from {self._holder.min_clients}"
            return Opened(None, len(usable), "too_few", detail, left_out)
        answer = self._holder.open(round, list(usable), public.summed(usable.values()))
        return Opened(answer.sum, len(usable), answer.reason, answer.detail, left_out)


def _summable(given: Contribution, round: int, public: PublicKey, usable: Mapping[int, int]) -> int:
    if given.key != public.fingerprint:
        raise malformed("a contribution under another key")
    if given.round != round:
        raise malformed(f"a contribution for round {given.round}")
    if given.client in usable:
        raise malformed("a second contribution of the client")
    return public.read(given.ciphertext)
