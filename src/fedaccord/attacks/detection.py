"""Whether those who attacked were told apart from those who did not, by the records of a run: `flags(record)`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedaccord.runs import Record

OWN_WORDS = ("E107", "E108")  # the client said itself that it had nothing to send: nobody judged an upload


@dataclass(frozen=True)
class Flags:
    """An upload is flagged where guard, screen or policy left it out, or the policy marked its client. Counted are the rounds since the
    attack began."""

    bad: tuple[int, ...]
    first: dict[int, int | None]  # bad client -> which of its uploads was the first one flagged, 1 for its first; None: none was
    false: dict[int, float]  # honest client -> share of its uploads that were flagged
    precision: float | None  # share of the flagged uploads that were a bad client's; None: none was flagged
    recall: float | None  # share of the bad clients' uploads that were flagged; None: they sent none

    def caught(self, within: int = 5) -> float | None:
        """Share of the bad clients, of those that sent anything, one of whose first `within` uploads was flagged."""
        return statistics.fmean(at is not None and at <= within for at in self.first.values()) if self.first else None

    @property
    def mean_false(self) -> float | None:
        """Over the honest clients."""
        return statistics.fmean(self.false.values()) if self.false else None

    @property
    def most_false(self) -> tuple[int, float] | None:
        """The honest client that was flagged most, and its share."""
        return max(self.false.items(), key=lambda each: each[1], default=None)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        most = self.most_false
        return {
            **asdict(self),
            "caught_in_five": self.caught(),
            "mean_false": self.mean_false,
            "most_false": None if most is None else {"client": most[0], "share": most[1]},
        }


def flags(record: Record) -> Flags:
    """Of a run with an [attack]; in any other, nobody is bad."""
    bad = tuple(record.provenance.get("bad_clients", ()))
    start = int((record.experiment.get("attack") or {}).get("from_round", 1))
    judged: dict[int, list[bool]] = {}  # client -> of each of its uploads, whether it was flagged
    for line in record.rounds:
        if line["round"] >= start:
            for client, flagged in _uploads(line):
                judged.setdefault(client, []).append(flagged)
    of_bad = {client: judged[client] for client in bad if client in judged}
    honest = {client: each for client, each in sorted(judged.items()) if client not in bad}
    hits, alarms = (sum(map(sum, group.values())) for group in (of_bad, honest))
    sent = sum(map(len, of_bad.values()))
    return Flags(
        bad,
        {client: each.index(True) + 1 if True in each else None for client, each in of_bad.items()},
        {client: statistics.fmean(each) for client, each in honest.items()},
        hits / (hits + alarms) if hits + alarms else None,
        hits / sent if sent else None,
    )


def _uploads(line: Mapping[str, Any]) -> Iterator[tuple[int, bool]]:
    """(client, flagged) of each upload of a round."""
    codes = {refusal["client"]: refusal["code"] for refusal in line["refused"] if refusal["code"] != "E114"}  # E114: its first one counted
    marked = {int(client) for client in (line.get("trust") or {}).get("marked", ())}
    # A sum of finite uploads that overflows is held against all of them, which tells nobody apart.
    blames_all = line["model_kept"] and line["reason"] == "the aggregate is not finite"
    for client in line["cohort"]:
        code = codes.get(client)
        if client not in line["absent"] and code not in OWN_WORDS:
            yield client, client in marked or (code is not None and not (blames_all and code == "E101"))
