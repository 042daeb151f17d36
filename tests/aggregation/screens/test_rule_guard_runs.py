"""The rule guard in whole runs: attackers, free riders, honest clients of few classes, and the vectors that the server keeps as means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fedaccord as fa
from fedaccord.checks.trial import ROUNDS, SCRIPT, SIZES, Change, Trace, bits, run_traced
from fedaccord.core.state import map_state

TASK = fa.digits("softmax")
CLIENTS = 20
FREE_RIDING = {"no_update", "replayed"}


def run(attack: fa.Attack | None, screen: fa.Screen | None = None, *, alpha: float, seed: int, rounds: int) -> fa.Run:
    return fa.run(
        TASK,
        fa.FedAvg(),
        partition=fa.DirichletPerClass(alpha=alpha, clients=CLIENTS),
        cohort=CLIENTS,
        rounds=rounds,
        seed=seed,
        attack=attack,
        screen=screen,
        local=fa.LocalPlan(lr=0.1, epochs=1, batch_size=20),
        runtime="sequential",
        evaluate_every=rounds,
    )


def accuracy(found: fa.Run) -> float:
    return float(found.rounds.test_accuracy.iloc[-1])


@pytest.mark.parametrize("attack", [fa.SignFlip(factor=3.0), fa.Scaling(factor=100.0)], ids=lambda each: type(each).__name__)
def test_attackers_leave_the_accuracy_near_the_clean_one(attack: fa.Attack) -> None:
    clean, bare, kept = (
        accuracy(run(each, screen, alpha=1.0, seed=201, rounds=15))
        for each, screen in ((None, None), (attack, None), (attack, fa.RuleGuard()))
    )
    assert kept > clean - 0.06
    if isinstance(attack, fa.SignFlip):
        assert bare < clean - 0.2, "the attack does harm where nothing stops it"


def flags(found: fa.Run, after: int) -> dict[int, list[str]]:
    """client -> its reasons of free riding in the rounds after the first `after`."""
    lines = found.rounds.refused.iloc[after:]
    return {c: [each["reason"] for line in lines for each in line if each["client"] == c] for c in range(CLIENTS)}


@pytest.mark.parametrize("kind", ["zero", "replayed", "noised"])
def test_free_riders_are_seen_within_five_rounds_and_the_most_skewed_honest_client_is_not(kind: Any) -> None:
    """Round 1, in which there is no move to repeat and all send zeros, is not counted."""
    found = run(fa.FreeRider(kind=kind), fa.RuleGuard(), alpha=0.2, seed=202, rounds=11)
    bad = found.record.provenance["bad_clients"]
    early = {client: FREE_RIDING & set(why) for client, why in flags(found, 1).items()}
    assert all(early[client] for client in bad)
    wrongly = [len([why for why in own if why in FREE_RIDING]) for client, own in flags(found, 1).items() if client not in bad]
    assert max(wrongly) == 0


def reversed_and_longer(client: int, factor: float) -> Change:
    def change(answer: Any, round: int) -> Any:
        return answer if answer.client != client else answer._replace(upload=map_state(lambda leaf: factor * leaf, answer.upload))

    return change


LEDGERS: dict[str, tuple[fa.Algorithm, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "scaffold": (fa.Scaffold(), lambda server: server.control, lambda kept: kept.control),
    "feddyn": (fa.FedDyn(), lambda server: server.drift, lambda kept: kept.drift),
    "fedsmoo": (fa.FedSMOO(), lambda server: server.dual, lambda kept: kept.dual),
}


def guarded_trace(name: str) -> Trace:
    """Client 2, who is asked in every round, sends all of its vectors times -100."""
    return run_traced(LEDGERS[name][0], change=reversed_and_longer(2, -100.0), aggregation=fa.Aggregation(screen=fa.RuleGuard()))


@pytest.mark.parametrize("name", LEDGERS)
def test_a_client_that_is_left_out_is_not_settled_and_keeps_its_old_state(name: str) -> None:
    trace = guarded_trace(name)
    for t in range(1, ROUNDS + 1):
        assert {each["client"]: each["reason"] for each in trace.results[t - 1].report.refused}[2] == "norm_jump"
        assert trace.settled[t - 1] == set(trace.results[t - 1].report.accepted) and 2 not in trace.settled[t - 1]
        assert bits(trace.kept(t, 2)) == bits(trace.kept(0, 2))
    moved = {client for client in range(len(SIZES)) if bits(trace.kept(ROUNDS, client)) != bits(trace.kept(0, client))}
    assert moved, "somebody's state did move"


@pytest.mark.parametrize("name", LEDGERS)
def test_the_servers_vector_stays_the_mean_of_the_clients_though_updates_are_shortened(name: str) -> None:
    trace, (_, ours, theirs) = guarded_trace(name), LEDGERS[name]
    for t in range(1, ROUNDS + 1):
        mean = torch.stack([theirs(trace.kept(t, client)) for client in range(len(SIZES))]).mean(0)
        assert mean.norm() > 0 and (ours(trace.server(t)) - mean).norm() < 1e-5 * mean.norm()


def test_in_the_weighted_sum_updates_are_shortened_and_counts_capped() -> None:
    """SCAFFOLD's model moves by the shortened, its control by the updates as they came: both by hand for round 1."""
    trace = guarded_trace("scaffold")
    kept = list(trace.results[0].report.accepted)
    uploads = [trace.uploads[0][client] for client in kept]
    deltas = np.stack([upload.delta.numpy() for upload in uploads]).astype(np.float64)
    norms, counts = np.linalg.norm(deltas, axis=1), np.array([SIZES[client] for client in kept], dtype=np.float64)
    scales, capped = np.minimum(1, np.median(norms) / norms), np.minimum(counts, 3 * np.median(counts))
    assert scales.min() < 0.9 and len(kept) >= 2
    moved = (trace.server(1).w - trace.server(0).w).numpy()
    assert moved == pytest.approx((capped / capped.sum() * scales) @ deltas, rel=1e-4, abs=1e-6)
    controls = np.stack([upload.control_delta.numpy() for upload in uploads])
    share = len(kept) / len(SIZES)
    assert trace.server(1).control.numpy() == pytest.approx(share * controls.mean(0), rel=1e-4, abs=1e-6)


def test_the_same_script_without_an_attacker_settles_who_counts() -> None:
    trace = run_traced(fa.Scaffold(), aggregation=fa.Aggregation(screen=fa.RuleGuard()))
    assert all(settled == set(result.report.accepted) for settled, result in zip(trace.settled, trace.results, strict=True))
    assert sum(len(settled) for settled in trace.settled) > sum(map(len, SCRIPT)) / 2
