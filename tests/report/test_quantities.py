"""Grouping, pairing and the plain-data summary."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedaccord.core.errors import ConfigError
from fedaccord.report import comparison_rows, summary

Run = Callable[..., Any]


def test_runs_of_one_method_are_its_seeds_and_fedavg_comes_first(run: Run) -> None:
    rows = summary([run("fedsmoo", 1), run("fedavg", 1), run("fedsmoo", 0), run("fedavg", 0)])
    assert [(row["method"], row["seeds"]) for row in rows] == [("FedAvg", [0, 1]), ("FedSMOO", [0, 1])]


def test_a_setting_that_varies_makes_two_methods_and_is_in_their_names(run: Run) -> None:
    rows = summary([run("fedsmoo", 0, settings={"rho": rho}) for rho in (0.05, 0.1)])
    assert [row["method"] for row in rows] == ["FedSMOO (rho=0.05)", "FedSMOO (rho=0.1)"]


def test_settings_of_different_algorithms_are_not_variations_of_one(run: Run) -> None:
    rows = summary([run("fedsmoo", settings={"rho": 0.1}), run("fedprox", settings={"mu": 0.1})])
    assert [row["method"] for row in rows] == ["FedSMOO", "FedProx"]


def test_another_partition_is_another_method_even_where_only_its_name_differs(run: Run) -> None:
    rows = summary([run("fedavg"), run("fedavg", partition={"name": "iid"})])
    assert len(rows) == 2


def test_runtime_and_evaluation_settings_do_not_split_a_method(run: Run) -> None:
    rows = summary([run("fedavg", 0, runtime={"name": "sequential"}), run("fedavg", 1, runtime={"name": "pool"})])
    assert [row["n"] if "n" in row else len(row["seeds"]) for row in rows] == [2]


def test_the_difference_to_fedavg_is_paired_by_seed(run: Run) -> None:
    # the seeds differ by 0.4, the methods by 0.02 and 0.04: unpaired, nothing could be seen
    records = [run("fedavg", 0, [0.3]), run("fedavg", 1, [0.7]), run("fedsmoo", 0, [0.32]), run("fedsmoo", 1, [0.74])]
    gap = next(row for row in summary(records) if row["algorithm"] == "fedsmoo")["difference"]
    assert gap["baseline"] == "FedAvg"
    assert gap["by_seed"] == {"0": pytest.approx(0.02), "1": pytest.approx(0.04)}
    assert gap["mean"] == pytest.approx(0.03)
    # standard deviation 0.0141421, t(0.975, 1) = 12.7062: half width 12.7062 * 0.01 = 0.127062
    assert gap["low"] == pytest.approx(0.03 - 0.127062, abs=1e-6)


def test_the_tail_means_are_paired_as_well(run: Run) -> None:
    records = [run("fedavg", 0, [0.1, 0.2, 0.3]), run("fedsmoo", 0, [0.9, 0.4, 0.3])]
    row = summary(records, last=2)[1]
    assert (row["difference"]["mean"], row["tail_difference"]["mean"]) == (0, pytest.approx(0.1))


def test_only_seeds_in_common_are_paired(run: Run) -> None:
    gap = summary([run("fedavg", 0, [0.3]), run("fedsmoo", 0, [0.4]), run("fedsmoo", 5, [0.9])])[1]["difference"]
    assert (gap["n"], gap["mean"]) == (1, pytest.approx(0.1))


def test_each_setting_is_compared_with_the_fedavg_of_the_same_setting(run: Run) -> None:
    records = [
        run(name, 0, [value], partition={"alpha": alpha})
        for name, alpha, value in (("fedavg", 0.1, 0.5), ("fedavg", 1.0, 0.8), ("fedsmoo", 0.1, 0.6), ("fedsmoo", 1.0, 0.81))
    ]
    gaps = [row["difference"]["mean"] for row in summary(records) if row["algorithm"] == "fedsmoo"]
    assert gaps == [pytest.approx(0.1), pytest.approx(0.01)]


def test_a_fedavg_on_another_partition_is_no_baseline(run: Run) -> None:
    gap = summary([run("fedavg", partition={"alpha": 1.0}), run("fedsmoo", partition={"alpha": 0.1})])[1]["difference"]
    assert (gap["mean"], gap["baseline"]) == (None, None)
    assert gap["reason"]


def test_a_tuned_learning_rate_does_not_lose_the_only_baseline(run: Run) -> None:
    rows = summary([run("fedavg", accuracies=[0.5], local={"lr": 0.1}), run("fedsmoo", accuracies=[0.6], local={"lr": 0.05})])
    assert rows[1]["difference"]["mean"] == pytest.approx(0.1)


def test_runs_of_unequal_length_are_compared_at_the_same_round(run: Run) -> None:
    rows = summary([run("fedavg", accuracies=[0.1, 0.2, 0.9]), run("fedsmoo", accuracies=[0.3, 0.4], run={"rounds": 3})])
    assert rows[1]["difference"]["mean"] == pytest.approx(0.2)
    assert rows[1]["difference"]["round_by_seed"] == {"0": 2}


def test_the_same_seed_twice_is_one_observation(run: Run) -> None:
    row = summary([run("fedavg", 0, [0.1]), run("fedavg", 0, [0.1])])[0]
    assert row["final"]["n"] == 1
    assert row["final"]["low"] is None


def test_final_tail_best_and_the_choice_by_validation_are_apart(run: Run) -> None:
    accuracies, validation = [0.1, 0.9, 0.5, 0.6, 0.4], [0.1, 0.2, 0.3, 0.8, 0.4]
    row = summary([run("fedavg", 0, accuracies, validation=validation)], last=2)[0]
    assert [row[name]["mean"] for name in ("final", "tail", "best", "best_round", "chosen")] == pytest.approx([0.4, 0.5, 0.9, 2, 0.6])


def test_the_tail_is_fifty_rounds_where_there_are_a_hundred(run: Run) -> None:
    row = summary([run("fedavg", 0, [0.0] * 50 + [1.0] * 50)])[0]
    assert row["tail"]["mean"] == 1.0


def test_never_reached_is_counted_and_bounded_by_the_rounds_run(run: Run) -> None:
    records = [run("fedavg", 0, [0.9] * 6), run("fedavg", 1, [0.1] * 6), run("fedavg", 2, [0.1] * 6)]
    target = summary(records, target=0.8)[0]["target_round"]
    assert (target["median"], target["low"], target["high"], target["never"], target["n"]) == (None, 6, None, 2, 3)
    assert target["by_seed"] == {"0": 5, "1": None, "2": None}
    assert comparison_rows(records, target=0.8)[0]["rounds to 0.8"] == ">6 (never in 2 of 3 seeds)"


def test_work_to_target_is_the_sum_up_to_that_round(run: Run) -> None:
    row = summary([run("fedavg", 0, [0.9] * 7, gradients=10)], target=0.8)[0]
    assert (row["target_gradients"]["median"], row["target_bytes"]["median"]) == (50, 750)
    assert (row["gradients"]["mean"], row["gradients_per_round"]["mean"], row["bytes_per_round"]["mean"]) == (70, 10, 150)


def test_clients_without_a_score_are_counted_and_never_averaged_in(run: Run) -> None:
    row = summary([run("fedavg", 0, scores=[1.0, None, 0.5], sizes=[1, 1, 3])])[0]
    assert row["clients_mean"]["mean"] == pytest.approx(0.75)
    assert row["clients_mean_by_size"]["mean"] == pytest.approx(2.5 / 4)
    assert (row["clients_scored"]["mean"], row["clients_unscored"]["mean"]) == (2, 1)


def test_the_default_metric_is_the_first_that_is_not_the_loss(run: Run) -> None:
    assert summary([run("fedavg", metric="dice")])[0]["metric"] == "dice"
    assert summary([run("fedavg")], metric="loss")[0]["higher_is_better"] is False


def test_a_metric_that_nobody_has_names_those_there_are(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"E205.*accuracy"):
        summary([run("fedavg")], metric="auc")


def test_runs_without_a_shared_metric_cannot_be_compared(run: Run) -> None:
    with pytest.raises(ConfigError, match="E213"):
        summary([run("fedavg"), run("fedsmoo", metric="dice")], metric="accuracy")


def test_runs_of_different_tasks_cannot_be_compared(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"E213.*task\.name is digits and fashion"):
        summary([run("fedavg"), run("fedsmoo", task={"name": "fashion"})])


def test_no_run_at_all_is_an_error_and_not_an_empty_report() -> None:
    with pytest.raises(ConfigError, match="E213"):
        summary([])


def test_a_run_that_was_never_evaluated_has_a_reason_instead_of_a_value(run: Run) -> None:
    row = summary([run("fedavg", 0, [None, None])])[0]
    assert row["metric"] is None
    assert row["final"]["mean"] is None
    assert row["final"]["reason"] == "evaluated every second round"


def test_a_run_that_failed_before_its_first_round_does_not_break_the_others(run: Run) -> None:
    empty = replace(
        run("fedsmoo"), rounds=[], clients=[], status={"state": "failed", "round": 0, "error": {"code": "E301", "what": "gone"}}
    )
    rows = summary([run("fedavg"), empty], target=0.5)
    assert rows[1]["final"]["reason"] == "no round was finished"
    assert rows[1]["target_round"]["n"] == 0


def test_the_summary_is_plain_json(real_looking: list[Any]) -> None:
    text = json.dumps(summary(real_looking, target=0.7), allow_nan=False)
    assert json.loads(text)[0]["method"] == "FedAvg"


def test_every_row_on_the_terminal_has_the_same_columns(real_looking: list[Any]) -> None:
    rows = comparison_rows(real_looking, target=0.7)
    assert len(rows) == 3
    assert len({tuple(row) for row in rows}) == 1
