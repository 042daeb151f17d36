"""The line figures: curves over rounds and over work, paired differences, clients sorted, drift, signals.

A method has one colour and one dash throughout the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fedaccord.report.groups import Method, Study
from fedaccord.report.quantities import paired
from fedaccord.report.source import Record, client_scores, cumulative, evaluations, number, series, trained, why_no_value
from fedaccord.report.statistics import Band, band
from fedaccord.report.svg import ALARM, GRID, INK, colour, drawing, line_style, to_svg
from fedaccord.report.view import Picture

WIDTH, HEIGHT = 5.3, 3.1  # inches; scaled by the page
_FEW = 12  # curves of so few points show the points


@dataclass(frozen=True)
class Line:
    method: int
    label: str
    curve: Band


def curves(study: Study) -> tuple[Picture, ...]:
    """The metric per round first, then the loss, the metric against the work done, the training loss, the time."""
    metric = study.metric
    pictures = []
    names = [metric] if metric in (None, "loss") else [metric, "loss"]
    for name in names:
        lines = _lines(study, partial(_test_curve, name))
        word = name or "metric"
        target = study.target if name == metric else None
        picture = _lines_over_rounds(f"curve-{word}", f"Test {word} per round", f"test {word}", lines, target)
        pictures.append(picture if lines else replace(picture, missing=_why(study, name)))
    pictures.append(_against_gradients(study))
    train = _lines(study, lambda run: series(run, "train_loss"))
    pictures.append(_lines_over_rounds("curve-train", "Training loss of the cohort per round", "training loss", train))
    time = _lines(study, lambda run: series(run, "seconds"))
    pictures.append(_lines_over_rounds("curve-seconds", "Time per round", "seconds", time))
    return tuple(pictures)


def differences(study: Study) -> Picture:
    """Method minus FedAvg on the same seeds, per round."""
    ident, scale = "curve-difference", 100.0 if study.fraction else 1.0
    metric = study.metric
    lines = []
    for index, method in enumerate(study.methods):
        baseline = study.baseline_of(method)
        if baseline is None or metric is None:
            continue
        gaps = paired(method, baseline, lambda run: evaluations(run, metric))
        curve = band([{at: gap * scale for at, gap in rounds.items()} for rounds in gaps.values()])
        if curve is not None:
            lines.append(Line(index, method.label, curve))
    caption = f"Test {metric} minus FedAvg's on the same seeds" + (", in points" if study.fraction else "")
    if not lines:
        return Picture(ident, caption, None, missing="No method shares a seed and an evaluated round with a comparable FedAvg.")
    return _lines_over_rounds(ident, caption, "difference" + (" (points)" if study.fraction else ""), lines, zero=True)


def dynamics(study: Study) -> tuple[Picture, ...]:
    """What pulls the clients apart: drift, pairwise cosine, the norm of the update."""
    shapes = (
        ("drift", "Client drift per round", "drift"),
        ("pairwise_cosine", "Mean cosine between the clients' updates", "pairwise cosine"),
        ("update_norm", "Norm of the aggregated update", "update norm"),
    )
    return tuple(
        _lines_over_rounds(f"curve-{key}", caption, axis, _lines(study, partial(series, key=key)), zero=key == "pairwise_cosine")
        for key, caption, axis in shapes
    )


def clients_sorted(study: Study) -> Picture:
    """Each client's own score, sorted from worst to best, one line a method; the worst tenth is shaded."""
    import numpy as np

    ident, caption = "clients-sorted", f"Each client's own {study.metric or 'score'}, from the worst served to the best"
    lines: list[tuple[int, Method, list[float], list[float]]] = []
    for index, method in enumerate(study.methods):
        each = [sorted(client_scores(run, study.metric).values) for run in method.runs]
        each = [values for values in each if values]
        if each:
            ranks = np.linspace(0, 100, max(2, min(len(values) for values in each)))
            sorted_ = [values if study.higher_is_better else values[::-1] for values in each]
            stacked = [np.interp(ranks, np.linspace(0, 100, len(scores)), scores) for scores in sorted_]
            lines.append((index, method, [float(rank) for rank in ranks], [float(score) for score in np.mean(stacked, axis=0)]))
    if not lines:
        return Picture(ident, caption, None, missing="No per-client evaluation holds a value.")
    alt = f"{caption}. " + "; ".join(f"{method.label} from {values[0]:.3f} to {values[-1]:.3f}" for _, method, _, values in lines) + "."
    with drawing(WIDTH, HEIGHT, ident) as figure:
        axes = figure.add_subplot()
        axes.axvspan(0, 10, color=GRID, alpha=0.45, linewidth=0)
        for index, _, places, values in lines:
            axes.plot(places, values, color=colour(index), linestyle=line_style(index))
        axes.set_xlim(0, 100)
        axes.set_xlabel("clients, sorted (percent)")
        axes.set_ylabel(study.metric or "")
        return Picture(ident, caption, to_svg(figure, alt), alt, tuple((i, m.label) for i, m, _, _ in lines), (("shade", "worst tenth"),))


