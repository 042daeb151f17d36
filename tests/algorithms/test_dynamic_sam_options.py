"""dynamic_sam's options: where rho comes from, the pull beside the optimiser, sharpness along a random direction, calibration, epochs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.algorithms.dynamic_sam import Calibration, DynamicSAM, Kept, Sent, Server
from fedaccord.core.algorithm import Device, Effort, RoundStart, Work
from fedaccord.core.reports import ClientReport
from fedaccord.core.vector import Layout
from fedaccord.experiment import Aggregation, Experiment, RunOptions, prepare
from fedaccord.sampling import Uniform

LAYOUT = Layout.of(nn.Linear(1, 1))  # any


def sent(w: Tensor, median: float = 0.0) -> Sent:
    return Sent(w, torch.tensor(median, dtype=w.dtype))


def with_raw(method: DynamicSAM, w: Tensor, raw: float) -> Kept:
    return method.init_client(w)._replace(raw=torch.tensor(raw, dtype=w.dtype))


class Bowl:
    """a w^2 / 2 around 0: the gradient changes by a for each unit of w."""

    def __init__(self, a: float, step: int = 0) -> None:
        self.a, self.step, self.points = a, step, []  # type: ignore[var-annotated]

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        self.points.append(w.tolist())
        return self.a * w.square().sum() / 2, self.a * w

    def __call__(self, w: Tensor) -> Tensor:
        return self.with_loss(w)[1]


def begun(method: DynamicSAM, state: Kept, at: Sent, round: int, validation: Any = None, steps: int = 2) -> Any:
    start = RoundStart(round, 0.1, (), validation, lambda: torch.ones_like(at.w) / len(at.w) ** 0.5, LAYOUT, steps, 1.0)
    return method.begin(start, at, state)


@pytest.mark.parametrize(("rho_from", "expected"), [("clipped", 0.05 * math.exp(-0.3)), ("raw", 0.05 * math.exp(-2.0))])
def test_the_radius_follows_the_clipped_or_the_raw_lambda(vec: Any, rho_from: Any, expected: float) -> None:
    method = DynamicSAM(rho_from=rho_from)
    local = begun(method, with_raw(method, vec(1.0), 2.0), sent(vec(1.0)), 9)
    assert float(local.rho) == pytest.approx(expected) and float(local.strength) == pytest.approx(0.3)


def test_decoupled_the_pull_goes_beside_the_optimiser_and_outside_the_clip(vec: Any) -> None:
    """lambda 0.2, pull 0.5: 2 * 0.5 * 0.2 (w - w_t) = 0.2 * 3. The gradient at w = 4 is 4, with rho = 0: clipped to 1."""
    method = DynamicSAM(consistency="decoupled", clip_norm=1.0, rho_max=0.0, rho_min=0.0)
    local = begun(method, with_raw(method, vec(1.0), 0.2), sent(vec(1.0)), 9)
    direction, local = method.direction(Bowl(1.0, step=1), vec(4.0), sent(vec(1.0)), local)
    assert direction.tolist() == pytest.approx([1.0], rel=1e-5)
    beside = method.beside(vec(4.0), sent(vec(1.0)), local)
    assert beside is not None and beside.tolist() == pytest.approx([0.6])
    coupled = DynamicSAM(clip_norm=0.0, rho_max=0.0, rho_min=0.0)
    direction, _ = coupled.direction(Bowl(1.0, step=1), vec(4.0), sent(vec(1.0)), local)
    assert direction.tolist() == pytest.approx([4.6]) and coupled.beside(vec(4.0), sent(vec(1.0)), local) is None


@pytest.mark.parametrize("optimizer", [fa.Sgd(momentum=0.9), fa.Adam(), fa.AdamW()])
def test_under_momentum_and_adam_coupled_and_decoupled_differ_and_under_plain_sgd_they_do_not(optimizer: Any) -> None:
    def end(consistency: Any, optimizer: Any) -> Tensor:
        method = fa.DynamicSAM(consistency=consistency, warmup_rounds=0, clip_norm=0.0, lambda_min=0.3)
        plan = fa.LocalPlan(lr=0.01, epochs=2, optimizer=optimizer)
        return fa.run(fa.digits(model="softmax"), method, partition=fa.IID(clients=4), cohort=2, rounds=2, local=plan).weights()

    coupled, decoupled = (end(kind, optimizer) for kind in ("coupled", "decoupled"))
    assert torch.isfinite(decoupled).all() and float((coupled - decoupled).norm()) > 1e-4
    coupled, decoupled = (end(kind, fa.Sgd()) for kind in ("coupled", "decoupled"))
    assert float((coupled - decoupled).norm()) < 1e-5 * float(coupled.norm())


def test_adam_with_the_pull_beside_it_is_adamw_whose_decay_points_to_the_global_model() -> None:
    """One step from w with moments afresh: w - lr 2 pull lambda (w - w_t), then Adam's step of length lr along sign(gradient)."""
    task = fa.Task(
        model=nn.Linear(1, 1, bias=False),
        loss=lambda out, y: (out * 1.0).mean(),
        train=(torch.ones(2, 1), torch.zeros(2)),
        test=(torch.ones(1, 1), torch.zeros(1)),
    )
    method = fa.DynamicSAM(consistency="decoupled", warmup_rounds=0, lambda_min=0.25, pull=1.0, mix=0.0, clip_norm=0.0)
    plan = fa.LocalPlan(lr=0.1, epochs=2, batch_size="full", optimizer=fa.Adam())
    run = fa.run(task, method, partition=fa.IID(clients=1), cohort=1, rounds=1, local=plan, client_test=0.0, initial=torch.tensor([1.0]))
    first = 1.0 - 0.1
    assert run.weights().tolist() == pytest.approx([first - 0.1 * 2 * 0.25 * (first - 1.0) - 0.1], rel=1e-5)


