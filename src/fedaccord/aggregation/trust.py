"""Who counts for how much, in one pipeline: guard, memory, screen, policy, projection; FedAvg's weights beside it, and the breaker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedaccord.aggregation import memory, rollout
from fedaccord.aggregation.figures import ACCURACY, DIRECTION, figures
from fedaccord.aggregation.guard import Answered, Guard
from fedaccord.aggregation.memory import Digests, Quarantine
from fedaccord.aggregation.policy import NEUTRAL, BySize, CohortView, Decision, Outcome, Policy
from fedaccord.aggregation.projection import Projection, effective_number
from fedaccord.aggregation.rollout import Rollout
from fedaccord.aggregation.screen import Combine, Evidence, Screen, Screening, ScreenState
from fedaccord.core.errors import ConfigError, UploadError
from fedaccord.core.reports import ClientReport, finite

Confidence = Callable[[Sequence[ClientReport]], Tensor]


class TrustState(NamedTuple):
    """What the pipeline remembers between rounds: plain JSON data, and vectors by name."""

    facts: Mapping[str, Any] = MappingProxyType({})
    vectors: Mapping[str, Tensor] = MappingProxyType({})


class ServerData(Protocol):
    """What the server can measure on examples of its own, the validation data; never on the test data."""

    def root_update(self) -> Tensor:
        """The move [d] of this round's model trained on them, as a client would."""
        ...

    def gradient(self) -> Tensor:
        """Of the loss on them, at this round's model, [d]."""
        ...


class Context(NamedTuple):
    """The round that uploads belong to."""

    round: int
    seed: int
    asked: int
    confidence: Confidence  # the method's own factors on weights
    server: ServerData | None = None  # None: the task has no validation data
    accuracies: Mapping[int, float] = MappingProxyType({})  # client -> metric of the round's model on its own examples


class Weighing(NamedTuple):
    """One way to sum up the uploads of a round."""

    clients: tuple[int, ...]
    weights: tuple[float, ...]  # sum to 1, none is 0
    scales: tuple[float, ...]  # on `delta` in the weighted sum
    combine: Combine | None = None


class Judged(NamedTuple):
    """What the pipeline says about one round."""

    refusals: dict[int, UploadError | None]  # of everybody who answered
    by_size: Weighing  # the fall-back; the only one where no policy is shadowed
    policy: Weighing | None  # None: `by_size` is the aggregate, whatever the reason
    uses_policy: bool  # False with a `policy`: it is computed to be scored, and not used
    state: TrustState
    view: CohortView | None = None
    decision: Decision | None = None
    events: tuple[dict[str, Any], ...] = ()
    notes: Mapping[str, Any] = MappingProxyType({})  # figures of the round's record

    @property
    def used(self) -> Weighing:
        """The weighing that becomes the model."""
        return self.policy if self.policy is not None and self.uses_policy else self.by_size

    def refused(self, weighing: Weighing) -> dict[int, UploadError | None]:
        """Why each upload does not count in this weighing, or None."""
        counted = set(weighing.clients)
        return {client: why or (None if client in counted else _no_weight(client)) for client, why in self.refusals.items()}

    def of_client(self) -> dict[int, dict[str, float | None]]:
        """client -> the figures that the policy saw and what it gave: for the records."""
        if self.view is None or self.decision is None:
            return {}
        actions = {} if self.decision.actions is None else {"action": self.decision.actions}
        columns = {**self.view.figures, **actions, **self.decision.notes}
        values = {name: [finite(each) for each in column.tolist()] for name, column in columns.items()}
        return {client: {name: column[i] for name, column in values.items()} for i, client in enumerate(self.view.clients)}


class Examined(NamedTuple):
    """A round's uploads after guard and screen."""

    base: Judged  # if FedAvg's weights decide
    digests: Mapping[str, int]
    view: CohortView | None = None  # None: there is nothing for a policy to decide
    chosen: tuple[Answered, ...] = ()  # whom it decides about, C of them
    factors: Tensor = torch.zeros(0)  # [C] of screen and method, on its weights
    scales: Tensor = torch.zeros(0)  # [C]


