"""The published settings of each method are what a user gets who sets nothing."""

from __future__ import annotations

from dataclasses import asdict

import pytest

import fedaccord as fa

PUBLISHED = {
    fa.FedAvg: {},
    fa.FedAvgM: {"beta": 0.9, "lr": 1.0},
    fa.FedNova: {},
    fa.FedCM: {"alpha": 0.1},
    fa.Moon: {"mu": 1.0, "tau": 0.5},
    fa.FedASAM: {"rho": 0.7, "eta": 0.2, "scaled": "named_weight"},
    fa.MoFedSAM: {"rho": 0.1, "alpha": 0.1},
    fa.FedGamma: {"rho": 0.01},
    fa.FedSpeed: {"rho": 0.1, "alpha": 0.1, "mix": 1.0, "ascent": "unit", "server_mean": "all"},
    fa.FedLESAM: {"rho": 0.1},
    fa.FedLESAM_S: {"rho": 0.1},
    fa.FedLESAM_D: {"rho": 0.1, "alpha": 0.1},
    fa.FedGMT: {"alpha": 0.95, "gamma": 1.0, "tau": 3.0, "beta": 10.0},
    fa.FedGloSS: {"rho": 0.15, "rho_local": 0.15, "beta": 10.0, "rho_initial": 0.001, "warmup_rounds": 0},
    fa.FedWMSAM: {"rho": 0.01, "alpha": 0.1, "rate": 0.01, "perturbation": "uphill", "agreement": "cosine"},
    fa.FedBN: {},
    fa.SiloBN: {},
    fa.FedProx: {"mu": 0.01},
    fa.Scaffold: {},
    fa.FedDyn: {"alpha": 0.1},  # FL-Simulator's lambda
    fa.FedSAM: {"rho": 0.1},
    fa.FedSMOO: {"rho": 0.1, "beta": 10.0, "s_step": "drop_last"},  # FL-Simulator's lambda is 1 / beta
    fa.DynamicSAM: {
        "alpha": 0.4,
        "beta": 0.5,
        "kappa": 0.1,
        "lambda_min": 0.01,
        "lambda_max": 0.3,
        "rho_min": 0.001,
        "rho_max": 0.05,
        "mix": 0.5,
        "pull": 0.5,
        "clip_norm": 10.0,
        "noise_floor": 0.01,
        "rho_from": "clipped",
        "consistency": "coupled",
        "sharpness": "ascent",
        "warmup_rounds": 3,
        "reference_batches": 1,
        "reference_norm": "own",
        "norm_decay": 0.9,
        "calibration_rounds": 0,
        "trust": 1.0,
        "weak_epochs": None,
        "strong_epochs": None,
        "unstable_share": 1.0,
    },
}


@pytest.mark.parametrize("method", PUBLISHED, ids=lambda method: method.__name__)
def test_the_settings_of_a_method_are_the_published_ones(method: type[fa.Algorithm]) -> None:
    assert asdict(method()) == PUBLISHED[method]
