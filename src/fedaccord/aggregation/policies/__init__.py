"""The policies by name: `[aggregation.policy] name = ...`."""

from __future__ import annotations

from fedaccord.aggregation.policy import BySize, Equal, Policy

POLICIES: dict[str, type[Policy]] = {"by_size": BySize, "equal": Equal}
