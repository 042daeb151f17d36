"""The small network of a learned policy: one and the same for every client, so that the order of the clients cannot matter."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from fedaccord.aggregation.policy import CohortView
from fedaccord.core.errors import ConfigError
from fedaccord.core.rng import stream

Layers = Mapping[str, Tensor]  # "0.weight" [out, in], "0.bias" [out], "1.weight", ...; tanh between them
SHIPPED = "default"  # the weights in the package


def forward(layers: Layers, features: Tensor) -> Tensor:
    """Outputs [C, out] of features [C, in], float64."""
    count = len(layers) // 2
    for i in range(count):
        features = features @ layers[f"{i}.weight"].T + layers[f"{i}.bias"]
        if i < count - 1:
            features = features.tanh()
    return features


def explored(outputs: Tensor, deviation: float, cohort: CohortView) -> Tensor:
    """Outputs [C, out] with Gaussian noise of each client's own."""
    if not deviation:
        return outputs
    drawn = [stream(cohort.seed, "policy", cohort.round, client).standard_normal(outputs.shape[1]) for client in cohort.clients]
    return outputs + deviation * torch.from_numpy(np.stack(drawn))


def untrained(inputs: int, outputs: int, hidden: tuple[int, ...] = (32, 32)) -> dict[str, Tensor]:
    """Layers whose last one is zero: every output is 0."""
    generator, layers, width = torch.Generator().manual_seed(0), {}, inputs
    for i, size in enumerate((*hidden, outputs)):
        scale = 0.0 if i == len(hidden) else width**-0.5
        layers[f"{i}.weight"] = scale * torch.randn(size, width, generator=generator, dtype=torch.float64)
        layers[f"{i}.bias"] = torch.zeros(size, dtype=torch.float64)
        width = size
    return layers


@cache
def read(weights: str, shipped: str, inputs: int, outputs: int) -> Layers:
    """The layers of a policy: "untrained", "default" (the package's file `shipped`), or the path of a safetensors file. E301 where there is
    none, E110 where it is another policy's."""
    if weights == "untrained":
        return untrained(inputs, outputs)
    try:
        data = (files("fedaccord") / "pretrained" / shipped).read_bytes() if weights == SHIPPED else Path(weights).read_bytes()
        layers = {name: tensor.double().clone() for name, tensor in load(data).items()}
    except Exception as problem:
        what = f"the policy's weights cannot be read ({type(problem).__name__}: {problem})"
        raise ConfigError("E301", what, weights, "Train them: fedaccord policy train, or use weights = 'untrained'") from problem
    last = len(layers) // 2 - 1
    shapes = (layers.get("0.weight", torch.zeros(0, 0)).shape[-1], layers.get(f"{last}.weight", torch.zeros(0, 0)).shape[0])
    if shapes != (inputs, outputs):
        what = f"the weights take {shapes[0]} features and give {shapes[1]} numbers, this policy has {inputs} and {outputs}"
        raise ConfigError("E110", what, weights, "They belong to another policy, or to another version")
    return layers
