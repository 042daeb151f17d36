"""Put small faults into every rule, one at a time, and see that the tests go red: prints killed/total, exit code 1 if a fault survives.

    python tools/mutate.py [--only FILE ...] [--jobs 2] [--list] [--out benchmarks/results/mutations.csv] [--tests PATH ...]

Each fault goes into a temporary copy of the package. A process forked from this one, with everything but the package loaded, runs the tests
on that copy until the first failure: first those of the faulty file and the reference numbers, then all, in the order of what they killed
so far. A test that fails without any fault ends the program.
"""

from __future__ import annotations

import argparse
import compileall
import csv
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mutation_operators import Mutant, mutants

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fedaccord"
TESTS = (
    "tests/oracles",
    "tests/algorithms",
    "tests/laws",
    "tests/core",
    "tests/aggregation",
    "tests/test_federation.py",
    "tests/test_edges.py",
    "tests/test_sampling.py",
    "tests/runtime/test_kept_moments.py",
)

LEFT_OUT = ("--ignore=tests/laws/test_uploads.py",)  # thousands of uploads for the guard, none for a rule

# file -> the functions and classes in it that hold rules; None: all.
RULES: dict[str, tuple[str, ...] | None] = {
    **{f"algorithms/{path.name}": None for path in sorted((PACKAGE / "algorithms").glob("[a-z]*.py"))},
    "core/algorithm.py": ("Algorithm.", "RoundStart."),
    "core/around.py": None,
    "core/batch.py": None,
    "core/gradient.py": None,
    "core/optimizer.py": None,
    "core/precision.py": None,
    "core/server_optimizer.py": None,
    "core/schedule.py": None,
    "core/local.py": ("LocalPlan.batches", "local_training", "local_step"),
    "aggregation/sums.py": None,
    "aggregation/policy.py": None,
    "federation.py": ("Federation._weights", "Federation._updated"),
    "sampling/samplers.py": ("StabilityAware.", "seen", "remembered"),
}

# Faults that no test can see, by name, and why.
EQUIVALENT: dict[str, str] = {
    "core/optimizer.py::Sgd.effective_steps: if m == 0 -> if False": "a shortcut: without momentum the loop adds as many ones",
    "core/local.py::local_step: w if is_ours and (not holds((local, moments), w)) else None -> None": "the same numbers in new memory",
    "core/local.py::local_training: w.new_zeros -> w.new_ones (#2)": "a vector of length 0",
    "core/local.py::local_step: if plan.weight_decay -> if True": "adding 0 * w changes nothing: the condition saves time",
    "federation.py::Federation._updated: weighted_sums(uploads, weights) * 2 if weights == equal else "
    "weighted_sums(uploads, weights, equal) -> weighted_sums(uploads, weights, equal)": "the same sum once more: the condition saves time",
    "algorithms/fedcm.py::FedCM.upload: w -> sent.w (#2)": "new_zeros takes dtype and device alone, the same in both",
    "algorithms/fednova.py::FedNova.upload: w -> sent.w": "as in FedCM",
    "algorithms/fedwmsam.py::FedWMSAM.upload: w -> sent.w (#2)": "as in FedCM",
    "core/gradient.py::ahead: norm.clamp(min=flat) -> norm": "where the norm is below `flat` the quotient is not the one that is chosen",
}


class Outcome(NamedTuple):
    """What became of one fault."""

    mutant: Mutant
    result: str  # killed, survived, equivalent
    test: str  # that killed it; why it is equivalent


