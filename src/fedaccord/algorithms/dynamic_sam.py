"""dynamic_sam: SAM softly pulled to the global model, where each client's own signals set the pull and the radius.

Not FedSMOO, though FedSMOO's full name ("dynamic regularized SAM") is close: no dual variables, nothing but scalars beside the update.

Paper: none, the method is this project's own.
Reference code read: none.
Deviation: the factor on a client's weight is ours, exp(-trust lambda_raw); the source's formula is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Gt, Le
from torch import Tensor

from fedaccord.core.algorithm import (
    Algorithm,
    BatchGrad,
    Cohort,
    Count,
    Device,
    Effort,
    NonNegative,
    PositiveCount,
    RoundStart,
    Share,
    Upload,
    Work,
)
from fedaccord.core.gradient import ahead, cosine, mixed, shortened
from fedaccord.core.reports import ClientReport

NUM_ANGLES = 5
UNSTABLE = 0.15  # radians of tau
INACTIVE = 0.5  # share of the clients whose lambda is at a clip, from which the adaptation is said to do nothing
TOO_NEGATIVE = -0.05  # a sharpness below this is an artefact of the direction


class Server(NamedTuple):
    w: Tensor  # [d]
    median_sigma: Tensor  # [], mean over the calibration rounds of the clients' median; 0: not measured
    num_medians: Tensor  # []


class Sent(NamedTuple):
    w: Tensor  # [d]
    median_sigma: Tensor  # []


class Calibration(NamedTuple):
    """What a client gathers in the calibration rounds to set its own largest radius."""

    w: Tensor  # [d], global model of its last participation
    seen: Tensor  # [], 1 after its first participation
    lipschitz: Tensor  # [], largest |grad(w_t) - grad(w_s)| / |w_t - w_s| on the same examples
    sigma: Tensor  # [], sum of the probes' rises
    num_sigma: Tensor  # []


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
    reference_norm: Tensor  # [], moving average of the reference gradients' norms; 0 before the first
    calibration: Any  # Calibration, or () where the radius is not calibrated


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
    random_rise: Tensor  # [], L(w + rho u) - L(w) in the last step, u random
    num_steps: int
    is_warm: bool  # warm-up: plain steps
    has_reference: Tensor | None = None  # [], 1 once `reference` is the mean; None where the first step is sure to make it so


def as_measured(rise: Tensor, random_rise: Tensor) -> Tensor:
    """The rise along the gradient, whatever its sign."""
    return rise


def random_where_negative(rise: Tensor, random_rise: Tensor) -> Tensor:
    """The rise along a random direction where the one along the gradient is clearly negative. Costs one evaluation more a round."""
    return torch.where(rise < TOO_NEGATIVE, random_rise, rise)


SHARPNESS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"ascent": as_measured, "random_where_negative": random_where_negative}


def own_norm(norm: Tensor, average: Tensor) -> Tensor:
    """gamma is the cosine."""
    return norm


def average_norm(norm: Tensor, average: Tensor) -> Tensor:
    """The reference gradient counts with its usual length, which steadies gamma in the first rounds."""
    return average


REFERENCE_NORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"own": own_norm, "moving_average": average_norm}


@dataclass(frozen=True)
class DynamicSAM(Algorithm):
    """Objective L(w) + lambda |w - w_t|^2 + L(w + e), |e| = rho, at half the step length (mix = pull = 0.5).

    What one participation measures sets lambda and rho of the client's next one:  lambda = clip(alpha (1 - gamma) + beta sigma + kappa
    tau),  rho = max(rho_min, rho_max exp(-lambda)). Order: SAM on the data gradient, mixed with the plain one, then the method's own clip
    around the pull (coupled), or the clip and then the pull beside the optimiser (decoupled). In warm-up lambda = rho = 0, steps are
    plain, and sigma comes from a probe at rho_max on the client's held-out validation examples (unmeasured, so 0, where it has none:
    `run.client_validation`).
    """

    alpha: NonNegative = 0.4  # weight of 1 - gamma
    beta: NonNegative = 0.5  # weight of sigma
    kappa: NonNegative = 0.1  # weight of tau
    lambda_min: NonNegative = 0.01
    lambda_max: NonNegative = 0.3
    rho_min: NonNegative = 0.001
    rho_max: NonNegative = 0.05
    rho_from: Literal["clipped", "raw"] = "clipped"  # the lambda that shortens rho; with the clipped one rho moves little
    mix: Share = 0.5  # 1 is textbook SAM, 0 is plain SGD at the cost of SAM
    pull: NonNegative = 0.5  # 0.5 belongs to mix = 0.5, 1 to mix = 1
    consistency: Literal["coupled", "decoupled"] = "coupled"  # the pull inside the optimiser's gradient, or beside the optimiser
    clip_norm: NonNegative = 10.0  # 0: no clip
    noise_floor: NonNegative = 0.01  # sigma below this share of the loss counts as 0
    sharpness: Literal["ascent", "random_where_negative"] = "ascent"
    warmup_rounds: Count = 3
    reference_batches: PositiveCount = 1
    reference_norm: Literal["own", "moving_average"] = "own"
    norm_decay: Share = 0.9  # of that moving average, a participation
    calibration_rounds: Count = 0  # 10 is usual; afterwards rho_max of a client is rho_max median(sigma) / sigma, at most 2 / L
    trust: NonNegative = 1.0  # weight of an upload is n exp(-trust raw); 0 is FedAvg's
    weak_epochs: PositiveCount | None = None  # of weak devices (3 is usual); left out: the plan's
    strong_epochs: PositiveCount | None = None  # of the others (8 is usual); left out: the plan's
    unstable_share: Annotated[float, Gt(0), Le(1)] = 1.0  # of the epochs, while a client's tau is above 0.15 radians (0.5 is usual)

    def init_server(self, w: Tensor) -> Server:
        return Server(w, w.new_zeros(()), w.new_zeros(()))

    def broadcast(self, server: Server) -> Sent:
        return Sent(server.w, server.median_sigma)

    def init_client(self, w: Tensor) -> Kept:
        zero = w.new_zeros(())
        calibration = Calibration(torch.zeros_like(w), zero, zero, zero, zero) if self.calibration_rounds else ()
        return Kept(zero + 1, zero, zero, zero, zero, zero, w.new_zeros(NUM_ANGLES), zero, torch.zeros_like(w), zero, calibration)

    def effort(self, epochs: int, steps_per_epoch: int, signals: Mapping[str, float], device: Device) -> Effort:
        """3 epochs on a weak device, 8 on a strong one, half while unstable: where asked for."""
        chosen = (self.weak_epochs if device.is_weak else self.strong_epochs) or epochs
        return Effort(max(1, round(chosen * self.unstable_share)) if signals.get("tau", 0.0) > UNSTABLE else chosen)

    def begin(self, start: RoundStart, sent: Sent, kept: Kept) -> Local:
        zero = sent.w.new_zeros(())
        reference = sum((grad(sent.w) for grad in start.reference), torch.zeros_like(sent.w))
        count, is_warm = len(start.reference) + 1, start.round <= self.warmup_rounds
        strength = kept.raw.clamp(self.lambda_min, self.lambda_max)
        shortening = strength if self.rho_from == "clipped" else kept.raw
        rho = (self._rho_max(start, sent, kept) * torch.exp(-shortening)).clamp(min=self.rho_min)
        if is_warm:
            strength, rho = zero, zero
        probe = sent.w.new_zeros(2)
        if start.validation is not None and start.round <= max(self.warmup_rounds, self.calibration_rounds):
            probe, gradient = self._probe(start.validation, sent.w)
            if start.round <= self.calibration_rounds:
                kept = kept._replace(calibration=_calibrated(kept.calibration, start.validation, sent.w, gradient, probe[0]))
        random, final = start.random_direction(), torch.zeros_like(sent.w)
        has_reference = zero if start.steps_may_fail else None
        steps = start.num_steps
        return Local(kept, strength, rho, random, reference, count, final, zero, zero, probe, zero, steps, is_warm, has_reference)

    def _rho_max(self, start: RoundStart, sent: Sent, kept: Kept) -> Tensor:
        """This client's largest radius."""
        largest = sent.w.new_tensor(self.rho_max)
        if start.round <= self.calibration_rounds or not self.calibration_rounds:
            return largest
        own = kept.calibration
        sigma = own.sigma / own.num_sigma.clamp(min=1)
        is_known = (sigma > 0) & (sent.median_sigma > 0)
        ratio = torch.where(is_known, sent.median_sigma / torch.where(is_known, sigma, 1.0), 1.0)
        limit = torch.where(own.lipschitz > 0, 2 / torch.where(own.lipschitz > 0, own.lipschitz, 1.0), torch.inf)
        return torch.minimum((largest * ratio).clamp(min=self.rho_min), limit)

    def _probe(self, grad: BatchGrad, w: Tensor) -> tuple[Tensor, Tensor]:
        """((rise, loss) [2] at rho_max, gradient [d]) on the held-out examples."""
        loss, gradient = grad.with_loss(w)
        above, _ = grad.with_loss(ahead(w, gradient, w.new_tensor(self.rho_max), torch.zeros_like(w)))
        return torch.stack([above - loss, loss]), gradient

    def direction(self, grad: BatchGrad, w: Tensor, sent: Sent, local: Local) -> tuple[Tensor, Local]:
        loss, g0 = grad.with_loss(w)
        if grad.step == 0 or local.has_reference is not None:
            local = self._referred(g0, local)
        if local.is_warm:
            return self._pulled(g0, w, sent, local._replace(final=g0))
        if self.sharpness != "ascent" and grad.step == local.num_steps - 1:
            local = local._replace(random_rise=grad.with_loss(torch.addcmul(w, local.rho, local.random))[0] - loss)
        above, g1 = grad.with_loss(ahead(w, g0, local.rho, local.random))  # last: its gradient moves what the client keeps to itself
        g_sam = mixed(g0, g1, self.mix)
        return self._pulled(g_sam, w, sent, local._replace(final=g_sam, rises=local.rises + (above - loss), losses=local.losses + loss))

    def _referred(self, g0: Tensor, local: Local) -> Local:
        """Before the first step that counts, w is the global model: g0 is a reference gradient for free."""
        mean = (local.reference + g0) / local.num_reference
        if local.has_reference is None:
            return local._replace(reference=mean)
        reference = torch.where(local.has_reference > 0, local.reference, mean)
        return local._replace(reference=reference, has_reference=torch.ones_like(local.has_reference))

    def _pulled(self, g_sam: Tensor, w: Tensor, sent: Sent, local: Local) -> tuple[Tensor, Local]:
        if self.consistency == "coupled":
            g_sam = torch.addcmul(g_sam, 2 * self.pull * local.strength, w - sent.w)
        return shortened(g_sam, self.clip_norm) if self.clip_norm else g_sam, local

    def beside(self, w: Tensor, sent: Sent, local: Local) -> Tensor | None:
        return None if self.consistency == "coupled" else 2 * self.pull * local.strength * (w - sent.w)

    def upload(self, w: Tensor, sent: Sent, local: Local, work: Work) -> tuple[Upload, Kept]:
        kept = local.kept
        rise, loss = local.probe if local.is_warm else torch.stack([local.rises, local.losses]) / work.steps
        rise = SHARPNESS[self.sharpness](rise, local.random_rise)
        sigma = torch.where(rise >= self.noise_floor * loss.abs(), rise, torch.zeros_like(rise))  # what is not a number is not measured
        gamma, reference_norm = self._consistency(local)

        angle = torch.arccos(cosine(local.final, kept.final))
        seen = (kept.final != 0).any()
        angles = torch.where(seen, torch.cat([kept.angles[1:], angle[None]]), kept.angles)
        num_angles = kept.num_angles + seen.to(kept.num_angles.dtype)
        tau = torch.where(num_angles >= NUM_ANGLES, angles.std(correction=0), torch.zeros_like(angle))

        raw = self.alpha * (1 - gamma) + self.beta * sigma + self.kappa * tau
        new = Kept(gamma, sigma, tau, raw, local.strength, local.rho, angles, num_angles, local.final, reference_norm, kept.calibration)
        return Upload(w - sent.w), new

    def _consistency(self, local: Local) -> tuple[Tensor, Tensor]:
        """(gamma [], moving average of the reference gradient's norm [])."""
        norm, before = local.reference.norm(), local.kept.reference_norm
        average = torch.where(before == 0, norm, self.norm_decay * before + (1 - self.norm_decay) * norm)
        average = torch.where(torch.isfinite(norm), average, before)  # the square of a huge gradient overflows
        by = REFERENCE_NORMS[self.reference_norm](norm, average)
        scale = torch.where(by == norm, 1.0, norm / torch.where(by > 0, by, 1.0)).nan_to_num(posinf=1.0)
        return (cosine(local.final, local.reference) * scale).clamp(-1, 1), average

    def update(self, server: Server, cohort: Cohort) -> Server:
        return server._replace(w=server.w + cohort.weighted.delta)

    def observe(self, server: Server, reports: Sequence[ClientReport]) -> Server:
        """The median of the clients' probed sharpness, averaged over the calibration rounds."""
        known = [value for report in reports if (value := report.signals.get("sigma_probe")) is not None and value > 0]
        if not known or reports[0].round > self.calibration_rounds:
            return server
        median = torch.tensor(known, dtype=server.w.dtype).quantile(0.5).to(server.w.device)
        count = server.num_medians + 1
        return server._replace(median_sigma=server.median_sigma + (median - server.median_sigma) / count, num_medians=count)

    def alerts(self, before: Server, after: Server, reports: Sequence[ClientReport], absent: Sequence[int]) -> tuple[str, ...]:
        """Where most clients' lambda is at a clip, so that their signals change nothing; where no client could be calibrated."""
        raw = [value for report in reports if (value := report.signals.get("lambda_raw")) is not None]
        low, high = sum(value <= self.lambda_min for value in raw), sum(value >= self.lambda_max for value in raw)
        found = []
        if self.lambda_min < self.lambda_max and low + high > INACTIVE * len(raw):
            where = f"{low} at lambda_min = {self.lambda_min:g}, {high} at lambda_max = {self.lambda_max:g}"
            found.append(f"adaptation inactive: lambda is at a clip for {low + high} of {len(raw)} clients ({where})")
        if reports and reports[0].round == self.calibration_rounds and not float(after.num_medians):
            found.append("radius calibration measured nothing: all clients keep rho_max; it needs run.client_validation above 0")
        return tuple(found)

    def signals(self, kept: Kept) -> dict[str, Tensor]:
        """gamma, sigma, tau and lambda_raw of this participation; the lambda and rho it used; whether lambda_raw is at a clip (0 or 1).

        With calibration also sigma_probe, the mean rise of the probes so far, and lipschitz.
        """
        clipped = (kept.raw <= self.lambda_min) | (kept.raw >= self.lambda_max)
        own = {
            "gamma": kept.gamma,
            "sigma": kept.sigma,
            "tau": kept.tau,
            "lambda_raw": kept.raw,
            "lambda": kept.used_lambda,
            "rho": kept.used_rho,
            "clipped": clipped.to(kept.raw.dtype),
        }
        if not self.calibration_rounds:
            return own
        gathered = kept.calibration
        return own | {"sigma_probe": gathered.sigma / gathered.num_sigma.clamp(min=1), "lipschitz": gathered.lipschitz}

    def confidence(self, reports: Sequence[ClientReport]) -> Tensor:
        """exp(-trust lambda_raw), relative to the round's least: clients whose training went astray count less.

        Ours: the source's own formula is cut off. A negative lambda_raw is a lie, since no signal is; who reports none, or one that is
        no finite number, counts as the worst of the round.
        """
        told = [report.signals.get("lambda_raw") for report in reports]
        known = [max(0.0, value) for value in told if value is not None]
        least, most = min(known, default=0.0), max(known, default=0.0)
        raw = torch.tensor([most if value is None else max(0.0, value) for value in told], dtype=torch.float64)
        return torch.exp(-self.trust * (raw - least))

    @property
    def num_reference_batches(self) -> int:
        return self.reference_batches


def _calibrated(own: Calibration, grad: BatchGrad, w: Tensor, gradient: Tensor, rise: Tensor) -> Calibration:
    """One participation more: the probe's rise, and how fast the gradient changes between the last global model and this one."""
    moved = (w - own.w).norm()
    slope = (gradient - grad(own.w)).norm() / torch.where(moved > 0, moved, 1.0)
    slope = torch.where((own.seen > 0) & (moved > 0) & torch.isfinite(slope), slope, 0.0)
    is_known = torch.isfinite(rise)
    sigma = own.sigma + torch.where(is_known, rise.clamp(min=0), 0.0)
    return Calibration(w, torch.ones_like(own.seen), torch.maximum(own.lipschitz, slope), sigma, own.num_sigma + is_known)
