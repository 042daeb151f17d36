from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from importlib import resources
from typing import Any

import numpy as np
import pytest
import torch

from fedaccord.core.errors import ConfigError
from fedaccord.tasks import TASKS, Task, digits, fashion_mnist_mini, synthetic_segmentation

EMBEDDED = ("digits", "fashion_mnist_mini", "breast_cancer", "synthetic_segmentation")


def rows_of(task: Task) -> list[bytes]:
    splits = [task.train, task.test, *([task.validation] if task.validation is not None else [])]
    return [row.numpy().tobytes() for split in splits for row in split.x]


@pytest.mark.parametrize(
    ("name", "train", "validation", "test"),
    [
        ("digits", 1150, 288, 359),
        ("fashion_mnist_mini", 1600, 400, 500),
        ("breast_cancer", 364, 91, 114),
        ("synthetic_segmentation", 192, 48, 80),
    ],
)
def test_embedded_splits_have_their_sizes_share_no_row_and_fit_their_model(name: str, train: int, validation: int, test: int) -> None:
    task = TASKS[name]()
    assert task.validation is not None
    assert (len(task.train), len(task.validation), len(task.test)) == (train, validation, test)
    rows = rows_of(task)
    assert len(rows) - len(set(rows)) == 0
    assert task.name == name
    task.check()


@pytest.mark.parametrize("name", EMBEDDED)
def test_inputs_are_scaled_by_the_training_rows_alone(name: str) -> None:
    task = TASKS[name]()
    axes = (0, *range(2, task.train.x.ndim))
    assert task.train.x.mean(axes).abs().max() < 5e-6
    assert (task.train.x.std(axes, correction=0) - 1).abs().max() < 1e-3
    assert task.test.x.mean(axes).abs().max() > 2e-5


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_same_data_come_out_every_time_and_without_a_validation_set_train_is_larger(name: str) -> None:
    first = TASKS[name]()
    torch.manual_seed(5)
    np.random.seed(5)
    assert TASKS[name]().data_hash() == first.data_hash()
    whole = TASKS[name](validation=0.0)
    assert whole.validation is None and first.validation is not None
    assert len(whole.train) == len(first.train) + len(first.validation)


def test_fashion_is_balanced_in_every_split_and_its_licence_lies_beside_it() -> None:
    task = fashion_mnist_mini()
    assert task.validation is not None and task.labels is not None and task.class_names is not None
    assert np.bincount(task.labels).tolist() == [160] * 10
    assert torch.bincount(task.validation.y).tolist() == [40] * 10 and torch.bincount(task.test.y).tolist() == [50] * 10
    assert task.class_names[9] == "ankle boot"
    folder = resources.files("fedaccord.tasks").joinpath("embedded_data")
    licence = folder.joinpath("LICENSE").read_text()
    assert "Copyright (c) 2017 Zalando SE" in licence and "WITHOUT WARRANTY OF ANY KIND" in licence


def test_embedded_fashion_is_the_one_of_the_shared_data(data_folder: Any) -> None:
    shipped = resources.files("fedaccord.tasks").joinpath("embedded_data").joinpath("fashion_mnist_mini.npz").read_bytes()
    assert shipped == (data_folder / "fashion_mnist_mini.npz").read_bytes()


def test_segmentation_masks_mark_the_discs_and_sites_differ() -> None:
    task = synthetic_segmentation(num_train=40, num_test=8)
    assert task.site is not None and task.ids is not None and sorted(set(task.site)) == [f"site-{i}" for i in range(4)]
    mask = task.train.y.bool()
    assert 0.01 < task.train.y.mean() < 0.5 and bool((task.train.y.sum((1, 2, 3)) > 0).all())
    assert task.train.x[mask].mean() > task.train.x[~mask].mean() + 0.3
    means = [task.train.x[torch.from_numpy(task.site == site)].mean().item() for site in sorted(set(task.site))]
    assert max(means) - min(means) > 0.2
    assert task.labels is None and task.num_classes is None
    with pytest.raises(ConfigError, match="E203"):
        synthetic_segmentation(num_sites=0)


@pytest.mark.parametrize(
    ("name", "options", "aim"),
    [("digits", {"model": "softmax"}, 0.9), ("fashion_mnist_mini", {"model": "softmax"}, 0.75), ("breast_cancer", {"hidden": (8,)}, 0.9)],
)
def test_a_short_training_learns_what_the_labels_say(name: str, options: dict[str, Any], aim: float) -> None:
    task = TASKS[name](**options)
    model = task.build_model(0)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimiser.zero_grad()
        task.loss(model(task.train.x), task.train.y).backward()
        optimiser.step()
    accuracy = task.measure(model(task.test.x), task.test.y)["accuracy"]
    assert accuracy is not None and accuracy > aim


def test_model_options_reach_the_model_and_those_it_lacks_are_refused() -> None:
    assert [p.shape[0] for p in fashion_mnist_mini(model="mlp", hidden=(30, 20)).build_model(0).parameters()][::2] == [30, 20, 10]
    with pytest.raises(ConfigError, match="E208 model 'softmax' has no 'hidden'"):
        digits(model="softmax", hidden=(3,))
    with pytest.raises(ConfigError, match="E208 model 'lenet' has no 'norm'"):
        fashion_mnist_mini(norm="batch")


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_keyword_of_a_named_task_is_typed_so_that_an_experiment_can_be_checked(name: str) -> None:
    hints = typing.get_type_hints(TASKS[name])
    parameters = inspect.signature(TASKS[name]).parameters
    assert set(hints) == {*parameters, "return"} and hints["return"] is Task
    required = [p.name for p in parameters.values() if p.default is p.empty]
    assert required == {"npz": ["path"], "parquet": ["path", "label"], "csv": ["path", "label"]}.get(name, [])


def test_importing_tasks_loads_no_heavy_library() -> None:
    heavy = ("pandas", "sklearn", "pyarrow", "datasets", "matplotlib", "scipy")
    check = f"import sys, fedaccord.tasks; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