@dataclass(frozen=True, eq=False)
class Trust:
    """The pipeline of one run."""

    guard: Guard
    policy: Policy = field(default_factory=BySize)
    screen: Screen | None = None
    projection: Projection | None = None  # None: the policy's weights as they are
    rollout: Rollout | None = None  # None: no shadow and no breaker
    quarantine: Quarantine = field(default_factory=Quarantine)
    clock: Callable[[], float] = time.monotonic

    def start(self) -> TrustState:
        """Before round 1."""
        facts: dict[str, Any] = {"policy": dict(self.policy.start())}
        return TrustState(facts if self.rollout is None else {**facts, "rollout": rollout.start(self.rollout)})

    def cohort(self, drawn: Sequence[int], t: int, state: TrustState) -> tuple[int, ...]:
        """Who is asked: those drawn and those that have to train again, less those in quarantine."""
        again, kept_out = state.facts.get("retrain", ()), self.kept_out(t, state)
        return tuple(sorted({*drawn, *again} - set(kept_out))) if again or kept_out else tuple(drawn)

    @staticmethod
    def kept_out(t: int, state: TrustState) -> tuple[int, ...]:
        """Who is in quarantine in round t."""
        return memory.quarantined(state.facts.get("quarantine", {}), t)

    def obeyed(self, orders: Sequence[Mapping[str, Any]], state: TrustState) -> tuple[TrustState, list[dict[str, Any]]]:
        """(state, events) after an operator's orders since the run began; those that were obeyed before are not obeyed again."""
        done, facts, events = state.facts.get("orders", 0), dict(state.facts), list[dict[str, Any]]()
        for order in orders[done:]:
            found: list[dict[str, Any]] = []
            if order.get("order") == "release":
                facts["quarantine"] = memory.released(facts.get("quarantine", {}), order["clients"])
                found = [{"event": "released", "client": client} for client in order["clients"]]
            elif "rollout" in facts and self.rollout is not None and order.get("order") in ("promote", "rollback"):
                moved = (
                    rollout.promoted(self.rollout, facts["rollout"])
                    if order["order"] == "promote"
                    else rollout.rolled_back(facts["rollout"])
                )
                facts["rollout"], found = moved
            events += [{**event, "by": "operator"} for event in found]
        return (state._replace(facts={**facts, "orders": len(orders)}), events) if len(orders) > done else (state, [])

    def examine(self, answers: Sequence[Answered], refusals: Mapping[int, UploadError], context: Context, state: TrustState) -> Examined:
        """Guard and screen, and what the policy may look at.

        answers: one for each client, in client order. refusals: of those who had nothing to send.
        """
        state = state._replace(facts={**state.facts, "retrain": []})
        sent = [answer for answer in answers if answer.client not in refusals]
        found = dict(zip([answer.client for answer in sent], self.guard.refusals(sent, context.round), strict=True))
        judged: dict[int, UploadError | None] = {answer.client: refusals.get(answer.client) or found[answer.client] for answer in answers}
        passed, digests = self._not_seen_before([answer for answer in sent if judged[answer.client] is None], judged, state)
        screening, screened = self._screened(passed, judged, context, state)
        if not passed:
            return Examined(Judged(judged, Weighing((), (), ()), None, False, screened), digests)
        kept = [i for i in range(len(passed)) if judged[passed[i].client] is None]
        chosen, reports = [passed[i] for i in kept], tuple(passed[i].report for i in kept)
        factors, scales = screening.factors[kept], screening.scales[kept]
        counts = screening.counts[kept]
        if len(kept):
            factors = factors * self.confidence(context, reports)
        by_size = _weighing(chosen, counts * factors, scales, screening.combine)
        base = Judged(judged, by_size, None, False, screened)
        if screening.combine is not None or not len(by_size.clients) or type(self.policy) is BySize:
            return Examined(base, digests)
        return Examined(base, digests, self._view(chosen, reports, counts, context, screened), tuple(chosen), factors, scales)

    def decide(self, examined: Examined, context: Context, given: Decision | None = None) -> Judged:
        """Policy, projection and breaker. given: in place of what the policy would say."""
        base, view = examined.base, examined.view
        if view is None:
            return self._counted(base, examined.digests, context.round)
        asked = (lambda: self.policy.weigh(view, base.state.facts.get("policy", {}))) if given is None else lambda: given
        outcome = self._decided(base, view, examined, context, asked)
        return self._counted(outcome, examined.digests, context.round)

    @staticmethod
    def confidence(context: Context, reports: Sequence[ClientReport]) -> Tensor:
        """The method's factors [C]; what is no number counts as none."""
        given: Tensor = torch.as_tensor(context.confidence(reports), dtype=torch.float64).nan_to_num(nan=0.0, posinf=0.0).clamp(min=0)
        return given

    def _not_seen_before(
        self, passed: list[Answered], judged: dict[int, UploadError | None], state: TrustState
    ) -> tuple[list[Answered], dict[str, int]]:
        """Those whose upload is new, and the digests of this round."""
        digests, new, known = self._digests, dict[str, int](), state.facts.get("digests", {})
        for answer in passed:
            digest = digests.of(answer.upload.delta)
            judged[answer.client] = memory.repeated(digest, answer.client, known, new)
            if digest is not None and judged[answer.client] is None:
                new[digest] = answer.client
        return [answer for answer in passed if judged[answer.client] is None], new

    @cached_property
    def _digests(self) -> Digests:
        return Digests(self.guard.layout.size)

    def _screened(
        self, passed: Sequence[Answered], judged: dict[int, UploadError | None], context: Context, state: TrustState
    ) -> tuple[Screening, TrustState]:
        evidence = Evidence(
            context.round,
            [answer.upload for answer in passed],
            [answer.report for answer in passed],
            state.vectors.get("previous"),
            None if context.server is None else context.server.root_update,
        )
        if self.screen is None or not passed:
            return Screening.of(evidence), state
        own = {name.removeprefix("screen."): vector for name, vector in state.vectors.items() if name.startswith("screen.")}
        screening = self.screen.look(evidence, ScreenState(state.facts.get("screen", {}), own))
        for answer, refusal in zip(passed, screening.refusals, strict=True):
            judged[answer.client] = refusal
        others = {name: vector for name, vector in state.vectors.items() if not name.startswith("screen.")}
        vectors = others | {f"screen.{name}": vector for name, vector in screening.state.vectors.items()}
        return screening, TrustState({**state.facts, "screen": dict(screening.state.facts)}, vectors)

    def _view(
        self, chosen: Sequence[Answered], reports: tuple[ClientReport, ...], counts: Tensor, context: Context, state: TrustState
    ) -> CohortView:
        server = context.server
        found = figures(
            [name for name in self.policy.looks_at if name != ACCURACY],
            [answer.upload.delta for answer in chosen],
            state.vectors.get("previous"),
            None if server is None else server.root_update,
            None if server is None else server.gradient,
            counts,
        )
        if ACCURACY in self.policy.looks_at:
            own = [context.accuracies.get(answer.client, torch.nan) for answer in chosen]
            found = {**found, ACCURACY: torch.tensor(own, dtype=torch.float64)}
        return CohortView(context.round, context.seed, reports, counts, found, context.asked, self.guard.layout.size)

    def _decided(self, base: Judged, view: CohortView, examined: Examined, context: Context, asked: Callable[[], Decision]) -> Judged:
        if self.rollout is None:
            decision = asked()
            weights = self._checked(decision.weights, view)
            weighing = _weighing(examined.chosen, weights * examined.factors, examined.scales, None)
            return self._taken(base._replace(by_size=weighing), view, decision, weights)
        return self._behind_breaker(self.rollout, base, view, examined, context, asked)

    def _checked(self, given: Tensor, view: CohortView) -> Tensor:
        weights = torch.as_tensor(given, dtype=torch.float64)
        if weights.shape != view.counts.shape:
            what = f"{type(self.policy).__name__} gave weights of shape {tuple(weights.shape)} for {len(view.reports)} clients"
            raise ConfigError("E215", what, "aggregation.policy", "A policy returns one weight a client")
        return weights.nan_to_num(nan=0.0, posinf=0.0).clamp(min=0)

    def _taken(self, judged: Judged, view: CohortView, decision: Decision, weights: Tensor) -> Judged:
        """The decision into state and record."""
        facts = {**judged.state.facts, "policy": dict(decision.memory), "retrain": sorted(decision.retrain)}
        total = float(weights.sum())
        shares = weights / total if total > 0 else weights
        notes = {
            "rejected_share": float((weights <= 0).double().mean()),
            "weight_std": float(shares.std(unbiased=False)),
            "action_std": _spread(decision.actions),
            "effective_number": effective_number(shares) if total > 0 else None,
            "retrain": sorted(decision.retrain),
            "marked": {str(client): why for client, why in decision.marked.items()},
        }
        state = judged.state._replace(facts=facts)
        return judged._replace(state=state, view=view, decision=decision, notes=notes)

    def _behind_breaker(
        self, rules: Rollout, base: Judged, view: CohortView, examined: Examined, context: Context, asked: Callable[[], Decision]
    ) -> Judged:
        """The policy's aggregate beside FedAvg's, or FedAvg's alone where the breaker is open or opens now."""
        facts, t = base.state.facts["rollout"], context.round
        plan = rollout.plan(rules, facts, t, context.seed)
        if not plan.asks:
            return base
        by_size = view.by_size()
        try:
            decision = rollout.in_time(asked, rules.deadline, self.clock)
            weights = torch.as_tensor(decision.weights, dtype=torch.float64)
        except TimeoutError:
            return self.fallen_back(base, t, "stalled")
        except Exception as problem:
            return self.fallen_back(base, t, "exception", f"{type(problem).__name__}: {problem}")
        cause = rollout.fault_of(rules, weights, by_size)
        if cause:
            return self.fallen_back(base, t, cause)
        facts, opens = rollout.rejecting(rules, facts, float((weights <= 0).double().mean()))
        base = _with_rollout(base, facts)
        if opens:
            return self.fallen_back(base, t, "rejects")
        if not float((weights * examined.factors).sum()) > 0:
            base = base._replace(events=(*base.events, {"event": "all_rejected"}))
            return self._taken(base, view, decision._replace(retrain=()), by_size)
        shares = weights / weights.sum()
        final = shares if self.projection is None else self.projection(shares, by_size)
        if plan.canary:
            final = rollout.canary_weights(rules, final, by_size, t, context.seed)
        # A policy that says what FedAvg says gives FedAvg's bits.
        weighing = (
            base.by_size if torch.equal(final, by_size) else _weighing(examined.chosen, final * examined.factors, examined.scales, None)
        )
        return self._taken(base._replace(policy=weighing, uses_policy=plan.uses), view, decision, final)

    def fallen_back(self, judged: Judged, t: int, cause: str, detail: str | None = None) -> Judged:
        """FedAvg's weights in the same round, and the breaker open."""
        assert self.rollout is not None
        facts, event = rollout.tripped(self.rollout, judged.state.facts["rollout"], t, cause)
        if detail:
            event["detail"] = detail[:200]
        judged = judged._replace(policy=None, uses_policy=False, events=(*judged.events, event))
        return _with_rollout(judged._replace(state=judged.state._replace(facts={**judged.state.facts, "retrain": []})), facts)

    def scored(self, judged: Judged, t: int, by_size: float | None, policy: float | None, is_finite: bool) -> Judged:
        """After both aggregates were measured: validation losses, None where there are no data. Falls back where the policy's is bad."""
        if judged.policy is None or self.rollout is None:
            return judged
        if not is_finite:
            return self.fallen_back(judged, t, "not_finite") if judged.uses_policy else judged._replace(policy=None)
        facts, events = judged.state.facts["rollout"], list[dict[str, Any]]()
        if by_size is not None and policy is not None:
            difference = (by_size - policy) / max(abs(by_size), 1e-12)
            facts, events = rollout.scored(self.rollout, facts, difference)
            judged = _with_rollout(judged._replace(events=(*judged.events, *events)), facts)
            if judged.uses_policy:
                facts, is_set_aside, opens = rollout.harming(self.rollout, facts, difference)
                judged = _with_rollout(judged, facts)
                if opens:
                    return self.fallen_back(judged, t, "harm")
                if is_set_aside:
                    return judged._replace(uses_policy=False, events=(*judged.events, {"event": "set_aside", "cause": "harm"}))
        if judged.uses_policy:
            facts, events = rollout.went_well(facts, t)
            judged = _with_rollout(judged._replace(events=(*judged.events, *events)), facts)
        return judged

    @property
    def remembers_the_move(self) -> bool:
        """Whether the last move of the global model is looked at."""
        return self.screen is not None or DIRECTION in self.policy.looks_at

    def observed(self, judged: Judged, outcome: Outcome) -> TrustState:
        """The state after the policy has seen what came of its decision."""
        if judged.decision is None or judged.view is None:
            return judged.state
        seen = self.policy.observe(judged.view, judged.decision, outcome)
        return judged.state._replace(facts={**judged.state.facts, "policy": dict(seen)})

    def _counted(self, judged: Judged, digests: Mapping[str, int], t: int) -> Judged:
        """With the guard's memory of this round: digests of what was accepted, and who goes into quarantine."""
        refused = [(client, refusal.reason) for client, refusal in judged.refusals.items() if refusal]
        known = judged.state.facts.get("digests", {})
        keep = self._digests.kept(known, {d: c for d, c in digests.items() if judged.refusals[c] is None}, t)
        facts, new = memory.counted(self.quarantine, judged.state.facts.get("quarantine", {}), refused, t)
        state = judged.state._replace(facts={**judged.state.facts, "digests": keep, "quarantine": facts})
        events = tuple({"event": "quarantined", "client": client, "until": facts["until"][str(client)]} for client in new)
        return judged._replace(state=state, events=(*judged.events, *events))


def _with_rollout(judged: Judged, facts: Mapping[str, Any]) -> Judged:
    return judged._replace(state=judged.state._replace(facts={**judged.state.facts, "rollout": dict(facts)}))


def _weighing(chosen: Sequence[Answered], weights: Tensor, scales: Tensor, combine: Combine | None) -> Weighing:
    """Of those with a weight above 0, which then sum to 1."""
    total = float(weights.sum())
    if not total > 0:
        return Weighing((), (), ())
    counted = [(a.client, float(w) / total, float(s)) for a, w, s in zip(chosen, weights.tolist(), scales.tolist(), strict=True) if w > 0]
    clients, shares, factors = zip(*counted, strict=True)
    return Weighing(clients, shares, factors, combine)


def _spread(actions: Tensor | None) -> float | None:
    """Their standard deviation. None of fewer than two, and where all are neutral: of a policy that has nothing to say yet (untrained, or
    all clients new to it), equal actions tell nothing."""
    if actions is None or len(actions) < 2 or bool((actions == NEUTRAL).all()):
        return None
    return finite(float(actions.std(unbiased=False)))


def _no_weight(client: int) -> UploadError:
    return UploadError("E111", "no_weight", "the policy gave the upload no weight", f"client {client}", "See what the client reports")
