"""What learned policies see of each client: the source's seven features, those that measurement asked for, and what is remembered for them.

A client's own word is taken for the loss, the sample count and the local epochs only; all else the server computes. What cannot be known is
NaN here, and takes a neutral value where a network reads it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedaccord.aggregation import figures
from fedaccord.aggregation.policy import CohortView, Memory
from fedaccord.core.reports import ClientReport, number

SEVEN = ("loss_change", "norm", "direction", "volatility", "samples", "epochs", "latency")
RELATIVE = (
    "norm_ratio",  # log of |u| over the cohort's median
    "direction",
    "median_direction",
    "root_direction",
    "credit",  # to first order, by how much the update lowers the validation loss; 1 is the cohort's best a unit of length
    "loss_change",
    "loss_ratio",  # log of the reported loss over the cohort's median
    "volatility_ratio",  # of the last three norms, over the cohort's median norm
    "size_ratio",  # log of the count over the cohort's median
    "epochs",
    "latency",
    "times",  # how often it was accepted before
    "staleness",  # rounds since then
    "mean_direction",  # the cohort: how much its updates agree
    "spread",  # the cohort: standard deviation of norm_ratio
    "cohort",  # the cohort: log of its size
    "has_data",  # whether the server has validation data
)
NORMS = 3  # the last norms, of which volatility is the standard deviation
WINDOW = 100  # rounds over which features are scaled
MOST = 4.0  # natural logarithms: ratios beyond e^4 count as that

LossChange = Literal["within", "across"]


class Told(NamedTuple):
    """One cohort's features before scaling, [C, 7] float64, and the plain norms [C]; NaN where unknown."""

    values: Tensor
    norms: Tensor

    def column(self, name: str) -> Tensor:
        return self.values[:, SEVEN.index(name)]


def seven(cohort: CohortView, memory: Memory, loss_change: LossChange = "within", relative_latency: bool = False) -> Told:
    """The source's seven.

    loss_change: from the first to the last of this round's local epochs, whose mean losses stand for before and after (unknown with one
    epoch), or against the client's previous participation; negative is worse.
    """
    known, reports = memory.get("clients", {}), cohort.reports
    norms = cohort.figures[figures.NORM]
    rows = []
    for report, norm in zip(reports, norms.tolist(), strict=True):
        before = known.get(str(report.client), {})
        rows.append(
            [
                _loss_change(report, before, loss_change),
                norm / math.sqrt(cohort.size),
                math.nan,
                _std([*before.get("norms", []), norm][-NORMS:]),
                0.0,
                float(min(len(report.epoch_losses), 10)) if isinstance(report.epoch_losses, tuple | list) else 0.0,
                math.nan,
            ]
        )
    values = torch.tensor(rows, dtype=torch.float64)
    values[:, SEVEN.index("direction")] = cohort.figures[figures.DIRECTION]
    values[:, SEVEN.index("samples")] = (cohort.counts + 1).log10()
    values[:, SEVEN.index("latency")] = _latency(reports, relative_latency)
    return Told(values, norms)


def scaled(told: Told, memory: Memory) -> tuple[Tensor, list[list[list[float | None]]]]:
    """(features [C, 7] in [0, 1], the window with this round) by the smallest and the largest of the last 100 rounds; constant or unknown
    ones are 0.5. The window is [rounds][7][min, max]."""
    now = [[_least(column), _most(column)] for column in told.values.T]
    window = [*memory.get("window", []), now][-WINDOW:]
    columns = []
    for i, column in enumerate(told.values.T):
        known = [(low, high) for low, high in (each[i] for each in window) if low is not None and high is not None]
        low, high = min((each[0] for each in known), default=0.0), max((each[1] for each in known), default=0.0)
        if high > low:
            columns.append(((column - low) / (high - low)).nan_to_num(nan=0.5).clamp(0, 1))
        else:
            columns.append(torch.full_like(column, 0.5))
    return torch.stack(columns, dim=1), window


