from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedaccord.core.errors import ConfigError, DataError
from fedaccord.tasks import Examples, Task
from fedaccord.tasks import memory as memory_module
from fedaccord.tasks.losses import squared_error


def arrays(n: int = 12, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 4)).astype(np.float32), np.arange(n) % classes


def task(**changes: Any) -> Task:
    given: dict[str, Any] = {"model": nn.Linear(4, 3), "loss": F.cross_entropy, "train": arrays(30), "test": arrays(9, seed=1)}
    return Task(**(given | changes))


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items, self.reads = items, 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        self.reads += 1
        return self.items[row]


# ---- what goes in -------------------------------------------------------------------------------------------------------------------


def test_a_task_is_made_from_arrays_in_one_line() -> None:
    made = task()
    assert (len(made.train), len(made.test), made.validation, made.num_classes) == (30, 9, None, 3)
    assert made.train.x.dtype == torch.float32 and made.train.y.dtype == torch.int64
    assert list(made.metrics) == ["accuracy"]
    made.check()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", ">i4", "bool", "float64"])
def test_class_labels_of_any_dtype_become_int64(dtype: str) -> None:
    x, y = arrays(30, classes=2)
    made = task(train=(x, y.astype(dtype)), test=(x, y.astype(dtype)))
    assert made.train.y.dtype == torch.int64
    assert made.train.y.tolist() == y.tolist()
    assert made.num_classes == 2


def test_uint8_inputs_are_scaled_to_one_and_int64_inputs_stay_tokens() -> None:
    picture = np.array([[0, 51, 102, 255]], dtype=np.uint8).repeat(4, axis=0)
    made = task(train=(picture, np.arange(4) % 3), test=(picture, np.arange(4) % 3))
    assert made.train.x[0].tolist() == pytest.approx([0, 0.2, 0.4, 1.0])
    tokens = np.arange(8).reshape(4, 2)
    assert task(train=(tokens, np.arange(4) % 3), test=(tokens, np.arange(4) % 3)).train.x.dtype == torch.int64
    assert (
        task(train=(tokens.astype(np.int16), np.arange(4) % 3), test=(tokens.astype(np.int16), np.arange(4) % 3)).train.x.tolist()
        == tokens.tolist()
    )


@pytest.mark.parametrize(("model", "expected"), [(nn.Linear(4, 3), torch.float32), (nn.Linear(4, 3).double(), torch.float64)])
@pytest.mark.parametrize("factory", [False, True])
def test_float64_stays_only_where_the_model_is_float64(model: nn.Module, expected: torch.dtype, factory: bool) -> None:
    x, y = arrays(30)
    made = task(model=(lambda: model) if factory else model, train=(x.astype(np.float64), y), test=(x.astype(np.float64), y))
    assert made.train.x.dtype == made.test.x.dtype == expected


def test_tensors_lists_read_only_reversed_and_foreign_byte_order_arrays_are_all_accepted() -> None:
    x, y = arrays(30)
    fixed = x.copy()
    fixed.flags.writeable = False
    expected = task(train=(x, y)).train.x
    for given in (torch.from_numpy(x), x.tolist(), fixed, x[::-1].copy()[::-1], x.astype(">f4"), np.asfortranarray(x), x.astype(object)):
        assert torch.equal(task(train=(given, y)).train.x, expected)


def test_a_map_style_dataset_is_read_once_into_tensors() -> None:
    x, y = arrays(30)
    data = Pairs([(torch.from_numpy(row), int(label)) for row, label in zip(x, y, strict=True)])
    made = task(train=data)
    assert data.reads == 30
    assert torch.equal(made.train.x, torch.from_numpy(x)) and made.train.y.tolist() == y.tolist()


def test_a_list_of_two_items_is_a_tiny_dataset_not_a_pair() -> None:
    made = task(train=[([1.0, 2.0, 3.0, 4.0], 0), ([5.0, 6.0, 7.0, 8.0], 2)])
    assert made.train.x.shape == (2, 4) and made.train.y.tolist() == [0, 2]


def test_tensor_datasets_and_pictures_are_understood() -> None:
    from PIL import Image

    x, y = arrays(30)
    assert torch.equal(task(train=torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))).train.x, torch.from_numpy(x))
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)  # height 2, width 3, three colours
    data = Pairs([(Image.fromarray(pixels), label) for label in (0, 1, 2)])
    made = task(train=data, test=data)
    assert made.in_shape == (3, 2, 3)
    assert made.train.x[0, 2, 1, 0].item() == pytest.approx(pixels[1, 0, 2] / 255)


