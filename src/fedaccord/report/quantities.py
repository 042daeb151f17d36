"""Every figure of the report: `figures_of(study, run)` for one seed, `measure(study)` for the methods, with intervals over seeds.

The table on the terminal, `--json`, the CSV and the HTML are all made from these, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedaccord.report.groups import Method, Study
from fedaccord.report.source import (
    Record,
    client_scores,
    cumulative,
    evaluations,
    last_round,
    measures_of,
    number,
    seed_of,
    series,
    why_no_value,
    why_not_measured,
)
from fedaccord.report.statistics import (
    Censored,
    Estimate,
    best,
    censored_median,
    estimate,
    first_reached,
    jain,
    mean,
    tail_mean,
    worst_tenth,
)


@dataclass(frozen=True)
class Quantity:
    """A figure that each run has and that is averaged over seeds. `kind` says how it is shown."""

    name: str
    words: str
    kind: str  # metric | index | curvature | count | bytes | seconds
    meaning: str


QUANTITIES = (
    Quantity("final", "final", "metric", "the last evaluation on the test set"),
    Quantity("tail", "last-{last} mean", "metric", "mean over the evaluations of the last {last} rounds"),
    Quantity("best", "best (optimistic)", "metric", "best round on the test set: optimistic, it picks up noise; choose by validation"),
    Quantity("best_round", "best at round", "count", "the round of the best test value"),
    Quantity("chosen", "at best validation", "metric", "the test value at the round that is best on validation data"),
    Quantity("clients_mean", "mean of clients", "metric", "mean over the clients' own scores, each client alike"),
    Quantity("clients_mean_by_size", "mean by size", "metric", "mean over the clients' own scores, weighted by their test examples"),
    Quantity("worst_tenth", "worst tenth", "metric", "mean over the worst tenth of the clients, at least one"),
    Quantity("jain", "Jain's index", "index", "(Σx)²/(n·Σx²) over the clients' own scores: 1 is equal"),
    Quantity("clients_scored", "clients scored", "count", "clients with a score of their own"),
    Quantity("clients_unscored", "clients without score", "count", "clients without a score, with a reason in the CSV"),
    Quantity("rounds", "rounds", "count", "rounds run"),
    Quantity("gradients", "gradients", "count", "gradient evaluations of all clients over the run"),
    Quantity("gradients_per_round", "gradients a round", "count", "gradient evaluations of all clients in a round; SAM takes two a step"),
    Quantity("bytes_up", "bytes up", "bytes", "from the clients to the server over the run"),
    Quantity("bytes_down", "bytes down", "bytes", "from the server to the clients over the run"),
    Quantity("bytes_per_round", "bytes a round", "bytes", "both ways"),
    Quantity("seconds", "time", "seconds", "sum of the rounds' times"),
    Quantity("seconds_per_round", "time a round", "seconds", "mean time of a round"),
    Quantity("asked", "asked", "count", "client invitations over the run"),
    Quantity("refused", "refused", "count", "uploads that the guard refused"),
    Quantity("absent", "absent", "count", "clients that did not answer"),
    Quantity("model_kept", "rounds without update", "count", "rounds in which nothing usable came back and the old model was kept"),
)

FLATNESS = (
    Quantity("eigenvalue", "λ₁", "curvature", "largest eigenvalue of the Hessian of the pooled training loss"),
    Quantity("eigenvalue_ratio", "λ₁/λ₅", "curvature", "how far the largest eigenvalue stands out from the fifth"),
    Quantity("trace", "trace", "curvature", "trace of the same Hessian, Hutchinson's estimate"),
    Quantity("sam_gap", "SAM gap", "curvature", "rise of the pooled training loss after one ascent step of length ρ"),
    Quantity("random_rise", "random rise", "curvature", "mean rise after a step of the same length in a random direction"),
)

TARGETS = (
    Quantity("target_round", "rounds to target", "count", "first round whose {window}-round mean meets the target"),
    Quantity("target_gradients", "gradients to target", "count", "gradient evaluations up to that round"),
    Quantity("target_bytes", "bytes to target", "bytes", "bytes both ways up to that round"),
)


@dataclass(frozen=True)
class RunFigures:
    """One seed. A value is None where it is not defined, with the reason of the metric in `reason`."""

    record: Record
    seed: int | str
    values: Mapping[str, float | None]
    reason: str | None


@dataclass(frozen=True)
class MethodFigures:
    """One method over its seeds."""

    method: Method
    runs: tuple[RunFigures, ...]
    estimates: Mapping[str, Estimate]
    targets: Mapping[str, Censored]
    baseline: Method | None
    difference: Estimate  # method minus baseline, paired by seed, at the last round that both evaluated
    differences: Mapping[int | str, float]  # seed -> difference
    compared_at: Mapping[int | str, int]  # seed -> the round it was compared at
    tail_difference: Estimate  # the same of the tail means up to that round: a single last round is noisy
    tail_differences: Mapping[int | str, float]


def figures_of(study: Study, record: Record) -> RunFigures:
    """All figures of one run."""
    metric, end = study.metric, last_round(record)
    curve = evaluations(record, metric) if metric else {}
    validation = evaluations(record, metric, "validation") if metric else {}
    scores = client_scores(record, metric)
    top = best(curve, study.higher_is_better)
    picked = best({at: value for at, value in validation.items() if at in curve}, study.higher_is_better)
    values: dict[str, float | None] = {
        "final": curve[max(curve)] if curve else None,
        "tail": tail_mean(curve, end, study.last),
        "best": top[1] if top else None,
        "best_round": top[0] if top else None,
        "chosen": curve[picked[0]] if picked else None,
        "clients_mean": mean(scores.values),
        "clients_mean_by_size": mean(scores.values, scores.sizes),
        "worst_tenth": worst_tenth(scores.values, study.higher_is_better),
        "jain": jain(scores.values),
        "clients_scored": float(len(scores.clients)) if scores.round is not None else None,
        "clients_unscored": float(len(scores.missing)) if scores.round is not None else None,
        "rounds": float(end),
        **_costs(record),
        "asked": float(sum(len(line.get("cohort") or ()) for line in record.rounds)),
        "refused": float(sum(len(line.get("refused") or ()) for line in record.rounds)),
        "absent": float(sum(len(line.get("absent") or ()) for line in record.rounds)),
        "model_kept": float(sum(bool(line.get("model_kept")) for line in record.rounds)),
        **{quantity.name: number(measures_of(record).get(quantity.name)) for quantity in FLATNESS},
    }
    values |= _to_target(study, record, curve)
    return RunFigures(record, seed_of(record), values, None if curve else why_no_value(record, metric))


def measure(study: Study) -> tuple[MethodFigures, ...]:
    """The figures of every method, in the order of the study."""
    return tuple(_of_method(study, method) for method in study.methods)


def paired(method: Method, baseline: Method, key: Callable[[Record], Mapping[int, float]]) -> dict[int | str, dict[int, float]]:
    """Seed -> round -> (method minus baseline), over the seeds and rounds that both have."""
    others = {seed_of(run): key(run) for run in baseline.runs}
    mine = {seed_of(run): key(run) for run in method.runs}
    shared = {seed: sorted(set(mine[seed]) & set(others[seed])) for seed in mine if seed in others}
    return {seed: {at: mine[seed][at] - others[seed][at] for at in rounds} for seed, rounds in shared.items() if rounds}


def summary_rows(study: Study) -> list[dict[str, Any]]:
    """One plain dict a method, ready for JSON: each figure with mean, low, high, n, and its value for each seed."""
    rows = []
    for figures in measure(study):
        row: dict[str, Any] = {
            "method": figures.method.label,
            "algorithm": figures.method.algorithm,
            "settings": dict(figures.method.settings + figures.method.context),
            "seeds": list(figures.method.seeds),
            "metric": study.metric,
            "higher_is_better": study.higher_is_better,
            "reasons": {str(run.seed): run.reason for run in figures.runs if run.reason},
        }
        for quantity in (*QUANTITIES, *FLATNESS):
            each = {str(run.seed): run.values[quantity.name] for run in figures.runs}
            row[quantity.name] = {**_plain(figures.estimates[quantity.name]), "by_seed": each}
        for quantity in TARGETS:
            median = figures.targets[quantity.name]
            each = {str(run.seed): run.values[quantity.name] for run in figures.runs}
            row[quantity.name] = {
                "target": study.target,
                "window": study.window,
                "low": median.low,
                "high": median.high,
                "median": median.low if median.known else None,
                "never": median.never,
                "n": median.n,
                "reason": median.reason,
                "by_seed": each,
            }
        row["difference"] = {
            "baseline": figures.baseline.label if figures.baseline else None,
            **_plain(figures.difference),
            "by_seed": {str(seed): value for seed, value in figures.differences.items()},
            "round_by_seed": {str(seed): at for seed, at in figures.compared_at.items()},
        }
        row["tail_difference"] = {
            "baseline": row["difference"]["baseline"],
            **_plain(figures.tail_difference),
            "by_seed": {str(seed): value for seed, value in figures.tail_differences.items()},
        }
        rows.append(row)
    return rows


def _of_method(study: Study, method: Method) -> MethodFigures:
    runs = tuple(figures_of(study, run) for run in method.runs)
    reason = "; ".join(dict.fromkeys(run.reason for run in runs if run.reason)) or "not recorded"
    estimates = {
        quantity.name: estimate([value for run in runs if (value := run.values[quantity.name]) is not None], reason=reason)
        for quantity in QUANTITIES
    } | {quantity.name: _flatness(method, quantity.name) for quantity in FLATNESS}
    baseline = study.baseline_of(method)
    differences: dict[int | str, float] = {}
    compared_at: dict[int | str, int] = {}
    tails: dict[int | str, float] = {}
    if baseline is not None and study.metric is not None:
        metric = study.metric
        for seed, curve in paired(method, baseline, lambda run: evaluations(run, metric)).items():
            compared_at[seed] = max(curve)
            differences[seed] = curve[max(curve)]
            tails[seed] = tail_mean(curve, max(curve), study.last) or 0.0
    return MethodFigures(
        method=method,
        runs=runs,
        estimates=estimates,
        targets=_targets(study, runs, reason),
        baseline=baseline,
        difference=estimate(list(differences.values()), reason=_no_pair(method, baseline)),
        differences=differences,
        compared_at=compared_at,
        tail_difference=estimate(list(tails.values()), reason=_no_pair(method, baseline)),
        tail_differences=tails,
    )


def _flatness(method: Method, name: str) -> Estimate:
    values = [number(measures_of(run).get(name)) for run in method.runs]
    reasons = dict.fromkeys(why_not_measured(run, name) for run, value in zip(method.runs, values, strict=True) if value is None)
    return estimate([value for value in values if value is not None], reason="; ".join(reasons))


def _targets(study: Study, runs: tuple[RunFigures, ...], reason: str) -> dict[str, Censored]:
    """A seed without any evaluation is left out: it neither reached the target nor failed to."""
    runs = tuple(run for run in runs if run.reason is None) if study.target is not None else ()
    why = "no target was set" if study.target is None else reason
    ends = {"target_round": "rounds", "target_gradients": "gradients", "target_bytes": "bytes_total"}
    medians = {}
    for name, end in ends.items():
        known = [run for run in runs if _end(run, end) is not None]
        reached = [run.values[name] for run in known]
        medians[name] = censored_median(reached, [_end(run, end) or 0.0 for run in known], why)
    return medians


def _end(run: RunFigures, name: str) -> float | None:
    if name != "bytes_total":
        return run.values[name]
    return _both(run.values["bytes_up"], run.values["bytes_down"])


def _both(up: float | None, down: float | None) -> float | None:
    return None if up is None and down is None else (up or 0.0) + (down or 0.0)


def _to_target(study: Study, record: Record, curve: Mapping[int, float]) -> dict[str, float | None]:
    at = None if study.target is None else first_reached(curve, study.target, study.window, study.higher_is_better)
    if at is None:
        return dict.fromkeys(("target_round", "target_gradients", "target_bytes"))
    return {
        "target_round": float(at),
        "target_gradients": cumulative(record, "gradients").get(at),
        "target_bytes": cumulative(record, "bytes_up", "bytes_down").get(at),
    }


def _costs(record: Record) -> dict[str, float | None]:
    rounds = len(record.rounds)
    totals = {key: _total(record, key) for key in ("gradients", "bytes_up", "bytes_down", "seconds")}
    both = _both(totals["bytes_up"], totals["bytes_down"])
    return {
        **totals,
        "gradients_per_round": None if totals["gradients"] is None else totals["gradients"] / rounds,
        "bytes_per_round": None if both is None else both / rounds,
        "seconds_per_round": None if totals["seconds"] is None else totals["seconds"] / len(series(record, "seconds")),
    }


def _total(record: Record, key: str) -> float | None:
    found = [value for line in record.rounds if (value := number(line.get(key))) is not None]
    return sum(found) if found else None


def _no_pair(method: Method, baseline: Method | None) -> str:
    if method.algorithm == "fedavg":
        return ""
    return "no FedAvg under the same settings" if baseline is None else "no seed and round in common with FedAvg"


def _plain(figure: Estimate) -> dict[str, Any]:
    return {"mean": figure.mean, "low": figure.low, "high": figure.high, "n": figure.n, "reason": figure.reason}
