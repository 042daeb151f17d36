"""The policies by name: `[aggregation.policy] name = ...`."""

from __future__ import annotations

from fedaccord.aggregation.policies.per_client import PerClient
from fedaccord.aggregation.policies.residual import Residual
from fedaccord.aggregation.policy import BySize, Equal, Policy

POLICIES: dict[str, type[Policy]] = {
    "by_size": BySize,
    "equal": Equal,
    "per_client": PerClient,
    "residual": Residual,
}
