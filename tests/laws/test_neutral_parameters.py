"""FedAvg among its relatives. The neutral settings of every method are in test_methods.py."""

from __future__ import annotations

import pytest
import torch

import fedaccord as fa
from fedaccord.checks.trial import run_traced


def test_scaffolds_first_round_is_fedavgs_to_the_bit_and_its_second_is_not() -> None:
    one, other = run_traced(fa.Scaffold()), run_traced(fa.FedAvg())
    assert torch.equal(one.results[0].state.server.w, other.results[0].state.server.w)
    assert not torch.equal(one.results[1].state.server.w, other.results[1].state.server.w)


@pytest.mark.parametrize("method", [fa.FedBN(), fa.SiloBN()], ids=["fedbn", "silobn"])
def test_where_there_is_no_batch_norm_nothing_stays_behind(method: fa.Algorithm) -> None:
    one, other = run_traced(method), run_traced(fa.FedAvg())
    assert all(torch.equal(a.state.server.w, b.state.server.w) for a, b in zip(one.results, other.results, strict=True))
