"""Local optimisers as pure functions: (w, direction, moments, lr) -> (w, moments). Moments start afresh in every round.

`into` is memory that the new w may be written to, w's own where nobody else looks at it; None for a fresh vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedaccord.core.algorithm import NonNegative, Positive, Share


class LocalOptimizer(Protocol):
    """What the local loop asks of an optimiser."""

    def init(self, w: Tensor) -> Any: ...

    def step(self, w: Tensor, direction: Tensor, moments: Any, lr: float, into: Tensor | None = None) -> tuple[Tensor, Any]: ...

    def effective_steps(self, steps: int) -> float:
        """Displacement that `steps` equal directions of length 1 bring, in units of lr (FedNova's a_i)."""
        ...


@dataclass(frozen=True)
class Sgd:
    """SGD with momentum m <- momentum * m + v, w <- w - lr * m; Nesterov goes along v + momentum * m (Sutskever et al. 2013, as in
    torch).
    """

    momentum: Share = 0.0
    nesterov: bool = False

    def init(self, w: Tensor) -> Any:
        return torch.zeros_like(w) if self.momentum else ()

    def step(self, w: Tensor, direction: Tensor, moments: Any, lr: float, into: Tensor | None = None) -> tuple[Tensor, Any]:
        if not self.momentum:  # a hyper-parameter, not a value of a tensor
            return torch.sub(w, direction, alpha=lr, out=into), moments
        moments = self.momentum * moments + direction
        along = direction + self.momentum * moments if self.nesterov else moments
        return torch.sub(w, along, alpha=lr, out=into), moments

    def effective_steps(self, steps: int) -> float:
        """(K - m (1 - m^K) / (1 - m)) / (1 - m), Wang et al. 2020 (FedNova, arXiv:2007.07481), §4; K without momentum or with m = 1."""
        m = self.momentum
        if m == 0:
            return float(steps)
        momentum_of_step, total = 0.0, 0.0
        for _ in range(steps):
            momentum_of_step = m * momentum_of_step + 1.0
            total += 1.0 + m * momentum_of_step if self.nesterov else momentum_of_step
        return total


class AdamMoments(NamedTuple):
    m: Tensor  # [d], running mean of the directions
    v: Tensor  # [d], running mean of their squares
    step: Tensor  # [], float64: 1 - 0.999^k loses four digits in float32


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction (Kingma & Ba 2015, arXiv:1412.6980, algorithm 1). Weight decay reaches it inside the direction (L2)."""

    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Positive = 1e-8

    def init(self, w: Tensor) -> AdamMoments:
        return AdamMoments(torch.zeros_like(w), torch.zeros_like(w), w.new_zeros((), dtype=torch.float64))

    def step(self, w: Tensor, direction: Tensor, moments: AdamMoments, lr: float, into: Tensor | None = None) -> tuple[Tensor, AdamMoments]:
        k = moments.step + 1
        m = self.beta1 * moments.m + (1 - self.beta1) * direction
        v = self.beta2 * moments.v + (1 - self.beta2) * direction**2
        unbiased_m, unbiased_v = m / (1 - self.beta1**k), v / (1 - self.beta2**k)
        return w - lr * unbiased_m / (unbiased_v.sqrt() + self.epsilon), AdamMoments(m, v, k)

    def effective_steps(self, steps: int) -> float:
        """Each Adam step has length about lr whatever the gradient: `steps`, as an approximation."""
        return float(steps)


@dataclass(frozen=True)
class AdamW:
    """Adam whose weight decay acts beside the moments: w <- (1 - lr * decay) w first (Loshchilov & Hutter 2019, arXiv:1711.05101)."""

    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Positive = 1e-8
    decay: NonNegative = 0.01

    def init(self, w: Tensor) -> AdamMoments:
        return self._adam().init(w)

    def step(self, w: Tensor, direction: Tensor, moments: AdamMoments, lr: float, into: Tensor | None = None) -> tuple[Tensor, AdamMoments]:
        return self._adam().step(w * (1 - lr * self.decay), direction, moments, lr)

    def effective_steps(self, steps: int) -> float:
        return self._adam().effective_steps(steps)

    def _adam(self) -> Adam:
        return Adam(self.beta1, self.beta2, self.epsilon)


LOCAL_OPTIMIZERS: dict[str, type] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
