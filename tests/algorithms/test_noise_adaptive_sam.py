"""noise_adaptive_sam: its steps, its statistics, its radius, what the server makes of it, against figures worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.algorithms.noise_adaptive_sam import Kept, NoiseAdaptiveSAM, Sent, Statistics, global_norm, layer_norm, window
from fedaccord.core.algorithm import Device, Effort, RoundStart, Work
from fedaccord.core.reports import ClientReport
from fedaccord.core.vector import Layout


class Target:
    """|w - b|^2 / 2 with curvature `a`; counts its evaluations."""

    def __init__(self, b: Tensor, step: int = 0, a: Tensor | None = None) -> None:
        self.b, self.step, self.a, self.points = b, step, torch.ones_like(b) if a is None else a, []  # type: ignore[var-annotated]

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        self.points.append(w.tolist())
        return (self.a * (w - self.b).square()).sum() / 2, self.a * (w - self.b)

    def __call__(self, w: Tensor) -> Tensor:
        return self.with_loss(w)[1]

    def hessian_product(self, w: Tensor, v: Tensor) -> Tensor:
        return self.a * v


TWO_LAYERS = Layout.of(nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False)))


def begun(method: NoiseAdaptiveSAM, kept: Kept, w: Tensor, steps: int = 2, share: float = 1.0, layout: Layout = TWO_LAYERS) -> Any:
    random = torch.full_like(w, len(w) ** -0.5)
    return method.begin(RoundStart(1, 0.1, (), None, lambda: random, layout, steps, share), Sent(w), kept)


def taken_part(method: NoiseAdaptiveSAM, kept: Kept, gradient: Tensor) -> Kept:
    """One step at 0 with this gradient; the loss there is |gradient|^2 / 2."""
    w = torch.zeros_like(gradient)
    local = begun(method, kept, w, steps=1)
    _, local = method.direction(Target(-gradient), w, Sent(w), local)
    return method.upload(w, Sent(w), local, Work(1, 0.1, 1.0))[1]


def statistics(mean: float, deviation: float, num: float = 9.0) -> Statistics:
    numbers = (torch.tensor(value, dtype=torch.float64) for value in (mean, deviation, num))
    return Statistics(*numbers, torch.zeros(5, dtype=torch.float64))


def kept_with(norms: Statistics, changes: Statistics | None = None) -> Kept:
    fresh = NoiseAdaptiveSAM().init_client(torch.zeros(4, dtype=torch.float64))
    return fresh._replace(norms=norms, changes=changes or fresh.changes)


def test_two_steps_by_hand(vec: Any) -> None:
    """f = |w - b|^2 / 2, b = (3, 4, 0, 0), w = 0, rho = 0.5, lr 1/2, never measured.

    Step 1: g = -b, |g| = 5, e = -0.1 b, g(w + e) = -1.1 b: w = 0.55 b. Step 2: g = -0.45 b, e = -0.1 b, g(w + e) = -0.55 b: w = 0.825 b.
    """
    method, b, w = NoiseAdaptiveSAM(rho_base=0.5, rho_max=1.0), vec(3.0, 4.0, 0.0, 0.0), vec(0.0, 0.0, 0.0, 0.0)
    local = begun(method, method.init_client(w), w)
    for step, expected in ((0, 0.55), (1, 0.825)):
        direction, local = method.direction(Target(b, step), w, Sent(vec(0.0, 0.0, 0.0, 0.0)), local)
        w = w - 0.5 * direction
        assert w.tolist() == pytest.approx((expected * b).tolist())


def test_the_descent_steps_with_the_gradient_ahead_and_mix_zero_with_the_one_at_the_weights(vec: Any) -> None:
    w, b = vec(0.0, 0.0, 0.0, 0.0), vec(3.0, 4.0, 0.0, 0.0)
    for mix, factor in ((1.0, 1.1), (0.0, 1.0), (0.5, 1.05)):
        method = NoiseAdaptiveSAM(rho_base=0.5, rho_max=1.0, mix=mix)
        direction, _ = method.direction(Target(b), w, Sent(w), begun(method, method.init_client(w), w))
        assert direction.tolist() == pytest.approx((-factor * b).tolist())


def test_mix_zero_is_local_sgd_to_the_bit() -> None:
    options: dict[str, Any] = {"partition": fa.IID(clients=5), "cohort": 3, "rounds": 5}
    plain = fa.NoiseAdaptiveSAM(mix=0.0, outlier_weight=1.0)
    task = fa.digits(model="softmax")
    assert torch.equal(fa.run(task, plain, **options).weights(), fa.run(task, fa.FedAvg(), **options).weights())
    assert not torch.equal(fa.run(task, fa.NoiseAdaptiveSAM(), **options).weights(), fa.run(task, fa.FedAvg(), **options).weights())


# The norm of a round, and its statistics


def test_the_norm_is_the_geometric_mean_over_layers_with_a_gradient() -> None:
    """Layers of norm 5, 0 and 80: exp((log 5 + log 80) / 2) = 20. A weight and its bias are one layer: (3, 4) has norm 5."""
    gradient = torch.tensor([3.0, 4.0, 0.0, 0.0, 80.0])
    assert float(layer_norm(gradient, ((0, 1), (2,), (3,)), (1, 1, 2, 1))) == pytest.approx(20.0)
    assert float(layer_norm(torch.zeros(5), ((0, 1), (2,), (3,)), (1, 1, 2, 1))) == 0.0
    assert float(global_norm(gradient, (), ())) == pytest.approx(math.sqrt(25 + 6400))


def test_layers_are_the_models_own() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    method, w = NoiseAdaptiveSAM(), torch.zeros(layout.size)
    local = begun(method, method.init_client(w), w, layout=layout)
    assert local.layers == ((0, 1), (2, 3)) and local.sizes == (6, 3, 3, 1)


def test_one_number_a_round_the_mean_over_its_clean_gradients(vec: Any) -> None:
    """Two layers (2 weights each). Step 1: gradient (3, 4, 0, 0), norm 5. Step 2 at w = (0, 4, 0, 0): gradient (3, 0, 0, 0), norm 3."""
    method, sent = NoiseAdaptiveSAM(), Sent(vec(0.0, 0.0, 0.0, 0.0))
    local = begun(method, method.init_client(sent.w), sent.w)
    for step, at in ((0, vec(0.0, 0.0, 0.0, 0.0)), (1, vec(0.0, 4.0, 0.0, 0.0))):
        _, local = method.direction(Target(vec(-3.0, 4.0, 0.0, 0.0), step), at, sent, local)
    kept = method.upload(sent.w, sent, local, Work(2, 0.1, 2.0))[1]
    assert float(kept.norms.mean) == pytest.approx(4.0) and float(kept.norms.deviation) == 0.0 and float(kept.norms.num) == 1


def test_mean_and_deviation_run_with_the_new_mean_by_hand(vec: Any) -> None:
    """Norms 2, 4, 4 with d = 0.5: m = 2, 3, 3.5; s = 0, sqrt(0.5 (4 - 3)^2) = 0.7071, sqrt(0.5 0.5 + 0.5 0.25) = 0.6124."""
    method = NoiseAdaptiveSAM(decay=0.5)
    kept, seen = method.init_client(vec(0.0, 0.0, 0.0, 0.0)), []
    for norm in (2.0, 4.0, 4.0):
        kept = taken_part(method, kept, vec(norm, 0.0, 0.0, 0.0))
        seen.append((float(kept.norms.mean), float(kept.norms.deviation)))
    assert seen == [pytest.approx(pair) for pair in ((2.0, 0.0), (3.0, math.sqrt(0.5)), (3.5, math.sqrt(0.375)))]
    assert kept.norms.recent.tolist() == [0.0, 0.0, 2.0, 4.0, 4.0]


def test_the_window_takes_the_last_five(vec: Any) -> None:
    """Of 100, 1, 2, 3, 4, 5 the last five: mean 3, deviation sqrt(2). After two, 2 and 4, their own: 3 and 1."""
    own = statistics(0.0, 0.0, 6.0)._replace(recent=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).double())
    assert [float(part) for part in window(own, 0.9)] == pytest.approx([3.0, math.sqrt(2)])
    two = statistics(0.0, 0.0, 2.0)._replace(recent=torch.tensor([0.0, 0.0, 0.0, 2.0, 4.0]).double())
    assert [float(part) for part in window(two, 0.9)] == pytest.approx([3.0, 1.0])


def test_changes_of_the_loss_count_from_the_second_participation_on(vec: Any) -> None:
    """Losses 2, 8, 2 (norms 2, 4, 2): changes 6 and 6, mean 6, deviation 0."""
    method = NoiseAdaptiveSAM()
    kept = method.init_client(vec(0.0, 0.0, 0.0, 0.0))
    for norm, num in ((2.0, 0), (4.0, 1), (2.0, 2)):
        kept = taken_part(method, kept, vec(norm, 0.0, 0.0, 0.0))
        assert float(kept.changes.num) == num
    assert (float(kept.changes.mean), float(kept.changes.deviation), float(kept.loss)) == pytest.approx((6.0, 0.0, 2.0))


def test_a_norm_that_overflows_is_left_out_and_the_statistics_stay_usable(vec: Any) -> None:
    method = NoiseAdaptiveSAM()
    kept = method.init_client(vec(0.0, 0.0, 0.0, 0.0))
    for norm in (2.0, 1e200, 4.0):  # the square of 1e200 is infinite, and so is the loss there
        kept = taken_part(method, kept, vec(norm, 0.0, 0.0, 0.0))
    assert (float(kept.norms.mean), float(kept.norms.num)) == pytest.approx((0.9 * 2 + 0.1 * 4, 2))
    assert kept.norms.recent.tolist() == [0.0, 0.0, 0.0, 2.0, 4.0] and float(kept.changes.num) == 0


# The radius


@pytest.mark.parametrize(
    ("norms", "changes", "options", "rho"),
    [
        (statistics(2.0, 1.0), None, {}, 0.02 * 1.25),
        (statistics(2.0, 1.0), None, {"b": 2.0}, 0.04),
        (statistics(2.0, 1.0), None, {"b": 0.0}, 0.02),
        (statistics(1.0, 100.0), None, {}, 0.15),
        (statistics(2.0, 0.0), None, {"rho_base": 0.001}, 0.005),
        (statistics(2.0, 5.0), None, {"noise": "absolute"}, 0.02 * 3.5),
        (statistics(2.0, 1.0, num=1.0), None, {}, 0.02),
        (statistics(2.0, 1.0, num=1.0), statistics(4.0, 4.0), {}, 0.03),
        (statistics(1e-13, 1.0), statistics(4.0, 4.0), {}, 0.03),
        (statistics(math.inf, math.inf), statistics(4.0, 4.0), {}, 0.03),
        (statistics(math.nan, 1.0), statistics(4.0, 4.0, num=1.0), {}, 0.02),
        (statistics(2.0, 1.0), statistics(4.0, 400.0), {}, 0.025),
    ],
    ids=str,
)
def test_the_radius_widens_with_the_noise_and_falls_back_where_there_are_no_statistics(
    vec: Any, norms: Statistics, changes: Statistics | None, options: Any, rho: float
) -> None:
    method, w = NoiseAdaptiveSAM(**options), vec(0.0, 0.0, 0.0, 0.0)
    assert float(begun(method, kept_with(norms, changes), w).rho) == pytest.approx(rho)


def test_what_one_participation_measures_sets_the_next_ones_radius_and_signals_say_both(vec: Any) -> None:
    method = NoiseAdaptiveSAM(decay=0.5, rho_max=1.0)
    kept = method.init_client(vec(0.0, 0.0, 0.0, 0.0))
    for norm in (2.0, 4.0, 4.0):
        kept = taken_part(method, kept, vec(norm, 0.0, 0.0, 0.0))
    signals = {name: float(value) for name, value in method.signals(kept).items()}
    assert signals["noise_used"] == pytest.approx(math.sqrt(0.5) / 3) and signals["rho"] == pytest.approx(
        0.02 * (1 + 0.5 * math.sqrt(0.5) / 3)
    )
    assert signals["noise"] == pytest.approx(math.sqrt(0.375) / 3.5)
    assert (signals["norm_mean"], signals["norm_deviation"], signals["two_pass"]) == pytest.approx((3.5, math.sqrt(0.375), 1.0))


@pytest.mark.parametrize(("rho", "clipped"), [(0.005, 1.0), (0.006, 0.0), (0.14, 0.0), (0.15, 1.0)])
def test_a_radius_at_either_clip_is_reported(vec: Any, rho: float, clipped: float) -> None:
    kept = kept_with(statistics(1.0, 0.0))._replace(rho=torch.tensor(rho, dtype=torch.float64))
    assert float(NoiseAdaptiveSAM().signals(kept)["clipped"]) == clipped


def test_noise_that_was_not_measured_is_no_number(vec: Any) -> None:
    method = NoiseAdaptiveSAM()
    once = taken_part(method, method.init_client(vec(0.0, 0.0, 0.0, 0.0)), vec(2.0, 0.0, 0.0, 0.0))
    assert math.isnan(float(method.signals(once)["noise"]))
    assert float(method.signals(taken_part(method, once, vec(2.0, 0.0, 0.0, 0.0)))["noise"]) == 0.0


# The ascent


def ascended(method: NoiseAdaptiveSAM, b: Tensor, layout: Layout = TWO_LAYERS, a: Tensor | None = None) -> Tensor:
    w, grad = torch.zeros_like(b), Target(b, a=a)
    method.direction(grad, w, Sent(w), begun(method, method.init_client(w), w, layout=layout))
    return torch.tensor(grad.points[1], dtype=torch.float64)


def test_a_gradient_without_a_direction_gives_a_random_one_of_the_same_length(vec: Any) -> None:
    method = NoiseAdaptiveSAM(rho_base=0.1)
    assert ascended(method, vec(0.9e-5, 0.0, 0.0, 0.0)).tolist() == pytest.approx([0.05] * 4)
    assert ascended(method, vec(1.1e-5, 0.0, 0.0, 0.0)).tolist() == pytest.approx([-0.1, 0.0, 0.0, 0.0])


def test_curvature_turns_the_ascent_in_the_last_linear_layer_and_keeps_its_length(vec: Any) -> None:
    """g = (-1, -1, -1, -1), H = diag(10, 10, 10, 1) with 0.1: along = (-1, -1, -2, -1.1), the first layer without correction."""
    e = ascended(NoiseAdaptiveSAM(rho_base=0.1, curvature=0.1), vec(0.1, 0.1, 0.1, 1.0), a=vec(10.0, 10.0, 10.0, 1.0))
    along = vec(-1.0, -1.0, -2.0, -1.1)
    assert e.tolist() == pytest.approx((0.1 * along / along.norm()).tolist()) and float(e.norm()) == pytest.approx(0.1)


def test_curvature_may_turn_the_ascent_everywhere_and_needs_a_linear_layer_otherwise(vec: Any) -> None:
    conv = Layout.of(nn.Conv1d(2, 2, 1, bias=False))
    b, a = vec(0.1, 0.1, 0.1, 1.0), vec(10.0, 10.0, 10.0, 1.0)
    e = ascended(NoiseAdaptiveSAM(rho_base=0.1, curvature=0.1, curved_layers="all"), b, layout=conv, a=a)
    along = vec(-2.0, -2.0, -2.0, -1.1)
    assert e.tolist() == pytest.approx((0.1 * along / along.norm()).tolist())
    with pytest.raises(fa.ConfigError, match="E208 the model has no linear layer"):
        ascended(NoiseAdaptiveSAM(curvature=0.1), b, layout=conv, a=a)


def test_embeddings_look_a_tenth_as_far(vec: Any) -> None:
    layout = Layout.of(nn.Sequential(nn.Embedding(2, 1), nn.Linear(1, 2, bias=False)))
    assert layout.kinds == ("Embedding", "Linear")
    e = ascended(NoiseAdaptiveSAM(rho_base=0.1, embedding_scale=0.1), vec(1.0, 1.0, 1.0, 1.0), layout=layout)
    assert e.tolist() == pytest.approx([-0.005, -0.005, -0.05, -0.05])


def test_the_perturbation_in_host_memory_gives_the_same_bits() -> None:
    def end(memory: Any) -> Tensor:
        options: dict[str, Any] = {"partition": fa.IID(clients=4), "cohort": 2, "rounds": 3}
        return fa.run(fa.digits(model="softmax"), fa.NoiseAdaptiveSAM(ascent_memory=memory), **options).weights()

    assert torch.equal(end("host"), end("device"))


# How much a client does


def test_the_first_steps_take_the_second_pass_and_the_rest_are_plain(vec: Any) -> None:
    """5 steps, a share of 0.4: 2 of them."""
    method, w = NoiseAdaptiveSAM(), vec(0.0, 0.0, 0.0, 0.0)
    local, passes = begun(method, method.init_client(w), w, steps=5, share=0.4), []
    for step in range(5):
        grad = Target(vec(1.0, 0.0, 0.0, 0.0), step)
        direction, local = method.direction(grad, w, Sent(w), local)
        passes.append(len(grad.points))
    assert passes == [2, 2, 1, 1, 1] and direction.tolist() == [-1.0, 0.0, 0.0, 0.0]
    kept = method.upload(w, Sent(w), local, Work(5, 0.1, 5.0))[1]
    assert float(kept.two_pass) == pytest.approx(0.4) and float(kept.norms.mean) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "signals", "device", "share"),
    [
        ({"sam_fraction": 0.3}, {"noise": 9.0}, Device(), 0.3),
        ({"sam_budget": "auto"}, {}, Device(), 1.0),
        ({"sam_budget": "auto"}, {"noise": math.nan}, Device(), 1.0),  # seen once: not measured yet
        ({"sam_budget": "auto"}, {"noise": 0.05}, Device(), 0.2),
        ({"sam_budget": "auto"}, {"noise": 0.1}, Device(), 1.0),
        ({"sam_budget": "auto"}, {"noise": 0.5}, Device(False, 10.0, 4.0), 1.0),  # 20 steps, 40 gradients at 10 a second
        ({"sam_budget": "auto"}, {"noise": 0.5}, Device(False, 10.0, 3.9), 0.2),
        ({"sam_budget": "auto"}, {"noise": 0.5}, Device(True, 10.0, 2.4), 0.2),
        ({"sam_budget": "auto"}, {"noise": 0.5}, Device(True, 10.0, 2.3), 0.0),
        ({"sam_budget": "auto"}, {"noise": 0.5}, Device(True, 10.0, 0.1), 0.0),  # not in time anyway: as little as possible
        ({"sam_budget": "auto"}, {"noise": 0.05}, Device(False, 10.0, 100.0), 0.2),
        # with curvature a two-pass step takes 4 gradients: 80 of them, or with 0.2 of the steps 20 + 12
        ({"sam_budget": "auto", "curvature": 0.1}, {"noise": 0.5}, Device(False, 10.0, 8.0), 1.0),
        ({"sam_budget": "auto", "curvature": 0.1}, {"noise": 0.5}, Device(False, 10.0, 7.9), 0.2),
        ({"sam_budget": "auto", "curvature": 0.1}, {"noise": 0.5}, Device(False, 10.0, 3.1), 0.0),
    ],
)
def test_the_budget_follows_noise_speed_and_deadline(options: Any, signals: Any, device: Device, share: float) -> None:
    assert NoiseAdaptiveSAM(**options).effort(4, 5, signals, device) == Effort(4, share)


def test_in_a_run_weak_devices_take_fewer_second_passes_and_it_is_recorded() -> None:
    devices = fa.Devices(weak_share=0.5, gradients_per_second=10.0, weak_speed=0.5, deadline=0.9)
    plan = fa.LocalPlan(epochs=4, batch_size="full")  # 4 steps: 0.8 s with two passes on a strong device, 0.96 s with 0.2 on a weak one
    run = fa.run(
        fa.digits(model="softmax"),
        fa.NoiseAdaptiveSAM(sam_budget="auto"),
        partition=fa.IID(clients=4),
        cohort=4,
        rounds=1,
        local=plan,
        devices=devices,
    )
    assert sorted(run.clients["signals_two_pass"]) == [0.0, 0.0, 1.0, 1.0]
    assert sorted(run.clients["gradients"]) == [4, 4, 8, 8]


# On the server


def report(client: int, **signals: float | None) -> ClientReport:
    return ClientReport(2, client, 10, signals=signals)


def test_an_outlier_or_a_missing_radius_counts_a_tenth() -> None:
    """Median of 1, 1, 2, 2.1 (the missing one is not counted) is 1.5: 3.1 would be over twice; here 2.1 is not."""
    reports = [report(0, rho=1.0), report(1, rho=1.0), report(2, rho=2.0), report(3, rho=2.1), report(4)]
    assert NoiseAdaptiveSAM().confidence(reports).tolist() == [1, 1, 1, 1, 0.1]
    reports[3] = report(3, rho=3.1)
    assert NoiseAdaptiveSAM().confidence(reports).tolist() == [1, 1, 1, 0.1, 0.1]
    assert NoiseAdaptiveSAM(outlier_weight=1.0).confidence(reports).tolist() == [1, 1, 1, 1, 1]
    assert NoiseAdaptiveSAM().confidence([report(0), report(1, rho=None)]).tolist() == [0.1, 0.1]


def test_noisy_clients_may_count_less() -> None:
    reports = [report(0, rho=1.0, noise=0.0), report(1, rho=1.0, noise=1.0), report(2, rho=1.0, noise=-5.0)]
    assert NoiseAdaptiveSAM(server_weight="noise").confidence(reports).tolist() == [1.0, 0.5, 1.0]
    assert NoiseAdaptiveSAM().confidence(reports).tolist() == [1.0, 1.0, 1.0]


def test_a_jump_of_the_mean_radius_is_an_alert_that_names_the_clients_at_the_clip_and_the_absent(vec: Any) -> None:
    method = NoiseAdaptiveSAM(outlier_weight=0.1)
    first = method.observe(method.init_server(vec(0.0)), [report(0, rho=0.02), report(1, rho=0.04)])
    assert float(first.mean_rho) == pytest.approx(0.03)
    assert method.alerts(method.init_server(vec(0.0)), first, [report(0, rho=0.02), report(1, rho=0.04)], ()) == ()
    reports = [report(3, rho=0.15), report(5, rho=0.15), report(6, rho=0.02)]
    second = method.observe(first, reports)
    jump, at_clip = method.alerts(first, second, reports, (1, 9))
    assert "3.6 times" in jump and jump.endswith("by 3, 5; absent: 1, 9") and at_clip.endswith("3, 5; absent: 1, 9")
    third = method.observe(second, [report(0)])
    assert float(third.mean_rho) == float(second.mean_rho), "where nobody reports one, the mean stays"
    (missing,) = method.alerts(second, third, [report(0)], ())
    assert "missing: 0" in missing


def test_alerts_are_in_the_rounds_records() -> None:
    method = fa.NoiseAdaptiveSAM(rho_base=0.15)
    run = fa.run(fa.digits(model="softmax"), method, partition=fa.IID(clients=3), cohort=3, rounds=1)
    assert run.record.rounds[0]["alerts"] == ["SAM radius at rho_max = 0.15: 0, 1, 2"]


def test_batch_norm_statistics_move_once_a_batch_in_the_clean_pass() -> None:
    """The statistics after a round equal those of mix = 0, whose weights take other ways only after the first step."""
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    x, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    task = fa.Task(model=module, loss=F.cross_entropy, train=(x, y), test=(x, y))
    options: dict[str, Any] = {
        "partition": fa.IID(clients=1),
        "cohort": 1,
        "rounds": 1,
        "client_test": 0.0,
        "local": fa.LocalPlan(epochs=1, batch_size="full"),
    }
    sam, plain = (fa.run(task, method, **options).final.buffers for method in (fa.NoiseAdaptiveSAM(rho_base=0.15), fa.FedAvg()))
    assert all(torch.equal(sam[name], plain[name]) for name in plain) and int(sam["1.num_batches_tracked"]) == 1