def test_where_sharpness_is_clearly_negative_a_random_direction_measures_it(vec: Any) -> None:
    """Loss -w^2/2 at w = 2, rho 0.5: along the gradient -2 it rises by 2^2/2 - 1.5^2/2 = 0.875, along +1 it falls by 1.125."""

    def kept_after(bowl: float, **options: Any) -> Kept:
        method = DynamicSAM(rho_max=0.5 * math.exp(0.01), rho_min=0.0, noise_floor=0.0, **options)
        local = begun(method, method.init_client(vec(2.0)), sent(vec(2.0)), 9)
        for step in (0, 1):
            grad = Bowl(bowl, step)
            _, local = method.direction(grad, vec(2.0), sent(vec(2.0)), local)
            assert len(grad.points) == (3 if options and step == 1 else 2), "one evaluation more, in the last step"
        assert float(local.random_rise) == pytest.approx(bowl * 1.125 if options else 0.0)
        return method.upload(vec(2.0), sent(vec(2.0)), local, Work(2, 0.1, 2.0))[1]

    assert float(kept_after(1.0, sharpness="random_where_negative").sigma) == pytest.approx(1.125), "not negative: as measured"
    assert float(kept_after(-1.0, sharpness="random_where_negative").sigma) == pytest.approx(0.875)


def test_a_sharpness_below_minus_a_twentieth_takes_the_random_rise() -> None:
    from fedaccord.algorithms.dynamic_sam import random_where_negative

    rises, random = torch.tensor([-0.06, -0.04, 0.3]), torch.tensor([0.5, 0.5, 0.5])
    assert random_where_negative(rises, random).tolist() == pytest.approx([0.5, -0.04, 0.3])


def test_the_random_direction_moves_no_parameter_that_a_client_keeps_to_itself() -> None:
    """Such a parameter follows the gradient of the step's last pass, which is SAM's, not that of the random look."""

    def own(sharpness: Any) -> Tensor:
        module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        x, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
        task = fa.Task(model=module, loss=nn.functional.cross_entropy, train=(x, y), test=(x, y))
        method, run = DynamicSAM(sharpness=sharpness, warmup_rounds=0, rho_max=1.0), RunOptions(cohort=Uniform(1))
        aggregation = Aggregation(local_parts="batch_norm")
        prepared = prepare(Experiment(fa.IID(clients=1), method, aggregation=aggregation, run=run), task, initial=torch.ones(23))
        prepared.federation.round(prepared.start)
        runtime: Any = prepared.federation.runtime
        return runtime.client_state(0).buffers["1.weight"]

    assert torch.equal(own("ascent"), own("random_where_negative"))


