"""The tables of docs/results.md, made from benchmarks/results/*.jsonl.

python benchmarks/tables.py            # prints them
python benchmarks/tables.py --write    # puts them between the marks of docs/results.md
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import study

from fedaccord.report.statistics import estimate

BASES = {  # of ablations, the one that a variant is compared with; the others are compared with "as chosen"
    "momentum, decoupled": "momentum, coupled",
    "Adam, decoupled": "Adam, coupled",
    "broken sensor, trust 0": None,
    "broken sensor, trust 1": "broken sensor, trust 0",
    "text, embedding scale 0.1": None,
    "text, embedding scale 1": "text, embedding scale 0.1",
    "as chosen": None,
}
PAGE = Path(__file__).parent.parent / "docs" / "results.md"
Line = dict[str, Any]


def shown(values: Iterable[float | None], write: Callable[[float], str]) -> str:
    """Mean and 95% t interval over seeds; how many seeds have none."""
    given = list(values)
    known = [value for value in given if value is not None]
    if not known:
        return "never" if given else "–"
    found = estimate(known)
    interval = "" if found.low is None or found.high is None else f" [{write(found.low)}, {write(found.high)}]"
    missing = "" if len(known) == len(given) else f" ({len(given) - len(known)} of {len(given)}: none)"
    assert found.mean is not None
    return f"{write(found.mean)}{interval}{missing}"


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def points(value: float) -> str:
    return f"{100 * value:+.1f}"


def short(value: float) -> str:
    return f"{value:.3g}"


def thousands(value: float) -> str:
    return f"{value / 1000:.0f}k"


def measured(lines: Iterable[Line], name: str) -> list[float | None]:
    return [line["measures"].get(name) for line in lines]


def by_seed(lines: Iterable[Line], name: str) -> dict[int, float | None]:
    return {line["seed"]: line[name] for line in lines}


def of_the_choice(setting: str, method: str, done: dict[str, Line]) -> list[Line]:
    """The final runs of the setting that was chosen; none before all seeds are there."""
    best = study.chosen(setting, method, done)
    if best is None:
        return []
    lines = [done.get(study.Job(setting, method, *best, "final", seed).key) for seed in study.SEEDS]
    return [line for line in lines if line is not None] if all(lines) else []


def at_the_same_rounds(setting: str, base: list[Line], lines: list[Line]) -> list[float]:
    """Accuracy minus that of FedAvg when it had run as many rounds, by seed: what a method with two gradients a step is often judged by."""
    every, tail = study.SETTINGS[setting].evaluate_every[0], 3
    end = lines[0]["rounds"] // every
    early = {line["seed"]: study._mean(line["curve"][end - tail : end]) for line in base}
    return [line["last_tenth"] - early[line["seed"]] for line in lines]


def study_table(setting: str) -> str:
    """One row a method, best first."""
    done = study.results(setting)
    finals = {method: lines for method in study.METHODS if (lines := of_the_choice(setting, method, done))}
    if not finals:
        return ""
    base = by_seed(finals.get("fedavg", []), "last_tenth")
    head = (
        "method",
        "setting",
        "accuracy",
        "minus FedAvg",
        "minus FedAvg at the same rounds",
        "last",
        "best",
        "rounds to target",
        "gradients to target",
    )
    head += ("drift", "λ₁", "trace", "SAM gap", "refused")
    rows = []
    for method, lines in sorted(finals.items(), key=lambda item: -(study._mean([line["last_tenth"] for line in item[1]]) or 0)):
        options = ", ".join([f"lr {lines[0]['lr']:g}", *(f"{name} {value:g}" for name, value in lines[0]["options"].items())])
        pairs = [value - base[seed] for seed, value in by_seed(lines, "last_tenth").items() if value is not None and base.get(seed)]  # type: ignore[operator]
        rows.append(
            [
                method,
                options,
                shown((line["last_tenth"] for line in lines), percent),
                "–" if method == "fedavg" else shown(pairs, points),
                shown(at_the_same_rounds(setting, finals["fedavg"], lines), points) if method in study.TWO_GRADIENTS else "–",
                shown((line["final"] for line in lines), percent),
                shown((line["best"] for line in lines), percent),
                shown((line["rounds_to_target"] for line in lines), short),
                shown((line["gradients_to_target"] for line in lines), thousands),
                shown((line["drift"] for line in lines), short),
                shown(measured(lines, "eigenvalue"), short),
                shown(measured(lines, "trace"), short),
                shown(measured(lines, "sam_gap"), short),
                str(sum(line["refused"] for line in lines)),
            ]
        )
    flat = [line["last_tenth"] - line["fifth_ago"] for line in finals.get("fedavg", []) if line["fifth_ago"] is not None]
    budget = study._mean([line["gradients"] for line in finals.get("fedavg", [])])
    text = f"Target {study.SETTINGS[setting].target:.0%}."
    text += (
        f" Gradient evaluations of FedAvg: {thousands(budget)}; over its last fifth it moves by {shown(flat, points)} points."
        if budget
        else ""
    )
    return f"### {setting}\n\n{text}\n\n{markdown(head, rows)}\n"


def ablation_table(method: str) -> str:
    """One row a variant, paired by seed with the one that it changes."""
    path = study.RESULTS / "ablations.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    variants: dict[str, list[Line]] = {}
    for line in lines:
        if line["method"] == method:
            variants.setdefault(line["variant"], []).append(line)
    if not variants:
        return ""
    wanted = {
        "dynamic_sam": ("gamma", "sigma", "tau", "lambda", "rho", "clipped"),
        "noise_adaptive_sam": ("rho", "noise_used", "norm_mean", "two_pass", "clipped"),
    }[method]
    rows = []
    for name, own in variants.items():
        against = BASES.get(name, "as chosen")
        base = by_seed(variants.get(against, []), "last_tenth") if against else {}
        pairs = [value - base[seed] for seed, value in by_seed(own, "last_tenth").items() if value is not None and base.get(seed)]  # type: ignore[operator]
        difference = f"{shown(pairs, points)}{'' if against == 'as chosen' else f' ({against})'}" if pairs else "–"
        reached = shown((line["rounds_to_target"] for line in own), short)
        spent = thousands(study._mean([line["gradients"] for line in own]) or 0.0)
        cosines = [study._mean(line["pairwise_cosine"]) for line in own]
        signals = [shown((line["signals"].get(signal) for line in own), short) for signal in wanted]
        accuracy = shown((line["last_tenth"] for line in own), percent)
        early = shown((line["clipped_in_first_20_rounds"] for line in own), percent)
        rows.append([name, accuracy, difference, reached, spent, *signals, early, shown(cosines, short)])
    head = ("variant", "accuracy", "minus as chosen, or the one named", "rounds to target", "gradients", *wanted)
    return f"### {method}\n\n{markdown((*head, 'clipped in rounds 1-20, %', 'pairwise cosine'), rows)}\n"


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    return "\n".join("| " + " | ".join(row) + " |" for row in [names, ["---"] * len(names), *rows])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true")
    asked = arguments.parse_args()
    parts = {
        "study": "\n".join(table for table in map(study_table, study.SETTINGS) if table),
        "ablations": "\n".join(table for table in map(ablation_table, ("dynamic_sam", "noise_adaptive_sam")) if table),
    }
    if not asked.write:
        print("\n".join(parts.values()))
        return
    page = PAGE.read_text()
    for name, text in parts.items():
        page = re.sub(
            rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)",
            lambda found, text=text: f"{found[1]}{text}{found[2]}",
            page,
            flags=re.DOTALL,
        )
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