def signals(study: Study) -> tuple[Picture, ...]:
    """What adaptive methods measured and chose, per round: median and quartiles over the clients of all seeds."""
    found: dict[str, dict[int, dict[int, list[float]]]] = {}  # signal -> method -> round -> values
    for index, method in enumerate(study.methods):
        for run in method.runs:
            for row in trained(run):
                for name, value in (row.get("signals") or {}).items():
                    if (figure := number(value)) is not None:
                        found.setdefault(str(name), {}).setdefault(index, {}).setdefault(int(row["round"]), []).append(figure)
    return tuple(_signal(study, name, found[name]) for name in found)


def _signal(study: Study, name: str, methods: Mapping[int, Mapping[int, Sequence[float]]]) -> Picture:
    import numpy as np

    lines = []
    for index, rounds in methods.items():
        at = sorted(rounds)
        low, middle, high = np.array([np.percentile(rounds[r], (25, 50, 75)) for r in at]).T.tolist()
        lines.append(Line(index, study.methods[index].label, Band([float(r) for r in at], middle, low, high, len(at))))
    return _draw(f"signal-{name}", f"{name}: median and quartiles over the clients", "round", name, lines, None, zero=False, whole=True)


def _test_curve(metric: str | None, run: Record) -> dict[int, float]:
    return evaluations(run, metric) if metric else {}


def _why(study: Study, metric: str | None) -> str:
    return "; ".join(dict.fromkeys(why_no_value(run, metric) for run in study.runs)) + "."


def _lines(study: Study, curve_of: Callable[[Record], Mapping[int, float]]) -> list[Line]:
    lines = []
    for index, method in enumerate(study.methods):
        curve = band([curve_of(run) for run in method.runs])
        if curve is not None:
            lines.append(Line(index, method.label, curve))
    return lines


def _against_gradients(study: Study) -> Picture:
    """The metric against cumulative gradient evaluations; x is the mean over seeds too, since cohorts differ in size."""
    ident, caption = "curve-gradients", f"Test {study.metric or 'metric'} against gradient evaluations"
    lines = []
    for index, method in enumerate(study.methods):
        curves_ = [(evaluations(run, study.metric or ""), cumulative(run, "gradients")) for run in method.runs]
        value = band([{at: score for at, score in scores.items() if at in work} for scores, work in curves_])
        if value is None:
            continue
        shared = [int(at) for at in value.x]
        used = [work for scores, work in curves_ if scores and work]
        x = [sum(work[at] for work in used) / len(used) for at in shared]
        lines.append(Line(index, method.label, Band(x, value.mean, value.low, value.high, value.n)))
    return _draw(ident, caption, "gradient evaluations, all clients", f"test {study.metric}", lines, study.target, zero=False)


def _lines_over_rounds(
    ident: str, caption: str, axis: str, lines: Sequence[Line], target: float | None = None, zero: bool = False
) -> Picture:
    return _draw(ident, caption, "round", axis, lines, target, zero)


def draw_curves(axes: Any, lines: Sequence[Line], few: int = _FEW) -> None:
    """Each line's mean, with its interval as a band; curves of at most `few` points show their points."""
    for line in lines:
        curve, paint = line.curve, colour(line.method)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=paint, alpha=0.16, linewidth=0)
        marker = "o" if len(curve.x) <= few else None
        axes.plot(curve.x, curve.mean, color=paint, linestyle=line_style(line.method), marker=marker, markersize=3.5)


def _draw(
    ident: str, caption: str, x: str, y: str, lines: Sequence[Line], target: float | None, zero: bool, whole: bool = False
) -> Picture:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    if not lines:
        return Picture(ident, caption, None, missing="Not recorded in these runs.")
    alt = _alt(caption, lines, target)
    with drawing(WIDTH, HEIGHT, ident) as figure:
        axes = figure.add_subplot()
        draw_curves(axes, lines)
        if zero:
            axes.axhline(0, color=INK, linewidth=0.8)
        if target is not None:
            axes.axhline(target, color=ALARM, linewidth=1, linestyle=(0, (1, 2)))
        axes.set_ylim(*_limits(lines, target, zero, whole))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
        if x != "round":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        marks = (("target", f"target {target:g}"),) if target is not None else ()
        return Picture(ident, caption, to_svg(figure, alt), alt, tuple((line.method, line.label) for line in lines), marks)


def _limits(lines: Sequence[Line], target: float | None, zero: bool, whole: bool) -> tuple[float, float]:
    """The means decide the scale: an interval of few seeds in a wild early round would flatten every curve. Bands may be cut off."""
    values = [value for line in lines for value in line.curve.mean]
    values += [] if target is None else [target]
    values += [0.0] if zero else []
    low, high = min(values), max(values)
    bounds = [bound for line in lines for bound in (line.curve.low, line.curve.high) if bound]
    ends = [value for bound in bounds for value in bound] if whole else [bound[-1] for bound in bounds]
    span = (high - low) or max(abs(high), 1.0) * 0.1
    reach = math.inf if whole else span
    low, high = min([low, *(max(end, low - reach) for end in ends)]), max([high, *(min(end, high + reach) for end in ends)])
    margin = 0.06 * ((high - low) or span)
    return low - margin, high + margin


def _alt(caption: str, lines: Sequence[Line], target: float | None) -> str:
    ends = "; ".join(f"{line.label} goes from {line.curve.mean[0]:.3g} to {line.curve.mean[-1]:.3g}" for line in lines)
    return f"{caption}. {ends}." + (f" The target is {target:g}." if target is not None else "")
