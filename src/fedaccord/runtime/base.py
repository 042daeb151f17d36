"""The boundary between the round loop and wherever clients run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedaccord.core.algorithm import Algorithm
from fedaccord.core.errors import UploadError
from fedaccord.core.local import LocalPlan
from fedaccord.core.reports import ClientReport, Evaluation
from fedaccord.core.state import State
from fedaccord.core.vector import Buffers


class ClientUpload(NamedTuple):
    """What came back from one client. Where `error` is set, the client had nothing to send, and says why."""

    client: int
    upload: Any
    buffers: Buffers
    report: ClientReport
    error: UploadError | None = None


class Runtime(Protocol):
    """Trains cohorts and keeps the state of clients. The new state of a client counts only once it is settled."""

    @property
    def population(self) -> int:
        """Number of clients."""
        ...

    def expect(self, clients: Sequence[int]) -> None:
        """Likely the next cohort: what it needs may be made ready while others compute."""
        ...

    def train(
        self, algorithm: Algorithm, sent: State, buffers: Buffers, clients: Sequence[int], plan: LocalPlan, round: int, lr: float
    ) -> list[ClientUpload]:
        """One entry for each client that answered, in any order. Clients that are missing are absent."""
        ...

    def settle(self, accepted: Collection[int]) -> None:
        """Commit the new state of those whose upload counted; forget the others'."""
        ...

    def evaluate(self, w: State, buffers: Buffers, clients: Sequence[int]) -> list[Evaluation]:
        """The global model on each client's held-out examples, in the order of `clients`."""
        ...

    def save(self, folder: Path) -> None:
        """Write the clients' state into a checkpoint that is not yet valid."""
        ...

    def committed(self, folder: Path) -> None:
        """That checkpoint is valid now, under this name."""
        ...

    def restore(self, folder: Path | None) -> None:
        """Take up the clients' state of a checkpoint; None: start from nothing."""
        ...

    def close(self) -> None:
        """The run is over: end whatever was started for it."""
        ...


class RuntimeAround:
    """A runtime around a real one, `inner`, to which everything goes until it is overridden."""

    inner: Runtime

    @property
    def population(self) -> int:
        return self.inner.population

    def expect(self, clients: Sequence[int]) -> None:
        self.inner.expect(clients)

    def train(
        self, algorithm: Algorithm, sent: State, buffers: Buffers, clients: Sequence[int], plan: LocalPlan, round: int, lr: float
    ) -> list[ClientUpload]:
        return self.inner.train(algorithm, sent, buffers, clients, plan, round, lr)

    def settle(self, accepted: Collection[int]) -> None:
        self.inner.settle(accepted)

    def evaluate(self, w: State, buffers: Buffers, clients: Sequence[int]) -> list[Evaluation]:
        return self.inner.evaluate(w, buffers, clients)

    def save(self, folder: Path) -> None:
        self.inner.save(folder)

    def committed(self, folder: Path) -> None:
        self.inner.committed(folder)

    def restore(self, folder: Path | None) -> None:
        self.inner.restore(folder)

    def close(self) -> None:
        self.inner.close()
