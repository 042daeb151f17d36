from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedaccord.core.errors import ConfigError, DataError
from fedaccord.tasks import TASKS, Examples, Task, from_csv, from_npz, from_parquet, from_table
from fedaccord.tasks import memory as memory_module


def patients(n: int = 100) -> pd.DataFrame:
    """Distinct ages, a sex, a smoker column with three words, a lab value with gaps, a hospital, an outcome."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "hospital": [f"h{i % 4}" for i in range(n)],
            "age": np.arange(n) + 20.0,
            "smoker": [("never", "former", "daily")[i % 3] for i in range(n)],
            "lab": rng.normal(5, 2, n),
            "outcome": ["ill" if i % 5 == 0 else "healthy" for i in range(n)],
        }
    )
    table.loc[::7, "lab"] = np.nan
    return table


# ---- npz ----------------------------------------------------------------------------------------------------------------------------


def npz(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def test_an_npz_gives_the_keywords_of_a_task(tmp_path: Path) -> None:
    x, y = np.arange(80, dtype=np.float32).reshape(20, 4), np.arange(20, dtype=np.uint8) % 2
    path = npz(tmp_path, x_train=x, y_train=y, x_test=x[:6], y_test=y[:6], writer=np.arange(20) // 5)
    task = Task(model=nn.Linear(4, 2), loss=F.cross_entropy, **from_npz(path, ids="writer", validation=0.2))
    assert (len(task.train), len(task.test)) == (16, 6) and task.validation is not None and len(task.validation) == 4
    assert task.ids is not None and task.ids.tolist() == [int(row[0]) // 4 // 5 for row in task.train.x]


def test_an_npz_can_mark_its_test_rows_or_leave_a_share(tmp_path: Path) -> None:
    x, y = np.arange(20, dtype=np.float32)[:, None], np.arange(20) % 2
    marks = np.arange(20) % 4 == 0
    path = npz(tmp_path, x=x, y=y, is_test=marks, site=np.array(["a", "b"] * 10))
    splits = from_npz(path, "x", "y", test="is_test", site="site")
    assert splits["test"].x[:, 0].tolist() == [0, 4, 8, 12, 16]
    assert splits["test"].site is not None and set(splits["test"].site) == {"a"}
    shared = from_npz(path, "x", "y", test=0.3)
    assert sorted([*shared["test"].x[:, 0].tolist(), *shared["train"].x[:, 0].tolist()]) == list(range(20))
    assert np.bincount(shared["test"].y.numpy()).tolist() == [3, 3]
    with pytest.raises(DataError, match=r"E302 'x' is not one true or false a row"):
        from_npz(path, "x", "y", test="x")
    with pytest.raises(ConfigError, match="E204 no test set is named"):
        from_npz(path, "x", "y", x_test=None)


def test_a_missing_file_or_array_names_the_nearest(tmp_path: Path) -> None:
    path = npz(tmp_path, x_train=np.zeros((3, 2)), y_train=np.zeros(3), x_test=np.zeros((3, 2)), y_tset=np.zeros(3))
    with pytest.raises(DataError, match=r"E304 no array 'y_test'.*Did you mean 'y_tset'"):
        from_npz(path)
    with pytest.raises(DataError, match=r"E301 there is no file '.*date\.npz'.*Did you mean 'data\.npz'"):
        from_npz(tmp_path / "date.npz")
    with pytest.raises(DataError, match=r"E301 .*There is no folder"):
        from_npz(tmp_path / "nowhere" / "data.npz")


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (partial(pytest.fail, "unpickled"), ())

    path = npz(tmp_path, x_train=np.array([Trap(), Trap()], dtype=object), y_train=np.zeros(2))
    with pytest.raises(DataError, match=r"E301 .*Python objects, which are never unpickled"):
        from_npz(path)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 cut short"])
def test_a_damaged_npz_is_an_error_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"E301 'data\.npz' cannot be read"):
        from_npz(path)


def test_an_npz_cut_in_the_middle_of_an_array_is_an_error(tmp_path: Path) -> None:
    path = npz(tmp_path, x_train=np.zeros((100, 100)), y_train=np.zeros(100), x_test=np.zeros((3, 100)), y_test=np.zeros(3))
    content = bytearray(path.read_bytes())
    content[1000:1100] = b"\xff" * 100
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="E301"):
        from_npz(path)


def test_an_array_larger_than_memory_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = npz(tmp_path, x_train=np.zeros((1000, 100)), y_train=np.zeros(1000), x_test=np.zeros((3, 100)), y_test=np.zeros(3))
    monkeypatch.setattr(memory_module, "available_memory", lambda: 500_000)
    with pytest.raises(DataError, match=r"E307 .*x_train"):
        from_npz(path)


# ---- tables -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz"])
def test_parquet_and_csv_give_the_same_splits_with_natural_clients(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"patients.{kind}"
    if kind == "parquet":
        patients().to_parquet(path)
        splits = from_parquet(path, label="outcome", client_id="hospital", validation=0.25)
    else:
        patients().to_csv(path, index=False)
        if kind == "csv.gz":
            gzip.decompress(path.read_bytes())
        splits = from_csv(path, label="outcome", client_id="hospital", validation=0.25)
    direct = from_table(patients(), label="outcome", client_id="hospital", validation=0.25)
    assert splits["class_names"] == ("healthy", "ill")
    for name in ("train", "test", "validation"):
        ours, theirs = dict(splits)[name], dict(direct)[name]
        assert isinstance(ours, Examples) and isinstance(theirs, Examples) and ours.ids is not None and theirs.ids is not None
        assert torch.allclose(ours.x, theirs.x, atol=1e-6) and torch.equal(ours.y, theirs.y)
        assert ours.ids.tolist() == theirs.ids.tolist()
    train, test, held_out = splits["train"], splits["test"], splits["validation"]
    assert held_out is not None and (len(train), len(held_out), len(test)) == (60, 20, 20)
    assert train.ids is not None and set(train.ids) == {"h0", "h1", "h2", "h3"}
    assert [np.bincount(rows.y.numpy()).tolist() for rows in (train, held_out, test)] == [[48, 12], [16, 4], [16, 4]]
    # age (distinct in every row) is the first column: undo its scale to see which rows went where
    age = np.concatenate([rows.x[:, 0].numpy() for rows in (train, held_out, test)])
    assert len(np.unique(age.round(4))) == 100


def test_scale_median_and_categories_come_from_training_rows_alone() -> None:
    table = pd.DataFrame(
        {
            "value": [1.0, 2.0, 3.0, np.nan, 1000.0, np.nan],
            "word": ["a", "b", "a", None, "z", "b"],
            "y": [0, 1, 0, 1, 0, 1],
            "part": ["train"] * 4 + ["test"] * 2,
        }
    )
    splits = from_table(table, label="y", test="part")
    train, test = splits["train"].x.numpy(), splits["test"].x.numpy()
    filled = np.array([1.0, 2.0, 3.0, 2.0])  # the median of 1, 2, 3
    assert train[:, 0] == pytest.approx((filled - 2) / filled.std())
    assert test[:, 0] == pytest.approx((np.array([1000.0, 2.0]) - 2) / filled.std())
    assert train[:, 1].tolist() == [0, 0, 0, 1] and test[:, 1].tolist() == [0, 1]  # "value missing"
    assert train[:, 2:].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]  # a, b, missing
    assert test[:, 2:].tolist() == [[0, 0, 0], [0, 1, 0]]  # z was never seen


def test_no_indicator_is_made_where_only_other_rows_miss_a_value_and_constants_become_zero() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, np.nan], "b": [7, 7, 9], "y": [0, 1, 1], "part": ["train", "train", "test"]})
    splits = from_table(table, label="y", test="part")
    assert splits["train"].x.tolist() == [[-1, 0], [1, 0]]
    assert splits["test"].x.tolist() == [[0, 2]]


def test_integer_columns_can_be_named_categories() -> None:
    table = pd.DataFrame({"grade": [1, 2, 3, 1, 2, 3], "y": [0, 1] * 3})
    assert from_table(table, "y", test=0.34, categorical=("grade",))["train"].x.shape[1] == 3
    assert from_table(table, "y", test=0.34)["train"].x.shape[1] == 1


@pytest.mark.parametrize("marks", [[0, 0, 0, 1], [False, False, False, True], ["train", "Train", "train", "TEST"]])
def test_a_column_can_say_which_rows_are_test_rows(marks: list[Any]) -> None:
    splits = from_table(pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1], "mark": marks}), "y", test="mark")
    assert (len(splits["train"]), len(splits["test"])) == (3, 1) and splits["train"].x.shape[1] == 1


def test_a_column_can_name_validation_rows_but_not_together_with_a_share() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0, 1, 0], "part": ["train", "validation", "test"]})
    held_out = from_table(table, "y", test="part")["validation"]
    assert held_out is not None and len(held_out) == 1
    with pytest.raises(ConfigError, match="E208"):
        from_table(table, "y", test="part", validation=0.5)
    with pytest.raises(DataError, match=r"E306 column 'part' says 'dev'\. table, row 1"):
        from_table(table.assign(part=["train", "dev", "test"]), "y", test="part")
    with pytest.raises(DataError, match="E305 column 'part' marks 0 rows as test"):
        from_table(table.assign(part="train"), "y", test="part")


def test_labels_are_classes_or_numbers_by_what_they_hold_and_the_choice_can_be_made() -> None:
    base = pd.DataFrame({"a": np.arange(6.0)})
    codes = from_table(base.assign(y=[30, 10, 20] * 2), "y", test=0.5)
    assert codes["class_names"] == ("10", "20", "30") and codes["train"].y.dtype == torch.int64 and int(codes["train"].y.max()) == 2
    numbers = from_table(base.assign(y=np.arange(6) + 0.5), "y", test=0.5)
    assert numbers["class_names"] is None and numbers["train"].y.shape == (3, 1) and numbers["train"].y.dtype == torch.float32
    assert from_table(base.assign(y=[1, 2, 3] * 2), "y", test=0.5, target="number")["class_names"] is None
    assert from_table(base.assign(y=[True, False] * 3), "y", test=0.5)["class_names"] == ("False", "True")
    with pytest.raises(DataError, match=r"E306 label 'y' has dtype .*, not numbers"):
        from_table(base.assign(y=list("ababab")), "y", target="number")
    long = pd.DataFrame({"a": np.arange(1001.0), "y": np.arange(1001)})
    with pytest.raises(DataError, match=r"E306 label 'y' has 1001 distinct values.*target = 'number'"):
        from_table(long, "y")


def test_every_column_asked_for_must_exist_and_the_nearest_is_named(tmp_path: Path) -> None:
    path = tmp_path / "patients.parquet"
    patients().to_parquet(path)
    for changes in (
        {"label": "outcom"},
        {"client_id": "hospitl"},
        {"site": "hospitl"},
        {"features": ("agee",)},
        {"categorical": ("smokr",)},
        {"test": "agee"},
    ):
        with pytest.raises(DataError, match=r"E304 no column '\w+'\. .*patients\.parquet\. Did you mean '(outcome|hospital|age|smoker)'"):
            from_parquet(path, **({"label": "outcome"} | changes))


def test_columns_that_cannot_be_inputs_are_named() -> None:
    table = patients()
    with pytest.raises(DataError, match=r"E308 column 'note' has \d+ distinct values in the training rows, at most 100"):
        from_table(pd.concat([table, table]).assign(note=[f"text {i}" for i in range(200)]), "outcome")
    with pytest.raises(DataError, match=r"E308 column 'when' has dtype datetime"):
        from_table(table.assign(when=pd.Timestamp("2026-01-01")), "outcome")
    with pytest.raises(DataError, match=r"E308 column 'gone' is missing in all 80 training rows"):
        from_table(table.assign(gone=np.nan), "outcome")
    with pytest.raises(DataError, match=r"E303 1 Inf in column 'age'\. table, row 3"):
        from_table(table.assign(age=table["age"].where(table.index != 3, np.inf)), "outcome")
    with pytest.raises(ConfigError, match="E203 the label is among the inputs"):
        from_table(table, "outcome", features=("age", "outcome"))


def test_missing_labels_and_clients_are_counted() -> None:
    table = patients()
    for column in ("outcome", "hospital"):
        with pytest.raises(DataError, match=rf"E303 2 missing values in column '{column}'\. table, row 5"):
            from_table(table.assign(**{column: table[column].where(~table.index.isin([5, 9]))}), "outcome", client_id="hospital")
    with pytest.raises(DataError, match="E305 the table has 0 rows"):
        from_table(table[:0], "outcome")


def test_damaged_tables_are_an_error_with_the_name(tmp_path: Path) -> None:
    for name, reader in (("t.parquet", from_parquet), ("t.csv.gz", from_csv), ("t.csv", from_csv)):
        (tmp_path / name).write_bytes(b'a,b\n"1,2\n' if name == "t.csv" else b"nonsense")
        with pytest.raises(DataError, match=rf"E301 '{name}' cannot be read"):
            reader(tmp_path / name, label="y")


def test_a_table_of_text_without_numbers_is_fine() -> None:
    table = pd.DataFrame({"word": pd.Categorical(list("abcabc")), "y": [0, 1, 0, 1, 0, 1]})
    assert from_table(table, "y", test=0.34)["train"].x.shape[1] <= 3


# ---- real files ---------------------------------------------------------------------------------------------------------------------


def test_four_hospitals_with_many_gaps_become_a_task(data_folder: Path) -> None:
    task = TASKS["csv"](str(data_folder / "heart_disease_4_hospitals.csv.gz"), label="num", client_id="hospital")
    assert task.num_classes == 5 and task.ids is not None and len(set(task.ids)) == 4
    assert len(task.train) + len(task.test) + (0 if task.validation is None else len(task.validation)) == 920
    task.check()


def test_42_patients_with_a_score_become_a_regression(data_folder: Path) -> None:
    task = TASKS["parquet"](
        str(data_folder / "parkinsons_telemonitoring.parquet"), label="motor_UPDRS", client_id="subject", model="softmax"
    )
    assert task.num_classes is None and task.ids is not None and len(set(task.ids.tolist())) == 42
    assert list(task.metrics) == ["mean_absolute_error", "root_mean_squared_error", "r2"]
    task.check()


def test_retina_photographs_of_four_sites_are_read_with_their_marks(data_folder: Path) -> None:
    splits = from_npz(data_folder / "retina_vessels_4_sites.npz", "x", "mask_fraction", test="is_test", site="site")
    train, test = splits["train"], splits["test"]
    assert len(train) + len(test) == 130 and len(test) == 20 + 8 + 6 + 12
    assert train.site is not None and sorted(set(train.site)) == ["CHASE_DB1", "DRIVE", "HRF", "STARE"]


def test_writers_are_natural_clients_of_both_splits(data_folder: Path) -> None:
    splits = from_npz(data_folder / "mnist_writers.npz", ids="writer_train", ids_test="writer_test")
    train, test = splits["train"].ids, splits["test"].ids
    assert train is not None and test is not None
    assert len(set(train.tolist())) == 539 and not set(train.tolist()) & set(test.tolist())


# ---- tasks by name ------------------------------------------------------------------------------------------------------------------


def test_an_npz_of_pictures_becomes_a_normalised_task_for_a_picture_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 20, 24, 3), dtype=np.uint8)
    x[..., 2] //= 4
    path = npz(tmp_path, x_train=x, y_train=np.arange(40) % 4, x_test=x[:8], y_test=np.arange(8) % 4)
    task = TASKS["npz"](str(path), model="lenet", width=4, validation=0.25)
    assert task.in_shape == (3, 20, 24) and task.num_classes == 4
    assert task.train.x.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert task.train.x.std((0, 2, 3)).tolist() == pytest.approx([1, 1, 1], abs=1e-3)
    task.check()


def test_an_npz_of_masks_becomes_a_segmentation_task(tmp_path: Path) -> None:
    x, mask = np.zeros((12, 16, 16), dtype=np.uint8), np.zeros((12, 16, 16), dtype=np.uint8)
    x[:, 4:8], mask[:, 4:8] = 200, 1
    path = npz(tmp_path, x_train=x, y_train=mask, x_test=x[:3], y_test=mask[:3])
    task = TASKS["npz"](str(path), model="unet", width=4, validation=0.25)
    assert list(task.metrics) == ["dice"] and task.train.y.shape == (9, 1, 16, 16)
    task.check()
    path = npz(tmp_path, x_train=x, y_train=mask * 255, x_test=x[:3], y_test=mask[:3])
    with pytest.raises(DataError, match="E306 the masks have"):
        TASKS["npz"](str(path), model="unet")


def test_an_npz_of_one_class_is_refused(tmp_path: Path) -> None:
    x, y = np.zeros((12, 4)), np.zeros(12, dtype=np.int64)
    with pytest.raises(DataError, match="E306 the labels hold 1 class"):
        TASKS["npz"](str(npz(tmp_path, x_train=x, y_train=y, x_test=x, y_test=y)))


def test_examples_keep_ids_and_sites_when_rows_are_taken() -> None:
    rows = Examples.of(np.arange(5.0)[:, None], np.arange(5), ids=list("abcde"), site=np.arange(5)).take(np.array([3, 1]))
    assert rows.ids is not None and rows.site is not None
    assert (rows.x[:, 0].tolist(), rows.y.tolist(), rows.ids.tolist(), rows.site.tolist()) == ([3, 1], [3, 1], ["d", "b"], [3, 1])