def test_gamma_may_take_the_usual_length_of_the_reference_gradient(vec: Any) -> None:
    """Reference norms 4, then 1: the average is 0.5 * 4 + 0.5 * 1 = 2.5 with decay 1/2, and gamma = cos * 1 / 2.5; at first it is cos."""
    method = DynamicSAM(reference_norm="moving_average", norm_decay=0.5, warmup_rounds=0, rho_max=0.0, rho_min=0.0)
    state = method.init_client(vec(0.0))
    for slope, gamma, average in ((4.0, 1.0, 4.0), (1.0, 0.4, 2.5)):
        local = begun(method, state, sent(vec(1.0)), 9)
        _, local = method.direction(Bowl(slope), vec(1.0), sent(vec(1.0)), local)
        state = method.upload(vec(1.0), sent(vec(1.0)), local, Work(1, 0.1, 1.0))[1]
        assert (float(state.gamma), float(state.reference_norm)) == pytest.approx((gamma, average))


# Calibration


def test_calibration_gathers_the_probes_rises_and_the_steepest_change_of_the_gradient(vec: Any) -> None:
    """Bowl a = 3. At w_t = 1 the probe at rho_max 0.5 rises by 1.5 (1.5^2 - 1) = 1.875; at w_t = 2 by 1.5 (2.5^2 - 4) = 3.375."""
    method = DynamicSAM(rho_max=0.5, calibration_rounds=10, warmup_rounds=0)
    state, rises = method.init_client(vec(0.0)), []
    for round, at in ((1, 1.0), (2, 2.0)):
        local = begun(method, state, sent(vec(at)), round, validation=Bowl(3.0))
        state = method.upload(vec(at), sent(vec(at)), local, Work(1, 0.1, 1.0))[1]
        rises.append(float(method.signals(state)["sigma_probe"]))
    assert rises == pytest.approx([1.875, (1.875 + 3.375) / 2])
    assert float(state.calibration.lipschitz) == pytest.approx(3.0) and state.calibration.w.tolist() == [2.0]
    local = begun(method, state, sent(vec(7.0)), 11, validation=Bowl(300.0))
    assert torch.equal(local.kept.calibration.w, state.calibration.w), "after the calibration rounds nothing is gathered"


@pytest.mark.parametrize(
    ("sigma", "median", "lipschitz", "expected"),
    [
        (0.5, 1.0, 0.0, 0.2),  # half as sharp as the median: twice the radius
        (4.0, 1.0, 0.0, 0.025),
        (0.0, 1.0, 0.0, 0.1),  # never measured: rho_max
        (0.5, 0.0, 0.0, 0.1),  # no median yet
        (0.01, 1.0, 4.0, 0.5),  # 10 is more than 2 / L
        (1e6, 1.0, 0.0, 0.001),  # never below rho_min
    ],
)
def test_the_largest_radius_goes_against_the_clients_own_sharpness(
    vec: Any, sigma: float, median: float, lipschitz: float, expected: float
) -> None:
    method, w = DynamicSAM(rho_max=0.1, calibration_rounds=2, lambda_min=0.0, warmup_rounds=0), vec(1.0)
    numbers = (torch.tensor(value, dtype=w.dtype) for value in (1.0, lipschitz, 3 * sigma, 3.0))
    state = method.init_client(w)._replace(calibration=Calibration(w, *numbers))
    assert float(begun(method, state, sent(w, median), 3).rho) == pytest.approx(expected)
    assert float(begun(method, state, sent(w, median), 2).rho) == pytest.approx(0.1), "not before the calibration rounds are over"


def test_the_server_averages_the_clients_median_over_the_calibration_rounds(vec: Any) -> None:
    method = DynamicSAM(calibration_rounds=2)
    server = method.init_server(vec(0.0))
    for round, sigmas in ((1, [1.0, 9.0, 2.0]), (2, [4.0, None, 6.0]), (3, [100.0])):
        reports = [ClientReport(round, i, 5, signals={"sigma_probe": value}) for i, value in enumerate(sigmas)]
        server = method.observe(server, reports)
    assert float(server.median_sigma) == pytest.approx((2.0 + 5.0) / 2) and method.broadcast(server).median_sigma is server.median_sigma
    zeros = method.observe(method.init_server(vec(0.0)), [ClientReport(1, 0, 5, signals={"sigma_probe": 0.0})])
    assert float(zeros.num_medians) == 0, "a client that measured nothing has no say"
    assert isinstance(server, Server)


def test_in_a_run_calibrated_clients_get_different_radii() -> None:
    method = fa.DynamicSAM(calibration_rounds=3, warmup_rounds=1)
    options: dict[str, Any] = {"cohort": 4, "rounds": 6, "client_validation": 0.2}
    run = fa.run(fa.digits(model="softmax"), method, partition=fa.DirichletPerClass(alpha=0.1, clients=4), **options)
    late = run.clients[run.clients["round"] == 6]
    assert late["signals_rho"].nunique() == 4 and (late["signals_sigma_probe"] > 0).all() and (late["signals_lipschitz"] > 0).all()
    assert (late["signals_rho"] >= 0.001).all() and (late["signals_rho"] <= 2 / late["signals_lipschitz"] + 1e-6).all()