def relative(cohort: CohortView, told: Told, memory: Memory) -> Tensor:
    """`RELATIVE` [C, 17], float64, all finite and of order one: what carries over from one task to another is relative to the cohort."""
    count, known = len(cohort.reports), memory.get("clients", {})
    unknown = torch.full((count,), torch.nan, dtype=torch.float64)
    given = cohort.figures
    norm_ratio = _log_ratio(told.norms)
    losses = torch.tensor([_positive(report.loss) for report in cohort.reports], dtype=torch.float64)
    middle = _median(told.norms)
    credit = given.get(figures.CREDIT, unknown) / told.norms
    best = float(credit.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().max())
    past = [known.get(str(report.client), {}) for report in cohort.reports]
    median_direction = given.get(figures.MEDIAN_DIRECTION, unknown)
    columns = {
        "norm_ratio": norm_ratio,
        "direction": told.column("direction"),
        "median_direction": median_direction,
        "root_direction": given.get(figures.ROOT_DIRECTION, unknown),
        "credit": credit / best if best > 0 else unknown,
        "loss_change": told.column("loss_change").clamp(-1, 1),
        "loss_ratio": _log_ratio(losses),
        "volatility_ratio": (told.column("volatility") / middle).clamp(0, MOST) if middle > 0 else unknown,
        "size_ratio": _log_ratio(cohort.counts),
        "epochs": told.column("epochs") / 10,
        "latency": told.column("latency"),
        "times": torch.tensor([math.log1p(each.get("times", 0)) / 3 for each in past], dtype=torch.float64),
        "staleness": torch.tensor([math.log1p(_since(each, cohort.round)) / 3 for each in past], dtype=torch.float64),
        "mean_direction": torch.full_like(unknown, _mean(median_direction)),
        "spread": torch.full_like(unknown, float(norm_ratio.nan_to_num(nan=0.0).std(unbiased=False))),
        "cohort": torch.full_like(unknown, math.log(count) / 6),
        "has_data": torch.full_like(unknown, float(not given.get(figures.CREDIT, unknown).isnan().all())),
    }
    return torch.stack([columns[name] for name in RELATIVE], dim=1).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(-MOST, MOST)


def remembered(cohort: CohortView, told: Told, memory: Memory, **decided: Sequence[Any]) -> dict[str, Any]:
    """The table of clients after this round; `decided` adds one value a client under each name. Three norms each, never more."""
    clients = dict(memory.get("clients", {}))
    for i, report in enumerate(cohort.reports):
        before = clients.get(str(report.client), {})
        clients[str(report.client)] = {
            **before,
            "norms": [*before.get("norms", []), float(told.norms[i])][-NORMS:],
            "loss": number(report.loss),
            "round": cohort.round,
            "times": before.get("times", 0) + 1,
            **{name: values[i] for name, values in decided.items()},
        }
    return clients


def jumped(cohort: CohortView, told: Told, memory: Memory, deviations: float = 5.0) -> list[bool]:
    """Whose norm lies more than so many standard deviations above its own history (of three norms, and never below half of their mean)."""
    found = []
    for report, norm in zip(cohort.reports, told.norms.tolist(), strict=True):
        norms = memory.get("clients", {}).get(str(report.client), {}).get("norms", [])
        mean = sum(norms) / len(norms) if norms else 0.0
        found.append(len(norms) == NORMS and norm - mean > deviations * max(_std(norms), 0.1 * mean))
    return found


def _loss_change(report: ClientReport, before: Mapping[str, Any], kind: LossChange) -> float:
    if kind == "across":
        first, last = number(before.get("loss")), number(report.loss)
    elif len(report.epoch_losses) > 1:
        first, last = number(report.epoch_losses[0]), number(report.epoch_losses[-1])
    else:
        return math.nan
    if first is None or last is None or abs(first) < 1e-12:
        return math.nan
    return (first - last) / first


def _latency(reports: Sequence[ClientReport], relative: bool) -> Tensor:
    """Seconds above the mean, or between the fastest (0) and the slowest (1)."""
    times = torch.tensor([_known(report.latency) for report in reports], dtype=torch.float64)
    if bool(times.isnan().all()):
        return times
    if relative:
        low, high = _least(times), _most(times)
        return (times - low) / (high - low) if low is not None and high is not None and high > low else torch.zeros_like(times)
    return (times - times.nanmean()).clamp(min=0)


def _log_ratio(values: Tensor) -> Tensor:
    """log(value / median) of positive numbers; NaN for others."""
    positive = torch.where(values > 0, values, torch.nan)
    middle = _median(positive)
    return (positive / middle).log().clamp(-MOST, MOST) if middle > 0 else torch.full_like(values, torch.nan)


def _median(values: Tensor) -> float:
    known = values[values.isfinite()]
    return float(known.quantile(0.5)) if len(known) else math.nan


def _mean(values: Tensor) -> float:
    known = values[values.isfinite()]
    return float(known.mean()) if len(known) else 0.0


def _std(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def _least(column: Tensor) -> float | None:
    known = column[column.isfinite()]
    return float(known.min()) if len(known) else None


def _most(column: Tensor) -> float | None:
    known = column[column.isfinite()]
    return float(known.max()) if len(known) else None


def _since(before: Mapping[str, Any], t: int) -> int:
    return t - before["round"] if "round" in before else 0


def _positive(value: Any) -> float:
    found = number(value)
    return found if found is not None and found > 0 else math.nan


def _known(value: Any) -> float:
    found = number(value)
    return math.nan if found is None else found
