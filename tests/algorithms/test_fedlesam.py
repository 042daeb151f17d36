"""FedLESAM, alone and around SCAFFOLD and FedDyn: steps by hand, and the perturbation's length and direction."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedaccord.algorithms import feddyn, scaffold
from fedaccord.algorithms.fedlesam import FedLESAM, FedLESAM_D, FedLESAM_S, GlobalAscent, Kept
from fedaccord.core.algorithm import Algorithm, Cohort


def test_two_rounds_by_hand(one_round: Any, vec: Any) -> None:
    """rho = 0.5, g = w - 1, lr 1/2. Round 1 from 0: e = 0, FedAvg's 0.5, 0.75; w_old becomes 0.

    Round 2 from 2 (whatever others did): e = 0.5 (0 - 2)/2 = -0.5, g(1.5) = 0.5: 1.75, g(1.25) = 0.25: 1.625. w_old becomes 2.
    """
    method = FedLESAM(rho=0.5)
    first = one_round(method, method.broadcast(method.init_server(vec(0.0))), method.init_client(vec(0.0)))
    assert first.path == [[0.5], [0.75]] and first.points == [[0.0], [0.5]] and float(first.kept.last_global) == 0
    second = one_round(method, method.broadcast(method.init_server(vec(2.0))), first.kept)
    assert [w for (w,) in second.path] == pytest.approx([1.75, 1.625])
    assert [w for (w,) in second.points] == pytest.approx([1.5, 1.25]), "one gradient a step, and that at w + e"
    assert float(second.kept.last_global) == 2.0 and float(second.upload.delta) == pytest.approx(-0.375)


def test_around_scaffold_by_hand(one_round: Any, alone: Any, vec: Any) -> None:
    """w_old = 2, w = 0: e = 0.5. c = 0.2, c_i = -0.1. -0.5 + 0.3 = -0.2: w = 0.1; g(0.6) = -0.4, + 0.3: w = 0.15.

    c_i+ = -0.1 - 0.2 - 0.15/1 = -0.45; one of four: c = 0.2 - 0.35/4 = 0.1125.
    """
    method = FedLESAM_S(rho=0.5)
    server = scaffold.Server(vec(0.0), vec(0.2))
    done = one_round(method, method.broadcast(server), Kept(vec(2.0), scaffold.Kept(vec(-0.1))))
    assert [w for (w,) in done.path] == pytest.approx([0.1, 0.15]) and [w for (w,) in done.points] == pytest.approx([0.5, 0.6])
    assert float(done.kept.inner.control) == pytest.approx(-0.45) and float(done.kept.last_global) == 0
    after = method.update(server, alone(done.upload))
    assert (float(after.w), float(after.control)) == pytest.approx((0.15, 0.1125))


def test_around_feddyn_by_hand(one_round: Any, alone: Any, vec: Any) -> None:
    """alpha = 1, drift_i = 0.25, e = 0.5. -0.5 + 0.25: w = 0.125; g(0.625) = -0.375, + 0.125 + 0.25 = 0: w = 0.125.

    drift_i = 0.375; one of four: mean drift 0.1 + 0.03125 = 0.13125, w = 0.125 + 0.13125. The pull is taken at w, not at w + e.
    """
    method = FedLESAM_D(rho=0.5, alpha=1.0)
    server = feddyn.Server(vec(0.0), vec(0.1))
    done = one_round(method, method.broadcast(server), Kept(vec(2.0), feddyn.Kept(vec(0.25))))
    assert [w for (w,) in done.path] == pytest.approx([0.125, 0.125]) and float(done.kept.inner.drift) == pytest.approx(0.375)
    after = method.update(server, alone(done.upload))
    assert (float(after.w), float(after.drift)) == pytest.approx((0.25625, 0.13125))
    assert method.proximal_weight == 1.0 and FedLESAM_D(alpha=0.3).proximal_weight == 0.3


@pytest.mark.parametrize("method", [FedLESAM(0.3), FedLESAM_S(0.3), FedLESAM_D(0.3)], ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("distance", [1.0, 1e-4])
def test_the_perturbation_has_norm_rho_and_cosine_1_with_w_old_less_w(one_round: Any, method: Any, distance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    w, away = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))
    server = method.init_server(w)
    kept = method.init_client(w)._replace(last_global=w + distance * away)
    done = one_round(method, method.broadcast(server), kept, a=[1.0] * 6, b=[0.5] * 6, steps=2)
    for before, point in zip([w.tolist(), done.path[0]], done.points, strict=True):
        e = torch.tensor(point, dtype=torch.float64) - torch.tensor(before, dtype=torch.float64)
        assert float(e.norm()) == pytest.approx(0.3, abs=1e-7)
        assert float(e @ away / (e.norm() * away.norm())) == pytest.approx(1.0, abs=1e-10)


def test_a_client_that_saw_this_very_model_takes_plain_steps(one_round: Any, vec: Any) -> None:
    method = FedLESAM(rho=0.5)
    done = one_round(method, method.broadcast(method.init_server(vec(3.0, 4.0))), method.init_client(vec(3.0, 4.0)), a=(1, 1), b=(0, 0))
    assert done.points[0] == [3.0, 4.0] and all(torch.isfinite(torch.tensor(done.path)).flatten())


def test_a_model_that_has_hardly_moved_gives_a_short_perturbation_in_its_direction(one_round: Any, vec: Any) -> None:
    method = FedLESAM(rho=0.5)
    done = one_round(method, method.broadcast(method.init_server(vec(0.0))), Kept(vec(1e-13), ()), steps=1)
    assert 0 < done.points[0][0] < 0.5


def test_the_state_of_the_method_inside_goes_from_step_to_step(one_round: Any, vec: Any) -> None:
    class Counts(Algorithm):
        def init_client(self, w: Any) -> Any:
            return (vec(0.0),)

        def direction(self, grad: Any, w: Any, sent: Any, local: Any) -> Any:
            return grad(w), (local[0] + 1,)

        def upload(self, w: Any, sent: Any, local: Any, work: Any) -> Any:
            return (), local

    method = GlobalAscent(0.1, Counts())
    done = one_round(method, method.broadcast(method.init_server(vec(0.0))), method.init_client(vec(0.0)), steps=3)
    assert done.kept.inner[0].tolist() == [3.0]


def test_around_a_method_with_signals_and_a_step_beside_all_its_rules_are_asked(vec: Any) -> None:
    """Any method may be inside: its signals, what it adds beside the optimiser, and its objective see their own state."""

    class Told(Algorithm):
        def init_client(self, w: Any) -> Any:
            return (w + 7,)

        def objective(self, batch: Any, sent: Any, local: Any) -> Any:
            return local

        def beside(self, w: Any, sent: Any, local: Any) -> Any:
            return local[0]

        def signals(self, kept: Any) -> Any:
            return {"own": kept[0]}

    method = GlobalAscent(0.1, Told())
    kept = method.init_client(vec(1.0))
    assert float(method.signals(kept)["own"]) == 8 and method.objective(None, None, kept) == kept.inner  # type: ignore[arg-type]
    assert float(method.beside(vec(0.0), None, kept)) == 8  # type: ignore[arg-type]


def test_models_move_by_the_weighted_sum_and_controls_by_the_uniform_one(vec: Any) -> None:
    weighted, uniform = scaffold.Upload(vec(1.0), vec(100.0)), scaffold.Upload(vec(100.0), vec(8.0))
    after = FedLESAM_S().update(scaffold.Server(vec(0.0), vec(0.0)), Cohort(weighted, uniform, 2, 4))
    assert after.w.tolist() == [1.0] and after.control.tolist() == [4.0]


@pytest.mark.parametrize("method", [FedLESAM(), FedLESAM_S(), FedLESAM_D()])
def test_a_step_differentiates_the_loss_alone_so_that_it_may_be_recorded(method: Algorithm) -> None:
    assert method.objective_is_loss
