from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedaccord.core.errors import ConfigError
from fedaccord.tasks import MODELS, model_factory

CASES: list[tuple[str, tuple[int, ...], int, dict[str, Any], tuple[int, ...]]] = [
    ("softmax", (30,), 2, {}, (2,)),
    ("softmax", (1, 8, 8), 10, {}, (10,)),
    ("mlp", (1, 28, 28), 10, {}, (10,)),
    ("mlp", (5,), 1, {"hidden": (7, 6)}, (1,)),
    ("lenet", (1, 28, 28), 10, {}, (10,)),
    ("lenet", (3, 32, 32), 10, {}, (10,)),
    ("lenet", (1, 16, 40), 4, {"width": 4, "hidden": ()}, (4,)),
    ("resnet18", (1, 28, 28), 10, {"width": 8}, (10,)),
    ("resnet18", (3, 32, 32), 10, {"width": 8, "norm": "batch"}, (10,)),
    ("resnet18", (3, 8, 8), 10, {"width": 2}, (10,)),
    ("unet", (1, 32, 32), 1, {}, (1, 32, 32)),
    ("unet", (3, 16, 24), 2, {"width": 4, "depth": 4}, (2, 16, 24)),
    ("unet", (1, 4, 4), 1, {"width": 3, "depth": 3}, (1, 4, 4)),
]


@pytest.mark.parametrize(("name", "in_shape", "num_classes", "options", "out_shape"), CASES)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_model_gives_its_shape_and_every_parameter_a_gradient(
    name: str, in_shape: tuple[int, ...], num_classes: int, options: dict[str, Any], out_shape: tuple[int, ...], batch: int
) -> None:
    torch.manual_seed(0)
    module = model_factory(name, in_shape, num_classes, **options)()
    outputs = module(torch.randn(batch, *in_shape))
    assert outputs.shape == (batch, *out_shape)
    outputs.square().sum().backward()
    for parameter in module.parameters():
        assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all())


def test_every_registered_model_is_tried_above() -> None:
    assert {case[0] for case in CASES} == set(MODELS)


@pytest.mark.parametrize(
    ("name", "in_shape", "num_classes", "options", "count"),
    [
        ("mlp", (1, 28, 28), 10, {}, 784 * 200 + 200 + 200 * 10 + 10),
        ("resnet18", (3, 32, 32), 10, {}, 11_173_962),
        ("resnet18", (3, 32, 32), 10, {"norm": "batch"}, 11_173_962),
    ],
)
def test_well_known_sizes_are_met(name: str, in_shape: tuple[int, ...], num_classes: int, options: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        module = model_factory(name, in_shape, num_classes, **options)()
    assert sum(p.numel() for p in module.parameters()) == count


@pytest.mark.parametrize(("name", "in_shape"), [("resnet18", (1, 16, 16)), ("unet", (1, 16, 16)), ("lenet", (1, 28, 28))])
def test_our_models_have_no_buffers_unless_batch_norm_is_asked_for(name: str, in_shape: tuple[int, ...]) -> None:
    assert list(model_factory(name, in_shape, 2)().buffers()) == []
    if name != "lenet":
        named = dict(model_factory(name, in_shape, 2, norm="batch")().named_buffers())
        counters = [buffer for key, buffer in named.items() if key.endswith("num_batches_tracked")]
        assert counters and all(counter.ndim == 0 and counter.dtype == torch.int64 for counter in counters)


@pytest.mark.parametrize("name", ["resnet18", "unet"])
def test_with_group_norm_an_example_is_judged_alone(name: str) -> None:
    torch.manual_seed(0)
    module = model_factory(name, (1, 16, 16), 2, width=8)()
    x = torch.randn(3, 1, 16, 16)
    assert torch.allclose(module(x)[:1], module(x[:1]), atol=1e-5)


def test_a_resnet_block_is_the_identity_plus_its_body() -> None:
    from fedaccord.tasks.models import ResidualBlock

    block = ResidualBlock(4, 4, 1, "group")
    last = block.body[-1]
    assert isinstance(last, nn.GroupNorm)
    nn.init.zeros_(last.weight)
    x = torch.rand(2, 4, 5, 5)
    assert torch.equal(block(x), x)


def test_models_that_do_not_fit_are_refused_when_the_task_is_made() -> None:
    with pytest.raises(ConfigError, match=r"E205 unknown model 'lenett'.*Did you mean 'lenet'"):
        model_factory("lenett", (1, 28, 28), 10)
    with pytest.raises(ConfigError, match=r"E208 model 'softmax' has no 'hidden'"):
        model_factory("softmax", (4,), 2, hidden=(3,))
    with pytest.raises(ConfigError, match=r"E208 model 'mlp' has no 'width'.*It has hidden"):
        model_factory("mlp", (4,), 2, width=3)
    with pytest.raises(ConfigError, match=r"E203 inputs of shape \[30\] for model 'lenet'"):
        model_factory("lenet", (30,), 2)
    with pytest.raises(ConfigError, match=r"E203 inputs of shape \[1, 8, 8\] for model 'lenet'.*at least 16x16"):
        model_factory("lenet", (1, 8, 8), 2)
    with pytest.raises(ConfigError, match=r"E203 a U-Net of depth 3 cannot halve 30x30 pixels.*multiples of 4"):
        model_factory("unet", (1, 30, 30), 1)


def test_options_that_are_none_keep_the_default_and_making_a_factory_draws_nothing() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    factory = model_factory("mlp", (4,), 2, hidden=None)
    assert torch.equal(torch.get_rng_state(), state)
    assert [tuple(p.shape) for p in factory().parameters()] == [(200, 4), (200,), (2, 200), (2,)]
