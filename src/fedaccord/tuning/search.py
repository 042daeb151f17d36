"""The one engine: stage after stage, trial after trial. What a stage wants to see is the stage's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fedaccord.core.errors import NegativeAnswer
from fedaccord.tuning.proposals import grid, propose
from fedaccord.tuning.space import Point
from fedaccord.tuning.stages import Attempt, Measured, Stage, StageResult, figure, metric_score, moved

Measure = Callable[[int, Stage, Point], Measured]
Candidate = tuple[Point, str]  # values and where they came from


@dataclass(frozen=True)
class Search:
    """start: the configured value of every key of any stage's space; metric: the validation metric that ranks."""

    stages: tuple[Stage, ...]
    start: Point
    metric: str
    seed: int
    measure: Measure

    def run(self) -> Iterator[Attempt | StageResult]:
        """Every trial as it is judged, and every stage as it ends. E602 where a stage measured nothing at all."""
        candidates: list[Candidate] = [(self.start, "configured")]
        for number, stage in enumerate(self.stages, 1):
            if stage.with_start and self.start not in [point for point, _ in candidates]:
                candidates.append((self.start, "configured"))
            stage_run = self._towards_goal if stage.goal else self._ranked
            attempts: list[Attempt] = []
            for found in stage_run(number, stage, candidates):
                yield found
                attempts.append(found)
            result = self._ended(number, stage, attempts)
            yield result
            candidates = [(attempt.point, f"stage {number}") for attempt in result.chosen]

    def _towards_goal(self, number: int, stage: Stage, candidates: Sequence[Candidate]) -> Iterator[Attempt]:
        """Until a trial passes. First the rules' moves, at most half of the attempts, then the optimiser's."""
        assert stage.goal is not None
        (point, origin), made = candidates[0], list[Attempt]()
        while True:
            measured = self.measure(number, stage, point)
            judgement = stage.goal.judge(measured, point)
            attempt = Attempt(number, len(made) + 1, point, origin, measured, judgement.score, "pass", judgement.why)
            made.append(attempt)
            if judgement.passed:
                yield attempt
                return
            tried, is_early = [each.point for each in made], len(made) <= stage.attempts // 2
            by_rule = [point | move for move in judgement.moves if point | move not in tried] if is_early and origin != "optimiser" else []
            if len(made) >= stage.attempts:
                following = None
            elif by_rule:
                following, origin = by_rule[0], "rule"
            else:
                following, origin = self._proposed(number, stage, made, candidates[0][0]), "optimiser"
            yield replace(attempt, verdict="no pass" if following is None else moved(point, following))
            if following is None:
                return
            point = following

    def _ranked(self, number: int, stage: Stage, candidates: Sequence[Candidate]) -> Iterator[Attempt]:
        """All trials; the verdicts follow when the stage ends."""
        inside = [each for each in candidates if all(each[0][key] in axis for key, axis in stage.space.items())]
        waiting = [*inside, *((self.start | each, "grid") for each in grid(stage.space, stage.attempts))]
        points = [point for point, _ in waiting]
        waiting = [each for place, each in enumerate(waiting) if each[0] not in points[:place]]
        is_grid = any(origin == "grid" for _, origin in waiting)
        made: list[Attempt] = []
        while waiting or (not is_grid and len(made) < stage.attempts):
            if not waiting:
                proposed = self._proposed(number, stage, made, self.start)
                if proposed is None:
                    return
                waiting.append((proposed, "optimiser"))
            point, origin = waiting.pop(0)
            measured = self.measure(number, stage, point)
            why = f"no {self.metric}: {measured.reason}" if measured.metric is None else self._shown(measured)
            made.append(
                Attempt(number, len(made) + 1, point, origin, measured, metric_score(measured.metric, self.metric), verdict="", why=why)
            )
            yield made[-1]

    def _proposed(self, number: int, stage: Stage, made: Sequence[Attempt], base: Point) -> Point | None:
        found = propose(stage.space, [(each.point, each.score) for each in made], self.seed, number)
        return None if found is None else base | found

    def _ended(self, number: int, stage: Stage, attempts: Sequence[Attempt]) -> StageResult:
        scored = [each for each in attempts if each.score is not None]
        if not scored:
            why = attempts[-1].why if attempts else "there was nothing to try"
            raise NegativeAnswer("E602", f"none of {len(attempts)} trials could be measured: {why}", f"stage {number}", "See tuning.csv")
        ranking = sorted(scored, key=lambda each: (not each.passed, -float(each.score or 0.0), each.number))
        keep = math.ceil(len(attempts) / 3) if stage.keep is None else stage.keep
        chosen = tuple(ranking[:keep])
        if stage.goal:
            return self._goal_result(number, attempts, chosen)
        judged = tuple(_placed(each, ranking, keep) for each in attempts)
        chosen = tuple(judged[each.number - 1] for each in chosen)
        return self._ranked_result(number, stage, judged, chosen)

    def _goal_result(self, number: int, attempts: Sequence[Attempt], chosen: tuple[Attempt, ...]) -> StageResult:
        first, best = attempts[0], chosen[0]
        change = moved(first.point, best.point)
        if best.passed:
            return StageResult(number, tuple(attempts), chosen, True, change or "pass", best.why)
        why = f"no pass in {_trials(len(attempts))}; goes on with trial {best.number}, the best: {best.why}"
        return StageResult(number, tuple(attempts), chosen, False, change or "no pass", why)

    def _ranked_result(self, number: int, stage: Stage, attempts: tuple[Attempt, ...], chosen: tuple[Attempt, ...]) -> StageResult:
        best, first = chosen[0], attempts[0]
        if not stage.with_start:
            why = f"{len(chosen)} of {_trials(len(attempts))} go on; the best: {self._shown(best.measured)}"
            return StageResult(number, attempts, chosen, True, "pass", why)
        own = next(each for each in attempts if each.point == self.start)
        if own is best and first is not best:
            why = (
                f"{self._shown(best.measured)} with the configured values, {figure(first.measured.metric)} with those of stage {number - 1}"
            )
            return StageResult(number, attempts, chosen, True, moved(first.point, best.point), why)
        against = "" if own is best else f", {figure(own.measured.metric)} with the configured values"
        return StageResult(number, attempts, chosen, True, "pass", f"{self._shown(best.measured)}{against}")

    def _shown(self, measured: Measured) -> str:
        return f"validation {self.metric} {figure(measured.metric)}"


def _placed(attempt: Attempt, ranking: Sequence[Attempt], keep: int) -> Attempt:
    """The verdict of a ranked trial."""
    if attempt not in ranking:
        return replace(attempt, verdict="out")
    place = ranking.index(attempt)
    return replace(attempt, verdict="pass" if place < keep else "out", why=f"{attempt.why}, place {place + 1} of {len(ranking)}")


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"
