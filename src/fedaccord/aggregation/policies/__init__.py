"""The policies by name: `[aggregation.policy] name = ...`."""

from __future__ import annotations

from fedaccord.aggregation.policies.bandit import Bandit
from fedaccord.aggregation.policies.fedadp import FedAdp
from fedaccord.aggregation.policies.linear import Linear
from fedaccord.aggregation.policies.losses import AFL, QFFL
from fedaccord.aggregation.policies.per_client import PerClient
from fedaccord.aggregation.policies.residual import Residual
from fedaccord.aggregation.policies.trust import LambdaTrust, RadiusTrust
from fedaccord.aggregation.policy import BySize, Equal, Policy

POLICIES: dict[str, type[Policy]] = {
    "by_size": BySize,
    "equal": Equal,
    "q_ffl": QFFL,
    "afl": AFL,
    "fedadp": FedAdp,
    "lambda_trust": LambdaTrust,
    "radius_trust": RadiusTrust,
    "linear": Linear,
    "bandit": Bandit,
    "per_client": PerClient,
    "residual": Residual,
}

__all__ = ["AFL", "POLICIES", "QFFL", "Bandit", "FedAdp", "LambdaTrust", "Linear", "PerClient", "RadiusTrust", "Residual"]
