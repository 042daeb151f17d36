"""With its parameters at neutral, a method is FedAvg to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedaccord as fa

OFF = {"lambda_min": 0.0, "lambda_max": 0.0, "rho_min": 0.0, "rho_max": 0.0, "trust": 0.0, "clip_norm": 0.0}
NEUTRAL = {
    "fedavgm": fa.FedAvgM(beta=0.0),
    "fedprox": fa.FedProx(mu=0.0),
    "fedcm": fa.FedCM(alpha=1.0),
    "moon": fa.Moon(mu=0.0),
    "fedsam": fa.FedSAM(rho=0.0),
    "fedasam": fa.FedASAM(rho=0.0),
    "mofedsam": fa.MoFedSAM(rho=0.0, alpha=1.0),
    "fedlesam": fa.FedLESAM(rho=0.0),
    "dynamic_sam": fa.DynamicSAM(**OFF),  # type: ignore[arg-type]
    "dynamic_sam in warm-up": fa.DynamicSAM(warmup_rounds=99, trust=0.0, clip_norm=0.0),
}
NOT_NEUTRAL = {
    "fedavgm": fa.FedAvgM(beta=0.1),
    "fedprox": fa.FedProx(mu=0.1),
    "fedcm": fa.FedCM(alpha=0.9),
    "moon": fa.Moon(mu=0.1),
    "fedsam": fa.FedSAM(rho=0.01),
    "fedasam": fa.FedASAM(rho=0.01),
    "mofedsam": fa.MoFedSAM(rho=0.01, alpha=1.0),
    "fedlesam": fa.FedLESAM(rho=0.01),
    "dynamic_sam": fa.DynamicSAM(warmup_rounds=0),
}

PLANS = {
    "sgd": fa.LocalPlan(lr=0.1, epochs=2, batch_size=4),
    "momentum, decay, clip": fa.LocalPlan(lr=0.1, epochs=2, batch_size=4, optimizer=fa.Sgd(0.9), weight_decay=0.01, clip_norm=0.5),
    "adam": fa.LocalPlan(lr=0.01, epochs=2, batch_size=4, optimizer=fa.Adam()),
}


def server_models(traced: Any) -> list[Any]:
    return [(result.state.server.w, result.state.buffers) for result in traced.results]


def equal(a: Any, b: Any) -> bool:
    return all(
        torch.equal(wa, wb) and all(torch.equal(ba[name], bb[name]) for name in ba)
        for (wa, ba), (wb, bb) in zip(server_models(a), server_models(b), strict=True)
    )


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", NEUTRAL)
def test_a_neutral_method_is_fedavg_in_every_round_to_the_bit(name: str, plan: str, trace: Any) -> None:
    assert equal(trace(NEUTRAL[name], local=PLANS[plan]), trace(fa.FedAvg(), local=PLANS[plan]))


@pytest.mark.parametrize("name", NOT_NEUTRAL)
def test_the_comparison_is_alive(name: str, trace: Any) -> None:
    assert not equal(trace(NOT_NEUTRAL[name]), trace(fa.FedAvg()))


@pytest.mark.parametrize("method", [fa.FedBN(), fa.SiloBN()], ids=["fedbn", "silobn"])
def test_where_there_is_no_batch_norm_nothing_stays_behind(method: fa.Algorithm, trace: Any) -> None:
    assert equal(trace(method), trace(fa.FedAvg()))


def test_scaffolds_first_round_is_fedavgs_to_the_bit_and_its_second_is_not(trace: Any) -> None:
    one, other = trace(fa.Scaffold()), trace(fa.FedAvg())
    assert torch.equal(one.results[0].state.server.w, other.results[0].state.server.w)
    assert not torch.equal(one.results[1].state.server.w, other.results[1].state.server.w)


@pytest.mark.parametrize("name", NEUTRAL)
def test_batch_norm_statistics_agree_as_well(name: str, trace: Any) -> None:
    """The second pass of a SAM method moves no statistics. Without dropout, whose draws count passes."""
    task = fa.Task(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)),
        loss=torch.nn.functional.cross_entropy,
        train=_rows(),
        test=_rows(),
    )
    options: dict[str, Any] = {"partition": fa.IID(clients=7), "local": fa.LocalPlan(epochs=2, batch_size=4, drop_last=True)}
    a, b = trace(NEUTRAL[name], task, **options), trace(fa.FedAvg(), task, **options)
    assert equal(a, b) and a.results[-1].report.accepted


def _rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(84, 6, generator=generator), torch.randint(0, 3, (84,), generator=generator)
