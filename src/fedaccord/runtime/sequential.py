"""One client after another, in this process: the runtime that all others are held against."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, Device
from fedaccord.core.batch import Loss
from fedaccord.core.errors import NonFiniteError, UploadError
from fedaccord.core.local import LocalPlan, Trained, Watch, epoch_means, local_training
from fedaccord.core.reports import ClientReport, Evaluation, finite
from fedaccord.core.rng import layers_draw_from, torch_stream
from fedaccord.core.state import State, num_bytes
from fedaccord.core.vector import Buffers, FlatModel
from fedaccord.runtime.allocator import keep_freed_blocks
from fedaccord.runtime.base import ClientUpload
from fedaccord.runtime.evaluation import Metric, evaluate_parts
from fedaccord.runtime.population import Population
from fedaccord.runtime.states import ClientState, ClientStates


class Sequential:
    """`local_buffers`: each client keeps its own buffers and sends none. `debug`: stop at the first non-finite value, by name."""

    def __init__(
        self,
        model: FlatModel,
        loss: Loss,
        metrics: Mapping[str, Metric],
        data: Population,
        states: ClientStates,
        *,
        local_buffers: bool = False,
        device_of: Callable[[int], Device] = lambda client: Device(),
        debug: bool = False,
    ) -> None:
        self._model, self._loss, self._metrics, self._data, self._states = model, loss, metrics, data, states
        self._local_buffers, self._device_of, self._debug = local_buffers, device_of, debug
        self._pending: dict[int, ClientState] = {}
        keep_freed_blocks()

    @property
    def population(self) -> int:
        return len(self._data)

    def train(
        self, algorithm: Algorithm, sent: State, buffers: Buffers, clients: Sequence[int], plan: LocalPlan, round: int, lr: float
    ) -> list[ClientUpload]:
        self._pending = {}
        return [self._train_one(algorithm, sent, buffers, client, plan, round, lr) for client in clients]

    def _train_one(
        self, algorithm: Algorithm, sent: State, buffers: Buffers, client: int, plan: LocalPlan, round: int, lr: float
    ) -> ClientUpload:
        started, num_examples = time.perf_counter(), len(self._data.train[client])
        report = ClientReport(round, client, num_examples)
        where = f"client {client}, round {round}"
        if num_examples == 0:
            error = UploadError("E108", "no_data", "the client has no examples to train on", where, "See: fedaccord describe")
            return ClientUpload(client, (), {}, report, error)
        found = self._states.load(client)
        state = ClientState(algorithm.init_client(sent.w), {}, ()) if found is None else found
        reported = {} if found is None else _scalars(algorithm, state.kept)
        effort = algorithm.effort(plan.epochs, plan.steps_per_epoch(num_examples), reported, self._device_of(client))
        plan = plan if effort.epochs == plan.epochs else replace(plan, epochs=effort.epochs)
        try:
            trained = self._local_training(algorithm, sent, buffers, state, client, plan, effort.two_pass_share, round, lr)
        except NonFiniteError:
            raise
        except Exception as problem:  # whatever a user's model or loss raises is this client's failure, not the round's
            error = UploadError(
                "E107", "client_error", f"{type(problem).__name__}: {problem}", where, "Run with debug on for the traceback"
            )
            error.__cause__ = problem
            if self._debug:
                raise error from problem
            return ClientUpload(client, (), {}, report, error)
        own_buffers, moments = trained.buffers if self._local_buffers else {}, trained.moments if plan.keep_moments else ()
        self._pending[client] = ClientState(trained.kept, own_buffers, moments)
        sent_buffers = {} if self._local_buffers else trained.buffers
        losses = trained.losses.tolist()
        report = ClientReport(
            round,
            client,
            num_examples,
            steps=len(losses),
            gradients=trained.gradients,
            loss=finite(sum(losses) / len(losses)) if losses else None,
            epoch_losses=tuple(finite(mean) for mean in epoch_means(losses, plan.epochs)),
            bytes_up=num_bytes(trained.upload) + num_bytes(sent_buffers),
            seconds=time.perf_counter() - started,
            signals={name: finite(value) for name, value in _scalars(algorithm, trained.kept).items()},
        )
        return ClientUpload(client, trained.upload, sent_buffers, report)

    def _local_training(
        self,
        algorithm: Algorithm,
        sent: State,
        buffers: Buffers,
        state: ClientState,
        client: int,
        plan: LocalPlan,
        two_pass_share: float,
        round: int,
        lr: float,
    ) -> Trained:
        data, w = self._data, sent.w
        self._model.train(True)

        def random_direction() -> Tensor:
            drawn: Tensor = torch.randn(w.shape, dtype=w.dtype, generator=torch_stream(data.seed, "direction", round, client))
            return drawn.div(drawn.norm())

        with layers_draw_from(data.seed, "layers", round, client):  # dropout depends on client and round, not on who came before
            return local_training(
                algorithm,
                self._model,
                self._loss,
                plan,
                sent,
                state.buffers or buffers,
                state.kept,
                lambda: data.batches(client, round, plan),
                round=round,
                lr=lr,
                num_steps=plan.epochs * plan.steps_per_epoch(len(data.train[client])),
                two_pass_share=two_pass_share,
                moments=state.moments,
                validation=data.examples(data.validation, client),
                random_direction=random_direction,
                watch=self._watch(client, round) if self._debug else None,
            )

    def _watch(self, client: int, round: int) -> Watch:
        layout = self._model.layout

        def watch(step: int, direction: Tensor, w: Tensor) -> None:
            for what, vector in (("direction", direction), ("weights", w)):
                bad = ~torch.isfinite(vector)
                if bad.any():
                    name = layout.name_of(int(bad.nonzero()[0, 0]))
                    raise NonFiniteError(
                        "E113",
                        f"{int(bad.sum())} non-finite numbers in the {what}, first in {name!r}",
                        f"client {client}, round {round}, step {step}",
                        "Lower local.lr, set local.clip_norm, or look at this client's data",
                    )

        return watch

    def settle(self, accepted: Collection[int]) -> None:
        self._states.settle({client: state for client, state in self._pending.items() if client in accepted})
        self._pending = {}

    def client_state(self, client: int) -> State | None:
        """All that a client keeps between rounds, the method's own state first; None where it never had an upload accepted."""
        return self._states.load(client)

    def evaluate(self, w: Tensor, buffers: Buffers, clients: Sequence[int]) -> list[Evaluation]:
        parts = [self._data.examples(self._data.held_out, client) for client in clients]
        if not self._local_buffers:
            return evaluate_parts(self._model, w, buffers, parts, self._loss, self._metrics)
        found = [self._states.load(client) for client in clients]
        own = [buffers if state is None else state.buffers for state in found]
        return [evaluate_parts(self._model, w, b, [part], self._loss, self._metrics)[0] for b, part in zip(own, parts, strict=True)]

    def save(self, folder: Path) -> None:
        self._states.save(folder)

    def committed(self, folder: Path) -> None:
        self._states.committed(folder)

    def restore(self, folder: Path | None) -> None:
        self._states.restore(folder)


def _scalars(algorithm: Algorithm, kept: State) -> dict[str, float]:
    return {name: float(value) for name, value in algorithm.signals(kept).items()}
