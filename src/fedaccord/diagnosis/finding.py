"""A rule on a run, and what it finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from fedaccord.diagnosis.seen import Client, Seen

SHOWN = 6  # rounds that are named
NAMED = 20  # clients that are named


@dataclass(frozen=True)
class Finding:
    """One rule on one run."""

    rule: str
    name: str
    holds: bool | None  # None: the records do not say
    figures: str  # what was seen, or why nothing can be said
    advice: str  # what to do where it holds
    rounds: tuple[int, ...] = ()  # in which it holds
    clients: tuple[Client, ...] = ()  # whom it concerns

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Rule:
    """Base of all rules: override `look`. Thresholds are fields; what is missing in the records is never an error, it cannot be said."""

    rule: ClassVar[str]  # stays the same whatever the words
    name: ClassVar[str]
    advice: ClassVar[str]

    def look(self, seen: Seen) -> Finding:
        raise NotImplementedError

    def holds(self, figures: str, rounds: Iterable[int] = (), clients: Iterable[Client] = (), advice: str | None = None) -> Finding:
        return Finding(self.rule, self.name, True, figures, advice or self.advice, tuple(rounds), tuple(clients))

    def does_not(self, figures: str) -> Finding:
        return Finding(self.rule, self.name, False, figures, self.advice)

    def cannot_say(self, why: str) -> Finding:
        return Finding(self.rule, self.name, None, why, self.advice)


def in_rounds(rounds: Sequence[int]) -> str:
    """``round 7``, or ``9 rounds (3, 4, 5, 6, 7, 8, ... 40)``."""
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    shown = ", ".join(map(str, rounds[:SHOWN]))
    return f"{len(rounds)} rounds ({shown}{f', ... {rounds[-1]}' if len(rounds) > SHOWN else ''})"


def of_clients(clients: Sequence[Client]) -> str:
    """``client 7``, or ``clients 3, 4, 9``."""
    shown = ", ".join(map(str, clients[:NAMED])) + (", ..." if len(clients) > NAMED else "")
    return f"client {shown}" if len(clients) == 1 else f"clients {shown}"


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
