"""dynamic_sam: its steps, its three signals and its weights, against figures worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.algorithms.dynamic_sam import DynamicSAM, Kept, Local
from fedaccord.core.algorithm import RoundStart, Server, Work
from fedaccord.core.reports import ClientReport
from fedaccord.core.vector import FlatModel, Layout

LAYOUT = Layout.of(nn.Linear(1, 1))  # any


def kept(method: DynamicSAM, w: Tensor, **changes: float) -> Kept:
    state = method.init_client(w)
    return state._replace(**{name: torch.tensor(value, dtype=w.dtype) for name, value in changes.items()})


def test_two_steps_by_hand(one_round: Any, vec: Any) -> None:
    """raw = 0.2, so lambda = 0.2 and rho = 0.5 e^-0.2 = 0.409365; g = w - 1, lr 1/2, w_t = 0, round 4 (warm-up is over).

    Step 1: g0 = -1, g1 = -1 - rho, g_sam = -1 - rho/2, no pull at w_t: w = 0.5 + rho/4 = 0.602341.
    Step 2: g_sam = w - 1 - rho/2, pull 2 * 0.5 * 0.2 w: w = w - (w - 1 - rho/2 + 0.2 w)/2 = 0.343277... + the rest, below.
    L(w + e) - L(w) = u rho + rho^2/2 with u = 1 - w. gamma = 1 (one dimension), so raw = 0.5 sigma.
    """
    method = DynamicSAM(rho_max=0.5, rho_min=0.0)
    done = one_round(method, Server(vec(0.0)), kept(method, vec(0.0), raw=0.2), round=4)
    rho = 0.5 * math.exp(-0.2)
    first = 0.5 + rho / 4
    second = first - 0.5 * (first - 1 - rho / 2 + 0.2 * first)
    assert [w for (w,) in done.path] == pytest.approx([first, second])
    assert [w for (w,) in done.points] == pytest.approx([0.0, -rho, first, first - rho])
    sigma = ((1 * rho + rho**2 / 2) + ((1 - first) * rho + rho**2 / 2)) / 2
    assert float(done.kept.sigma) == pytest.approx(sigma) and float(done.kept.gamma) == pytest.approx(1.0)
    assert float(done.kept.raw) == pytest.approx(0.5 * sigma)
    assert (float(done.kept.used_lambda), float(done.kept.used_rho)) == pytest.approx((0.2, rho))


def test_a_step_is_half_the_gradient_of_the_methods_own_objective() -> None:
    """Steps 3 and 4 against autograd of L(w) + lambda |w - w_t|^2 + L(w + e), e held fixed, on a real model with mix = pull = 0.5."""
    torch.manual_seed(0)
    model = FlatModel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double())
    x, y = torch.randn(20, 4).double(), torch.randint(0, 3, (20,))
    sent = Server(model.initial_w)
    w = sent.w + 0.3 * torch.randn_like(sent.w)

    def loss(at: Tensor) -> Tensor:
        return F.cross_entropy(model(at, {}, x), y)

    class Batch:
        step = 1

        def with_loss(self, at: Tensor) -> tuple[Tensor, Tensor]:
            leaf = at.detach().requires_grad_()
            value = loss(leaf)
            return value.detach(), torch.autograd.grad(value, leaf)[0]

        def __call__(self, at: Tensor) -> Tensor:
            return self.with_loss(at)[1]

    method, strength, rho = DynamicSAM(), torch.tensor(0.25).double(), torch.tensor(0.4).double()
    zero = w.new_zeros(())
    flat = torch.zeros_like(w)
    local = Local(method.init_client(w), strength, rho, flat, flat, 1, flat, zero, zero, w.new_zeros(2), zero, 5, False)
    direction, _ = method.direction(Batch(), w, sent, local)
    g0 = Batch()(w)
    e = rho * g0 / g0.norm()
    leaf = w.clone().requires_grad_()
    objective = loss(leaf) + strength * (leaf - sent.w).square().sum() + loss(leaf + e)
    (expected,) = torch.autograd.grad(objective, leaf)
    assert float(expected.norm()) < 2 * method.clip_norm, "the method's own clip must not be what is compared"
    assert torch.allclose(direction, expected / 2, rtol=1e-10)


def test_mix_one_with_pull_one_is_textbook_sam_with_the_whole_pull(one_round: Any, vec: Any) -> None:
    """lambda = 0.2: g(w + e) + 2 * 1 * 0.2 (w - w_t). Step 1 is -1 - rho; step 2 from w1 is w1 - 1 - rho + 0.4 w1."""
    method = DynamicSAM(mix=1.0, pull=1.0, rho_max=0.5, rho_min=0.0)
    done = one_round(method, Server(vec(0.0)), kept(method, vec(0.0), raw=0.2), round=4)
    rho = 0.5 * math.exp(-0.2)
    first = 0.5 * (1 + rho)
    assert [w for (w,) in done.path] == pytest.approx([first, first - 0.5 * (first - 1 - rho + 0.4 * first)])


def test_the_methods_own_clip_holds_the_pull_as_well(one_round: Any, vec: Any) -> None:
    done = one_round(DynamicSAM(clip_norm=0.25), Server(vec(0.0)), DynamicSAM().init_client(vec(0.0)), lr=1.0)
    assert [w for (w,) in done.path] == pytest.approx([0.25, 0.5], rel=1e-5)


@pytest.mark.parametrize(("raw", "expected"), [(0.0, 0.01), (0.2, 0.2), (0.9, 0.3), (-0.5, 0.01)])
def test_lambda_is_clipped_and_sets_the_radius(one_round: Any, vec: Any, raw: float, expected: float) -> None:
    method = DynamicSAM()
    done = one_round(method, Server(vec(0.0)), kept(method, vec(0.0), raw=raw), round=4)
    assert float(done.kept.used_lambda) == pytest.approx(expected)
    assert float(done.kept.used_rho) == pytest.approx(0.05 * math.exp(-expected))


def test_the_radius_never_falls_below_its_minimum(one_round: Any, vec: Any) -> None:
    method = DynamicSAM(rho_min=0.04)
    done = one_round(method, Server(vec(0.0)), kept(method, vec(0.0), raw=0.3), round=4)
    assert float(done.kept.used_rho) == pytest.approx(0.04)


def test_what_one_participation_measures_is_used_in_the_next(one_round: Any, vec: Any) -> None:
    method = DynamicSAM(warmup_rounds=0)
    first = one_round(method, Server(vec(0.0)), method.init_client(vec(0.0)), round=1)
    assert float(first.kept.used_lambda) == pytest.approx(0.01), "never measured: lambda_min"
    second = one_round(method, Server(vec(0.0)), first.kept, round=2)
    assert float(second.kept.used_lambda) == pytest.approx(min(max(float(first.kept.raw), 0.01), 0.3))


@pytest.mark.parametrize(("round", "warm"), [(1, True), (3, True), (4, False)])
def test_warm_up_is_plain_local_training_in_the_first_three_rounds(one_round: Any, vec: Any, round: int, warm: bool) -> None:
    method = DynamicSAM(rho_max=0.5)
    done = one_round(method, Server(vec(0.0)), kept(method, vec(0.0), raw=0.2), round=round)
    assert (done.path == [[0.5], [0.75]]) == warm
    assert (float(done.kept.used_lambda) == 0, float(done.kept.used_rho) == 0) == (warm, warm)


def test_in_warm_up_sharpness_comes_from_a_probe_on_examples_that_do_not_train(one_round: Any, vec: Any) -> None:
    """Held out: a = 2, b = 1. At w_t = 0 the loss is 1, the gradient -2; at -rho_max = -0.5 it is 2.25: sigma = 1.25."""
    method = DynamicSAM(rho_max=0.5)
    state = method.init_client(vec(0.0))
    done = one_round(method, Server(vec(0.0)), state, validation=((2.0,), (1.0,)))
    assert float(done.kept.sigma) == pytest.approx(1.25) and done.path == [[0.5], [0.75]]
    assert float(one_round(method, Server(vec(0.0)), state).kept.sigma) == 0, "unmeasured without held-out examples"
    after = one_round(method, Server(vec(0.0)), state, validation=((2.0,), (1.0,)), round=4)
    assert float(after.kept.sigma) != pytest.approx(1.25), "after it, from the SAM steps"


def test_consistency_is_the_cosine_of_the_last_gradient_and_that_at_the_global_model(one_round: Any, vec: Any) -> None:
    """a = (1, 0.5), b = (1, 2), lr 1, 2 steps in warm-up. At 0: g = (-1, -1). w = (1, 1). There g = (0, -0.5): cos 45 degrees."""
    method = DynamicSAM()
    zero = torch.zeros(2, dtype=torch.float64)
    done = one_round(method, Server(zero), method.init_client(zero), a=(1.0, 0.5), b=(1.0, 2.0), lr=1.0, random=(1.0, 0.0))
    assert float(done.kept.gamma) == pytest.approx(math.cos(math.pi / 4))
    assert done.kept.final.tolist() == pytest.approx([0.0, -0.5])
    assert float(done.kept.raw) == pytest.approx(0.4 * (1 - math.cos(math.pi / 4)))


def test_more_reference_batches_make_the_reference_their_mean(one_round: Any, vec: Any) -> None:
    """First batch at 0: (-1, -1); more with b = (1, 0) and (1, 2): (-1, 0), (-1, -1). Mean (-1, -2/3); the last gradient is (0, -0.5)."""
    method = DynamicSAM(reference_batches=3)
    zero = torch.zeros(2, dtype=torch.float64)
    done = one_round(
        method,
        Server(zero),
        method.init_client(zero),
        a=(1.0, 0.5),
        b=(1.0, 2.0),
        lr=1.0,
        reference=[(1.0, 0.0), (1.0, 2.0)],
        random=(1.0, 0.0),
    )
    assert float(done.kept.gamma) == pytest.approx((2 / 3) / math.hypot(1, 2 / 3))


@pytest.mark.parametrize(("rise", "expected"), [(-0.2, 0.0), (0.009, 0.0), (0.011, 0.011)])
def test_sharpness_below_the_noise_floor_counts_as_zero(vec: Any, rise: float, expected: float) -> None:
    """Mean loss 1 over 4 steps, floor 1% of it."""
    method, w = DynamicSAM(), vec(1.0)
    local = _local(method, w, rises=4 * rise, losses=4.0)
    _, state = method.upload(w, Server(w), local, Work(4, 0.1, 4.0))
    assert float(state.sigma) == pytest.approx(expected)


def _local(
    method: DynamicSAM, w: Tensor, state: Kept | None = None, final: Tensor | None = None, rises: float = 0.0, losses: float = 1.0
) -> Local:
    def scalar(value: float) -> Tensor:
        return torch.tensor(value, dtype=w.dtype)

    last = torch.ones_like(w) if final is None else final
    own, sums, probe = state or method.init_client(w), (scalar(rises), scalar(losses)), w.new_zeros(2)
    return Local(own, scalar(0.1), scalar(0.04), w, w, 1, last, *sums, probe, scalar(0.0), 4, False)


def test_instability_is_the_deviation_of_the_last_five_angles_and_zero_before_there_are_five(vec: Any) -> None:
    """Final gradients at 0, 0, 10, 10, 20, 20, 80 degrees: the angles are 0, 10, 0, 10, 0, 60.

    Five angles exist from the sixth participation on: 0, 10, 0, 10, 0 degrees, mean 4, deviation sqrt(24). Then 10, 0, 10, 0, 60: mean 16,
    deviation sqrt((36 + 256 + 36 + 256 + 1936)/5) = sqrt(504).
    """
    method, w = DynamicSAM(), torch.zeros(2, dtype=torch.float64)
    state, taus = method.init_client(w), []
    for degrees in (0, 0, 10, 10, 20, 20, 80):
        final = vec(math.cos(math.radians(degrees)), math.sin(math.radians(degrees)))
        _, state = method.upload(w, Server(w), _local(method, w, state, final), Work(2, 0.1, 2.0))
        taus.append(math.degrees(float(state.tau)))
    assert taus == pytest.approx([0, 0, 0, 0, 0, math.sqrt(24), math.sqrt(504)], abs=1e-5)


def test_a_zero_gradient_looks_ahead_along_a_random_direction_of_the_same_length(one_round: Any, vec: Any) -> None:
    method = DynamicSAM(rho_max=0.5)
    zero = torch.zeros(2, dtype=torch.float64)
    done = one_round(method, Server(zero), kept(method, zero, raw=0.2), round=4, a=(0.0, 0.0), b=(1.0, 1.0), random=(0.6, 0.8), steps=1)
    rho = 0.5 * math.exp(-0.2)
    assert done.points[1] == pytest.approx([0.6 * rho, 0.8 * rho])


def test_signals_name_what_was_measured_and_what_was_used(vec: Any) -> None:
    method, w = DynamicSAM(), vec(1.0)
    signals = method.signals(kept(method, w, gamma=0.2, sigma=0.3, tau=0.4, raw=0.5, used_lambda=0.1, used_rho=0.04))
    assert {name: float(value) for name, value in signals.items()} == pytest.approx(
        {"gamma": 0.2, "sigma": 0.3, "tau": 0.4, "lambda_raw": 0.5, "lambda": 0.1, "rho": 0.04, "clipped": 1.0}
    )
    assert float(method.signals(kept(method, w, raw=0.2))["clipped"]) == 0


def test_trust_weighs_by_the_exponential_of_raw(vec: Any) -> None:
    reports = [ClientReport(1, i, 10, signals={"lambda_raw": raw}) for i, raw in enumerate([0.0, 0.5, -3.0])]
    assert DynamicSAM(trust=2.0).confidence(reports).tolist() == pytest.approx([1.0, math.exp(-1.0), 1.0])
    assert DynamicSAM(trust=0.0).confidence(reports).tolist() == [1.0, 1.0, 1.0]
    assert DynamicSAM().confidence([ClientReport(1, 0, 10), ClientReport(1, 1, 10, signals={"lambda_raw": None})]).tolist() == [1.0, 1.0]


def test_who_reports_no_lambda_is_trusted_as_the_worst_of_the_round_and_large_ones_do_not_underflow() -> None:
    reports = [ClientReport(1, i, 10, signals={"lambda_raw": raw}) for i, raw in enumerate([5000.0, None, 5001.0])]
    assert DynamicSAM().confidence(reports).tolist() == pytest.approx([1.0, math.exp(-1.0), math.exp(-1.0)])


def test_a_client_never_measured_starts_at_gamma_one_and_no_sharpness(vec: Any) -> None:
    state = DynamicSAM().init_client(vec(1.0, 2.0))
    assert (float(state.gamma), float(state.sigma), float(state.tau), float(state.raw)) == (1, 0, 0, 0)


def test_begin_draws_the_reference_and_the_random_direction_from_the_round(vec: Any) -> None:
    local = DynamicSAM().begin(
        RoundStart(9, 0.1, (), None, lambda: vec(0.6, 0.8), LAYOUT, 1, 1.0), Server(vec(1.0, 1.0)), DynamicSAM().init_client(vec(1.0, 1.0))
    )
    assert local.random.tolist() == [0.6, 0.8] and local.num_reference == 1


# In a run


def shares(task: fa.Task, clients: int) -> fa.Explicit:
    return fa.Explicit([list(range(i, task.num_examples, clients)) for i in range(clients)])


@pytest.fixture(scope="module")
def digits() -> fa.Task:
    return fa.digits(model="softmax", validation=0)


def test_five_reference_batches_cost_four_gradients_more_a_client_and_round(digits: fa.Task) -> None:
    plan = fa.LocalPlan(epochs=2, batch_size=20)
    options: dict[str, Any] = {"partition": shares(digits, 20), "cohort": 2, "rounds": 1, "local": plan, "client_test": 0.0}
    methods = (fa.DynamicSAM(reference_batches=n, warmup_rounds=warm) for n, warm in ((1, 0), (5, 0), (1, 3), (5, 3)))
    counted = [fa.run(digits, method, **options).rounds["gradients"][0] for method in methods]
    steps = fa.run(digits, fa.FedAvg(), **options).rounds["gradients"][0]
    assert counted == [2 * steps, 2 * steps + 2 * 4, steps, steps + 2 * 4], "in warm-up steps are plain and cost one gradient"


def test_mix_zero_without_pull_is_local_sgd_to_the_bit(digits: fa.Task) -> None:
    options: dict[str, Any] = {"partition": shares(digits, 20), "cohort": 3, "rounds": 5, "client_test": 0.0}
    plain = fa.DynamicSAM(mix=0.0, pull=0.0, trust=0.0, clip_norm=1e9)
    assert torch.equal(fa.run(digits, plain, **options).weights(), fa.run(digits, fa.FedAvg(), **options).weights())


def test_a_broken_sensor_drags_the_model_down_without_trust_and_not_with_it(digits: fa.Task) -> None:
    """One client of ten, with two elevenths of the data, sees inputs 40 times too large and labels that are wrong."""
    owner = [max(i % 11 - 1, 0) for i in range(digits.num_examples)]
    partition = fa.Explicit([[i for i, who in enumerate(owner) if who == client] for client in range(10)])
    x, y = digits.train.x.clone(), digits.train.y.clone()
    rows = torch.tensor(list(partition.shards[0]))
    x[rows], y[rows] = 40 * x[rows], (y[rows] + 5) % 10
    broken = fa.Task(model=digits.model, loss=F.cross_entropy, train=(x, y), test=(digits.test.x, digits.test.y))

    def end(trust: float, cohort: range) -> fa.Run:
        method, plan = fa.DynamicSAM(trust=trust, warmup_rounds=0), fa.LocalPlan(lr=0.05, epochs=2)
        return fa.run(broken, method, partition=partition, cohort=[list(cohort)] * 6, rounds=6, local=plan, client_test=0.0)

    runs = [end(0.0, range(10)), end(1.0, range(10)), end(0.0, range(1, 10))]
    without, trusting, healthy = (float(run.rounds["test_accuracy"].iloc[-1]) for run in runs)
    clients = runs[1].clients
    assert clients[clients["client"] == 0]["signals_lambda_raw"].min() > 0.9
    assert without < healthy - 0.2
    assert trusting > healthy - 0.05
