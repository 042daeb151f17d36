"""Which methods look at more than the first mini-batch before they train."""

from __future__ import annotations

import pytest

import fedaccord as fa
from fedaccord.core.server_optimizer import ServerOptimized


@pytest.mark.parametrize("method", [fa.FedAvg(), fa.FedProx(), fa.Scaffold(), fa.FedDyn(), fa.FedSAM(), fa.FedSMOO(), fa.DynamicSAM()])
def test_a_method_looks_at_the_first_batch_alone_unless_it_asks_for_more(method: fa.Algorithm) -> None:
    assert method.num_reference_batches == 1
    assert ServerOptimized(method).num_reference_batches == 1


def test_dynamic_sam_looks_at_as_many_as_it_is_told() -> None:
    assert fa.DynamicSAM(reference_batches=5).num_reference_batches == 5
    assert ServerOptimized(fa.DynamicSAM(reference_batches=5)).num_reference_batches == 5
