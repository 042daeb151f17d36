"""One round, and the run of many: the only round loop in the project."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedaccord.aggregation.alerts import Alerts, Seen
from fedaccord.aggregation.geometry import geometry
from fedaccord.aggregation.policy import Decision, Outcome
from fedaccord.aggregation.sums import mean_buffers, weighted_sum, weighted_sums
from fedaccord.aggregation.trust import Context, Examined, Judged, ServerData, Trust, TrustState, Weighing
from fedaccord.channel.private_reward import PrivateReward
from fedaccord.core.algorithm import Algorithm, Cohort
from fedaccord.core.errors import UploadError
from fedaccord.core.local import LocalPlan
from fedaccord.core.reports import ClientReport, Evaluation, RoundReport, finite, lower_is_better, number
from fedaccord.core.rng import stream
from fedaccord.core.state import State, map_state, num_bytes, to_arrays
from fedaccord.core.vector import Buffers
from fedaccord.runtime.base import ClientUpload, Runtime
from fedaccord.sampling import Experience, History, Learner, Sampler, SamplerState, Uniform, seen

Evaluator = Callable[[Tensor, Buffers], Evaluation]  # (w [d], buffers) -> metrics on data of the server


class RunState(NamedTuple):
    """All that the next round needs, beside what the clients keep. Random streams are named by the round, so they have no state."""

    round: int  # the last round done; 0 before the first
    server: State  # of the algorithm; `server.w` is the global model
    buffers: Buffers
    history: History = MappingProxyType({})  # what the sampler looks at; rebuilt from the records on resume
    trust: TrustState = TrustState()  # what guard, screen, policy and breaker remember
    sampling: SamplerState = SamplerState()  # what a sampler that learns remembers


OwnData = Callable[[RunState, int, float], ServerData]  # (state, round, lr) -> what the server can measure itself in this round


class Collected(NamedTuple):
    """A round whose uploads have arrived, and of which no policy has judged any."""

    state: RunState  # before the round, with the operator's orders obeyed
    context: Context
    lr: float
    cohort: tuple[int, ...]
    sent: State
    answers: list[ClientUpload]  # in client order, one a client
    surplus: list[tuple[int, UploadError]]
    examined: Examined
    orders: list[dict[str, Any]]  # events
    started: float  # seconds, monotonic


class RoundResult(NamedTuple):
    state: RunState
    report: RoundReport
    clients: tuple[ClientReport, ...]  # of everyone who answered, in client order
    evaluations: tuple[tuple[int, Evaluation], ...]  # (client, metrics of the new global model on its held-out examples)
    other: RunState | None = None  # of a shadowed policy: what the round would have come to by the weights that were not used


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
    trust: Trust
    plan: LocalPlan
    rounds: int
    seed: int
    evaluate_test: Evaluator
    evaluate_validation: Evaluator
    sampler: Sampler = field(default_factory=Uniform)
    server_data: OwnData | None = None  # None: the task has no validation data
    orders: Callable[[], Sequence[Mapping[str, Any]]] = tuple  # of an operator, all since the run began, in their order
    evaluate_every: int = 1  # rounds between evaluations on the server; the last round is always evaluated
    evaluate_clients_every: int = 0  # rounds between evaluations on clients' held-out examples; 0 = after the last round only
    evaluated_clients: int = 10_000  # at most so many clients, drawn once
    stop_at: Target | None = None
    private_reward: PrivateReward | None = None  # None: a policy that wants clients' metrics sees them
    alerts: Alerts = field(default_factory=Alerts)

    def start(self, w: Tensor, buffers: Buffers) -> RunState:
        """The state before round 1."""
        return RunState(0, self.algorithm.init_server(w), buffers, trust=self.trust.start())

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

    def close(self) -> None:
        """End the processes that the rounds started."""
        self.runtime.close()
        if self.private_reward is not None:
            self.private_reward.close()

    def round(self, state: RunState) -> RoundResult:
        """One round: draw, train, guard, weigh, sum, update, settle, evaluate."""
        return self.conclude(self.collect(state))

    def collect(self, state: RunState) -> Collected:
        """The first half of a round: who is asked, what they send, and what guard and screen say of it."""
        started, t = time.perf_counter(), state.round + 1
        lr = self.plan.lr * self.plan.schedule.factor(t, self.rounds)
        trust, orders = self.trust.obeyed(self.orders(), state.trust)
        state = state._replace(trust=trust)
        cohort = self._cohort(t, state)
        accuracies = self._accuracies(state, cohort) if self.trust.policy.wants_client_metrics else {}
        if self.private_reward is not None:
            accuracies, told = self.private_reward.gains(t, accuracies, trust.facts.get("private_reward", {}))
            state = state._replace(trust=trust._replace(facts={**trust.facts, "private_reward": told}))
        sent = self.algorithm.broadcast(state.server)
        arrived = self.runtime.train(self.algorithm, sent, state.buffers, cohort, self.plan, t, lr)
        answers, surplus = _one_answer_each(arrived, cohort)
        context = Context(t, self.seed, len(cohort), self.algorithm.confidence, self._own_data(state, t, lr), accuracies)
        errors = {answer.client: answer.error for answer in answers if answer.error is not None}
        examined = self.trust.examine(answers, errors, context, state.trust)
        return Collected(state, context, lr, cohort, sent, answers, surplus, examined, orders, started)

    def conclude(self, collected: Collected, decision: Decision | None = None) -> RoundResult:
        """The second half: who counts for how much, and what comes of it. decision: in place of what the policy would say."""
        state, context, lr, cohort, sent, answers, surplus, _, orders, started = collected
        t = context.round
        judged, (new, summed, reason), measured = self._aggregated(collected, decision)
        refusals, counted = judged.refused(judged.used), _counted(judged.used, answers)
        if summed is None:
            refusals |= {answer.client: _not_finite(answer.client) for answer, _ in counted}
            counted = []
        self.runtime.settle({answer.client for answer, _ in counted})

        clients, shape = self._client_reports(answers, counted, self._judged(judged, state), refusals, summed, sent, new)
        answered = {answer.client for answer in answers}
        absent = tuple(client for client in cohort if client not in answered)
        accepted = [report for report in clients if report.accepted]
        said = self.algorithm.alerts(state.server, new.server, accepted, absent) if accepted else ()
        new = new._replace(
            history=seen(self.sampler, state.history, accepted), trust=self._remembered(state, new, judged, measured, counted)
        )
        validation = measured.used
        if validation is None and isinstance(self.sampler, Learner):
            validation = self.evaluate_validation(new.server.w, new.buffers)  # whatever `evaluate_every` says
        validation = validation or self._evaluated(self.evaluate_validation, new, t)
        decided, loss = _of_trust(judged, orders, measured), (validation.metrics or {}).get("loss")
        told = Seen(len(cohort), len(absent), accepted, loss, decided, said)
        alerts, watched = self.alerts.told(told, state.trust.facts.get("alerts", {}))
        new = new._replace(trust=new.trust._replace(facts={**new.trust.facts, "alerts": watched}))
        if isinstance(self.sampler, Learner):
            deltas = {answer.client: self.algorithm.moved(answer.upload) for answer, _ in counted}
            experience = Experience(t, self.runtime.population, cohort, sent.w, deltas, new.server.w, validation.metrics)
            new = new._replace(sampling=self.sampler.learned(state.sampling, experience, self.seed))
        if t < self.rounds:  # what the next cohort keeps on disk is read while we evaluate
            self.runtime.expect(self._next_cohort(t, new))
        test = self._evaluated(self.evaluate_test, new, t)
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
            bytes_down=len(cohort) * (num_bytes(sent) + num_bytes(self.trust.guard.buffers)),  # the buffers that travel
            seconds=time.perf_counter() - started,
            model_kept=reason is not None,
            reason=reason,
            alerts=alerts,
            trust=decided | _of_private_reward(state),
        )
        return RoundResult(new, report, clients, tuple(zip(ids, evaluations, strict=True)), measured.other)

    def _cohort(self, t: int, state: RunState) -> tuple[int, ...]:
        if isinstance(self.sampler, Learner):
            kept_out = self.trust.kept_out(t, state.trust)
            drawn = self.sampler.choose(t, self.runtime.population, self.seed, state.sampling, kept_out)
        else:
            drawn = self.sampler.draw(t, self.runtime.population, self.seed, state.history)
        return self.trust.cohort(tuple(int(client) for client in drawn), t, state.trust)

    def _next_cohort(self, t: int, new: RunState) -> tuple[int, ...]:
        """Empty where the sampler fails: it will do so in its own round, and does not cost this one."""
        try:
            return self._cohort(t + 1, new)
        except Exception:
            return ()

    def _own_data(self, state: RunState, t: int, lr: float) -> ServerData | None:
        return None if self.server_data is None else self.server_data(state, t, lr)

    def _accuracies(self, state: RunState, cohort: Sequence[int]) -> dict[int, float]:
        """The round's model on each client's own held-out examples: the first metric of which more is better."""
        found = self.runtime.evaluate(state.server.w, state.buffers, cohort)
        values = {client: _accuracy(each.metrics) for client, each in zip(cohort, found, strict=True)}
        return {client: value for client, value in values.items() if value is not None}

    def _aggregated(self, collected: Collected, decision: Decision | None) -> tuple[Judged, _Updated, _Measured]:
        """Who counts for how much, and the model that comes of it: the policy's, or FedAvg's on the same uploads."""
        state, context, answers = collected.state, collected.context, collected.answers
        judged, t = self.trust.decide(collected.examined, context, decision), context.round
        by_size = self._updated(state, judged.by_size, answers, t)
        if judged.policy is None:
            return judged, by_size, _Measured()
        policy = self._updated(state, judged.policy, answers, t)
        both = [self.evaluate_validation(new.server.w, new.buffers) if summed else None for new, summed, _ in (by_size, policy)]
        first, second = (None if each is None else number((each.metrics or {}).get("loss")) for each in both)
        judged = self.trust.scored(judged, t, first, second, is_finite=policy[1] is not None)
        chosen = judged.policy is not None and judged.uses_policy
        return judged, policy if chosen else by_size, _Measured(both[chosen], first, second, by_size[0] if chosen else policy[0])

    def _updated(self, state: RunState, weighing: Weighing, answers: Sequence[ClientUpload], t: int) -> _Updated:
        """The state after this round's uploads and their sums; no sums and a reason where the old model has to stay."""
        counted = _counted(weighing, answers)
        if not counted:
            return state._replace(round=t), None, "no usable upload"
        uploads, weights = [answer.upload for answer, _ in counted], [weight for _, weight in counted]
        size = len(counted)
        equal = [1 / size] * size
        if weighing.combine is not None:
            weighted = uniform = map_state(lambda *leaves: weighing.combine(leaves), *uploads)  # type: ignore[misc]
        else:
            weighted, uniform = weighted_sums(uploads, weights) * 2 if weights == equal else weighted_sums(uploads, weights, equal)
        if any(scale != 1 for scale in weighing.scales):
            scaled = [weight * scale for weight, scale in zip(weights, weighing.scales, strict=True)]
            weighted = weighted._replace(delta=weighted_sum([upload.delta for upload in uploads], scaled))
        cohort = Cohort(weighted, uniform, size, self.runtime.population)
        server = self.algorithm.observe(self.algorithm.update(state.server, cohort), [answer.report for answer, _ in counted])
        buffers = mean_buffers([answer.buffers for answer, _ in counted], weights) if counted[0][0].buffers else state.buffers
        if not all(torch.isfinite(leaf).all() for leaf in to_arrays((server, buffers)).values()):
            return state._replace(round=t), None, "the aggregate is not finite"
        return state._replace(round=t, server=server, buffers=buffers), cohort, None

    def _remembered(
        self, state: RunState, new: RunState, judged: Judged, measured: _Measured, counted: Sequence[tuple[ClientUpload, float]]
    ) -> TrustState:
        """What guard, policy and breaker know after the round."""
        used = judged.policy is not None and judged.uses_policy
        by_size, policy = measured.by_size_loss, measured.policy_loss
        reward = None if by_size is None or policy is None else by_size - policy
        trust = self.trust.observed(judged, Outcome(reward, used, measured.used.metrics if measured.used else None))
        if self.trust.remembers_the_move and new.server.w is not state.server.w:
            trust = trust._replace(vectors={**trust.vectors, "previous": new.server.w - state.server.w})
        if self.private_reward is not None:
            weights = {answer.client: weight for answer, weight in counted}
            told = self.private_reward.weighted(weights, trust.facts["private_reward"])
            trust = trust._replace(facts={**trust.facts, "private_reward": told})
        return trust

    def _judged(self, judged: Judged, state: RunState) -> Mapping[int, dict[str, float | None]]:
        """client -> what policy and sampler made of it."""
        found = judged.of_client()
        if not isinstance(self.sampler, Learner):
            return found
        scores = {name: column.tolist() for name, column in self.sampler.scores(self.runtime.population, state.sampling).items()}
        return {c: found.get(c, {}) | {name: finite(column[c]) for name, column in scores.items()} for c in judged.refusals}

    def _client_reports(
        self,
        answers: Sequence[ClientUpload],
        counted: Sequence[tuple[ClientUpload, float]],
        judged: Mapping[int, dict[str, float | None]],
        refusals: Mapping[int, UploadError | None],
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
            refusal, i, figures = refusals[answer.client], place.get(answer.client), judged.get(answer.client, {})
            if i is None:
                code, reason = (refusal.code, refusal.reason) if refusal else (None, None)
                reports.append(replace(answer.report, code=code, reason=reason, judged=figures))
            else:
                norm, cosine, drift = finite(shape.norms[i]), finite(shape.cosines[i]), finite(shape.drifts[i])
                counts = replace(answer.report, accepted=True, weight=weights[i], judged=figures)
                reports.append(replace(counts, update_norm=norm, cosine=cosine, drift=drift))
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


def _counted(weighing: Weighing, answers: Sequence[ClientUpload]) -> list[tuple[ClientUpload, float]]:
    """Those with a weight, in client order."""
    weights = dict(zip(weighing.clients, weighing.weights, strict=True))
    return [(answer, weights[answer.client]) for answer in answers if answer.client in weights]


def _accuracy(metrics: Mapping[str, float] | None) -> float | None:
    return next((value for name, value in (metrics or {}).items() if not lower_is_better(name)), None)


def _of_trust(judged: Judged, orders: Sequence[dict[str, Any]], measured: _Measured) -> dict[str, Any]:
    """The part of a round's record that tells what the pipeline decided; empty where nothing was to decide."""
    events, rollout = [*orders, *judged.events], judged.state.facts.get("rollout")
    found: dict[str, Any] = {"events": events} if events else {}
    if judged.decision is not None or rollout is not None:
        found |= judged.notes
    if rollout is not None:
        is_open = judged.decision is None or judged.policy is None
        found |= {
            "stage": rollout["stage"],
            "used": "policy" if judged.policy is not None and judged.uses_policy else "by_size",
            "breaker": "open" if is_open and rollout["wait"] else "half_open" if rollout["wait"] else "closed",
            "loss_by_size": measured.by_size_loss,
            "loss_policy": measured.policy_loss,
        }
    return found


def _of_private_reward(state: RunState) -> dict[str, Any]:
    """The sum of the round, or why it stays closed."""
    told = state.trust.facts.get("private_reward")
    return {} if told is None else {"private_reward": told["last"]}


def _not_finite(client: int) -> UploadError:
    return UploadError("E101", "non_finite", "the aggregate of this round is not finite", f"client {client}", "Lower the learning rate")


class _Shape(NamedTuple):
    drift: float | None
    pairwise_cosine: float | None


class _Measured(NamedTuple):
    used: Evaluation | None = None  # of the model that was picked, where it was measured to be picked
    by_size_loss: float | None = None
    policy_loss: float | None = None
    other: RunState | None = None  # the one that was not picked


_Updated = tuple[RunState, Cohort | None, str | None]
