"""One round, and the run of many: the only round loop in the project."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fedaccord.aggregation.geometry import geometry
from fedaccord.aggregation.guard import Guard
from fedaccord.aggregation.policy import BySize, Policy
from fedaccord.aggregation.sums import mean_buffers, weighted_sums
from fedaccord.core.algorithm import Algorithm, Cohort
from fedaccord.core.errors import ConfigError, UploadError
from fedaccord.core.local import LocalPlan
from fedaccord.core.reports import ClientReport, Evaluation, RoundReport, finite, number
from fedaccord.core.rng import stream
from fedaccord.core.state import State, num_bytes, to_arrays
from fedaccord.core.vector import Buffers
from fedaccord.runtime.base import ClientUpload, Runtime
from fedaccord.sampling import History, Sampler, Uniform, seen

Evaluator = Callable[[Tensor, Buffers], Evaluation]  # (w [d], buffers) -> metrics on data of the server


class RunState(NamedTuple):
    """All that the next round needs, beside what the clients keep. Random streams are named by the round, so they have no state."""

    round: int  # the last round done; 0 before the first
    server: State  # of the algorithm; `server.w` is the global model
    buffers: Buffers
    history: History = MappingProxyType({})  # what the sampler looks at; rebuilt from the records on resume


class RoundResult(NamedTuple):
    state: RunState
    report: RoundReport
    clients: tuple[ClientReport, ...]  # of everyone who answered, in client order
    evaluations: tuple[tuple[int, Evaluation], ...]  # (client, metrics of the new global model on its held-out examples)


@dataclass(frozen=True)
class Target:
    """Stop early once `metric` on the validation data is at least (or, falling, at most) `value`."""

    metric: str
    value: float
    falling: bool = False

    def reached(self, metrics: dict[str, float] | None) -> bool:
        found = (metrics or {}).get(self.metric)
        return found is not None and (found <= self.value if self.falling else found >= self.value)


@dataclass(frozen=True, eq=False)
class Federation:
    """One experiment, ready to run: who trains what, where, and who counts for how much."""

    algorithm: Algorithm
    runtime: Runtime
    guard: Guard
    plan: LocalPlan
    rounds: int
    seed: int
    evaluate_test: Evaluator
    evaluate_validation: Evaluator
    sampler: Sampler = field(default_factory=Uniform)
    policy: Policy = field(default_factory=BySize)
    evaluate_every: int = 1  # rounds between evaluations on the server; the last round is always evaluated
    evaluate_clients_every: int = 0  # rounds between evaluations on clients' held-out examples; 0 = after the last round only
    evaluated_clients: int = 10_000  # at most so many clients, drawn once
    stop_at: Target | None = None

    def start(self, w: Tensor, buffers: Buffers) -> RunState:
        """The state before round 1."""
        return RunState(0, self.algorithm.init_server(w), buffers)

    def run(self, state: RunState) -> Iterator[RoundResult]:
        """The rounds after `state.round`, one by one, until the last or until the target is reached."""
        while state.round < self.rounds:
            result = self.round(state)
            yield result
            state = result.state
            if self.reached(result.report.validation):
                return

    def reached(self, validation: dict[str, float] | None) -> bool:
        """Whether these validation metrics end the run early."""
        return self.stop_at is not None and self.stop_at.reached(validation)

    def round(self, state: RunState) -> RoundResult:
        """One round: draw, train, guard, weigh, sum, update, settle, evaluate."""
        started, t = time.perf_counter(), state.round + 1
        lr = self.plan.lr * self.plan.schedule.factor(t, self.rounds)
        cohort = self._cohort(t, state.history)
        sent = self.algorithm.broadcast(state.server)
        arrived = self.runtime.train(self.algorithm, sent, state.buffers, cohort, self.plan, t, lr)
        answers, surplus = _one_answer_each(arrived, cohort)
        refusals = self._refusals(answers)
        passed = [answer for answer in answers if refusals[answer.client] is None]
        weights = self._weights(passed)
        refusals |= {answer.client: _left_out(answer.client) for answer, weight in zip(passed, weights, strict=True) if not weight > 0}
        counted = [(answer, weight) for answer, weight in zip(passed, weights, strict=True) if weight > 0]
        new, summed, reason = self._updated(state, counted, t)
        if summed is None:
            refusals |= {answer.client: _not_finite(answer.client) for answer, _ in counted}
            counted = []
        self.runtime.settle({answer.client for answer, _ in counted})

        clients, shape = self._client_reports(answers, counted, refusals, summed, sent, new)
        answered = {answer.client for answer in answers}
        absent = tuple(client for client in cohort if client not in answered)
        accepted = [report for report in clients if report.accepted]
        alerts = self.algorithm.alerts(state.server, new.server, accepted, absent) if accepted else ()
        new = new._replace(history=seen(self.sampler, state.history, accepted))
        if t < self.rounds:  # what the next cohort keeps on disk is read while we evaluate
            self.runtime.expect(self._next_cohort(t, new.history))
        test, validation = (self._evaluated(evaluate, new, t) for evaluate in (self.evaluate_test, self.evaluate_validation))
        is_last = t == self.rounds or self.reached(validation.metrics)
        every = self.evaluate_clients_every
        ids = self._evaluated_clients() if is_last or (every and t % every == 0) else ()
        evaluations = self.runtime.evaluate(new.server.w, new.buffers, ids) if len(ids) else []
        losses = [loss for report in accepted if (loss := number(report.loss)) is not None]
        report = RoundReport(
            round=t,
            lr=lr,
            cohort=cohort,
            accepted=tuple(answer.client for answer, _ in counted),
            refused=tuple(
                {"client": c, "code": r.code, "reason": r.reason, "message": str(r)} for c, r in [*refusals.items(), *surplus] if r
            ),
            absent=absent,
            train_loss=finite(sum(losses) / len(losses)) if losses else None,
            test=test.metrics,
            test_reason=test.reason,
            validation=validation.metrics,
            validation_reason=validation.reason,
            update_norm=finite(float((new.server.w - state.server.w).norm())),
            drift=shape.drift,
            pairwise_cosine=finite(shape.pairwise_cosine),
            gradients=_total(answer.report.gradients for answer in answers),
            bytes_up=_total(answer.report.bytes_up for answer in answers),
            bytes_down=len(cohort) * (num_bytes(sent) + num_bytes(self.guard.buffers)),  # the buffers that travel
            seconds=time.perf_counter() - started,
            model_kept=reason is not None,
            reason=reason,
            alerts=alerts,
        )
        return RoundResult(new, report, clients, tuple(zip(ids, evaluations, strict=True)))

    def _cohort(self, t: int, history: History) -> tuple[int, ...]:
        return tuple(int(client) for client in self.sampler.draw(t, self.runtime.population, self.seed, history))

    def _next_cohort(self, t: int, history: History) -> tuple[int, ...]:
        """Empty where the sampler fails: it will do so in its own round, and does not cost this one."""
        try:
            return self._cohort(t + 1, history)
        except Exception:
            return ()

    def _refusals(self, answers: Sequence[ClientUpload]) -> dict[int, UploadError | None]:
        """Of every client: why its upload does not count, or None."""
        sent = [answer for answer in answers if answer.error is None]
        found = dict(zip([answer.client for answer in sent], self.guard.refusals(sent), strict=True))
        return {answer.client: answer.error or found[answer.client] for answer in answers}

    def _weights(self, passed: Sequence[ClientUpload]) -> list[float]:
        """Shares of the accepted uploads, summing to 1; all 0 where the policy leaves nobody in."""
        reports = [answer.report for answer in passed]
        if not reports:
            return []
        given = torch.as_tensor(self.policy.weigh(reports), dtype=torch.float64)
        if given.shape != (len(reports),):
            what = f"{type(self.policy).__name__} gave weights of shape {tuple(given.shape)} for {len(reports)} clients"
            raise ConfigError("E215", what, "aggregation.policy", "A policy returns one weight a client")
        weights = (given * self.algorithm.confidence(reports)).nan_to_num(posinf=0.0).clamp(min=0)
        total = float(weights.sum())
        return [float(weight) / total for weight in weights] if total > 0 else [0.0] * len(reports)

    def _updated(
        self, state: RunState, counted: Sequence[tuple[ClientUpload, float]], t: int
    ) -> tuple[RunState, Cohort | None, str | None]:
        """The state after this round's uploads and their sums; no sums and a reason where the old model has to stay."""
        if not counted:
            return state._replace(round=t), None, "no usable upload"
        uploads, weights = [answer.upload for answer, _ in counted], [weight for _, weight in counted]
        size = len(counted)
        equal = [1 / size] * size
        weighted, uniform = weighted_sums(uploads, weights) * 2 if weights == equal else weighted_sums(uploads, weights, equal)
        cohort = Cohort(weighted, uniform, size, self.runtime.population)
        server = self.algorithm.observe(self.algorithm.update(state.server, cohort), [answer.report for answer, _ in counted])
        buffers = mean_buffers([answer.buffers for answer, _ in counted], weights) if counted[0][0].buffers else state.buffers
        if not all(torch.isfinite(leaf).all() for leaf in to_arrays((server, buffers)).values()):
            return state._replace(round=t), None, "the aggregate is not finite"
        return state._replace(round=t, server=server, buffers=buffers), cohort, None

    def _client_reports(
        self,
        answers: Sequence[ClientUpload],
        counted: Sequence[tuple[ClientUpload, float]],
        refusals: dict[int, UploadError | None],
        summed: Cohort | None,
        sent: State,
        new: RunState,
    ) -> tuple[tuple[ClientReport, ...], _Shape]:
        deltas = [self.algorithm.moved(answer.upload) for answer, _ in counted]
        weights = [weight for _, weight in counted]
        mean = torch.zeros_like(sent.w) if summed is None else summed.weighted.delta
        shape = geometry(deltas, mean, sent.w, new.server.w)
        place = {answer.client: i for i, (answer, _) in enumerate(counted)}
        reports = []
        for answer in answers:
            refusal, i = refusals[answer.client], place.get(answer.client)
            if i is None:
                code, reason = (refusal.code, refusal.reason) if refusal else (None, None)
                reports.append(replace(answer.report, code=code, reason=reason))
            else:
                norm, cosine, drift = finite(shape.norms[i]), finite(shape.cosines[i]), finite(shape.drifts[i])
                reports.append(replace(answer.report, accepted=True, weight=weights[i], update_norm=norm, cosine=cosine, drift=drift))
        drifts = [drift for drift in shape.drifts if math.isfinite(drift)]
        return tuple(reports), _Shape(sum(drifts) / len(drifts) if drifts else None, shape.pairwise_cosine)

    def _evaluated_clients(self) -> Sequence[int]:
        """Everybody, or a sample that is the same in every round."""
        population, most = self.runtime.population, self.evaluated_clients
        if population <= most:
            return range(population)
        chosen = stream(self.seed, "evaluated clients").choice(population, most, replace=False, shuffle=False)
        return sorted(chosen.tolist())

    def _evaluated(self, evaluate: Evaluator, new: RunState, t: int) -> Evaluation:
        if t % self.evaluate_every and t != self.rounds:
            return Evaluation(0, None, f"evaluated every {self.evaluate_every} rounds")
        return evaluate(new.server.w, new.buffers)


