"""The tables of docs/results.md on aggregation, from results/trust_*.jsonl: between each pair of marks what the mark names.

python benchmarks/trust_tables.py
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "results.md"
MARKS = re.compile(r"(<!-- trust: (\w+) ([\w, ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
LEARNED = ("linear", "linear_cma", "bandit", "per_client", "residual", "rule_guard+residual", "rule_guard+residual blind")
Runs = Mapping[tuple[str, str], Mapping[int, Mapping[str, Any]]]  # (rule, attack) -> seed -> line


def finals(setting: str) -> Runs:
    path, found = RESULTS / f"trust_{setting}.jsonl", defaultdict[tuple[str, str], dict[int, Any]](dict)
    for line in map(json.loads, path.read_text().splitlines()) if path.exists() else ():
        if line["role"] == "final":
            found[line["rule"], line["attack"]][line["seed"]] = line
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its 95% interval (Student's t)."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("nan")
    return mean, float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)


def values(runs: Runs, rule: str, attack: str, what: str) -> dict[int, float]:
    return {seed: line[what] for seed, line in runs.get((rule, attack), {}).items() if line.get(what) is not None}


def cell(found: Mapping[int, float], scale: float = 100.0) -> str:
    if not found:
        return "–"
    mean, half = interval(list(found.values()))
    return f"{scale * mean:.1f}±{scale * half:.1f}" if half == half else f"{scale * mean:.1f}"


def difference(one: Mapping[int, float], other: Mapping[int, float], scale: float = 100.0) -> str:
    """Paired over the seeds that both have."""
    seeds = sorted(one.keys() & other.keys())
    if len(seeds) < 2:
        return "–"
    mean, half = interval([one[seed] - other[seed] for seed in seeds])
    return f"{scale * mean:+.1f} [{scale * (mean - half):+.1f}, {scale * (mean + half):+.1f}]"


def accuracies(setting: str) -> str:
    """Rules by attacks: the test metric of the last round, in points."""
    runs = finals(setting)
    attacks, rules = list(dict.fromkeys(a for _, a in runs)), list(dict.fromkeys(r for r, _ in runs))
    rows = [[rule, *(cell(values(runs, rule, attack, "test")) for attack in attacks)] for rule in rules]
    return table(["rule", *attacks], rows)


def flags(setting: str) -> str:
    """Who was refused: bad clients within five rounds, and honest ones in all rounds."""
    runs = finals(setting)
    rows = []
    for (rule, attack), lines in runs.items():
        caught = values(runs, rule, attack, "caught")
        if attack != "none" and any(caught.values()):
            rows.append([rule, attack, cell(caught), cell(values(runs, rule, attack, "false_flags")), str(len(lines))])
    return table(["rule", "attack", "bad clients refused within 5 rounds, %", "honest clients' updates refused, %", "seeds"], rows)


def backdoors(setting: str) -> str:
    runs = finals(setting)
    rules = [rule for rule, attack in runs if attack == "backdoor"]
    rows = [[rule, cell(values(runs, rule, "backdoor", "backdoor")), cell(values(runs, rule, "backdoor", "test"))] for rule in rules]
    return table(["rule", "triggered examples that reach the target, %", "accuracy"], rows)


def gains(setting: str) -> str:
    """Each rule beside FedAvg and beside the best rule that is not learned (by its mean over the seeds), attack by attack."""
    runs, rows = finals(setting), []
    for attack in dict.fromkeys(a for _, a in runs):
        rules = [rule for rule, of in runs if of == attack]
        own = {rule: values(runs, rule, attack, "test") for rule in rules}
        by_rule = {rule: found for rule, found in own.items() if rule not in LEARNED and found}
        if not by_rule:
            continue
        best = max(by_rule, key=lambda rule: float(np.mean(list(by_rule[rule].values()))))
        for rule in rules:
            if rule in LEARNED or rule in ("fedavg", best):
                worst, behind = (cell(values(runs, rule, attack, what), scale) for what, scale in (("worst", 1.0), ("left_behind", 100.0)))
                small = cell(values(runs, rule, attack, "small"))
                name = f"{rule} (best by rule)" if rule == best else rule
                against = difference(own[rule], by_rule[best]) if rule != best else "–"
                rows.append([attack, name, cell(own[rule]), difference(own[rule], own.get("fedavg", {})), against, worst, behind, small])
    head = [
        "attack",
        "rule",
        "test",
        "less FedAvg",
        "less the best by rule",
        "clients' loss, 95th percentile",
        "left behind, %",
        "small clients",
    ]
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "Not run yet.\n"
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n"


TABLES: dict[str, Callable[[str], str]] = {"accuracies": accuracies, "flags": flags, "backdoors": backdoors, "gains": gains}


def main() -> None:
    page = PAGE.read_text()
    PAGE.write_text(MARKS.sub(lambda found: found[1] + TABLES[found[2]](found[3]) + found[4], page))


if __name__ == "__main__":
    main()
