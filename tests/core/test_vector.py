"""vector.py: a module <-> w [d] and buffers, without loss."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.core.errors import ConfigError, DataError
from fedaccord.core.vector import FlatModel, Layout, buffers_of, load_into, vector_of


class Awkward(nn.Module):
    """Batch norm (0-d integer counters), a frozen layer, one weight used by two layers, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6, bias=False)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.norm = nn.BatchNorm1d(6)
        self.body = nn.Linear(6, 6)
        self.twin = nn.Linear(6, 6)
        self.twin.weight = self.body.weight
        self.scale = nn.Parameter(torch.tensor(1.5))  # 0-d
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.register_buffer("seen", torch.tensor(True))

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.twin(torch.relu(self.body(self.norm(self.frozen(self.embed(x)))))) * self.scale
        return hidden


@pytest.fixture()
def module() -> Awkward:
    torch.manual_seed(3)
    made = Awkward()
    made(torch.randn(5, 4))  # counters and statistics leave their defaults
    return made


def test_vector_to_module_to_vector_is_the_identity(module: Awkward) -> None:
    w = torch.randn(Layout.of(module).size)
    buffers = {name: torch.full_like(b, 7) if not b.is_floating_point() else torch.randn_like(b) for name, b in buffers_of(module).items()}
    loaded = load_into(copy.deepcopy(module), w, buffers)
    assert torch.equal(vector_of(loaded), w)
    assert all(torch.equal(b, buffers[name]) for name, b in buffers_of(loaded).items())


def test_module_to_vector_to_module_keeps_every_bit_shape_and_dtype(module: Awkward) -> None:
    before = {name: t.clone() for name, t in module.state_dict().items()}
    target = Awkward()
    target.frozen.load_state_dict(module.frozen.state_dict())  # frozen weights are the model's, not the vector's
    load_into(target, vector_of(module), buffers_of(module))
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, before[name]), name
        assert (tensor.dtype, tensor.shape) == (before[name].dtype, before[name].shape)


def test_a_shared_weight_is_in_the_vector_once_and_a_frozen_one_never(module: Awkward) -> None:
    layout = Layout.of(module)
    assert layout.names == ("scale", "embed.weight", "norm.weight", "norm.bias", "body.weight", "body.bias", "twin.bias")
    assert layout.size == 1 + 24 + 6 + 6 + 36 + 6 + 6


def test_each_slice_holds_its_own_parameter(module: Awkward) -> None:
    w, layout, named = vector_of(module), Layout.of(module), dict(module.named_parameters())
    parts = layout.unflatten(w)
    for name, part in layout.slices().items():
        assert torch.equal(w[part], named[name].detach().reshape(-1)), name
        assert torch.equal(parts[name], named[name])
        assert layout.name_of(part.start) == layout.name_of(part.stop - 1) == name
    assert torch.equal(layout.flatten(parts), w)


def test_unflatten_gives_views_of_the_vector(module: Awkward) -> None:
    w = vector_of(module)
    Layout.of(module).unflatten(w)["body.weight"].zero_()
    assert (w == 0).sum() >= 36


def test_buffers_keep_integers_0d_shapes_and_leave_out_what_is_not_saved(module: Awkward) -> None:
    buffers = buffers_of(module)
    assert list(buffers) == ["seen", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert buffers["norm.num_batches_tracked"].shape == () and buffers["norm.num_batches_tracked"].dtype == torch.int64
    assert buffers["norm.num_batches_tracked"] == 1 and buffers["seen"].dtype == torch.bool


def test_the_flat_model_computes_what_the_module_computes_with_the_same_gradients(module: Awkward) -> None:
    flat, x = FlatModel(module), torch.randn(8, 4)
    w = flat.initial_w.clone().requires_grad_()
    own = {name: b.clone() for name, b in flat.initial_buffers.items()}
    flat.train(True)
    out = flat(w, own, x)
    expected = module.train()(x)
    assert torch.equal(out, expected)
    (gradient,) = torch.autograd.grad(out.square().sum(), w)
    expected.square().sum().backward()
    named = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert torch.allclose(gradient, Layout.of(module).flatten(named), rtol=1e-6, atol=1e-7)
    assert all(torch.equal(own[name], b) for name, b in buffers_of(module).items()), "batch norm moved the buffers it was given"


def test_the_flat_model_leaves_the_users_module_alone(module: Awkward) -> None:
    before = {name: t.clone() for name, t in module.state_dict().items()}
    flat = FlatModel(module)
    flat.train(True)
    flat(flat.initial_w + 1, {name: b.clone() for name, b in flat.initial_buffers.items()}, torch.randn(5, 4))
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())


def test_a_part_that_the_user_froze_in_evaluation_mode_stays_in_it(module: Awkward) -> None:
    module.norm.eval()
    flat = FlatModel(module)
    flat.train(True)
    buffers = {name: b.clone() for name, b in flat.initial_buffers.items()}
    flat(flat.initial_w, buffers, torch.randn(5, 4))
    assert torch.equal(buffers["norm.running_mean"], flat.initial_buffers["norm.running_mean"])
    assert flat.module.training and not flat.module.get_submodule("norm").training


def test_recurrent_weights_are_trained_as_well() -> None:
    """nn.LSTM keeps a second list of its weights: the swapped ones must be those that it computes with."""
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4, batch_first=True)
    flat, x = FlatModel(_Last(lstm)), torch.randn(2, 5, 3)
    w = flat.initial_w.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(flat(w, {}, x).sum(), w)
    assert all((gradient[part] != 0).any() for part in flat.layout.slices().values())
    assert not torch.equal(flat(flat.initial_w + 0.1, {}, x), flat(flat.initial_w, {}, x))


class _Last(nn.Module):
    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(x)[0]
        return states[:, -1]


def test_weights_of_another_model_are_refused_with_the_name_of_the_layer(module: Awkward) -> None:
    layout = Layout.of(module)
    named = {name: p.detach() for name, p in module.named_parameters()}
    with pytest.raises(DataError, match=r"E112 'body.weight' is \(6, 6\) in the model and \(6, 5\)"):
        layout.flatten(named | {"body.weight": torch.zeros(6, 5)})
    with pytest.raises(DataError, match=r"'norm.bias'"):
        layout.flatten({name: p for name, p in named.items() if name != "norm.bias"})
    with pytest.raises(DataError, match="E112"):
        load_into(module, torch.zeros(layout.size + 1), {})


def test_models_that_have_no_single_vector_are_refused() -> None:
    with pytest.raises(ConfigError, match="no trainable parameter"):
        Layout.of(nn.Linear(2, 2).requires_grad_(False))
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ConfigError, match="several dtypes"):
        Layout.of(mixed)


def test_a_double_precision_model_gives_a_double_precision_vector() -> None:
    model = nn.Linear(3, 2).double()
    assert vector_of(model).dtype == torch.float64
    assert F.mse_loss(FlatModel(model)(vector_of(model), {}, torch.ones(1, 3).double()), torch.zeros(1, 2).double()).dtype == torch.float64
