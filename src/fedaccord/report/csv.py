"""The CSV beside the report: every line and every figure at full precision, so that each number of the page can be recomputed.

``NAME.rounds.csv`` (one line a round), ``NAME.clients.csv`` (one a client and round), ``NAME.summary.csv`` (one a method, and one a
method and seed), ``NAME.partition.csv`` (one a client of each partition), ``NAME.landscape.csv`` (one a point of the slices of the loss).
Empty means: no value.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedaccord.report.groups import Study
from fedaccord.report.quantities import FLATNESS, QUANTITIES, TARGETS, measure
from fedaccord.report.source import measures_of, number, run_name, seed_of

_ROUND_LISTS = ("cohort", "accepted", "absent")
_ROUND_SCALARS = ("train_loss", "update_norm", "drift", "pairwise_cosine", "gradients", "bytes_up", "bytes_down", "seconds")
_CLIENT_SCALARS = ("num_examples", "steps", "gradients", "weight", "loss", "update_norm", "cosine", "drift", "bytes_up", "seconds")


def rounds_csv(study: Study) -> str:
    """One line a round of each run. Lists of clients are separated by blanks, alerts by bars; refusals are JSON."""
    scores = {split: _names(line.get(split) for run in study.runs for line in run.rounds) for split in ("test", "validation")}
    rows = []
    for head, run in _heads(study):
        work = 0.0
        for line in run.rounds:
            work += number(line.get("gradients")) or 0.0
            row: dict[str, Any] = {**head, "round": line["round"], "lr": line.get("lr")}
            row |= {f"num_{key}": len(line.get(key) or ()) for key in ("cohort", "accepted", "refused", "absent")}
            row |= {name: number(line.get(name)) for name in _ROUND_SCALARS} | {"gradients_total": work}
            for split, names in scores.items():
                row |= {f"{split}_{name}": number((line.get(split) or {}).get(name)) for name in names}
                row[f"{split}_reason"] = line.get(f"{split}_reason")
            row |= {"model_kept": int(bool(line.get("model_kept"))), "reason": line.get("reason")}
            row |= {key: " ".join(map(str, line.get(key) or ())) for key in _ROUND_LISTS}
            row["refused"] = json.dumps(line["refused"], default=str) if line.get("refused") else None
            row["alerts"] = " | ".join(map(str, line.get("alerts") or ())) or None
            rows.append(row)
    return _write(rows)


def clients_csv(study: Study) -> str:
    """One line a client and round, of training ('train') and of per-client evaluation ('evaluate')."""
    signals = _names(row.get("signals") for run in study.runs for row in run.clients)
    metrics = _names(row.get("metrics") for run in study.runs for row in run.clients)
    rows = []
    for head, run in _heads(study):
        for line in run.clients:
            accepted = line.get("accepted")
            row: dict[str, Any] = {**head, "kind": line.get("kind"), "round": line.get("round"), "client": line.get("client")}
            row |= {"accepted": None if accepted is None else int(bool(accepted)), "code": line.get("code"), "reason": line.get("reason")}
            row |= {name: number(line.get(name)) for name in _CLIENT_SCALARS}
            row["epoch_losses"] = " ".join(repr(loss) for loss in line.get("epoch_losses") or () if number(loss) is not None)
            row |= {f"signal_{name}": number((line.get("signals") or {}).get(name)) for name in signals}
            row |= {f"metric_{name}": number((line.get("metrics") or {}).get(name)) for name in metrics}
            rows.append(row)
    return _write(rows)


def summary_csv(study: Study) -> str:
    """A line for each method (level 'method': means, intervals, censored medians) and each of its seeds (level 'seed')."""
    rows: list[dict[str, Any]] = []
    for figures in measure(study):
        label = figures.method.label
        base = figures.baseline.label if figures.baseline else None
        row: dict[str, Any] = {"level": "method", "method": label, "seed": None, "seeds": len(figures.runs), "metric": study.metric}
        row |= {"target": study.target, "window": study.window, "tail_rounds": study.last, "baseline": base}
        for quantity in (*QUANTITIES, *FLATNESS):
            figure = figures.estimates[quantity.name]
            row |= {quantity.name: figure.mean, f"{quantity.name}_low": figure.low, f"{quantity.name}_high": figure.high}
            row[f"{quantity.name}_n"] = figure.n
        for name, gap in (("difference", figures.difference), ("tail_difference", figures.tail_difference)):
            row |= {name: gap.mean, f"{name}_low": gap.low, f"{name}_high": gap.high, f"{name}_n": gap.n}
        row["compared_at"] = None
        for quantity in TARGETS:
            median = figures.targets[quantity.name]
            row |= {quantity.name: median.low if median.known else None, f"{quantity.name}_low": median.low}
            row |= {f"{quantity.name}_high": median.high, f"{quantity.name}_never": median.never, f"{quantity.name}_n": median.n}
        row["reason"] = "; ".join(dict.fromkeys(run.reason for run in figures.runs if run.reason))
        rows.append(row)
        for run in figures.runs:
            seed = {"level": "seed", "method": label, "seed": run.seed, "seeds": 1, "metric": study.metric, **run.values}
            seed |= {"target": study.target, "window": study.window, "tail_rounds": study.last, "baseline": base}
            seed |= {
                "difference": figures.differences.get(run.seed),
                "tail_difference": figures.tail_differences.get(run.seed),
                "compared_at": figures.compared_at.get(run.seed),
                "reason": run.reason,
            }
            rows.append(seed)
    return _write(rows)


def partition_csv(study: Study) -> str:
    """Examples of each client, in total and by class, for each scheme and seed."""
    rows: list[dict[str, Any]] = []
    seen: set[tuple[str, str]] = set()
    for run in study.runs:
        drawn, seed = run.partition, str(seed_of(run))
        scheme = str(drawn.get("scheme", "unnamed"))
        if (scheme, seed) in seen:
            continue
        seen.add((scheme, seed))
        counts = drawn.get("label_counts")
        for client, size in enumerate(drawn.get("sizes") or ()):
            row: dict[str, Any] = {"scheme": scheme, "seed": seed, "client": client, "examples": size}
            rows.append(row | ({f"class_{label}": count for label, count in enumerate(counts[client])} if counts else {}))
    return _write(rows, ("scheme", "seed", "client", "examples"))


def landscape_csv(study: Study) -> str:
    """The loss at w + a first + b second for each run that was measured; b is empty on the slice along one direction."""
    rows: list[dict[str, Any]] = []
    for head, run in _heads(study):
        found = measures_of(run)
        line, grid = found.get("slice") or {"at": (), "loss": ()}, found.get("grid") or {"at": (), "loss": ()}
        rows += [{**head, "a": a, "b": None, "loss": number(loss)} for a, loss in zip(line["at"], line["loss"], strict=True)]
        for b, losses in zip(grid["at"], grid["loss"], strict=True):
            rows += [{**head, "a": a, "b": b, "loss": number(loss)} for a, loss in zip(grid["at"], losses, strict=True)]
    return _write(rows, ("method", "algorithm", "seed", "run", "a", "b", "loss"))


def _heads(study: Study) -> Iterable[tuple[dict[str, Any], Any]]:
    for method in study.methods:
        for run in method.runs:
            yield {"method": method.label, "algorithm": method.algorithm, "seed": seed_of(run), "run": run_name(run)}, run


def _names(tables: Iterable[Mapping[str, Any] | None]) -> list[str]:
    names: dict[str, None] = {}
    for table in tables:
        names.update(dict.fromkeys(table or {}))
    return list(names)


def _write(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    names = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_cell(name) for name in names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return buffer.getvalue()


def _cell(value: Any) -> str:
    """Floats so that reading gives the same float; text that a spreadsheet would run as a formula gets an apostrophe in front."""
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text[:1] in tuple("=+-@\t\r") else text
