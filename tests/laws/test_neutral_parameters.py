"""FedAvg among its relatives. The neutral settings of every method are in test_methods.py."""

from __future__ import annotations

import torch

import fedaccord as fa
from fedaccord.checks.trial import run_traced


def test_scaffolds_first_round_is_fedavgs_to_the_bit_and_its_second_is_not() -> None:
    one, other = run_traced(fa.Scaffold()), run_traced(fa.FedAvg())
    assert torch.equal(one.results[0].state.server.w, other.results[0].state.server.w)
    assert not torch.equal(one.results[1].state.server.w, other.results[1].state.server.w)
