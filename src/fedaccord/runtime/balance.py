"""Who gets which clients, and how many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Parts(Protocol):
    """Positions in the cohort, handed out part by part."""

    side_by_side: bool  # how a part is trained, else one client after another

    def __len__(self) -> int:
        """What is left: at least the number of parts."""
        ...

    def take(self, *, ahead: bool = False) -> list[int]:
        """The next part. ahead: for a worker that is still busy; empty where that should wait for whoever is first."""
        ...

    def keep_before(self, end: int) -> None:
        """Leave out the positions from `end` on."""
        ...


class Queue:
    """Positions in the cohort, most work first, handed out in parts that shrink: a slow worker does not leave the others waiting.

    steps: (expected steps, examples) of each position. most: positions of a part; least: steps below which it is not worth its message.
    """

    side_by_side = False

    def __init__(self, steps: Sequence[tuple[int, int]], workers: int, most: int, least: float = 0.0) -> None:
        self._workers, self._most, self._least = workers, most, least
        self._positions = sorted(range(len(steps)), key=lambda position: steps[position])  # taken from the end
        self._work = [max(each, 1) for each, _ in steps]
        self._left = sum(self._work)

    def __len__(self) -> int:
        return len(self._positions)

    def take(self, *, ahead: bool = False) -> list[int]:
        """The next positions, at most `most` of them: half of a worker's share of what is left (guided, Polychronopoulos & Kuck 1987).

        ahead: for a worker that is still busy. It gets them while enough is left for all; near the end they stay for whoever is first.
        """
        share = max(self._left / (2 * self._workers), self._least)
        taken, work = list[int](), 0
        for position in reversed(self._positions):
            more = self._work[position]
            if len(taken) == self._most or (taken and work + more > share):
                break
            taken.append(position)
            work += more
        if ahead and self._left - work < self._workers * work:
            return []
        del self._positions[len(self._positions) - len(taken) :]
        self._left -= work
        return taken

    def keep_before(self, end: int) -> None:
        """Leave out the positions from `end` on."""
        self._positions = [position for position in self._positions if position < end]
        self._left = sum(self._work[position] for position in self._positions)


class Blocks:
    """Blocks of positions that train side by side, in the order given."""

    side_by_side = True

    def __init__(self, blocks: Sequence[list[int]], workers: int) -> None:
        self._left, self._workers = list(reversed(blocks)), workers

    def __len__(self) -> int:
        return len(self._left)

    def take(self, *, ahead: bool = False) -> list[int]:
        """The next block. ahead: for a worker that is still busy. It gets one while enough are left for all."""
        if not self._left or (ahead and len(self._left) <= self._workers):
            return []
        return self._left.pop()

    def keep_before(self, end: int) -> None:
        """Leave out the positions from `end` on."""
        kept = ([position for position in block if position < end] for block in self._left)
        self._left = [block for block in kept if block]
