"""dynamic_sam: what a client has before its first round, the mean gradient at the global model, and the probe where the loss is flat."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedaccord.algorithms.dynamic_sam import NUM_ANGLES, DynamicSAM
from fedaccord.core.algorithm import RoundStart, Server


class Constant:
    """The same gradient everywhere, of a loss that is the sum of the weights."""

    def __init__(self, gradient: Tensor, step: int = 0) -> None:
        self.gradient, self.step = gradient, step

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        return w.sum(), self.gradient

    def __call__(self, w: Tensor) -> Tensor:
        return self.gradient


def test_a_client_that_was_never_measured_is_consistent_flat_and_stable(vec: Any) -> None:
    kept = DynamicSAM().init_client(vec(1.0, 2.0))
    assert float(kept.gamma) == 1.0
    assert kept.angles.tolist() == [0.0] * NUM_ANGLES and kept.final.tolist() == [0.0, 0.0]
    assert [float(part) for part in (kept.sigma, kept.tau, kept.raw, kept.used_lambda, kept.used_rho, kept.num_angles)] == [0.0] * 6


def test_the_reference_is_the_mean_gradient_over_the_batches_at_the_start(vec: Any) -> None:
    """The further batches give 1 and 2 in the first weight, the first step's own batch gives 6: (1 + 2 + 6) / 3."""
    method, sent = DynamicSAM(reference_batches=3), Server(vec(0.0, 0.0))
    further = [Constant(vec(1.0, 0.0)), Constant(vec(2.0, 0.0))]
    local = method.begin(RoundStart(9, 0.1, further, None, lambda: vec(1.0, 0.0)), sent, method.init_client(sent.w))
    assert local.final.tolist() == [0.0, 0.0], "no gradient yet"
    _, local = method.direction(Constant(vec(6.0, 0.0)), sent.w, sent, local)
    assert local.reference.tolist() == pytest.approx([3.0, 0.0])
    _, local = method.direction(Constant(vec(100.0, 0.0), step=1), sent.w, sent, local)
    assert local.reference.tolist() == pytest.approx([3.0, 0.0]), "later steps are not at the global model"


def test_a_probe_where_the_gradient_is_zero_looks_nowhere_and_sees_no_rise(vec: Any) -> None:
    method, sent = DynamicSAM(rho_max=0.5), Server(vec(2.0, 5.0))
    held_out = Constant(torch.zeros(2, dtype=torch.float64))
    local = method.begin(RoundStart(1, 0.1, (), held_out, lambda: vec(1.0, 0.0)), sent, method.init_client(sent.w))
    assert local.probe.tolist() == [0.0, 7.0]
