"""dynamic_sam: SAM softly pulled to the global model, where each client's own signals set the pull and the radius.

Not FedSMOO, though FedSMOO's full name ("dynamic regularized SAM") is close: no dual variables, nothing but scalars beside the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, BatchGrad, NonNegative, PositiveCount, RoundStart, Server, Share, Upload, Work
from fedaccord.core.gradient import ahead, cosine, shortened
from fedaccord.core.reports import ClientReport

NUM_ANGLES = 5


class Kept(NamedTuple):
    gamma: Tensor  # [], consistency: cosine of the last local gradient and the gradient at the global model
    sigma: Tensor  # [], sharpness: mean of L(w + e) - L(w)
    tau: Tensor  # [], instability: standard deviation of `angles`, radians
    raw: Tensor  # [], unclipped lambda that the three signals ask for
    used_lambda: Tensor  # [], lambda of the last participation
    used_rho: Tensor  # [], radius of the last participation
    angles: Tensor  # [5], between the final gradients of consecutive participations, oldest first
    num_angles: Tensor  # []
    final: Tensor  # [d], last gradient of the last participation; zero before the first


class Local(NamedTuple):
    kept: Kept
    strength: Tensor  # [], lambda of this round
    rho: Tensor  # [], radius of this round
    random: Tensor  # [d], unit vector, the ascent where the gradient is zero
    reference: Tensor  # [d], before the first step the sum over the extra batches, then the mean gradient at the global model
    num_reference: int  # batches in that mean
    final: Tensor  # [d]
    rises: Tensor  # [], sum of L(w + e) - L(w)
    losses: Tensor  # [], sum of L(w)
    probe: Tensor  # [2], (rise, loss) on held-out examples, measured in warm-up


@dataclass(frozen=True)
class DynamicSAM(Algorithm):
    """Objective L(w) + lambda |w - w_t|^2 + L(w + e), |e| = rho, at half the step length (mix = pull = 0.5).

    Two gradients a step; traffic d and 8 scalars; client state d and 13 scalars. What one participation measures sets lambda and rho of the
    client's next one:  lambda = clip(alpha (1 - gamma) + beta sigma + kappa tau),  rho = max(rho_min, rho_max exp(-lambda)).
    Order: SAM on the data gradient, mixed with the plain one, then the pull, then the method's own clip. In warm-up lambda = rho = 0,
    and sigma comes from a probe at rho_max on the client's held-out validation examples (unmeasured, so 0, where it has none).
    """

    alpha: NonNegative = 0.4  # weight of 1 - gamma
    beta: NonNegative = 0.5  # weight of sigma
    kappa: NonNegative = 0.1  # weight of tau
    lambda_min: NonNegative = 0.01
    lambda_max: NonNegative = 0.3
    rho_min: NonNegative = 0.001
    rho_max: NonNegative = 0.05
    mix: Share = 0.5  # 1 is textbook SAM, 0 is plain SGD at the cost of SAM
    pull: NonNegative = 0.5  # 0.5 belongs to mix = 0.5, 1 to mix = 1
    clip_norm: NonNegative = 10.0  # 0: no clip
    noise_floor: NonNegative = 0.01  # sigma below this share of the loss counts as 0
    warmup_rounds: int = 3
    reference_batches: PositiveCount = 1
    trust: NonNegative = 1.0  # weight of an upload is n exp(-trust raw); 0 is FedAvg's

    def init_client(self, w: Tensor) -> Kept:
        zero = w.new_zeros(())
        return Kept(zero + 1, zero, zero, zero, zero, zero, w.new_zeros(NUM_ANGLES), zero, torch.zeros_like(w))

    def begin(self, start: RoundStart, sent: Server, kept: Kept) -> Local:
        zero = sent.w.new_zeros(())
        reference = sum((grad(sent.w) for grad in start.reference), torch.zeros_like(sent.w))
        strength = kept.raw.clamp(self.lambda_min, self.lambda_max)
        rho = (self.rho_max * torch.exp(-strength)).clamp(min=self.rho_min)
        probe = sent.w.new_zeros(2)
        if start.round <= self.warmup_rounds:
            strength, rho = zero, zero
            if start.validation is not None:
                probe = self._probe(start.validation, sent.w)
        count = len(start.reference) + 1
        return Local(kept, strength, rho, start.random_direction(), reference, count, torch.zeros_like(sent.w), zero, zero, probe)

    def _probe(self, grad: BatchGrad, w: Tensor) -> Tensor:
        loss, gradient = grad.with_loss(w)
        above, _ = grad.with_loss(ahead(w, gradient, w.new_tensor(self.rho_max), torch.zeros_like(w)))
        return torch.stack([above - loss, loss])

    def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: Local) -> tuple[Tensor, Local]:
        loss, g0 = grad.with_loss(w)
        above, g1 = grad.with_loss(ahead(w, g0, local.rho, local.random))
        g_sam = torch.lerp(g0, g1, self.mix)
        if grad.step == 0:  # w is the global model, so g0 is a reference gradient for free
            local = local._replace(reference=(local.reference + g0) / local.num_reference)
        local = local._replace(final=g_sam, rises=local.rises + (above - loss), losses=local.losses + loss)
        pulled = torch.addcmul(g_sam, 2 * self.pull * local.strength, w - sent.w)
        return shortened(pulled, self.clip_norm) if self.clip_norm else pulled, local

    def upload(self, w: Tensor, sent: Server, local: Local, work: Work) -> tuple[Upload, Kept]:
        kept = local.kept
        warm = local.rho == 0  # no SAM step looked ahead: the probe did
        rise, loss = torch.where(warm, local.probe, torch.stack([local.rises, local.losses]) / work.steps)
        sigma = torch.where(rise < self.noise_floor * loss.abs(), torch.zeros_like(rise), rise)
        gamma = cosine(local.final, local.reference)

        angle = torch.arccos(cosine(local.final, kept.final))
        seen = (kept.final != 0).any()
        angles = torch.where(seen, torch.cat([kept.angles[1:], angle[None]]), kept.angles)
        num_angles = kept.num_angles + seen.to(kept.num_angles.dtype)
        tau = torch.where(num_angles >= NUM_ANGLES, angles.std(correction=0), torch.zeros_like(angle))

        raw = self.alpha * (1 - gamma) + self.beta * sigma + self.kappa * tau
        return Upload(w - sent.w), Kept(gamma, sigma, tau, raw, local.strength, local.rho, angles, num_angles, local.final)

    def signals(self, kept: Kept) -> dict[str, Tensor]:
        """gamma, sigma, tau and lambda_raw of this participation; the lambda and rho it used; whether lambda_raw is at a clip (0 or 1)."""
        clipped = (kept.raw <= self.lambda_min) | (kept.raw >= self.lambda_max)
        own = {
            "gamma": kept.gamma,
            "sigma": kept.sigma,
            "tau": kept.tau,
            "lambda_raw": kept.raw,
            "lambda": kept.used_lambda,
            "rho": kept.used_rho,
        }
        return own | {"clipped": clipped.to(kept.raw.dtype)}

    def confidence(self, reports: Sequence[ClientReport]) -> Tensor:
        """exp(-trust lambda_raw): clients whose training went astray count less. Ours: the source's own formula is cut off."""
        raw = torch.tensor([report.signals.get("lambda_raw") or 0.0 for report in reports], dtype=torch.float64)
        return torch.exp(-self.trust * raw.clamp(min=0))  # a negative one is a lie: no signal is

    @property
    def num_reference_batches(self) -> int:
        return self.reference_batches
