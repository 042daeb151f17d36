"""The screens by name: `[aggregation.screen] name = ...`."""

from __future__ import annotations

from fedaccord.aggregation.screen import Screen

SCREENS: dict[str, type[Screen]] = {}