def test_a_probe_that_is_no_number_is_no_measurement(vec: Any) -> None:
    """One example of NaN loss among those held out must not stay in the client's state, where it would spoil every later round."""

    class NotANumber(Bowl):
        def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tensor(math.nan, dtype=w.dtype), torch.full_like(w, math.nan)

    method = DynamicSAM(calibration_rounds=10)
    state = method.init_client(vec(0.0))
    for round, probe in ((1, Bowl(3.0)), (2, NotANumber(3.0))):
        at = sent(vec(float(round)))
        local = begun(method, state, at, round, validation=probe)
        _, local = method.direction(Bowl(1.0), at.w, at, local)
        state = method.upload(at.w, at, local, Work(1, 0.1, 1.0))[1]
    signals = {name: float(value) for name, value in method.signals(state).items()}
    assert all(math.isfinite(value) for value in signals.values()) and signals["sigma"] == 0
    assert signals["sigma_probe"] == pytest.approx(1.5 * (1.05**2 - 1)) and float(state.calibration.num_sigma) == 1


# What an operator is told


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ([0.0, 0.0, 0.5, 0.1], "3 of 4 clients (2 at lambda_min = 0.01, 1 at lambda_max = 0.3)"),
        ([0.0, 0.5, 0.1, 0.2], None),  # one half is not most
        ([0.01, 0.3, 0.1], "2 of 3 clients (1 at lambda_min = 0.01, 1 at lambda_max = 0.3)"),
        ([None, None, 0.2], None),
        ([], None),
    ],
)
def test_adaptation_is_called_inactive_where_most_clients_are_at_a_clip(vec: Any, raw: list[float | None], said: str | None) -> None:
    method = DynamicSAM()
    server = method.init_server(vec(0.0))
    reports = [ClientReport(9, i, 5, signals={"lambda_raw": value}) for i, value in enumerate(raw)]
    alerts = method.alerts(server, server, reports, ())
    assert alerts == (() if said is None else (f"adaptation inactive: lambda is at a clip for {said}",))
    assert DynamicSAM(lambda_min=0.1, lambda_max=0.1).alerts(server, server, reports, ()) == (), "a constant lambda is what was asked for"


def test_a_calibration_without_held_out_examples_says_so_once() -> None:
    options: dict[str, Any] = {"partition": fa.IID(clients=3), "cohort": 3, "rounds": 3}
    method = fa.DynamicSAM(calibration_rounds=2)
    for share, rounds in ((0.0, [2]), (0.2, [])):
        run = fa.run(fa.digits(model="softmax"), method, client_validation=share, **options)
        assert [line["round"] for line in run.record.rounds if any("calibration" in alert for alert in line["alerts"])] == rounds


# How much a client does


@pytest.mark.parametrize(
    ("options", "signals", "is_weak", "epochs"),
    [
        ({}, {"tau": 9.0}, True, 5),
        ({"weak_epochs": 3, "strong_epochs": 8}, {}, True, 3),
        ({"weak_epochs": 3, "strong_epochs": 8}, {}, False, 8),
        ({"unstable_share": 0.5}, {"tau": 0.16}, False, 2),
        ({"unstable_share": 0.5}, {"tau": 0.15}, False, 5),
        ({"unstable_share": 0.5, "weak_epochs": 1}, {"tau": 1.0}, True, 1),
    ],
)
def test_epochs_follow_the_device_and_the_stability(options: Any, signals: Any, is_weak: bool, epochs: int) -> None:
    assert DynamicSAM(**options).effort(5, 12, signals, Device(is_weak)) == Effort(epochs)


def test_in_a_run_weak_devices_do_fewer_epochs() -> None:
    task, method = fa.digits(model="softmax"), fa.DynamicSAM(weak_epochs=1, strong_epochs=4)
    plan = fa.LocalPlan(batch_size="full", epochs=2)
    run = fa.run(task, method, partition=fa.IID(clients=6), cohort=6, rounds=2, local=plan, devices=fa.Devices(weak_share=0.5))
    per_client = run.clients.groupby("client")["steps"].agg(["min", "max"])
    assert sorted(per_client["min"]) == [1, 1, 1, 4, 4, 4] and (per_client["min"] == per_client["max"]).all()
