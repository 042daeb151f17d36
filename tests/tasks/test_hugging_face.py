from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedaccord.core.errors import ConfigError, DataError
from fedaccord.tasks import Task, from_hugging_face

datasets = pytest.importorskip("datasets", reason="needs the extra 'data'")


def rows(n: int = 20) -> Any:
    return datasets.Dataset.from_dict(
        {
            "signal": [[float(i), 1.0, 2.0] for i in range(n)],
            "age": [20 + i for i in range(n)],
            "kind": [("walk", "sit")[i % 2] for i in range(n)],
            "person": [f"p{i % 3}" for i in range(n)],
        }
    )


def test_a_data_set_in_memory_becomes_a_task_with_natural_clients() -> None:
    splits = from_hugging_face(rows(), input="signal", label="kind", client_id="person", site="person", test=0.2, validation=0.25)
    task = Task(model=nn.Linear(3, 2), loss=F.cross_entropy, **splits)
    assert task.class_names == ("sit", "walk") and task.validation is not None
    assert (len(task.train), len(task.validation), len(task.test)) == (12, 4, 4)
    first = [int(row[0]) for row in task.train.x]
    assert task.ids is not None and task.ids.tolist() == [f"p{i % 3}" for i in first]
    assert task.train.y.tolist() == [1 - i % 2 for i in first]
    task.check()


def test_several_columns_of_numbers_stand_side_by_side() -> None:
    data = rows().add_column("height", [float(i) for i in range(20)])
    train = from_hugging_face(data, input=("age", "height"), label="kind")["train"]
    assert train.x.dtype == torch.float32 and torch.equal(train.x[:, 0] - 20, train.x[:, 1])


def test_pictures_are_decoded_channels_first_and_class_names_are_kept() -> None:
    pixels = np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "eel"])})
    data = datasets.Dataset.from_dict({"image": list(pixels), "label": [2, 0, 1]}, features=features)
    splits = from_hugging_face(datasets.DatasetDict({"train": data, "test": data, "extra": data}), input="image", label="label")
    assert splits["class_names"] == ("cat", "dog", "eel") and splits["validation"] is None
    assert splits["train"].x.dtype == torch.uint8
    assert np.array_equal(splits["train"].x.numpy(), np.moveaxis(pixels, -1, 1))
    assert splits["train"].y.tolist() == [2, 0, 1]


def test_declared_dtypes_survive_the_way_through_python_lists() -> None:
    features = datasets.Features(
        {"grid": datasets.Array2D((2, 2), "uint8"), "tokens": datasets.List(datasets.Value("int64")), "y": datasets.Value("float32")}
    )
    data = datasets.Dataset.from_dict({"grid": [[[0, 255], [1, 2]]] * 4, "tokens": [[1, 2]] * 4, "y": [0.5] * 4}, features=features)
    assert from_hugging_face(data, "grid", "y", test=0.5)["train"].x.dtype == torch.uint8
    assert from_hugging_face(data, "tokens", "y", test=0.5)["train"].x.dtype == torch.int64
    assert from_hugging_face(data, "grid", "y", test=0.5)["train"].y.dtype.is_floating_point


def test_a_test_split_that_exists_is_used_and_not_carved() -> None:
    data = datasets.DatasetDict({"train": rows(20), "validation": rows(4), "test": rows(6)})
    splits = from_hugging_face(data, input="signal", label="kind", validation=0.5)
    held_out = splits["validation"]
    assert held_out is not None and (len(splits["train"]), len(held_out), len(splits["test"])) == (20, 4, 6)


def test_what_cannot_be_read_is_named() -> None:
    with pytest.raises(DataError, match=r"E304 no column 'knd'\. split 'train'\. Did you mean 'kind'"):
        from_hugging_face(rows(), input="signal", label="knd")
    with pytest.raises(DataError, match="E304 no split 'train'"):
        from_hugging_face(datasets.DatasetDict({"all": rows()}), input="signal", label="kind")
    with pytest.raises(DataError, match="E305 the train set has 0 rows"):
        from_hugging_face(rows().select([]), input="signal", label="kind")
    with pytest.raises(ConfigError, match=r"E202 the train set is a IterableDataset.*without streaming"):
        from_hugging_face(rows().to_iterable_dataset(), input="signal", label="kind")
    with pytest.raises(ConfigError, match="E202 column 'kind' holds str"):
        from_hugging_face(rows(), input="kind", label="person")
    ragged = datasets.Dataset.from_dict({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]})
    with pytest.raises(DataError, match=r"E302 row 1 of 'x' has shape \[2\], row 0 has \[1\]"):
        from_hugging_face(ragged, input="x", label="y", test=0.5)


def test_a_hugging_face_object_given_straight_to_a_task_points_to_its_loader() -> None:
    with pytest.raises(ConfigError, match=r"E202 the train set is a Dataset with columns signal, age.*from_hugging_face"):
        Task(model=nn.Linear(3, 2), loss=F.cross_entropy, train=rows(), test=rows())