def _total(counts: Iterable[int]) -> int:
    """Sum of what clients say they did; what is no whole number counts 0."""
    return sum(count for count in counts if isinstance(count, int) and number(count))


def _one_answer_each(arrived: Sequence[ClientUpload], cohort: Sequence[int]) -> tuple[list[ClientUpload], list[tuple[int, UploadError]]]:
    """The first answer of each client that was asked, in client order, and why the others do not count."""
    first, asked, surplus = dict[int, ClientUpload](), set(cohort), []
    for answer in arrived:
        where = f"client {answer.client}"
        if answer.client not in asked:
            surplus.append((answer.client, UploadError("E114", "not_asked", "the client was not asked in this round", where)))
        elif answer.client in first:
            surplus.append((answer.client, UploadError("E114", "duplicate", "the client answered before in this round", where)))
        else:
            first[answer.client] = answer
    return [first[client] for client in sorted(first)], surplus


def _left_out(client: int) -> UploadError:
    return UploadError("E111", "no_weight", "the policy gave the upload no weight", f"client {client}", "See what the client reports")


def _not_finite(client: int) -> UploadError:
    return UploadError("E101", "non_finite", "the aggregate of this round is not finite", f"client {client}", "Lower the learning rate")


class _Shape(NamedTuple):
    drift: float | None
    pairwise_cosine: float | None
