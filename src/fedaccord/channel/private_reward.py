"""Clients' changes of accuracy as a policy may see them: each client's share of the opened sum, and no client's own.

At the start of a round every client that is asked knows by how much its metric changed since it was asked last. These changes are summed
in private. A client's gain is the sum times the weight of its last update, over all such weights, so it carries no credit of that client
beside its weight. A policy finds, in place of the metric, the sum of the client's gains so far, 0 when it is asked for the first time:
differences are gains, as they are with metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedaccord.channel.key_holder import KeyHolder
from fedaccord.channel.private_sum import Opened, PrivateSum
from fedaccord.core.errors import DeadlineError, NetworkError, WorkerDied
from fedaccord.core.reports import number

Remembered = Mapping[str, Any]  # plain JSON data


class PrivateReward:
    """The private sums of one run. The key lives as long as the run; what is remembered comes in and goes out as plain data.

    It holds each client's own last metric, which clients would keep themselves: it is not for policies.
    """

    def __init__(self, holder: Callable[[], KeyHolder]) -> None:
        """holder: makes one that is not started."""
        self._new_holder = holder
        self._holder: KeyHolder | None = None
        self._sum: PrivateSum | None = None

    def gains(self, round: int, metrics: Mapping[int, float], remembered: Remembered) -> tuple[dict[int, float], Remembered]:
        """(client -> the sum of its gains so far, what is remembered).

        Where this round's sum stays closed, a client whose gain was in it is missing, and the gain is lost. metrics: of the round's model,
        of the clients that are asked.
        """
        known: Mapping[str, Any] = remembered.get("clients", {})
        finite = {client: metric for client, metric in metrics.items() if number(metric) is not None}
        changes = {client: metric - known[str(client)]["metric"] for client, metric in finite.items() if str(client) in known}
        opened = self._opened(round, changes)
        total = sum(known[str(client)]["weight"] for client in changes)
        seen, clients = dict[int, float](), dict(known)
        for client, metric in finite.items():
            before = known.get(str(client), {"gain": 0.0})
            gain = before["gain"]
            if client not in changes:
                seen[client] = gain
            elif opened.sum is not None and total > 0:
                gain += opened.sum * before["weight"] / total
                seen[client] = gain
            clients[str(client)] = {"metric": metric, "weight": 0.0, "gain": gain}
        told = {"sum": opened.sum, "count": opened.count, "reason": opened.reason, "detail": opened.detail}
        return seen, {"clients": clients, "last": told}

    def weighted(self, weights: Mapping[int, float], remembered: Remembered) -> Remembered:
        """What is remembered once the round has given its weights. weights: of those whose update counted."""
        clients = remembered.get("clients", {})
        new = {str(client): {**clients[str(client)], "weight": weight} for client, weight in weights.items() if str(client) in clients}
        return {**remembered, "clients": {**clients, **new}}

    def close(self) -> None:
        """End the key holder."""
        if self._holder is not None:
            self._holder.close()
        self._holder = self._sum = None

    def _opened(self, round: int, changes: Mapping[int, float]) -> Opened:
        """A key holder that fails costs the round its sum and no more: the next round has a new one."""
        try:
            if self._sum is None:
                self._holder = self._new_holder()
                self._holder.start()
                self._sum = PrivateSum(self._holder)
            return self._sum.open_sum(round, self._sum.contribute(round, changes))
        except (DeadlineError, NetworkError, WorkerDied) as error:
            self.close()
            return Opened(None, len(changes), "no_key_holder", str(error))
