"""benchmarks/: whoever skips a step is found out, and our runtimes stay well ahead of the committed naive loop."""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import contestants
import naive
from contestants import Apart, Contestant, Floor, Lean, Naive, Ours
from interleaving import Row, at_least, at_most, ratios, taking_turns, write_rows
from page import write_page
from workloads import WORKLOADS, Miscounted, Outcome, Workload, load, made, save

import fedaccord as fa
from fedaccord.runtime.cores import cores

KINDS: dict[str, Callable[[Workload], Contestant]] = {
    "naive": Naive,
    "lean": Lean,
    "floor": Floor,
    "sequential": lambda work: Ours(work, "sequential"),
    "vectorized": lambda work: Ours(work, "vectorized"),
    "pool": lambda work: Ours(work, "pool"),
    "auto": lambda work: Ours(work, "auto"),
}


@pytest.fixture(autouse=True)
def own_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FEDACCORD_CACHE", str(tmp_path / "calibration"))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def small(rho: float = 0.0) -> Workload:
    """Ragged clients, with a last batch that is shorter."""
    return made("small", "softmax", np.array([23, 7, 40]), 10, rho)


def one_round(contestant: Contestant) -> Outcome:
    try:
        contestant.work()
        return contestant.outcome()
    finally:
        contestant.close()


def test_a_workload_counts_its_last_short_batches_and_both_passes_of_sam() -> None:
    assert (small().steps, small().sample_passes) == (3 + 1 + 4, 70)
    assert (small(0.05).steps, small(0.05).sample_passes) == (8, 140)


@pytest.mark.parametrize("rho", [0.0, 0.05])
def test_all_contestants_do_the_same_work_and_go_equally_far(rho: float) -> None:
    work = made("larger", "softmax", np.array([920, 300, 1600]), 100, rho)  # with smaller batches, it is the shuffling that decides how far
    found = [make(work) for make in KINDS.values()]
    try:
        seconds = taking_turns(found, blocks=1)
    finally:
        for each in found:
            each.close()
    assert {name: len(taken) for name, taken in seconds.items()} == dict.fromkeys(KINDS, 1)


def test_a_naive_loop_that_leaves_out_the_last_batch_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = naive.DataLoader
    monkeypatch.setattr(naive, "DataLoader", lambda *args, **options: loader(*args, **options, drop_last=True))
    outcome = one_round(Naive(small()))
    with pytest.raises(Miscounted, match="60 examples"):
        small().check("naive", outcome)


def test_a_lean_loop_or_ours_that_leave_out_the_last_batch_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = contestants.plan_of(small())
    monkeypatch.setattr(contestants, "plan_of", lambda work: replace(plan, drop_last=True))
    for make in (Lean, KINDS["sequential"], KINDS["vectorized"], KINDS["pool"]):
        outcome = one_round(make(small()))
        with pytest.raises(Miscounted, match="small"):
            small().check("it", outcome)


def test_a_single_pass_where_sam_takes_two_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "method_of", lambda work: fa.FedAvg())
    outcome = one_round(Ours(small(0.05), "sequential"))
    with pytest.raises(Miscounted, match="saw 70 examples in a round, not 140"):
        small(0.05).check("ours", outcome)


def test_a_client_that_does_not_train_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "run_of", _without_the_last_client(contestants.run_of))
    outcome = one_round(Ours(small(), "sequential"))
    with pytest.raises(Miscounted, match="30 examples"):
        small().check("ours", outcome)