def test_what_is_no_data_set_is_refused_with_the_forms_that_are() -> None:
    loader = torch.utils.data.DataLoader(Pairs([(1.0, 0)]))
    for wrong in (loader, 7, (1, 2, 3), iter([(1.0, 0)])):
        with pytest.raises(ConfigError, match=r"E202 the train set is a .*split 'train'.*pair \(x, y\)"):
            task(train=wrong)
    with pytest.raises(ConfigError, match=r"E202 item 0 is a float, not a pair"):
        task(train=Pairs([1.0]))


# ---- what is refused ----------------------------------------------------------------------------------------------------------------


def test_lengths_that_disagree_are_counted() -> None:
    x, y = arrays(30)
    with pytest.raises(DataError, match=r"E302 the test set has 30 inputs, 29 labels.*split 'test', row 29"):
        task(test=(x, y[:-1]))
    with pytest.raises(DataError, match=r"E302 the train set has 30 inputs, 30 labels, 4 ids"):
        task(train=Examples(torch.from_numpy(x), torch.from_numpy(y), ids=np.arange(4)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_inputs_are_counted_and_placed(bad: float) -> None:
    x, y = arrays(30)
    x[17, 2] = x[17, 3] = x[20, 0] = bad
    with pytest.raises(DataError, match=r"E303 3 NaN or Inf in the validation inputs, the first in row 17\. split 'validation', row 17"):
        task(validation=(x, y))


def test_the_row_of_a_nan_is_right_beyond_the_first_block() -> None:
    x = torch.zeros(10, 3_000_000)
    x[7, 5] = torch.nan
    with pytest.raises(DataError, match="row 7"):
        task(train=(x, torch.zeros(10, dtype=torch.int64)))


def test_large_finite_inputs_whose_sum_overflows_are_accepted() -> None:
    x, y = arrays(30)
    assert task(train=(np.full_like(x, 3e38), y)).train.x.max() == np.float32(3e38)


@pytest.mark.parametrize("split", ["train", "test", "validation"])
def test_an_empty_split_is_refused_by_name(split: str) -> None:
    x, y = arrays(30)
    with pytest.raises(DataError, match=rf"E305 the {split} set has 0 rows"):
        task(**{split: (x[:0], y[:0])})
    with pytest.raises(DataError, match=rf"E305 the {split} set has 0 rows"):
        task(**{split: Pairs([])})


def test_labels_that_are_not_classes_name_the_row_and_the_value() -> None:
    x, y = arrays(30)
    below, above, half = y.copy(), y.copy(), y.astype(np.float64)
    below[4], above[5], half[6] = -1, 7, 0.5
    with pytest.raises(DataError, match=r"E306 1 train labels are below 0 .* the first is -1 in row 4\. split 'train', row 4"):
        task(train=(x, below))
    with pytest.raises(DataError, match=r"E306 1 test labels are above 2, the last of 3 classes, the first is 7 in row 5"):
        task(test=(x, above), num_classes=3)
    with pytest.raises(DataError, match=r"E306 1 train labels are not a whole number, the first is 0\.5 in row 6"):
        task(train=(x, half))
    with pytest.raises(DataError, match=r"E306 the labels have dtype .*'cat'.*np\.unique"):
        task(train=(x, np.array(["cat"] * 30)))
    with pytest.raises(DataError, match=r"E306 the train labels have shape \[30, 1\].*reshape\(-1\)"):
        task(train=(x, y[:, None]))
    with pytest.raises(DataError, match=r"E303 1 NaN or Inf in the train labels, the first in row 6"):
        task(train=(x, np.where(half == 0.5, np.nan, half)))


def test_rows_of_another_shape_are_refused() -> None:
    x, y = arrays(30)
    with pytest.raises(DataError, match=r"E302 the test inputs have shape \[3\] a row, the train inputs \[4\]"):
        task(test=(x[:, :3], y))
    with pytest.raises(DataError, match=r"E302 row 1 has inputs \[3\] and label \[\], row 0 has \[4\]"):
        task(train=Pairs([(x[0], 0), (x[0, :3], 1)]))
    with pytest.raises(ConfigError, match="E202 the inputs are rows of different shapes"):
        task(train=([[1.0, 2.0], [3.0]], [0, 1]))


def test_data_larger_than_memory_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "available_memory", lambda: 2**30)
    data = Pairs([(torch.zeros(2**20), 0)])
    monkeypatch.setattr(Pairs, "__len__", lambda self: 1024)
    with pytest.raises(DataError, match=r"E307 the train set needs 4 GiB in memory, 1 GiB are available\. split 'train'"):
        task(train=data)
    assert data.reads == 1


def test_scaling_pictures_beyond_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "available_memory", lambda: 1000)
    picture, y = np.zeros((100, 4), dtype=np.uint8), np.arange(100) % 3
    with pytest.raises(DataError, match="E307"):
        task(train=(picture, y))
    monkeypatch.setattr(memory_module, "available_memory", lambda: 1600)
    task(train=(picture, y), test=(picture, y))


