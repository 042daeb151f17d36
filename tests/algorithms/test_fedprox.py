"""FedProx: two steps by hand."""

from __future__ import annotations

from typing import Any

from fedaccord.algorithms import FedProx


def test_two_steps_by_hand(one_round: Any, vec: Any) -> None:
    """mu = 1, g = w - 1, lr 1/2, w_t = 0.  -1 + 1*0: w = 0.5.  -0.5 + 1*0.5 = 0: w stays 0.5, the pull balances the loss."""
    method = FedProx(mu=1.0)
    done = one_round(method, method.broadcast(method.init_server(vec(0.0))), ())
    assert done.path == [[0.5], [0.5]] and done.upload.delta.tolist() == [0.5] and method.proximal_weight == 1.0
