"""The published settings of optimisers and schedules are what a user gets who sets nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

import fedaccord as fa

PUBLISHED = {
    fa.Sgd: {"momentum": 0.0, "nesterov": False},
    fa.Adam: {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},  # Kingma & Ba 2015
    fa.AdamW: {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": 0.01},
    fa.ServerSgd: {"lr": 1.0, "momentum": 0.0},  # of neither: the round is the algorithm's own
    fa.ServerAdam: {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "initial_v": 1e-6},  # Reddi et al. 2021: v starts at tau^2
    fa.ServerYogi: {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "initial_v": 1e-6},
    fa.ServerAdagrad: {"lr": 0.01, "beta1": 0.0, "tau": 1e-3, "initial_v": 1e-6},
    fa.Constant: {},
    fa.Exponential: {"decay": 0.998},  # FL-Simulator
    fa.Cosine: {"final": 0.0},
}


@pytest.mark.parametrize("part", PUBLISHED, ids=lambda part: part.__name__)
def test_the_settings_of_a_part_are_the_published_ones(part: Any) -> None:
    assert asdict(part()) == PUBLISHED[part]
