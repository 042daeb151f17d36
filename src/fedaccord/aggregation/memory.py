"""What the guard remembers: which uploads it has seen, and who was refused how often. Plain data, in every checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedaccord.core.algorithm import PositiveCount
from fedaccord.core.errors import UploadError
from fedaccord.core.rng import stream

SAMPLE = 1024  # coordinates that tell uploads apart
FEWEST = 16  # numbers that are not zero: with fewer, honest clients may well send the same
COUNTED = (
    "non_finite",
    "wrong_shape",
    "wrong_dtype",
    "wrong_fields",
    "bad_count",
    "count_too_large",
    "no_steps",
    "stale",
    "replayed",
    "copied",
    "contradiction",
)  # refusals that lead into quarantine: what an honest client in order does not send


@dataclass(frozen=True)
class Quarantine:
    """A client that was refused `refusals` times within `window` rounds is not asked for `rounds` rounds, and twice as long each
    further time; an operator may release it before."""

    refusals: PositiveCount = 3
    window: PositiveCount = 20
    rounds: PositiveCount = 10


class Digests:
    """Which uploads were accepted in the last rounds, by what a sample of their numbers hashes to."""

    def __init__(self, size: int, remembered: int = 20) -> None:
        self._size, self._remembered = size, remembered
        self._places = None if size <= SAMPLE else torch.from_numpy(stream(0, "digest", size).choice(size, SAMPLE, replace=False))

    def of(self, delta: Tensor) -> str | None:
        """The digest of a change [d]; None where nearly all of it is zero, which says nothing about where it comes from."""
        sample = delta if self._places is None else delta[self._places]
        if int(sample.count_nonzero()) < FEWEST:
            sample = delta  # of a sparse update, all of it
            if int(sample.count_nonzero()) < FEWEST:
                return None
        return hashlib.blake2b(sample.cpu().contiguous().numpy().tobytes(), digest_size=16).hexdigest()

    def kept(self, known: Mapping[str, Sequence[int]], new: Mapping[str, int], t: int) -> dict[str, list[int]]:
        """digest -> [client, round] of the rounds after t - remembered, with those of round t."""
        recent = {digest: list(each) for digest, each in known.items() if each[1] > t - self._remembered}
        return recent | {digest: [client, t] for digest, client in new.items()}


def repeated(digest: str | None, client: int, known: Mapping[str, Sequence[int]], this_round: Mapping[str, int]) -> UploadError | None:
    """Why an upload that was seen before does not count."""
    where = f"client {client}"
    if digest is None:
        return None
    if digest in known:
        other, t = known[digest]
        if other == client:
            return UploadError("E115", "replayed", f"the upload is the one of round {t}", where, "An update counts once")
        return UploadError("E115", "copied", f"the upload is the one that client {other} sent in round {t}", where, "An update counts once")
    if digest in this_round:
        return UploadError("E115", "copied", f"client {this_round[digest]} sent the same upload", where, "An update counts once")
    return None


# The facts of quarantine: {"refused": {client: [rounds]}, "until": {client: round}, "times": {client: how often}}; keys are strings.


def quarantined(facts: Mapping[str, Any], t: int) -> tuple[int, ...]:
    """Who is not asked in round t."""
    return tuple(sorted(int(client) for client, until in facts.get("until", {}).items() if t < until))


def counted(rule: Quarantine, facts: Mapping[str, Any], refused: Sequence[tuple[int, str]], t: int) -> tuple[dict[str, Any], list[int]]:
    """(facts, who is newly in quarantine) after round t's refusals (client, reason)."""
    history = {c: [r for r in rounds if r > t - rule.window] for c, rounds in facts.get("refused", {}).items()}
    history = {client: rounds for client, rounds in history.items() if rounds}
    until, times, new = dict(facts.get("until", {})), dict(facts.get("times", {})), []
    until = {client: end for client, end in until.items() if end > t}
    for number, reason in refused:
        if reason not in COUNTED:
            continue
        client = str(number)
        rounds = [*history.get(client, []), t]
        if len(rounds) < rule.refusals:
            history[client] = rounds
            continue
        history.pop(client, None)
        times[client] = times.get(client, 0) + 1
        until[client] = t + 1 + rule.rounds * 2 ** (times[client] - 1)
        new.append(number)
    return {"refused": history, "until": until, "times": times}, new


def released(facts: Mapping[str, Any], clients: Sequence[int]) -> dict[str, Any]:
    """The facts after an operator let these clients back in; what they did before is forgotten."""
    gone = {str(client) for client in clients}
    return {name: {client: value for client, value in table.items() if client not in gone} for name, table in facts.items()}
