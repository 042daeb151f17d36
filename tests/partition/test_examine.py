"""What `describe` says before training: each situation is named with its figures, its clients and a remedy."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from fedaccord.core.rng import stream
from fedaccord.partition import (
    IID,
    Attributes,
    DirichletPerClass,
    DirichletPerClient,
    Facts,
    Finding,
    Traits,
    findings,
    label_counts,
    summary,
)
from fedaccord.partition.examine import local_steps, readable, shorten
from fedaccord.partition.measures import GradientAngles

SCAFFOLD = Traits("scaffold", state_vectors=1, upload_vectors=2, sent_vectors=2, control_variates=True)
FAR_APART = GradientAngles(num_clients=20, mean=82.0, median=84.0, share_over_60=0.93, mean_cosine=0.14, norm_ratio=3.7)
LABELS = np.arange(2000) % 10


def _named(facts: Facts) -> dict[str, Finding]:
    found = findings(facts)
    assert all(finding.what and (finding.remedy or finding.severity == "note") for finding in found), "a warning has a remedy"
    assert [finding.severity for finding in found] == sorted((finding.severity for finding in found), reverse=True), "warnings come first"
    return {finding.name: finding for finding in found}


def _facts(alpha: float, clients: int = 100, **others: object) -> Facts:
    partition = DirichletPerClass(alpha, clients).split(Attributes(LABELS.size, LABELS), stream(1, "partition"))
    train, test = partition.holdout(0.2, LABELS, stream(1, "holdout"))
    facts = Facts(train.sizes, 10, 5, 100_000, SCAFFOLD, cohort=10, label_counts=label_counts(train, LABELS, 10), holdout_sizes=test.sizes)
    return replace(facts, **others)  # type: ignore[arg-type]


def test_rows_3_and_38_dirichlet_005_with_100_clients_names_the_empty_and_the_one_class_clients() -> None:
    facts = _facts(0.05)
    found = _named(facts)
    assert facts.label_counts is not None
    empty, one_class = np.flatnonzero(facts.sizes == 0), np.flatnonzero((facts.label_counts > 0).sum(axis=1) == 1)
    assert empty.size > 5 and one_class.size > 10
    assert found["empty_clients"].clients == tuple(empty.tolist()) and found["empty_clients"].severity == "warning"
    assert found["one_class_clients"].clients == tuple(one_class.tolist())
    assert f"{empty.size} clients ({shorten(empty)}) of 100" in found["empty_clients"].what
    assert f"of the 10 clients asked in a round about {empty.size / 10:.1f}" in found["empty_clients"].what
    assert "min_size" in found["empty_clients"].remedy and "alpha" in found["empty_clients"].remedy
    assert found["label_skew"].severity == "warning" and "fewer local epochs (5 now), not more" in found["label_skew"].remedy
    assert {"feddyn", "fedsmoo", "fedsam", "dynamic_sam"} <= set(found["suggestion"].what.replace(";", "").split())


def test_row_3_a_hundred_clients_at_dirichlet_01_are_drawn_held_out_and_measured_without_an_error() -> None:
    for seed in range(20):
        partition = DirichletPerClass(0.1, 100).split(Attributes(LABELS.size, LABELS), stream(seed))
        train, test = partition.holdout(0.2, LABELS, stream(seed, "holdout"))
        facts = Facts(train.sizes, 50, 5, 1000, cohort=10, label_counts=label_counts(train, LABELS, 10), holdout_sizes=test.sizes)
        assert ("empty_clients" in _named(facts)) == bool(np.any(partition.shards.sizes == 0))
        assert local_steps(facts)[train.sizes == 0].sum() == 0
        assert all(value is not None and np.isfinite(value) for value in summary(train, LABELS, 10).values())


@pytest.mark.parametrize("scheme", [DirichletPerClass, DirichletPerClient])
def test_row_5_many_classes_and_clients_at_a_tiny_alpha_conserve_the_class_totals(
    scheme: type[DirichletPerClass] | type[DirichletPerClient],
) -> None:
    labels = np.repeat(np.arange(200), np.arange(200) % 7 + 1)
    for alpha in (0.001, 0.003, 0.01):
        with np.errstate(divide="raise", invalid="raise"):
            shards = scheme(alpha, 300).split(Attributes(labels.size, labels), stream(0, str(alpha))).shards
        assert np.array_equal(label_counts(shards, labels, 200).sum(axis=0), np.bincount(labels))


def test_mild_partitions_get_notes_and_no_warning() -> None:
    counts = label_counts(IID(10).split(Attributes(LABELS.size, LABELS), stream(0)).shards, LABELS, 10)
    near = replace(FAR_APART, mean=30.0, median=29.0, share_over_60=0.0, norm_ratio=1.2)
    facts = Facts(counts.sum(axis=1), 10, 1, 1000, Traits(), True, label_counts=counts, feature_shift=0.05, angles=near)
    found = _named(facts)
    assert {finding.severity for finding in found.values()} == {"note"}
    assert {"label_skew", "quantity_skew", "feature_skew", "gradient_angles", "message_size", "suggestion"} == set(found)
    assert "fedavg" in found["suggestion"].what


def test_single_example_clients_and_those_without_held_out_examples_are_named() -> None:
    found = _named(Facts(np.array([4, 1, 0, 1]), holdout_sizes=np.array([1, 0, 0, 0])))
    assert found["single_example_clients"].clients == (1, 3)
    assert found["empty_clients"].clients == (2,) and "client 2 of 4" in found["empty_clients"].what
    assert found["no_held_out_examples"].clients == (1, 3)
    assert "no_held_out_examples" not in _named(Facts(np.array([4, 1]), holdout_sizes=np.array([0, 0]))), "nobody was asked to hold out"


def test_row_9_held_out_examples_of_one_class_are_named() -> None:
    facts = Facts(
        np.array([4, 4]), label_counts=np.array([[3, 1], [2, 2]]), holdout_sizes=np.array([2, 2]), holdout_counts=np.array([[2, 0], [1, 1]])
    )
    assert _named(facts)["one_class_held_out"].clients == (0,)


def test_a_class_that_nobody_holds_is_named() -> None:
    found = _named(Facts(np.array([2, 2]), label_counts=np.array([[1, 0, 1], [2, 0, 0]])))
    assert "no client holds class 1" in found["missing_classes"].what


def test_batch_norm_warns_of_every_batch_of_one_example_and_offers_a_better_size() -> None:
    sizes = np.array([1, 20, 21, 31, 30, 0])
    found = _named(Facts(sizes, batch_size=10, has_batch_norm=True))["batch_norm_single"]
    assert found.clients == (0, 2, 3), "the last batch counts as well"
    assert "GroupNorm" in found.remedy and "batch_size 9, which leaves 1 such client" in found.remedy
    assert _named(Facts(sizes, batch_size=1, has_batch_norm=True))["batch_norm_single"].clients == (0, 1, 2, 3, 4)
    assert _named(Facts(sizes, batch_size=None, has_batch_norm=True))["batch_norm_single"].clients == (0,)
    assert "batch_norm_single" not in _named(Facts(sizes, batch_size=10))
    assert "batch_norm_single" not in _named(Facts(np.array([20, 30]), batch_size=10, has_batch_norm=True))


def test_row_11_unequal_steps_are_a_warning_for_control_variates_and_a_note_for_others() -> None:
    sizes = np.array([500, 50, 40, 0])
    facts = Facts(sizes, batch_size=10, local_epochs=2, algorithm=SCAFFOLD)
    assert local_steps(facts).tolist() == [100, 10, 8, 0]
    found = _named(facts)["unequal_steps"]
    assert found.severity == "warning" and "from 8 to 100 local steps" in found.what and found.clients == (0,)
    assert _named(replace(facts, algorithm=Traits()))["unequal_steps"].severity == "note"
    assert "unequal_steps" not in _named(replace(facts, batch_size=None)), "a full batch is one step for everybody"
    assert "unequal_steps" not in _named(replace(facts, sizes=np.array([50, 40, 10])))


def test_scaffold_is_not_suggested_where_its_steps_are_unequal_nor_state_where_it_does_not_fit() -> None:
    counts = np.array([[400, 0], [0, 20], [0, 20]])
    facts = Facts(counts.sum(axis=1), 10, 1, 1000, label_counts=counts)
    assert "scaffold" not in _named(facts)["suggestion"].what and "feddyn" in _named(facts)["suggestion"].what
    even = replace(facts, label_counts=counts // [20, 1], sizes=np.array([20, 20, 20]))
    assert "scaffold" in _named(even)["suggestion"].what
    crowded = replace(even, memory_limit=10_000)
    assert "feddyn" not in _named(crowded)["suggestion"].what and "fedsam" in _named(crowded)["suggestion"].what


def test_gradients_at_wide_angles_ask_for_fewer_epochs_and_uneven_norms_for_clipping() -> None:
    found = _named(Facts(np.array([10, 10]), angles=FAR_APART, local_epochs=10))
    assert found["gradient_angles"].severity == "warning" and "82 degrees" in found["gradient_angles"].what
    assert "fewer local epochs (10 now), not more" in found["gradient_angles"].remedy
    assert "3.7 times" in found["gradient_norms"].what and "clip" in found["gradient_norms"].remedy
    assert "wide angles" in found["suggestion"].what


def test_feature_and_quantity_skew_have_their_verdicts() -> None:
    found = _named(Facts(np.array([1000, 2, 3, 2]), feature_shift=1.3))
    assert found["feature_skew"].severity == found["quantity_skew"].severity == "warning"
    assert "1.30 standard deviations" in found["feature_skew"].what and "sizes from 2 to 1000" in found["quantity_skew"].what


def test_messages_and_client_state_have_their_size_and_a_limit() -> None:
    facts = Facts(np.full(100, 10), num_parameters=1_000_000, algorithm=SCAFFOLD, cohort=10)
    found = _named(facts)
    assert "receives 8.0 MB and sends 8.0 MB" in found["message_size"].what and "160.0 MB a round for 10" in found["message_size"].what
    assert "400.0 MB for 100 clients" in found["client_state"].what and found["client_state"].severity == "note"
    large = _named(replace(facts, num_parameters=70_000_000))
    assert large["message_size"].severity == large["client_state"].severity == "warning"
    assert "on disk" in large["client_state"].remedy
    assert "client_state" not in _named(replace(facts, algorithm=Traits()))


def test_the_partitions_own_notes_are_passed_on() -> None:
    assert _named(Facts(np.array([3]), partition_notes=("repaired",)))["partition_note"].what == "repaired"


def test_long_lists_are_short_in_the_text_and_whole_in_the_data() -> None:
    found = _named(Facts(np.zeros(300, dtype=np.int64)))["empty_clients"]
    assert "0, 1, 2, 3, 4 and 295 more" in found.what and len(found.clients) == 300
    assert found.record()["clients"] == list(range(300))
    assert shorten([3, 7]) == "3, 7" and shorten([3, 7, 19, 20], shown=3) == "3, 7, 19 and 1 more"
    assert [readable(size) for size in (7, 9_100_000, 2.5e15)] == ["7 B", "9.1 MB", "2500.0 TB"]


def test_a_hundred_thousand_clients_are_examined_in_seconds() -> None:
    labels = stream(0, "labels").integers(0, 10, 200_000)
    start = time.monotonic()
    partition = DirichletPerClass(0.5, 100_000).split(Attributes(labels.size, labels), stream(0))
    train, test = partition.holdout(0.2, labels, stream(1))
    facts = Facts(
        train.sizes, 10, 5, 1000, SCAFFOLD, True, 100, label_counts(train, labels, 10), test.sizes, label_counts(test, labels, 10)
    )
    assert len(_named(facts)) > 8 and summary(train, labels, 10)["label_entropy_mean"] is not None
    assert time.monotonic() - start < 15.0
