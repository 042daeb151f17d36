"""FedNova: two clients that take unequal numbers of steps, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedaccord.algorithms.fednova import FedNova, Upload
from fedaccord.core.algorithm import Cohort, Server, Work
from fedaccord.core.optimizer import Sgd


def weighted(uploads: list[tuple[float, Upload]]) -> Upload:
    return Upload(
        *(
            sum(share * field for share, field in zip([s for s, _ in uploads], fields, strict=True))
            for fields in zip(*(upload for _, upload in uploads), strict=True)
        )
    )


def test_two_clients_by_hand(one_round: Any, vec: Any) -> None:
    """g = w - 1, lr 1/2, w = 0. Client 1, share 1/4, takes two steps: 0.5, 0.75, d = 0.75/2 = 0.375, a = 2.

    Client 2, share 3/4, takes one: 0.5, d = 0.5, a = 1. Mean a = 1/2 + 3/4 = 1.25, mean d = 0.09375 + 0.375 = 0.46875,
    w = 1.25 * 0.46875 = 0.5859375. FedAvg's would be 0.1875 + 0.375 = 0.5625.
    """
    method = FedNova()
    sent = method.broadcast(method.init_server(vec(0.0)))
    two, one = (one_round(method, sent, (), steps=steps) for steps in (2, 1))
    assert two.path == [[0.5], [0.75]]
    assert (float(two.upload.delta), float(two.upload.effective_steps)) == (0.375, 2.0)
    assert (float(one.upload.delta), float(one.upload.effective_steps)) == (0.5, 1.0)
    cohort = Cohort(weighted([(0.25, two.upload), (0.75, one.upload)]), Upload(vec(9.0), vec(9.0)), 2, 5)
    assert float(method.update(Server(vec(0.0)), cohort).w) == pytest.approx(0.5859375)


def test_under_momentum_the_effective_steps_are_the_papers(vec: Any) -> None:
    """a = [K - m (1 - m^K) / (1 - m)] / (1 - m): m = 1/2, K = 3 gives (3 - 7/8) / (1/2) = 4.25."""
    work = Work(3, 0.1, Sgd(0.5).effective_steps(3))
    upload, _ = FedNova().upload(vec(8.5), Server(vec(0.0)), (), work)
    assert (float(upload.delta), float(upload.effective_steps)) == pytest.approx((2.0, 4.25))


def test_the_change_is_measured_from_the_model_sent_and_added_to_the_servers(one_round: Any, vec: Any) -> None:
    """w = 3, g = w - 1, lr 1/2: 2, 1.5; d = -1.5/2. The same client alone brings the server from 3 to 1.5."""
    method = FedNova()
    server = method.init_server(vec(3.0))
    done = one_round(method, method.broadcast(server), ())
    assert float(done.upload.delta) == -0.75 and done.upload.effective_steps.dtype == torch.float64
    assert method.update(server, Cohort(done.upload, done.upload, 1, 1)).w.tolist() == [1.5]