def _without_the_last_client(run_of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: run_of(*args, **options, cohort=[[0, 1]] * 3, rounds=3)


def test_who_counts_right_and_trains_another_model_is_found_out() -> None:
    outcome = one_round(Naive(small()))
    assert outcome.moved
    small().check("naive", outcome, outcome.moved)
    with pytest.raises(Miscounted, match="moved the model"):
        small().check("naive", outcome, 2 * outcome.moved)


def test_turns_end_at_the_first_miscount(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = naive.train_round

    def lazy(model: Any, parts: Any, *numbers: Any) -> tuple[int, int]:
        return loop(model, parts[1:], *numbers)

    monkeypatch.setattr(contestants, "train_round", lazy)
    with pytest.raises(Miscounted, match="naive"):
        taking_turns([Lean(small()), Naive(small())], blocks=1)


def test_the_examples_that_we_report_are_those_that_the_loss_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    cross_entropy, seen = contestants.F.cross_entropy, []

    def counting(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(len(outputs))
        return cross_entropy(outputs, y)

    monkeypatch.setattr(contestants.F, "cross_entropy", counting)
    contestant = Ours(small(0.05), "sequential")
    seen.clear()
    outcome = one_round(contestant)
    assert (len(seen), sum(seen)) == (2 * small().steps, outcome.examples)


def test_peers_read_the_same_data_from_the_file(tmp_path: Path) -> None:
    for work in (small(0.05), WORKLOADS["W2"](0.1)):
        save(work, tmp_path / "data.npz")
        found = load(tmp_path / "data.npz")
        assert (found.x == work.x).all() and (found.y == work.y).all() and (found.sizes == work.sizes).all()
        assert {name: value.tolist() for name, value in found.start.items()} == {name: v.tolist() for name, v in work.start.items()}
        kept = ("name", "model", "batch_size", "rho", "lr", "steps")
        assert [getattr(found, name) for name in kept] == [getattr(work, name) for name in kept]


def test_a_runtime_that_cannot_take_part_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workload, "module", lambda self: torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(30, 2)))
    found, missing = contestants.entrants(small(), ["vectorized", "pool, nonsense"])
    assert found == [] and "random numbers" in missing["vectorized"] and missing["pool, nonsense"]


def test_a_row_says_whether_its_median_meets_the_aim() -> None:
    assert [Row("W", "x", values, at_least(2)).verdict for values in ([1, 3, 3], [1, 1, 3], [])] == ["met", "missed", "not run"]
    assert [Row("W", "x", [value], at_most(2)).verdict for value in (2, 2.1)] == ["met", "missed"]
    assert Row("W", "x", [1, 2, 3, 4, 5]).quartiles == (2, 4)
    assert ratios({"a": [4, 9], "b": [2, 3]}, "a", "b") == [2, 3] and ratios({"a": [4]}, "a", "b") == []


def test_rows_of_other_works_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_rows([Row("W1", "old", [1.0]), Row("W2", "kept", [2.0, 4.0], at_least(2))], path, "bench.py")
    write_rows([Row("W1", "new", [5.0])], path, "bench.py --only W1")
    lines = list(csv.DictReader(path.read_text().splitlines()))
    assert [(line["work"], line["what"], line["median"]) for line in lines] == [("W2", "kept", "3"), ("W1", "new", "5")]
    assert lines[0]["verdict"] == "met" and lines[0]["versions"].startswith("python") and int(lines[0]["cores"]) > 0


def test_the_page_has_the_rows_of_each_work_between_its_marks(tmp_path: Path) -> None:
    results, page = tmp_path / "rows.csv", tmp_path / "page.md"
    rows = [
        Row("W1", "naive / auto", [5.0, 6.0, 7.0], at_least(4)),
        Row("W2", "naive / auto", [1.0], at_least(4)),
        Row("gpu", "W1", note="no GPU"),
    ]
    write_rows(rows, results, "bench.py")
    page.write_text("before\n<!-- rows: W1, gpu -->\nold\n<!-- end -->\nbetween\n<!-- rows: W2 -->\n<!-- end -->\nafter\n")
    write_page(results, page)
    write_page(results, page)
    head = "| work | what | median | quartiles | aim | |\n| --- | --- | --- | --- | --- | --- |\n"
    assert page.read_text() == (
        f"before\n<!-- rows: W1, gpu -->\n{head}| W1 | naive / auto | 6 x | 5.5 to 6.5 | >= 4 | met |\n"
        f"| gpu | W1 (no GPU) | not run |  |  |  |\n<!-- end -->\nbetween\n"
        f"<!-- rows: W2 -->\n{head}| W2 | naive / auto | 1 x |  | >= 4 | **missed** |\n<!-- end -->\nafter\n"
    )


def test_a_contestant_in_a_process_of_its_own_does_the_same_work() -> None:
    apart = Apart(Naive, small(0.05))
    outcome = one_round(apart)
    small(0.05).check("naive", outcome)
    assert apart.name == "naive" and outcome.steps == small().steps and outcome.moved
    assert not apart._process.is_alive()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("work", "share", "aim"), [("W1", 0.3, 1.5), ("W2", 0.3, 1.2), ("W4", 1.0, 10)])
def test_we_are_so_many_times_faster_than_the_naive_loop(work: str, share: float, aim: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all cores, in turns; a busy machine may spoil one try. Below what docs/performance.md shows, as machines differ."""
    monkeypatch.delenv("FEDACCORD_CORES", raising=False)
    if cores() < 2:
        pytest.skip("the aims are for two cores")
    found, missing = contestants.entrants(WORKLOADS[work](share), ["naive", "auto"])
    assert not missing
    try:
        for _ in range(2):
            seen = statistics.median(ratios(taking_turns(found, blocks=3), "naive", "auto"))
            print(f"{work}: {seen:.2f}x the naive loop, aim {aim}x")
            if seen >= aim:
                break
    finally:
        for each in found:
            each.close()
    assert seen >= aim
