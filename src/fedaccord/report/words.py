"""How figures read: rounding, units, and the verdict in a plain sentence. The exact value is always in the CSV."""

from __future__ import annotations

from dataclasses import dataclass

from fedaccord.report.groups import Study
from fedaccord.report.quantities import MethodFigures
from fedaccord.report.statistics import Censored, Estimate

NOTHING = "–"


@dataclass(frozen=True)
class Verdict:
    """`state` is better | worse | unclear | alone; `sentence` stands by itself."""

    state: str
    sentence: str


def shown(value: float | None, kind: str) -> str:
    """A figure as a reader sees it.

    'metric' has three decimals, 'curvature' three digits, 'count' is grouped, 'bytes' and 'seconds' have a unit.
    """
    if value is None:
        return NOTHING
    if kind in ("metric", "index"):
        return _signless(f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}")
    if kind == "curvature":
        return _signless(f"{value:.3g}")
    if kind == "bytes":
        return _bytes(value)
    if kind == "seconds":
        return _seconds(value)
    if abs(value) >= 1e5:
        return next(f"{value / size:.3g} {unit}" for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if abs(value) >= size)
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"


def with_interval(figure: Estimate, kind: str) -> str:
    """'0.803 [0.792, 0.814]', or the bare mean where there is no interval."""
    if figure.mean is None:
        return NOTHING
    if figure.low is None or figure.high is None:
        return shown(figure.mean, kind)
    return f"{shown(figure.mean, kind)} [{shown(figure.low, kind)}, {shown(figure.high, kind)}]"


def difference_of(figure: Estimate, study: Study, sign: bool = True) -> str:
    """'+3.1 [+1.2, +5.0]' in points of a hundred for fractions, else in the metric's own unit."""
    if figure.mean is None:
        return NOTHING
    text = _points(figure.mean, study, sign)
    if figure.low is None or figure.high is None:
        return text
    return f"{text} [{_points(figure.low, study, sign)}, {_points(figure.high, study, sign)}]"


def unit(study: Study) -> str:
    """The unit of a difference, with a leading blank."""
    return " points" if study.fraction else ""


def censored(median: Censored, kind: str) -> str:
    """'91', '>100' where the median seed never got there, '95 to 100' where only bounds are known."""
    if median.low is None:
        return NOTHING
    if median.known:
        return shown(median.low, kind)
    return f">{shown(median.low, kind)}" if median.high is None else f"{shown(median.low, kind)} to {shown(median.high, kind)}"


def never(median: Censored) -> str:
    """'never in 2 of 3 seeds', or nothing."""
    return f"never in {median.never} of {seeds(median.n)}" if median.never else ""


def seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def verdicts(study: Study, figures: tuple[MethodFigures, ...]) -> list[Verdict]:
    """One sentence a method against FedAvg on the same seeds; without FedAvg, what each reached."""
    if study.metric is None:
        reasons = "; ".join(dict.fromkeys(run.reason for method in figures for run in method.runs if run.reason))
        return [Verdict("alone", f"No verdict: there is no test metric ({reasons}).")]
    against = [_against(study, method) for method in figures if method.baseline is not None]
    if against:
        return against
    alone = [Verdict("alone", _alone(study, method)) for method in figures]
    others = [method for method in figures if method.method.algorithm != "fedavg"]
    if others:
        return [*alone, Verdict("alone", "No FedAvg with comparable settings is among these runs, so no gain can be stated.")]
    return [*alone, Verdict("alone", "There is nothing to compare it with.")]


def _against(study: Study, figures: MethodFigures) -> Verdict:
    name, base = figures.method.label, figures.baseline.label if figures.baseline else ""
    gap = figures.difference
    if gap.mean is None:
        return Verdict("unclear", f"No verdict on {name}: {gap.reason}.")
    higher = gap.mean > 0
    size = _points(abs(gap.mean), study, sign=False) + unit(study)
    metric = f"in {study.metric}" + ("" if study.higher_is_better else ", where lower is better")
    if gap.low is None or gap.high is None:
        direction = "level with" if gap.mean == 0 else f"{size} {'above' if higher else 'below'}"
        return Verdict("unclear", f"One seed only: {name} ends {direction} {base} {metric}. One seed has no interval, so no gain is shown.")
    if gap.low <= 0 <= gap.high:
        same = " Every seed gave exactly the same." if gap.low == gap.high == 0 else ""
        distance = f"{difference_of(gap, study)}{unit(study)} from {base} {metric} over {seeds(gap.n)}"
        return Verdict("unclear", f"No gain shown: {name} ends {distance}; the interval includes 0.{same}")
    low, high = sorted((abs(gap.low), abs(gap.high)))
    interval = f"[{_points(low, study, sign=False)}, {_points(high, study, sign=False)}]"
    better = higher == study.higher_is_better
    return Verdict(
        "better" if better else "worse",
        f"{name} ends {size} {interval} {'above' if higher else 'below'} {base} {metric} over {seeds(gap.n)}.",
    )


def _alone(study: Study, figures: MethodFigures) -> str:
    final = figures.estimates["final"]
    if final.mean is None:
        return f"{figures.method.label} has no test {study.metric}: {final.reason}."
    tail = " One seed has no interval." if final.n == 1 else ""
    return f"{figures.method.label} ends at {study.metric} {with_interval(final, 'metric')} over {seeds(final.n)}.{tail}"


def _points(value: float, study: Study, sign: bool) -> str:
    scaled = value * 100 if study.fraction else value
    digits = 1 if study.fraction else 3
    if scaled != 0 and abs(scaled) < 0.5 * 10**-digits:
        digits = 2 if abs(scaled) >= 0.005 and digits == 1 else 5  # a tiny difference must not read as none
    text = f"{scaled:+.{digits}f}" if sign else f"{scaled:.{digits}f}"
    return _signless(text)


def _signless(text: str) -> str:
    """A true minus sign, and no sign on a zero."""
    return text[1:] if text[:1] in "+-" and not any(digit in text for digit in "123456789") else text.replace("-", "−")


def _bytes(value: float) -> str:
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.0f} B"


def _seconds(value: float) -> str:
    if value >= 3600:
        return f"{int(value // 3600)}h {int(value % 3600 // 60)}m"
    if value >= 60:
        return f"{int(value // 60)}m {int(value % 60)}s"
    return f"{value:.2g} s" if value < 1 else f"{value:.1f} s"
