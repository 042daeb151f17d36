"""Attacks by name: `[attack] name = ...`."""

from __future__ import annotations

from fedaccord.attacks.attack import Attack, Nobody
from fedaccord.attacks.attacked import Attacked, poisoned
from fedaccord.attacks.on_data import Backdoor, LabelFlip
from fedaccord.attacks.on_uploads import ALIE, IPM, Adaptive, FreeRider, GaussianNoise, InflatedCounts, Scaling, SignFlip

ATTACKS: dict[str, type[Attack]] = {
    "none": Nobody,
    "sign_flip": SignFlip,
    "scaling": Scaling,
    "alie": ALIE,
    "ipm": IPM,
    "label_flip": LabelFlip,
    "backdoor": Backdoor,
    "gaussian_noise": GaussianNoise,
    "inflated_counts": InflatedCounts,
    "free_rider": FreeRider,
    "adaptive": Adaptive,
}

__all__ = [
    "ALIE",
    "ATTACKS",
    "IPM",
    "Adaptive",
    "Attack",
    "Attacked",
    "Backdoor",
    "FreeRider",
    "GaussianNoise",
    "InflatedCounts",
    "LabelFlip",
    "Nobody",
    "Scaling",
    "SignFlip",
    "poisoned",
]