# ---- kinds of labels ----------------------------------------------------------------------------------------------------------------


def test_numbers_are_floats_without_classes_and_integer_targets_follow_the_loss() -> None:
    x, y = arrays(30)
    made = task(model=nn.Linear(4, 1), loss=F.mse_loss, train=(x, y[:, None]), test=(x, y[:, None]), metrics=("r2",))
    assert made.train.y.dtype == torch.float32 and made.num_classes is None and made.labels is None
    made = task(loss=lambda outputs, target: squared_error(outputs, target), train=(x, y * 0.5), test=(x, y * 0.5))
    assert made.train.y.dtype == torch.float32 and made.metrics == {}


def test_probabilities_as_labels_are_left_alone() -> None:
    x, _ = arrays(30)
    soft = np.full((30, 3), 1 / 3)
    made = task(train=(x, soft), test=(x, soft))
    assert made.num_classes is None and made.train.y.shape == (30, 3)
    made.check()


def test_the_number_of_classes_comes_from_all_splits_or_is_given() -> None:
    x, _ = arrays(30)
    assert task(test=(x, np.full(30, 6))).num_classes == 7
    assert task(num_classes=10).num_classes == 10


def test_metrics_can_be_names_and_an_unknown_one_is_corrected() -> None:
    assert list(task(metrics=("accuracy", "auc")).metrics) == ["accuracy", "auc"]
    with pytest.raises(ConfigError, match=r"E205 unknown metric 'acuracy'.*Did you mean 'accuracy'"):
        task(metrics=("acuracy",))


def test_a_metric_that_gives_nan_is_measured_as_none() -> None:
    made = task(metrics={"mine": lambda outputs, y: float("nan"), "none": lambda outputs, y: None, "one": lambda outputs, y: 1.0})
    assert made.measure(torch.zeros(2, 3), torch.zeros(2)) == {"mine": None, "none": None, "one": 1.0}


# ---- validation ---------------------------------------------------------------------------------------------------------------------


def test_a_share_is_carved_from_train_by_class_and_the_test_set_is_untouched() -> None:
    x = np.arange(200, dtype=np.float32)[:, None].repeat(4, axis=1)
    y = np.repeat([0, 1, 2], [100, 60, 40])
    made = task(train=Examples.of(x, y, ids=np.arange(200)), validation=0.1)
    assert made.validation is not None
    assert np.bincount(made.validation.y.numpy()).tolist() == [10, 6, 4]
    train, held_out = made.train.x[:, 0].tolist(), made.validation.x[:, 0].tolist()
    assert sorted(train + held_out) == list(range(200))
    assert train == sorted(train)
    assert made.train.ids is not None and made.train.ids.tolist() == train
    assert torch.equal(made.test.x, task().test.x)
    again = task(train=Examples.of(x, y), validation=0.1)
    assert again.validation is not None and torch.equal(again.validation.x, made.validation.x)


def test_a_class_with_one_row_stays_in_train() -> None:
    x, _ = arrays(11)
    made = task(train=(x, np.array([0] * 10 + [1])), validation=0.5)
    assert 1 in made.train.y and made.validation is not None and 1 not in made.validation.y


@pytest.mark.parametrize(("share", "code"), [(1.0, "E203"), (-0.1, "E203"), (1.5, "E203"), (0.001, "E305")])
def test_a_share_that_makes_no_validation_set_is_refused(share: float, code: str) -> None:
    with pytest.raises((ConfigError, DataError), match=code):
        task(validation=share)


def test_a_share_of_zero_is_no_validation_set() -> None:
    assert task(validation=0.0).validation is None


def test_given_validation_rows_are_used_as_they_are() -> None:
    made = task(validation=arrays(6, seed=5))
    assert made.validation is not None and len(made.validation) == 6 and len(made.train) == 30


