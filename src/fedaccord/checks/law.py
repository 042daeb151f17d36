"""What a law is, and what a method hears that breaks one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Breach(Exception):
    """Raised inside a law: what was seen, and what to do about it."""

    def __init__(self, seen: str, remedy: str) -> None:
        self.seen, self.remedy = seen, remedy
        super().__init__(f"{seen}. {remedy}")


class Broken(NamedTuple):
    """One law that a method breaks."""

    law: str
    seen: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.law}: {self.seen.rstrip('.')}. {self.remedy.rstrip('.')}."


class LawError(AssertionError):
    """A method breaks laws. `broken` has each with its name, what was seen, and the remedy; the message is all of them."""

    def __init__(self, method: str, broken: Sequence[Broken]) -> None:
        self.method, self.broken = method, tuple(broken)
        laws = "the law" if len(self.broken) == 1 else f"{len(self.broken)} laws"
        super().__init__("\n".join([f"{method} breaks {laws}", *map(str, self.broken)]))


class Verdict(NamedTuple):
    """How a law was found: it "holds", is "exempt" by the caller's word, or was "not checked"; `why` for the last two."""

    law: str
    outcome: str
    why: str = ""
