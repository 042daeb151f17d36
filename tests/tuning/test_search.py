"""The engine on made-up measurements: which trials are made, what each verdict says, and what goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fedaccord.core.errors import NegativeAnswer
from fedaccord.federation import RoundResult
from fedaccord.tuning.proposals import grid, propose
from fedaccord.tuning.search import Search
from fedaccord.tuning.space import Choices, Point, Range
from fedaccord.tuning.stages import Attempt, Judgement, Measured, Stage, StageResult, halving

X = "algorithm.x"
AXIS = {X: Range(0.01, 10.0)}


def shown(metric: float | None, **figures: float | None) -> Measured:
    return Measured(metric, None if metric is not None else "it broke", figures, 10, 1.0, 5)


@dataclass(frozen=True)
class Near:
    """Passes where x is within a third of 1; the rule doubles it."""

    rule: bool = True

    def figures(self, rounds: Sequence[RoundResult]) -> dict[str, float | None]:
        return {}

    def judge(self, measured: Measured, point: Point) -> Judgement:
        if measured.metric is None:
            return Judgement(None, False, "nothing")
        away = abs(math.log(point[X]))
        return Judgement(-away, away < 1 / 3, f"x is {point[X]:g}", ({X: 2 * point[X]},) if self.rule else ())


def run(
    stages: Sequence[Stage], start: Point, measure: Callable[[Point], Measured], seed: int = 0
) -> tuple[list[Attempt], list[StageResult]]:
    found = list(Search(tuple(stages), start, "accuracy", seed, lambda number, stage, point: measure(point)).run())
    return [each for each in found if isinstance(each, Attempt)], [each for each in found if isinstance(each, StageResult)]


def test_a_goal_that_is_met_at_once_takes_one_trial() -> None:
    attempts, (result,) = run([Stage(0.01, 3, AXIS, 6, Near())], {X: 1.1}, lambda _: shown(0.5))
    assert [(each.verdict, each.why, each.origin) for each in attempts] == [("pass", "x is 1.1", "configured")]
    assert result.passed and result.verdict == "pass" and result.chosen[0].point == {X: 1.1}


def test_the_rules_moves_come_first_and_each_verdict_names_the_move() -> None:
    attempts, (result,) = run([Stage(0.01, 3, AXIS, 6, Near())], {X: 0.25}, lambda _: shown(0.5))
    assert [each.verdict for each in attempts] == ["move algorithm.x from 0.25 to 0.5", "move algorithm.x from 0.5 to 1", "pass"]
    assert [each.origin for each in attempts] == ["configured", "rule", "rule"]
    assert result.passed and result.verdict == "move algorithm.x from 0.25 to 1"


@dataclass(frozen=True)
class Never(Near):
    def judge(self, measured: Measured, point: Point) -> Judgement:
        return replace(super().judge(measured, point), passed=False)


def test_after_half_of_the_trials_the_optimiser_proposes_and_the_best_goes_on_with_a_word() -> None:
    attempts, (result,) = run([Stage(0.01, 3, AXIS, 6, Never())], {X: 0.25}, lambda _: shown(0.5))
    assert [each.origin for each in attempts] == ["configured", *["rule"] * 3, *["optimiser"] * 2]
    assert [each.point[X] for each in attempts[:4]] == [0.25, 0.5, 1, 2] and all(0.01 <= each.point[X] <= 10 for each in attempts)
    assert [each.verdict[:4] for each in attempts] == [*["move"] * 5, "no p"]
    assert not result.passed and result.chosen == (attempts[2],), "the best, not the last"
    assert result.why == "no pass in 6 trials; goes on with trial 3, the best: x is 1"
    assert result.verdict == "move algorithm.x from 0.25 to 1"


def test_a_rule_that_was_followed_does_not_come_back_between_the_optimisers_moves() -> None:
    y = "algorithm.y"

    @dataclass(frozen=True)
    class Always(Never):
        def judge(self, measured: Measured, point: Point) -> Judgement:
            return Judgement(0.0, False, "no", ({X: 6.0},))

    stage = Stage(0.01, 3, {**AXIS, y: Range(0.1, 1.0)}, 8, Always())
    attempts, _ = run([stage], {X: 0.5, y: 0.5}, lambda _: shown(0.5))
    assert [each.origin for each in attempts] == ["configured", "rule", *["optimiser"] * 6]


def test_without_a_rule_the_optimiser_makes_the_first_move() -> None:
    attempts, (result,) = run([Stage(0.01, 3, AXIS, 5, Never(rule=False))], {X: 1.0}, lambda _: shown(0.5))
    assert [each.origin for each in attempts] == ["configured", *["optimiser"] * 4] and len({each.point[X] for each in attempts}) == 5
    assert not result.passed and result.verdict == "no pass" and result.chosen == (attempts[0],)


def test_the_optimiser_finds_where_the_metric_is_best() -> None:
    best_of = lambda count: min(  # noqa: E731
        abs(math.log10(each.point[X] / 0.3)) for each in run(halving(AXIS, count, (1.0,), (3,)), {X: 5.0}, parabola)[0]
    )
    assert best_of(30) < 0.05 < best_of(3)


def parabola(point: Point) -> Measured:
    return shown(-(math.log10(point[X] / 0.3) ** 2))


def test_halving_keeps_a_third_and_lets_the_configured_values_compete_at_the_end() -> None:
    stages = halving(AXIS, 9, (0.01, 0.1, 1.0), (2, 4, 8))
    assert [(each.share, each.rounds, each.attempts, each.keep) for each in stages] == [
        (0.01, 2, 9, None),
        (0.1, 4, 0, None),
        (1.0, 8, 0, 1),
    ]
    _, results = run(stages, {X: 5.0}, parabola)
    assert [len(each.attempts) for each in results] == [9, 3, 2]
    ranked = sorted(results[0].attempts, key=lambda each: -each.score if each.score is not None else 0)
    assert [each.point for each in results[0].chosen] == [each.point for each in ranked[:3]]
    assert [each.verdict for each in results[0].attempts].count("pass") == 3
    assert results[2].attempts[1].origin == "configured" and results[2].chosen[0].point == ranked[0].point
    assert "with the configured values" in results[2].why


def test_the_configured_values_win_where_they_do_best_on_all_data() -> None:
    stages = [Stage(0.01, 3, AXIS, 6, Near()), Stage(1.0, 3, with_start=True)]
    _, results = run(stages, {X: 0.5}, lambda point: shown(0.8 if point[X] == 0.5 else 0.7))
    assert results[0].verdict == "move algorithm.x from 0.5 to 1"
    assert results[1].verdict == "move algorithm.x from 1 to 0.5" and results[1].chosen[0].point == {X: 0.5}
    assert results[1].why == "validation accuracy 0.8 with the configured values, 0.7 with those of stage 1"
    _, results = run(stages, {X: 0.5}, lambda point: shown(0.7 if point[X] == 0.5 else 0.8))
    assert results[1].verdict == "pass" and results[1].chosen[0].point == {X: 1.0}
    assert results[1].why == "validation accuracy 0.8, 0.7 with the configured values"


def test_less_loss_is_better() -> None:
    search = Search(halving({X: Choices((1.0, 2.0, 3.0))}, 3, (1.0,), (3,)), {X: 1.0}, "loss", 0, lambda n, s, p: shown(abs(p[X] - 2)))
    (*_, result) = search.run()
    assert isinstance(result, StageResult) and result.chosen[0].point == {X: 2.0}


def test_a_small_grid_is_tried_whole_and_only_once() -> None:
    space: dict[str, Any] = {X: Choices((1, 2, 3)), "local.lr": Choices((0.1, 0.2))}
    attempts, _ = run(halving(space, 12, (1.0,), (3,)), {X: 2, "local.lr": 0.2}, lambda point: shown(point[X]))
    assert len(attempts) == 6 and len({tuple(each.point.items()) for each in attempts}) == 6
    assert attempts[0].origin == "configured" and attempts[1].origin == "grid"
    assert grid(space, 5) == [] and grid(AXIS, 100) == []


def test_configured_values_outside_of_the_range_are_tried_on_all_data_only() -> None:
    _, results = run(halving(AXIS, 4, (0.1, 1.0), (3, 3)), {X: 20.0}, parabola)
    assert [each.origin for each in results[0].attempts] == ["optimiser"] * 4
    assert [each.origin for each in results[1].attempts] == ["stage 1", "stage 1", "configured"]


def test_a_trial_that_measured_nothing_ranks_last_and_a_stage_of_them_is_the_answer_no() -> None:
    _, (result,) = run(halving({X: Choices((1.0, 2.0))}, 2, (1.0,), (3,)), {X: 1.0}, lambda point: shown(None if point[X] == 1 else 0.1))
    assert result.attempts[0].verdict == "out" and result.attempts[0].why == "no accuracy: it broke"
    assert result.chosen[0].point == {X: 2.0}
    with pytest.raises(NegativeAnswer, match=r"E602 none of 4 trials could be measured: no accuracy: it broke\. stage 1"):
        run(halving(AXIS, 4, (1.0,), (3,)), {X: 1.0}, lambda _: shown(None))
    with pytest.raises(NegativeAnswer, match="E602"):
        run([Stage(0.01, 3, AXIS, 3, Near())], {X: 1.0}, lambda _: shown(None))


def test_proposals_follow_from_the_seed_and_the_trials_alone() -> None:
    history: list[tuple[Point, float | None]] = [({X: 0.1 * (i + 1)}, -i if i else None) for i in range(6)]
    first = propose(AXIS, history, 0, 1)
    assert first == propose(AXIS, history, 0, 1)
    assert first != propose(AXIS, history, 1, 1) and first != propose(AXIS, history, 0, 2) and first != propose(AXIS, history[:5], 0, 1)
    one, two = history[:1], history[:2]  # while it still draws at random
    assert propose(AXIS, one, 0, 1) != propose(AXIS, two, 0, 1)
    assert propose({X: Choices((1, 2))}, [({X: 1}, 0.0), ({X: 2}, 0.0)], 0, 1) is None
