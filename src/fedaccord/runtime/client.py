"""What one client does in one round, wherever it runs: its assignment, its training, its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, Device
from fedaccord.core.batch import Examples, Loss
from fedaccord.core.captured import Captured
from fedaccord.core.errors import NonFiniteError, UploadError
from fedaccord.core.local import LocalPlan, Trained, Watch, epoch_means, local_training
from fedaccord.core.reports import ClientReport, finite
from fedaccord.core.rng import layers_draw_from, torch_stream
from fedaccord.core.state import State, num_bytes
from fedaccord.core.vector import Buffers, FlatModel
from fedaccord.runtime.base import ClientUpload
from fedaccord.runtime.population import Population
from fedaccord.runtime.states import ClientState


class Request(NamedTuple):
    """All that a round asks of its clients."""

    algorithm: Algorithm
    sent: State
    buffers: Buffers
    plan: LocalPlan
    round: int
    lr: float


class Assignment(NamedTuple):
    """What one client brings to a round and how much of it it does."""

    client: int
    num_examples: int
    state: ClientState
    plan: LocalPlan  # with the client's own number of epochs
    two_pass_share: float
    max_steps: int | None = None  # of a calibration

    @property
    def num_steps(self) -> int:
        steps = self.plan.epochs * self.plan.steps_per_epoch(self.num_examples)
        return steps if self.max_steps is None else min(steps, self.max_steps)


class Answer(NamedTuple):
    """What a client sends, and what it keeps if that is accepted (None where it had nothing to send)."""

    upload: ClientUpload
    kept: ClientState | None


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients of a simulation: one model that all of them use in turn, and everybody's data.

    local_buffers: each client keeps its own buffers and sends none. debug: stop at the first non-finite value, by name.
    """

    model: FlatModel
    loss: Loss
    data: Population
    local_buffers: bool = False
    device_of: Callable[[int], Device] = lambda client: Device()
    debug: bool = False
    captures: bool = False  # gradients by recorded steps: the same bits with less dispatch, of models without buffers

    def train(self, request: Request, client: int, found: ClientState | None) -> Answer:
        """One client's round, from what it kept. Whatever a user's model or loss raises is this client's failure, not the round's."""
        started = time.perf_counter()
        assigned = self.assignment(request, client, found)
        if assigned.num_examples == 0:
            return self.without_data(request, client)
        trained = self.attempt(request, assigned)
        if isinstance(trained, Exception):
            return self.failed(request, assigned, trained)
        return self.answer(request, assigned, trained, time.perf_counter() - started)

    def attempt(self, request: Request, assigned: Assignment) -> Trained | Exception:
        """The client's training, or what a user's model or loss raised in it."""
        try:
            return self._local_training(request, assigned)
        except NonFiniteError:
            raise
        except Exception as problem:
            return problem

    def expected_work(self, plan: LocalPlan, clients: Sequence[int]) -> list[tuple[int, int]]:
        """(local steps, examples) of each client, if it does all that the plan says."""
        offsets, chosen = self.data.train.offsets, np.asarray(clients, dtype=np.int64)
        sizes = (offsets[chosen + 1] - offsets[chosen]).tolist()
        return [(plan.epochs * plan.steps_per_epoch(size), size) for size in sizes]

    def assignment(self, request: Request, client: int, found: ClientState | None) -> Assignment:
        """The client's state, first one if it has none, and its share of the work."""
        algorithm, plan, num_examples = request.algorithm, request.plan, len(self.data.train[client])
        state = ClientState(algorithm.init_client(request.sent.w), {}, ()) if found is None else found
        if num_examples == 0:
            return Assignment(client, 0, state, plan, 1.0)
        reported = {} if found is None else scalars(algorithm.signals(state.kept))
        effort = algorithm.effort(plan.epochs, plan.steps_per_epoch(num_examples), reported, self.device_of(client))
        plan = plan if effort.epochs == plan.epochs else replace(plan, epochs=effort.epochs)
        return Assignment(client, num_examples, state, plan, effort.two_pass_share)

    def without_data(self, request: Request, client: int) -> Answer:
        error = UploadError("E108", "no_data", "the client has no examples to train on", _place(client, request), "See: fedaccord describe")
        return Answer(ClientUpload(client, (), {}, ClientReport(request.round, client, 0), error), None)

    def failed(self, request: Request, assigned: Assignment, problem: Exception) -> Answer:
        """A client whose model or loss raised; with debug on, the end of the run."""
        client = assigned.client
        error = UploadError(
            "E107", "client_error", f"{type(problem).__name__}: {problem}", _place(client, request), "Run with debug on for the traceback"
        )
        error.__cause__ = problem
        if self.debug:
            raise error from problem
        return Answer(ClientUpload(client, (), {}, ClientReport(request.round, client, assigned.num_examples), error), None)

    def answer(self, request: Request, assigned: Assignment, trained: Trained, seconds: float) -> Answer:
        """The upload with its report, and the state that the client would keep."""
        sent_buffers, own_buffers = ({}, trained.buffers) if self.local_buffers else (trained.buffers, {})
        kept = ClientState(trained.kept, own_buffers, trained.moments if request.plan.keep_moments else ())
        losses = trained.losses.tolist()
        report = ClientReport(
            request.round,
            assigned.client,
            assigned.num_examples,
            steps=len(losses),
            gradients=trained.gradients,
            loss=finite(sum(losses) / len(losses)) if losses else None,
            epoch_losses=tuple(finite(mean) for mean in epoch_means(losses, assigned.plan.epochs)),
            bytes_up=num_bytes(trained.upload) + num_bytes(sent_buffers),
            seconds=seconds,
            signals={name: finite(value) for name, value in scalars(request.algorithm.signals(trained.kept)).items()},
        )
        return Answer(ClientUpload(assigned.client, trained.upload, sent_buffers, report), kept)

    def on_its_device(self, upload: ClientUpload) -> ClientUpload:
        """With what its device makes of it: whether it is a weak one, and the seconds of computing, where its speed is known."""
        device = self.device_of(upload.client)
        if device == Device() or upload.error is not None:
            return upload
        speed, report = device.gradients_per_second, upload.report
        latency = None if speed is None else report.gradients / speed
        return upload._replace(report=replace(report, latency=latency, is_weak=device.is_weak))

    def batches(self, request: Request, assigned: Assignment) -> Iterator[Examples]:
        """The client's mini-batches of this round."""
        return islice(self.data.batches(assigned.client, request.round, assigned.plan), assigned.num_steps)

    def validation(self, client: int) -> Examples | None:
        """The client's own examples that do not train."""
        return self.data.examples(self.data.validation, client)

    def random_direction(self, request: Request, client: int) -> Tensor:
        """A random unit vector [d] of this client and round."""
        w, generator = request.sent.w, torch_stream(self.data.seed, "direction", request.round, client)
        drawn: Tensor = torch.randn(w.shape, dtype=w.dtype, generator=generator).to(w.device)  # the same on every device
        return drawn.div(drawn.norm())

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which records steps of its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_captured"}

    @cached_property
    def _captured(self) -> Captured | None:
        return Captured(self.model, self.loss) if self.captures and not self.model.initial_buffers else None

    def _local_training(self, request: Request, assigned: Assignment) -> Trained:
        client, state = assigned.client, assigned.state
        self.model.train(True)
        # Dropout depends on client and round, not on who came before.
        with layers_draw_from(self.data.seed, "layers", request.round, client, device=request.sent.w.device):
            return local_training(
                request.algorithm,
                self.model,
                self.loss,
                assigned.plan,
                request.sent,
                state.buffers or request.buffers,
                state.kept,
                lambda: self.batches(request, assigned),
                round=request.round,
                lr=request.lr,
                num_steps=assigned.num_steps,
                two_pass_share=assigned.two_pass_share,
                moments=state.moments,
                differentiate=self._captured,
                validation=self.validation(client),
                random_direction=lambda: self.random_direction(request, client),
                watch=self._watch(request, client) if self.debug else None,
            )

    def _watch(self, request: Request, client: int) -> Watch:
        layout = self.model.layout

        def watch(step: int, direction: Tensor, w: Tensor) -> None:
            for what, vector in (("direction", direction), ("weights", w)):
                bad = ~torch.isfinite(vector)
                if bad.any():
                    name = layout.name_of(int(bad.nonzero()[0, 0]))
                    raise NonFiniteError(
                        "E113",
                        f"{int(bad.sum())} non-finite numbers in the {what}, first in {name!r}",
                        f"{_place(client, request)}, step {step}",
                        "Lower local.lr, set local.clip_norm, or look at this client's data",
                    )

        return watch


def _place(client: int, request: Request) -> str:
    return f"client {client}, round {request.round}"


def scalars(signals: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in signals.items()}
