"""Every law, for every method of the registry."""

from __future__ import annotations

from typing import Any

import pytest

import fedaccord as fa
from fedaccord.algorithms import REGISTRY
from fedaccord.checks import Law

OFF: dict[str, Any] = {"lambda_min": 0.0, "lambda_max": 0.0, "rho_min": 0.0, "rho_max": 0.0, "trust": 0.0, "clip_norm": 0.0}
SAID: dict[str, dict[str, Any]] = {  # what a method's author says of it: settings at which it is FedAvg, and the mean that its server keeps
    "fedprox": {"neutral": fa.FedProx(mu=0.0)},
    "scaffold": {"ledger": lambda server, kept: (server.control, kept.control)},
    "feddyn": {"ledger": lambda server, kept: (server.drift, kept.drift)},
    "fedsam": {"neutral": fa.FedSAM(rho=0.0)},
    "fedavgm": {"neutral": fa.FedAvgM(beta=0.0)},
    "fedcm": {"neutral": fa.FedCM(alpha=1.0)},
    "mofedsam": {"neutral": fa.MoFedSAM(rho=0.0, alpha=1.0)},
    "fedasam": {"neutral": fa.FedASAM(rho=0.0)},
    "moon": {"neutral": fa.Moon(mu=0.0)},
    "fedlesam": {"neutral": fa.FedLESAM(rho=0.0)},
    "fedlesam_s": {"ledger": lambda server, kept: (server.control, kept.inner.control)},
    "fedlesam_d": {"ledger": lambda server, kept: (server.drift, kept.inner.drift)},
    "fedgmt": {"ledger": lambda server, kept: (server.drift, kept.drift)},
    "fedgloss": {"ledger": lambda server, kept: (server.drift, kept.drift)},
    "fedwmsam": {"ledger": lambda server, kept: (server.control, kept.control)},
    "fedgamma": {"ledger": lambda server, kept: (server.control, kept.control)},
    "fedspeed": {"ledger": lambda server, kept: (server.drift, kept.drift)},
    "fedsmoo": {"ledger": lambda server, kept: (server.dual, kept.dual)},
    "dynamic_sam": {"neutral": fa.DynamicSAM(**OFF)},
    "noise_adaptive_sam": {"neutral": fa.NoiseAdaptiveSAM(mix=0.0, outlier_weight=1.0)},
}
IN_WARM_UP = fa.DynamicSAM(warmup_rounds=99, trust=0.0, clip_norm=0.0)
OTHERS: dict[str, tuple[fa.Algorithm, dict[str, Any]]] = {  # settings beside the defaults, for the laws that are said
    "feddyn 0.3": (fa.FedDyn(alpha=0.3), SAID["feddyn"]),
    "fedsmoo 0.05 5": (fa.FedSMOO(rho=0.05, beta=5.0), SAID["fedsmoo"]),
    "noise_adaptive_sam of radius 0": (
        fa.NoiseAdaptiveSAM(),
        {"neutral": fa.NoiseAdaptiveSAM(rho_base=0.0, rho_min=0.0, rho_max=0.0, outlier_weight=1.0)},
    ),
    "dynamic_sam in warm-up": (fa.DynamicSAM(), {"neutral": IN_WARM_UP}),
}

LAWS = [pytest.param(law, id=f"{name}-{law}") for name in REGISTRY for law in fa.laws(REGISTRY[name](), **SAID.get(name, {}))]
LAWS += [pytest.param(law, id=f"{name}-{law}") for name, (of, said) in OTHERS.items() for law in fa.laws(of, **said) if law.name in said]


@pytest.mark.parametrize("law", LAWS)
def test_the_law_holds(law: Law) -> None:
    law()
