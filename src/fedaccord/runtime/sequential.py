"""One client after another, in this process: the runtime that all others are held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedaccord.runtime.client import Answer, Request
from fedaccord.runtime.simulated import Simulated


class Sequential(Simulated):
    """Trains with one thread."""

    def _answers(self, request: Request, clients: Sequence[int]) -> Iterator[Answer]:
        for place, client in enumerate(clients):
            self._states.expect(clients[place + 1 : place + 2])
            yield self._clients.train(request, client, self._states.load(client))
