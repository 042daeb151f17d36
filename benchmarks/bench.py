"""Our runtimes beside naive code, a lean loop, the floor and other frameworks: ratios with their spread, and the aim beside each.

    python benchmarks/bench.py [--only W1,W4] [--blocks 7] [--share 1.0] [--peers FOLDER] [--write]

W1 to W4 are whole federated rounds of `fedaccord.run`, with records; every contestant counts its steps and the examples that it saw, and
a miscount ends the benchmark. Peers run in environments of their own, made on demand in FOLDER. --share makes every workload smaller, to
try a script; the aims hold for 1.0. --write puts the rows into results/runtimes.csv, and from there into docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from accelerator import gpu_rows
from contestants import Contestant, Ours, entrants
from gradients import gradient_rows, lean_rows
from growing import draw, growth_rows, memory_rows
from interleaving import Aim, Row, at_least, at_most, ratios, taking_turns, write_rows
from overheads import aggregation_rows, empty_rows, hogged_rows, population_rows, start_rows
from page import write_page
from peer_rows import blazefl_rows, fedjax_rows, flower_rows, pfl_rows
from workloads import WORKLOADS

from fedaccord.runtime.choice import CACHE

RESULTS = Path(__file__).parent / "results" / "runtimes.csv"
RUNTIMES = ["sequential", "vectorized", "pool", "auto"]


@dataclass(frozen=True)
class Asked:
    """What the command line says."""

    blocks: int
    share: float
    peers: Path
    torch_options: Sequence[str]


def w1(asked: Asked) -> Iterator[Row]:
    extra = [
        ("floor", "auto", at_least(0.85)),
        ("naive", "auto", at_least(4)),
        ("naive, one thread", "auto", None),
        ("floor", "pool, eager", at_least(0.6)),
    ]
    yield from side_by_side("W1", ["naive", "naive, one thread", "lean", "floor", *RUNTIMES, "pool, eager"], extra, asked)


def w1_small_batches(asked: Asked) -> Iterator[Row]:
    extra = [("floor", "auto", at_least(0.55)), ("naive", "auto", None)]
    yield from side_by_side("W1b20", ["naive", "naive, one thread", "lean", "floor", *RUNTIMES], extra, asked)


def w2(asked: Asked) -> Iterator[Row]:
    extra = [("floor", "auto", at_least(0.95)), ("floor, channels_last", "auto", None), ("naive", "auto", at_least(1.4))]
    yield from side_by_side("W2", ["naive", "naive, one thread", "lean", "floor", "floor, channels_last", *RUNTIMES], extra, asked)


def w3(asked: Asked) -> Iterator[Row]:
    """SAM, and the same without: two passes are the limit."""
    with ExitStack() as stack:
        plain = Ours(WORKLOADS["W2"](asked.share), "auto")
        stack.callback(plain.close)
        plain.name = "auto on W2"
        extra = [("auto", "auto on W2", at_most(2.3)), ("floor", "auto", None), ("naive", "auto", None)]
        yield from side_by_side("W3", ["naive", "naive, one thread", "lean", "floor", *RUNTIMES], extra, asked, [plain])


def w4(asked: Asked) -> Iterator[Row]:
    extra = [("naive", "auto", at_least(40)), ("naive, one thread", "auto", None), ("lean", "auto", None), ("floor", "auto", None)]
    yield from side_by_side("W4", ["naive", "naive, one thread", "lean", "floor", *RUNTIMES], extra, asked)


def side_by_side(
    work: str, kinds: list[str], pairs: Sequence[tuple[str, str, Aim | None]], asked: Asked, others: Sequence[Contestant] = ()
) -> Iterator[Row]:
    """Seconds a round of each contestant, and the ratios (upper, lower, aim)."""
    found, missing = entrants(WORKLOADS[work](asked.share), kinds)
    try:
        seconds = taking_turns([*found, *others], asked.blocks)
    finally:
        for each in found:
            each.close()
    chosen = {each.name: each.chosen for each in found if isinstance(each, Ours)}
    for kind in [*kinds, *(each.name for each in others)]:
        yield Row(work, f"{kind}: a round", seconds.get(kind, []), unit="s", note=missing.get(kind, chosen.get(kind, "")))
    for upper, lower, aim in pairs:
        values = ratios(seconds, upper, lower)
        yield Row(work, f"{upper} / {lower}", values, aim, note="" if values else missing.get(upper, missing.get(lower, "")))
    best = min((name for name in chosen if name != "auto"), key=lambda name: sum(seconds[name]), default=None)
    if best and "auto" in seconds:
        yield Row(work, f"auto / best of ours ({best})", ratios(seconds, "auto", best))


SECTIONS: dict[str, Callable[[Asked], Iterable[Row]]] = {
    "W1": w1,
    "W1b20": w1_small_batches,
    "W2": w2,
    "W3": w3,
    "W4": w4,
    "lean": lambda asked: lean_rows(asked.blocks),
    "gradients": lambda asked: gradient_rows(asked.blocks),
    "empty": lambda asked: empty_rows(asked.blocks),
    "hogged": lambda asked: hogged_rows(asked.blocks, asked.share),
    "start": lambda asked: start_rows(asked.share),
    "population": lambda asked: population_rows(asked.blocks, asked.share),
    "growth": lambda asked: growth_rows(asked.blocks, asked.share),
    "gpu": lambda asked: gpu_rows(asked.blocks, asked.share),
    "memory": lambda asked: memory_rows(asked.share),
    "aggregation": lambda asked: aggregation_rows(asked.share),
    "flower": lambda asked: flower_rows(asked.blocks, asked.share, asked.peers, asked.torch_options),
    "pfl": lambda asked: pfl_rows(asked.blocks, asked.share, asked.peers, asked.torch_options),
    "blazefl": lambda asked: blazefl_rows(asked.blocks, asked.share, asked.peers, asked.torch_options),
    "fedjax": lambda asked: fedjax_rows(asked.blocks, asked.share, asked.peers, asked.torch_options),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default=",".join(SECTIONS), help=f"of {','.join(SECTIONS)}")
    arguments.add_argument("--blocks", type=int, default=7, help="turns of each contestant that count")
    arguments.add_argument("--share", type=float, default=1.0, help="of the clients of every workload")
    arguments.add_argument("--peers", type=Path, help="folder of the peers' environments (default: a temporary one)")
    arguments.add_argument(
        "--torch-options", default="", help="for pip, where the index gives no CPU build of torch, e.g. '--index-url ...'"
    )
    arguments.add_argument("--write", action="store_true", help=f"into {RESULTS.name} and docs/performance.md")
    given = arguments.parse_args()
    names = [name for name in given.only.split(",") if name]
    if unknown := sorted(set(names) - SECTIONS.keys()):
        arguments.error(f"no section is called {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    command = " ".join(["benchmarks/bench.py", *(("--only", given.only) if len(names) < len(SECTIONS) else ())])
    command += f" --blocks {given.blocks} --share {given.share:g}"
    with tempfile.TemporaryDirectory(prefix="bench_") as folder:
        os.environ[CACHE] = str(Path(folder) / "calibration")  # every benchmark calibrates anew
        peers = (given.peers or Path(folder) / "peers").absolute()
        asked = Asked(given.blocks, given.share, peers, given.torch_options.split())
        rows: list[Row] = []
        for name in names:
            started = time.perf_counter()
            for row in SECTIONS[name](asked):
                rows.append(row)
                print(row, flush=True)
            print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
            if given.write:
                write_rows(rows, RESULTS, command)
                draw(RESULTS)
                write_page(RESULTS)
    missed = [row for row in rows if row.verdict == "missed"]
    print(f"{sum(row.verdict == 'met' for row in rows)} aims met, {len(missed)} missed{':' if missed else ''}")
    for row in missed:
        print(f"  {row}")


if __name__ == "__main__":
    main()
