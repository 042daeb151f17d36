"""What stays outside the clip when it is FL-Simulator's: the half `weight * w` of a method's pull to the global model."""

from __future__ import annotations

import pytest
import torch

import fedaccord as fa
from fedaccord.core.gradient import CLIP_SCOPES
from fedaccord.core.server_optimizer import ServerOptimized

PULLED = [
    fa.FedProx(mu=0.5),
    fa.FedDyn(alpha=0.5),
    fa.FedSpeed(alpha=0.5),
    fa.FedSMOO(beta=2.0),
    fa.FedLESAM_D(alpha=0.5),
    fa.FedGloSS(beta=2.0),
    ServerOptimized(fa.FedDyn(alpha=0.5)),
]
FREE = [fa.FedAvg(), fa.Scaffold(), fa.FedSAM(), fa.FedLESAM(), fa.FedLESAM_S(), fa.FedGMT(), fa.FedWMSAM(), fa.DynamicSAM()]


@pytest.mark.parametrize("method", PULLED, ids=lambda method: type(method).__name__)
def test_far_from_zero_the_reference_clip_leaves_a_weight_decay_behind(method: fa.Algorithm) -> None:
    """At w = w_t, without a data gradient, a step should not move. |w| = 50, weight 0.5: the inner half, of length 25, is cut to 10."""
    w = torch.tensor([30.0, 40.0])
    moved = CLIP_SCOPES["reference"](torch.zeros(2), w, 10.0, method.proximal_weight)
    assert moved.tolist() == pytest.approx([0.5 * 30 * (1 - 10 / 25), 0.5 * 40 * (1 - 10 / 25)], rel=1e-5)


@pytest.mark.parametrize("method", FREE, ids=lambda method: type(method).__name__)
def test_without_a_pull_in_every_step_the_reference_clip_is_the_plain_one(method: fa.Algorithm) -> None:
    direction, w = torch.tensor([30.0, 40.0]), torch.tensor([3.0, -7.0])
    plain = CLIP_SCOPES["direction"](direction, w, 10.0, method.proximal_weight)
    assert torch.equal(CLIP_SCOPES["reference"](direction, w, 10.0, method.proximal_weight), plain)
