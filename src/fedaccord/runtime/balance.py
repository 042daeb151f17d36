"""Who gets which clients, and how many at once."""

from __future__ import annotations

from collections.abc import Sequence


class Queue:
    """Positions in the cohort, most work first, handed out in parts that shrink: a slow worker does not leave the others waiting.

    steps: (expected steps, examples) of each position. least: steps below which a part is not worth its message.
    """

    def __init__(self, steps: Sequence[tuple[int, int]], workers: int, least: float = 0.0) -> None:
        self._workers, self._least = workers, least
        self._positions = sorted(range(len(steps)), key=lambda position: steps[position])  # taken from the end
        self._work = [max(each, 1) for each, _ in steps]
        self._left = sum(self._work)

    def __len__(self) -> int:
        return len(self._positions)

    def take(self, most: int, *, ahead: bool = False) -> list[int]:
        """The next positions, at most `most`: half of a worker's share of what is left (guided, Polychronopoulos & Kuck 1987).

        ahead: for a worker that is still busy. It gets them while enough is left for all; near the end they stay for whoever is first.
        """
        share = max(self._left / (2 * self._workers), self._least)
        taken, work = list[int](), 0
        for position in reversed(self._positions):
            more = self._work[position]
            if len(taken) == most or (taken and work + more > share):
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