# ---- the model ----------------------------------------------------------------------------------------------------------------------


def test_a_module_gives_its_present_weights_to_every_seed_and_is_copied() -> None:
    module = nn.Linear(4, 3)
    before = module.weight.detach().clone()
    made = task(model=module)
    with torch.no_grad():
        module.weight.zero_()
    first, second = made.build_model(0), made.build_model(1)
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    assert torch.equal(first.weight, before) and torch.equal(second.weight, before)
    assert first is not second


def test_a_factory_draws_weights_from_the_seed_and_leaves_the_global_generators_alone() -> None:
    made = task(model=partial(nn.Linear, 4, 3))
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = made.build_model(0).state_dict()["weight"]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(made.build_model(0).state_dict()["weight"], first)
    assert not torch.equal(made.build_model(1).state_dict()["weight"], first)


def test_a_class_is_a_factory() -> None:
    class Net(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)

    assert isinstance(task(model=Net).build_model(3), Net)


def test_a_factory_that_needs_arguments_or_makes_no_module_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"E202 the model factory Linear cannot be called without arguments: missing .*partial"):
        task(model=nn.Linear)
    with pytest.raises(ConfigError, match="E202 model is a str"):
        task(model="lenet")
    with pytest.raises(ConfigError, match="E202 the model factory returned a int"):
        task(model=lambda: 3).build_model(0)


def test_check_finds_a_model_that_does_not_fit_the_data() -> None:
    with pytest.raises(DataError, match=r"E306 model, loss, metrics and data do not fit: .*inputs \[2, 4\]"):
        task(model=nn.Linear(5, 3)).check()
    with pytest.raises(DataError, match=r"E306 .*outputs \[2, 2\]"):
        task(model=nn.Linear(4, 2), train=(arrays()[0], np.full(12, 2))).check()
    with pytest.raises(DataError, match=r"E306 the loss has shape \[2\]"):
        task(loss=lambda outputs, y: F.cross_entropy(outputs, y, reduction="none")).check()


# ---- the rest -----------------------------------------------------------------------------------------------------------------------


def test_labels_ids_and_sites_are_handed_to_partitioners_as_arrays() -> None:
    x, y = arrays(30)
    made = task(train=Examples.of(x, y, ids=[f"p{i % 5}" for i in range(30)], site=np.arange(30) % 2))
    assert made.labels is not None and made.labels.tolist() == y.tolist()
    assert made.ids is not None and made.ids[6] == "p1"
    assert made.site is not None and made.site[7] == 1
    assert made.num_examples == 30 and made.in_shape == (4,)


def test_the_hash_changes_with_any_value_id_or_split_and_with_nothing_else() -> None:
    x, y = arrays(30)
    base = task(train=Examples.of(x, y, ids=np.arange(30)))
    same = task(train=Examples.of(x.copy(), y.astype(np.int16), ids=np.arange(30)), model=nn.Linear(4, 3))
    assert base.data_hash() == same.data_hash() and len(base.data_hash()) == 64
    x2, y2, ids2 = x.copy(), y.copy(), np.arange(30)
    x2[3, 3] += 1
    y2[3] = (y2[3] + 1) % 3
    ids2[3] = 99
    changed = [
        task(train=Examples.of(x2, y, ids=np.arange(30))),
        task(train=Examples.of(x, y2, ids=np.arange(30))),
        task(train=Examples.of(x, y, ids=ids2)),
        task(train=Examples.of(x, y, site=np.arange(30))),
        task(train=Examples.of(x, y, ids=np.arange(30)), test=arrays(9, seed=2)),
        task(train=Examples.of(x, y, ids=np.arange(30)), validation=arrays(9, seed=1)),
    ]
    assert len({base.data_hash(), *(other.data_hash() for other in changed)}) == 7


def test_a_task_cannot_be_changed_and_reads_well() -> None:
    made = task(name="mine", validation=0.2)
    with pytest.raises(AttributeError):
        made.name = "other"  # type: ignore[misc]
    assert repr(made) == "Task('mine', 24 train, 6 validation, 9 test, inputs [4], 3 classes, metrics accuracy)"


def test_class_names_must_cover_the_classes() -> None:
    assert task(class_names=["a", "b", "c"]).class_names == ("a", "b", "c")
    with pytest.raises(DataError, match="E306 2 class names for 3 classes"):
        task(class_names=["a", "b"])
