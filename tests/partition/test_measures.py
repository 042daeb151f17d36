"""Measures of heterogeneity against scipy, brute force, and cases whose value is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from fedaccord.core.errors import PartitionError
from fedaccord.core.rng import stream
from fedaccord.partition import IID, Attributes, Shards, label_counts, measures, summary
from fedaccord.partition.measures import feature_shift, gradient_angles, js_distance, label_entropy, mean_of, size_gini

COUNTS = np.array([[5, 5, 5, 5], [20, 0, 0, 0], [4, 4, 0, 0], [0, 0, 0, 0]])


def test_label_entropy_runs_from_one_class_to_all_alike() -> None:
    assert label_entropy(COUNTS) == pytest.approx([1.0, 0.0, 0.5, np.nan], nan_ok=True)
    assert label_entropy(np.array([[3], [0]])) == pytest.approx([1.0, np.nan], nan_ok=True), "with one class nothing can be skewed"


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=2, max_size=5))
def test_the_js_distance_equals_scipys(rows: list[list[int]]) -> None:
    counts = np.array(rows)
    distances = js_distance(counts)
    for row, distance in zip(counts, distances, strict=True):
        if not row.sum():
            assert np.isnan(distance)
        else:
            assert distance == pytest.approx(jensenshannon(row, counts.sum(axis=0), base=2), abs=1e-7)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_the_gini_coefficient_equals_its_definition(sizes: list[int]) -> None:
    values = np.array(sizes)
    differences = np.abs(values[:, None] - values).sum()
    expected = differences / (2 * values.size * values.sum()) if values.sum() else 0.0
    assert size_gini(values) == pytest.approx(expected, abs=1e-12)


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(PartitionError, match="E306 labels from 0 to 3 for 3 classes"):
        label_counts(Shards.of([[0, 1]]), np.array([0, 3]), 3)
    with pytest.raises(PartitionError, match="E306 labels from -1"):
        label_counts(Shards.of([[0, 1]]), np.array([-1, 2]), 3)


def test_a_summary_has_no_nan_where_clients_are_empty_or_labels_are_no_classes() -> None:
    shards = Shards.of([[0, 1], [], [2, 3]])
    measures = summary(shards, np.array([0, 1, 0, 0]), 2)
    assert measures["label_entropy_mean"] == pytest.approx(0.5)
    assert measures["size_gini"] == pytest.approx(1 / 3)
    assert measures["js_distance_mean"] is not None and 0 < measures["js_distance_mean"] < 1
    for labels, classes in ((None, None), (np.linspace(0, 1, 4), 2), (np.zeros((4, 3), dtype=int), 2)):
        assert summary(shards, labels, classes)["label_entropy_mean"] is None
    assert summary(Shards.of([[], []]), np.array([0, 1]), 2) == {"label_entropy_mean": None, "js_distance_mean": None, "size_gini": 0.0}


def _shift_by_definition(shards: Shards, features: np.ndarray) -> np.ndarray:
    flat = features.reshape(len(features), -1).astype(np.float64)
    owned, total = flat[shards.indices], shards.indices.size
    mean, spread = owned.mean(axis=0), owned.std(axis=0)
    shift = []
    for own in shards:
        if not own.size:
            shift.append(np.nan)
            continue
        squares = (((flat[own].mean(axis=0) - mean) / np.where(spread > 0, spread, 1)) ** 2)[spread > 0].mean()
        shift.append(np.sqrt(max(squares - (total - own.size) / (own.size * (total - 1)), 0.0)))
    return np.array(shift)


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_feature_shift_equals_its_definition_in_chunks_of_any_size(chunk: int) -> None:
    rng = stream(0, "shift")
    features = rng.normal(size=(60, 2, 3)) + 1e4
    features[:, 1, 2] = 5.0  # a constant feature does not count
    shards = Shards.of([np.arange(20), [], np.arange(20, 21), np.arange(21, 60)])
    features[:20, 0, 0] += 3.0
    assert feature_shift(shards, features, chunk) == pytest.approx(_shift_by_definition(shards, features), nan_ok=True, rel=1e-6, abs=1e-7)


def test_feature_shift_is_near_zero_by_chance_alone_and_finds_a_moved_client() -> None:
    features = stream(1, "shift").normal(size=(2000, 50))
    shards = IID(100).split(Attributes(2000), stream(1)).shards
    assert feature_shift(shards, features).mean() < 0.1
    features[shards[7]] += 2.0
    shift = feature_shift(shards, features)
    assert shift.argmax() == 7 and shift[7] == pytest.approx(1.94, abs=0.1)


def test_features_that_never_vary_show_no_shift() -> None:
    assert feature_shift(Shards.of([[0, 1], []]), np.ones((2, 3))) == pytest.approx([0.0, np.nan], nan_ok=True)


def test_gradient_angles_of_known_vectors() -> None:
    angles = gradient_angles(np.array([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    assert angles is not None
    assert (angles.mean, angles.median, angles.share_over_60) == pytest.approx((120.0, 90.0, 1.0))
    assert angles.mean_cosine == pytest.approx(-1 / 3) and angles.norm_ratio == pytest.approx(2.0)
    narrow = gradient_angles(np.array([[1.0, 0.0], [1.0, 1.0]]))
    assert narrow is not None and narrow.mean == pytest.approx(45.0) and narrow.share_over_60 == 0.0


def test_clients_without_a_usable_gradient_are_left_out_of_the_angles() -> None:
    rows = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [np.nan, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, np.inf]])
    for columns in (1, 2, 1000):
        angles = gradient_angles(rows, columns=columns)
        assert angles is not None and angles.num_clients == 2 and angles.mean == pytest.approx(90.0)
    assert gradient_angles(rows[:3]) is None
    assert gradient_angles(np.zeros((0, 3))) is None


def test_gradient_angles_depend_neither_on_the_block_nor_on_the_scale() -> None:
    rows = stream(2, "gradients").normal(size=(20, 33)).astype(np.float32)
    whole, blocks = gradient_angles(rows), gradient_angles(rows * np.float32(8), columns=5)
    assert whole is not None and blocks is not None
    assert (whole.mean, whole.median, whole.norm_ratio) == pytest.approx((blocks.mean, blocks.median, blocks.norm_ratio))
    few = gradient_angles(np.repeat(np.eye(2), 50, axis=0), max_clients=10)
    assert few is not None and few.num_clients == 10 and few.mean == pytest.approx(90 * 25 / 45)


def test_the_summary_of_many_clients_is_taken_in_blocks_and_is_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(600) % 7
    shards = Shards.from_owner(np.random.default_rng(0).integers(0, 50, 600), 53)
    whole = summary(shards, labels, 7)
    counts = label_counts(shards, labels, 7)
    assert whole["label_entropy_mean"] == mean_of(label_entropy(counts)) and whole["js_distance_mean"] == mean_of(js_distance(counts))
    for table in (1, 70, 7 * 52):
        monkeypatch.setattr(measures, "TABLE", table)
        assert summary(shards, labels, 7) == whole


def test_some_clients_in_a_row_are_shards_of_their_own() -> None:
    shards = Shards.of([[5, 2], [], [1, 3, 4], [0]])
    assert shards.between(1, 3) == Shards.of([[], [1, 3, 4]]) and shards.between(0, 4) == shards and len(shards.between(2, 2)) == 0