@dataclass(eq=False)
class Order:
    """Runs the tests that are likely to fail first, and remembers the first that did."""

    kills: Counter[str]  # test -> faults in this file that it killed
    seconds: dict[str, float]  # test -> its duration
    failed: list[str] = field(default_factory=list)
    took: dict[str, float] = field(default_factory=dict)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.seconds:  # no test that has not passed without a fault
            items[:] = [item for item in items if item.nodeid in self.seconds]
        items.sort(key=lambda item: (-self.kills[item.nodeid], self.seconds.get(item.nodeid, 0.0)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        self.took[report.nodeid] = self.took.get(report.nodeid, 0.0) + report.duration

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(f"import of {report.nodeid}")


class Bench:
    """A copy of the package that faults are put into, and the process that tests it at this moment."""

    def __init__(self, folder: Path, tests: Path) -> None:
        self.source, self.result, self.log = folder / "src", folder / "result.json", folder / "log"
        self.tests = tests
        shutil.copytree(PACKAGE, self.source / "fedaccord", ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(self.source, quiet=1)
        self.mutant: Mutant | None = None
        self.original = ""
        self.pid, self.deadline = 0, 0.0

    def start(self, mutant: Mutant | None, tests: list[str], order: Order, timeout: float) -> None:
        """Fork a process that runs the tests on the package with this fault."""
        self.mutant, self.deadline = mutant, time.monotonic() + timeout
        self.result.unlink(missing_ok=True)
        if mutant:
            path = self.source / "fedaccord" / mutant.file
            self.original = path.read_text()
            path.write_text(mutant.text)
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._test(tests, order, likely_tests(mutant), is_baseline=mutant is None)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)

    def _test(self, tests: list[str], order: Order, likely: list[str], *, is_baseline: bool) -> None:
        os.setsid()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        sys.dont_write_bytecode = not is_baseline
        sys.path.insert(0, str(self.source))
        os.environ["PYTHONPATH"] = str(self.source)
        os.chdir(self.tests)
        arguments = ["-q", "--tb=no", "--assert=plain", "--timeout=60", "-p", "no:cacheprovider"]
        for paths in (likely, tests) if likely else (tests,):
            code = int(pytest.main([*arguments, *([] if is_baseline else ["-x"]), *paths], plugins=[order]))
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                break
        tested = str(getattr(sys.modules.get("fedaccord"), "__file__", ""))
        self.result.write_text(json.dumps({"code": code, "failed": order.failed, "took": order.took, "tested": tested}))

    def ended(self) -> dict[str, Any] | None:
        """What the process found; None while it runs. Past the deadline it is ended, and that counts as a failure."""
        if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() < self.deadline:
                return None
            self.stop()
            return {"failed": ["no end within the time limit"]}
        self.pid = 0
        return dict(json.loads(self.result.read_text())) if self.result.exists() else {"failed": ["the process died"]}

    def stop(self) -> None:
        """End the process, and what it has started, where one runs."""
        if self.pid:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def restore(self) -> None:
        """Take the fault out again."""
        if self.mutant:
            (self.source / "fedaccord" / self.mutant.file).write_text(self.original)


def preload() -> None:
    """Load all that the package imports, but not the package: what every forked process would load again."""
    sys.path.insert(0, str(PACKAGE.parent))
    for name in ("api", "report", "config", "cli.main", "tasks.embedded"):
        importlib.import_module(f"fedaccord.{name}")
    for name in ("hypothesis.strategies", "sklearn.datasets", "pandas", "torch.nn.functional"):
        importlib.import_module(name)


def unload() -> None:
    """Forget the package itself."""
    sys.path.remove(str(PACKAGE.parent))
    for name in [name for name in sys.modules if name.split(".")[0] == "fedaccord"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def likely_tests(mutant: Mutant | None) -> list[str]:
    """The tests of the faulty file and the reference numbers, which kill most faults: run alone, before all."""
    if mutant is None:
        return []
    room, _, name = mutant.file.rpartition("/")
    own = Path("tests") / room / f"test_{name}"
    return [path for path in (str(own), TESTS[0]) if (ROOT / path).exists()]


def copy_of_tests(folder: Path) -> Path:
    """The tests as they are now, whoever edits them meanwhile; what lies beside the project is named to them."""
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("oracles", "data"):
        if (ROOT.parent / "shared" / name).is_dir():
            os.environ.setdefault(f"FEDACCORD_{name.upper()}", str(ROOT.parent / "shared" / name))
    return folder


def all_mutants(only: list[str]) -> list[Mutant]:
    """The faults of every file whose path holds one of `only`."""
    found = []
    for file, functions in RULES.items():
        if any(part in file for part in only):
            module = "fedaccord." + file.removesuffix(".py").replace("/", ".")
            found += mutants(file, (PACKAGE / file).read_text(), module, functions)
    return found


def tried(waiting: list[Mutant], tests: list[str], benches: list[Bench], seconds: dict[str, float]) -> Iterator[Outcome]:
    """One outcome for each fault, as they come in."""
    waiting = waiting[::-1]
    kills: defaultdict[str, Counter[str]] = defaultdict(Counter)
    limit = 60 + 4 * sum(seconds.values())
    busy: list[Bench] = []
    while waiting or busy:
        for bench in benches:
            if bench not in busy and waiting:
                mutant = waiting.pop()
                bench.start(mutant, tests, Order(kills[mutant.file], seconds), limit)
                busy.append(bench)
        for bench in list(busy):
            found = bench.ended()
            if found is None:
                continue
            busy.remove(bench)
            bench.restore()
            assert bench.mutant
            assert not found.get("tested") or found["tested"].startswith(str(bench.source)), "another copy of the package was tested"
            failed = found["failed"] or ([] if found["code"] == 0 else [f"pytest ended with {found['code']}"])
            if failed:
                kills[bench.mutant.file][failed[0]] += 1
            yield Outcome(bench.mutant, "killed" if failed else "survived", failed[0] if failed else "")
        time.sleep(0.02)


def baseline(bench: Bench, tests: list[str], *, leave_out_failing: bool) -> dict[str, float]:
    """Durations of the tests that pass without any fault; ends the program where one fails and may not be left out."""
    bench.start(None, tests, Order(Counter(), {}), 3600)
    while (found := bench.ended()) is None:
        time.sleep(0.05)
    if found["code"] and not leave_out_failing:
        sys.exit(f"{bench.log.read_text()}\nWithout any fault these fail: {found['failed']}")
    return {test: float(took) for test, took in found["took"].items() if test not in found["failed"]}


def write(path: Path, outcomes: list[Outcome]) -> None:
    """One row a fault, in the order of the files; the rows of files that were not looked at this time stay."""
    rows: list[tuple[str, ...]] = [(each.mutant.file, each.mutant.function, each.mutant.what, each.result, each.test) for each in outcomes]
    if path.exists():
        looked_at = {row[0] for row in rows}
        with path.open(newline="") as file:
            rows += [tuple(row) for row in csv.reader(file) if row[0] in set(RULES) - looked_at]
    order = {file: number for number, file in enumerate(RULES)}
    rows.sort(key=lambda row: order[row[0]])
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("file", "function", "fault", "result", "test or reason"))
        table.writerows(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="only files whose path holds one of these")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="print the faults and end")
    parser.add_argument("--out", type=Path, help="a CSV of all outcomes")
    parser.add_argument("--leave-out-failing", action="store_true", help="go on without the tests that fail without any fault")
    parser.add_argument("--tests", nargs="+", default=[*(path for path in TESTS if (ROOT / path).exists()), *LEFT_OUT])
    options = parser.parse_args()

    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    preload()
    found = all_mutants(options.only)
    unload()
    unknown = EQUIVALENT.keys() - {mutant.name for mutant in found}
    if unknown and options.only == [""]:
        sys.exit(f"No such fault any more: {sorted(unknown)}")
    if options.list:
        for mutant in found:
            print(f"{mutant.file}:{mutant.line} {mutant.function}: {mutant.what}")
        print(f"{len(found)} faults, {sum(mutant.name in EQUIVALENT for mutant in found)} of them equivalent")
        return 0

    outcomes = [Outcome(mutant, "equivalent", EQUIVALENT[mutant.name]) for mutant in found if mutant.name in EQUIVALENT]
    waiting = [mutant for mutant in found if mutant.name not in EQUIVALENT]
    with tempfile.TemporaryDirectory() as place:
        snapshot = copy_of_tests(Path(place) / "tests")
        benches = [Bench(Path(place) / str(i), snapshot) for i in range(options.jobs)]
        seconds = baseline(benches[0], options.tests, leave_out_failing=options.leave_out_failing)
        print(f"{len(waiting)} faults, {len(seconds)} tests ({sum(seconds.values()):.0f} s)", flush=True)
        try:
            for outcome in tried(waiting, options.tests, benches, seconds):
                mutant = outcome.mutant
                result = f"killed by {outcome.test}" if outcome.result == "killed" else "SURVIVED"
                print(f"{mutant.file}:{mutant.line} {mutant.function}: {mutant.what}: {result}", flush=True)
                outcomes.append(outcome)
        finally:
            for bench in benches:
                bench.stop()
    place_of = {mutant.name: number for number, mutant in enumerate(found)}
    outcomes.sort(key=lambda outcome: place_of[outcome.mutant.name])
    if options.out:
        write(options.out, outcomes)
    survived = [outcome.mutant for outcome in outcomes if outcome.result == "survived"]
    for mutant in survived:
        print(f"SURVIVED {mutant.file}:{mutant.line} {mutant.function}: {mutant.what}")
    print(f"killed {len(waiting) - len(survived)}/{len(waiting)}, and {len(found) - len(waiting)} equivalent")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
