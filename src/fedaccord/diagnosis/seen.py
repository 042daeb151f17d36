"""A run's records, by what the rules ask of them: whatever is missing or None in a line is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedaccord.core.reports import number

Client = int | str
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Refusal:
    """One upload that did not count."""

    round: int
    client: Client
    code: str
    reason: str
    message: str


@dataclass(frozen=True)
class Seen:
    """The lines of rounds.jsonl and clients.jsonl."""

    all_rounds: Sequence[Line]
    all_clients: Sequence[Line]
    facts: Line = field(default_factory=dict)  # what the newest checkpoint remembers; empty where there is none

    @cached_property
    def rounds(self) -> list[tuple[int, Line]]:
        return [(line["round"], line) for line in self.all_rounds if isinstance(line.get("round"), int)]

    @cached_property
    def uploads(self) -> list[tuple[int, Client, Line]]:
        """(round, client, line) of everybody who trained."""
        trained = (line for line in self.all_clients if line.get("kind") == "train")
        return [(line["round"], line["client"], line) for line in trained if isinstance(line.get("round"), int) and _is_client(line)]

    @cached_property
    def trust(self) -> list[tuple[int, Line]]:
        """(round, what the pipeline decided) of the rounds in which it decided anything."""
        return [(t, trust) for t, line in self.rounds if (trust := table(line.get("trust")))]

    @cached_property
    def refusals(self) -> list[Refusal]:
        return [
            Refusal(t, each["client"], *(str(each.get(name) or "") for name in ("code", "reason", "message")))
            for t, line in self.rounds
            for each in tables(line.get("refused"))
            if _is_client(each)
        ]

    def events(self, *kinds: str) -> list[tuple[int, Line]]:
        return [(t, event) for t, trust in self.trust for event in tables(trust.get("events")) if event.get("event") in kinds]

    def series(self, name: str) -> list[tuple[int, float]]:
        """(round, figure) of what the pipeline decided."""
        return known((t, trust.get(name)) for t, trust in self.trust)

    def judged(self, name: str) -> list[tuple[int, Client, float]]:
        """(round, client, figure) of what the policy saw or said."""
        found = ((t, client, number(table(line.get("judged")).get(name))) for t, client, line in self.uploads)
        return [(t, client, value) for t, client, value in found if value is not None]

    @cached_property
    def losses(self) -> tuple[str, list[tuple[int, float]]]:
        """(which data, (round, loss) of the global model): validation data where there are any, else test data."""
        for split in ("validation", "test"):
            found = known((t, table(line.get(split)).get("loss")) for t, line in self.rounds)
            if found:
                return split, found
        return "validation", []

    @property
    def has_policy(self) -> bool:
        """Whether a policy behind the breaker took part."""
        return any("stage" in trust for _, trust in self.trust)

    @property
    def next_round(self) -> int:
        return self.rounds[-1][0] + 1 if self.rounds else 1


def table(value: Any) -> Line:
    return value if isinstance(value, Mapping) else {}


def tables(value: Any) -> Iterator[Line]:
    return (each for each in many(value) if isinstance(each, Mapping))


def many(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def ids(value: Any) -> set[Client]:
    return {client for client in many(value) if isinstance(client, int | str)}


def known(pairs: Any) -> list[tuple[int, float]]:
    """Those with a finite number."""
    return [(t, found) for t, value in pairs if (found := number(value)) is not None]


def ordered(clients: Any) -> tuple[Client, ...]:
    """Each once, by number, natural names after them."""
    return tuple(sorted(set(clients), key=lambda client: (isinstance(client, str), client)))


def _is_client(line: Line) -> bool:
    return isinstance(line.get("client"), int | str)
