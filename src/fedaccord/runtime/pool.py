"""The cohort in worker processes, one a core, each with one thread: the bits are those of one client after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedaccord.runtime.balance import Queue
from fedaccord.runtime.client import Answer, Clients, Request
from fedaccord.runtime.cores import cores
from fedaccord.runtime.crew import Crew
from fedaccord.runtime.dispatch import Dispatch
from fedaccord.runtime.evaluation import Metric
from fedaccord.runtime.simulated import Simulated
from fedaccord.runtime.states import ClientStates

ORDER_BYTES = 16 << 20  # what the clients of one order may keep and send together, unless it is a single one
ORDER_CLIENTS = 256  # messages stay far smaller than a socket's buffer, so that nobody waits for the other to read
ORDER_SECONDS = 0.002  # an order of less work is not worth its message


class Pool(Simulated):
    """`workers` processes (default: the cores that this process may use), started in the first round and kept until `close`.

    crew: workers that several pools use, one after another. Raises what a `Dispatch` does.
    """

    def __init__(
        self,
        clients: Clients,
        metrics: Mapping[str, Metric],
        states: ClientStates,
        workers: int | None = None,
        crew: Crew | None = None,
    ) -> None:
        super().__init__(clients, metrics, states)
        self._dispatch = Dispatch(clients, states, crew or Crew(workers or cores()))

    def close(self) -> None:
        """End the workers now, and not when nobody holds the pool any more."""
        self._dispatch.crew.close()

    def _answers(self, request: Request, clients: Sequence[int]) -> Iterable[Answer]:
        """In the order of `clients`. Where some raise, the first of them in that order does so here."""
        to = self._dispatch
        most = max(1, min(ORDER_CLIENTS, ORDER_BYTES // max(to.bytes_each, request.sent.w.nbytes)))
        workers = max(1, min(to.crew.size, len(clients)))
        queue = Queue(self._clients.expected_work(request.plan, clients), workers, most, ORDER_SECONDS * to.steps_per_second)
        return to.answers(request, clients, queue)
