"""One client after another, in this process: the runtime that all others are held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedaccord.runtime.client import Answer, Request
from fedaccord.runtime.simulated import Simulated


class Sequential(Simulated):
    """Trains with one thread."""

    def _answers(self, request: Request, clients: Sequence[int]) -> Iterable[Answer]:
        return [self._clients.train(request, client, self._states.load(client)) for client in clients]
