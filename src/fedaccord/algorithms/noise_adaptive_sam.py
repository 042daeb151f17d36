"""noise_adaptive_sam: SAM whose radius follows the noise of each client's gradients.

Clients with noisy or scarce data look further ahead, clean ones stay near the base radius. Nothing but scalars is added to an upload.

Paper: none, the method is this project's own.
Reference code read: none.
Deviation: the source steps with the gradient at w, which is plain SGD (mix = 0); ours is at w + e.
Deviation: a client's weight falls with s / m, where the source's 1 / (1 + s) depends on the model's scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, BatchGrad, Cohort, Device, Effort, NonNegative, RoundStart, Share, Upload, Work
from fedaccord.core.errors import ConfigError
from fedaccord.core.gradient import EPS, mixed
from fedaccord.core.reports import ClientReport
from fedaccord.core.vector import Layout

WINDOW = 5  # participations
FLAT = 1e-5  # a shorter gradient has no direction
NOISY = 0.1  # s / m from which a client's two-pass steps are worth their time
BUDGETS = (1.0, 0.2, 0.0)  # shares of two-pass steps that the automatic budget chooses from
JUMP = 2.0  # mean radius over the last round's that is an alert


class Server(NamedTuple):
    w: Tensor  # [d]
    mean_rho: Tensor  # [], of the last round's reports; 0 before the first


class Sent(NamedTuple):
    w: Tensor  # [d]


class Statistics(NamedTuple):
    """Running mean and standard deviation of one number a participation."""

    mean: Tensor  # []
    deviation: Tensor  # []
    num: Tensor  # [], participations
    recent: Tensor  # [5], the last values, newest last


class Kept(NamedTuple):
    norms: Statistics  # of the gradient norm
    changes: Statistics  # of |L_t - L_(t-1)|
    loss: Tensor  # [], mean loss of the last participation
    rho: Tensor  # [], radius of the last participation
    noise: Tensor  # [], s / m that set it
    two_pass: Tensor  # [], share of its steps that took a second pass


class Local(NamedTuple):
    kept: Kept
    rho: Tensor  # []
    noise: Tensor  # []
    radii: Tensor  # [d] or [], factor on the radius of each weight: below 1 for embeddings
    curved: Tensor  # [d] or [], 1 where the curvature corrects the direction
    random: Tensor  # [d], random unit vector
    norms: Tensor  # [], sum over the steps
    losses: Tensor  # [], sum over the steps
    layers: tuple[tuple[int, ...], ...]  # positions of each layer's parameters
    sizes: tuple[int, ...]  # of the parameters
    two_pass_steps: int


# Norms of a gradient, by the values of `norm`


def layer_norm(gradient: Tensor, layers: Sequence[Sequence[int]], sizes: Sequence[int]) -> Tensor:
    """Geometric mean of the layers' gradient norms, layers with a zero gradient left out: one large head does not drown the rest."""
    parts = [part.norm() for part in gradient.split(list(sizes))]
    norms = torch.stack([torch.stack([parts[i] for i in layer]).norm() for layer in layers])
    is_active = norms > 0
    logs = torch.where(is_active, torch.where(is_active, norms, 1.0).log(), 0.0)
    count = is_active.sum()
    return torch.where(count > 0, (logs.sum() / count.clamp(min=1)).exp(), 0.0)


def global_norm(gradient: Tensor, layers: Sequence[Sequence[int]], sizes: Sequence[int]) -> Tensor:
    """The length of the whole gradient."""
    length: Tensor = gradient.norm()
    return length


NORMS: dict[str, Callable[[Tensor, Sequence[Sequence[int]], Sequence[int]], Tensor]] = {"layers": layer_norm, "global": global_norm}


# Mean and deviation, by the values of `statistics`


def running(own: Statistics, decay: float) -> tuple[Tensor, Tensor]:
    """Exponentially weighted, all participations."""
    return own.mean, own.deviation


def window(own: Statistics, decay: float) -> tuple[Tensor, Tensor]:
    """Plain mean and deviation of the last five."""
    count = own.num.clamp(1, WINDOW)
    is_filled = torch.arange(WINDOW, device=own.recent.device) >= WINDOW - count
    mean = torch.where(is_filled, own.recent, 0.0).sum() / count
    return mean, (torch.where(is_filled, (own.recent - mean) ** 2, 0.0).sum() / count).sqrt()


STATISTICS: dict[str, Callable[[Statistics, float], tuple[Tensor, Tensor]]] = {"running": running, "window": window}


# Noise, by the values of `noise`


def relative(mean: Tensor, deviation: Tensor) -> Tensor:
    """s / m: free of the model's scale."""
    return deviation / torch.where(mean < EPS, 1.0, mean)


def absolute(mean: Tensor, deviation: Tensor) -> Tensor:
    """s alone: for the ablation, it grows with the model."""
    return deviation


NOISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"relative": relative, "absolute": absolute}

# Factors on the size of a client's data, by the values of `server_weight`
SERVER_WEIGHTS: dict[str, Callable[[float], float]] = {"size": lambda noise: 1.0, "noise": lambda noise: 1 / (1 + noise)}


# Which weights [d] the curvature corrects, by the values of `curved_layers`


def last_linear(layout: Layout) -> Tensor:
    """Those of the last linear layer. E208 where there is none."""
    layers = zip(reversed(layout.layers()), reversed(layout.kinds), strict=True)
    last = next((layer for layer, kind in layers if kind == "Linear"), None)
    if last is None:
        remedy = "Set algorithm.curved_layers = 'all', or curvature = 0"
        raise ConfigError("E208", "the model has no linear layer whose curvature could turn the ascent", "algorithm.curvature", remedy)
    return layout.where(lambda name, kind: name.rpartition(".")[0] == last)


def all_layers(layout: Layout) -> Tensor:
    """All of them."""
    return layout.where(lambda name, kind: True)


CURVED: dict[str, Callable[[Layout], Tensor]] = {"last_linear": last_linear, "all": all_layers}


def on_device(perturbation: Tensor) -> Tensor:
    """The perturbation stays where the model is."""
    return perturbation


def on_host(perturbation: Tensor) -> Tensor:
    """The perturbation waits in host memory, in its own precision: through another one it would lose part of its effect."""
    return perturbation.to("cpu", copy=True)


MEMORIES: dict[str, Callable[[Tensor], Tensor]] = {"device": on_device, "host": on_host}


@dataclass(frozen=True)
class NoiseAdaptiveSAM(Algorithm):
    """Objective L(w) + mix (max over |e| <= rho of L(w + e) - L(w)), rho = clip(rho_base (1 + b s / m), rho_min, rho_max).

    m and s are the running mean and deviation of the gradient's norm, one number a participation: the mean over the round's clean
    gradients. Where they are unusable (fewer than two, not finite, m below 1e-12), those of |L_t - L_(t-1)| serve, and where these are
    too, rho_base. Order: the ascent sees the data gradient; the descent steps with the gradient at w + e, as SAM does. (The source says
    the gradient at w, which is plain SGD: mix = 0 gives it.)
    """

    rho_base: NonNegative = 0.02
    b: NonNegative = 0.5  # how much noise widens the radius; 0: a fixed one
    rho_min: NonNegative = 0.005
    rho_max: NonNegative = 0.15
    decay: Share = 0.9  # of the running statistics, a participation
    mix: Share = 1.0  # 1 is SAM, 0 is plain SGD at the cost of SAM
    norm: Literal["layers", "global"] = "layers"
    statistics: Literal["running", "window"] = "running"
    noise: Literal["relative", "absolute"] = "relative"
    curvature: NonNegative = 0.0  # ascent along g + curvature H g in the curved layers (0.1 is usual); two gradients more a step
    curved_layers: Literal["last_linear", "all"] = "last_linear"
    embedding_scale: NonNegative = 0.1  # factor on the radius of embedding layers
    sam_fraction: Share = 1.0  # share of a round's steps, the first ones, that take the second pass (0.2 is economical)
    sam_budget: Literal["fixed", "auto"] = "fixed"  # auto: 1, 0.2 or 0 for each client, by its noise, its speed and the deadline
    server_weight: Literal["size", "noise"] = "size"  # noise: n / (1 + s / m)
    outlier_weight: Share = 0.1  # factor where a radius is over twice the round's median, or missing; 1: none
    ascent_memory: Literal["device", "host"] = "device"

    def init_server(self, w: Tensor) -> Server:
        return Server(w, w.new_zeros(()))

    def broadcast(self, server: Server) -> Sent:
        return Sent(server.w)

    def init_client(self, w: Tensor) -> Kept:
        zero = w.new_zeros(())
        none = Statistics(zero, zero, zero, w.new_zeros(WINDOW))
        return Kept(none, none, zero, zero, zero, zero)

    def effort(self, epochs: int, steps_per_epoch: int, signals: Mapping[str, float], device: Device) -> Effort:
        """The share of two-pass steps: `sam_fraction`, or the largest that the client's noise asks for and its deadline leaves time for."""
        if self.sam_budget == "fixed":
            return Effort(epochs, self.sam_fraction)
        wanted = BUDGETS[1] if signals.get("noise", math.nan) < NOISY else BUDGETS[0]  # unmeasured: all of it
        steps, speed = epochs * steps_per_epoch, device.gradients_per_second
        if device.deadline is None or not speed:
            return Effort(epochs, wanted)
        more = 3 if self.curvature else 1  # gradients that a two-pass step takes beyond a plain one
        in_time = [share for share in BUDGETS if share <= wanted and steps * (1 + share * more) / speed <= device.deadline]
        return Effort(epochs, max(in_time, default=BUDGETS[-1]))

    def begin(self, start: RoundStart, sent: Sent, kept: Kept) -> Local:
        layout, zero = start.layout, sent.w.new_zeros(())
        noise, _ = self._noise_of(kept)
        rho = (self.rho_base * (1 + self.b * noise)).clamp(self.rho_min, self.rho_max)
        radii, curved = zero + 1, zero
        is_embedding = layout.where(lambda name, kind: kind.startswith("Embedding"))  # of the layout, so no value of a tensor
        if is_embedding.any():
            radii = torch.where(is_embedding.to(sent.w.device), self.embedding_scale, 1.0).to(sent.w)
        if self.curvature:
            curved = CURVED[self.curved_layers](layout).to(sent.w)
        random, layers = start.random_direction(), _positions(layout)
        return Local(kept, rho, noise, radii, curved, random, zero, zero, layers, layout.sizes, start.two_pass_steps)

    def _noise_of(self, kept: Kept) -> tuple[Tensor, Tensor]:
        """(s / m of the norms, else of the loss changes, else 0; whether it was measured at all)."""
        noise, is_known = torch.zeros_like(kept.loss), torch.zeros_like(kept.loss, dtype=torch.bool)
        for own, kind in ((kept.changes, relative), (kept.norms, NOISE[self.noise])):
            mean, deviation = STATISTICS[self.statistics](own, self.decay)
            found = kind(mean, deviation)
            is_usable = (own.num >= 2) & torch.isfinite(found) & (mean >= EPS)
            noise = torch.where(is_usable, torch.where(is_usable, found, 0.0), noise)
            is_known = is_known | is_usable
        return noise, is_known

    def direction(self, grad: BatchGrad, w: Tensor, sent: Sent, local: Local) -> tuple[Tensor, Local]:
        loss, g0 = grad.with_loss(w)
        norm = NORMS[self.norm](g0, local.layers, local.sizes)
        local = local._replace(norms=local.norms + norm, losses=local.losses + loss)
        if grad.step >= local.two_pass_steps:
            return g0, local
        e = MEMORIES[self.ascent_memory](self._ascent(grad, w, g0, local))
        return mixed(g0, grad(w + e.to(w.device)), self.mix), local

    def _ascent(self, grad: BatchGrad, w: Tensor, g0: Tensor, local: Local) -> Tensor:
        """e [d], of length rho before embeddings are scaled."""
        along = g0 + self.curvature * local.curved * grad.hessian_product(w, g0) if self.curvature else g0
        norm = along.norm()
        is_flat = norm < FLAT
        radius = local.rho * local.radii  # [] or [d]
        e = torch.where(is_flat, 0.0, radius / norm.clamp(min=FLAT)) * along
        return torch.addcmul(e, torch.where(is_flat, radius, 0.0), local.random)

    def upload(self, w: Tensor, sent: Sent, local: Local, work: Work) -> tuple[Upload, Kept]:
        kept, loss = local.kept, local.losses / work.steps
        norms = self._moved(kept.norms, local.norms / work.steps)
        change = self._moved(kept.changes, (loss - kept.loss).abs())
        had_a_loss = kept.norms.num > 0
        changes = Statistics(*(torch.where(had_a_loss, new, old) for new, old in zip(change, kept.changes, strict=True)))
        taken = ((w.new_zeros(()) + local.two_pass_steps) / work.steps).clamp(max=1)
        return Upload(w - sent.w), Kept(norms, changes, loss, local.rho, local.noise, taken)

    def _moved(self, own: Statistics, value: Tensor) -> Statistics:
        """m <- d m + (1 - d) n;  s <- sqrt(d s^2 + (1 - d) (n - m)^2) with the new m; at first m = n, s = 0.

        A value that is not finite (the square of a huge gradient overflows) is left out: it would stay in the statistics for good.
        """
        is_first = own.num == 0
        mean = torch.where(is_first, value, self.decay * own.mean + (1 - self.decay) * value)
        deviation = (self.decay * own.deviation**2 + (1 - self.decay) * (value - mean) ** 2).sqrt()
        new = Statistics(mean, deviation, own.num + 1, torch.cat([own.recent[1:], value[None]]))
        return Statistics(*(torch.where(torch.isfinite(value), after, before) for after, before in zip(new, own, strict=True)))

    def update(self, server: Server, cohort: Cohort) -> Server:
        return server._replace(w=server.w + cohort.weighted.delta)

    def observe(self, server: Server, reports: Sequence[ClientReport]) -> Server:
        radii = _radii(reports)
        return server._replace(mean_rho=server.mean_rho.new_tensor(sum(radii.values()) / len(radii))) if radii else server

    def alerts(self, before: Server, after: Server, reports: Sequence[ClientReport], absent: Sequence[int]) -> tuple[str, ...]:
        """A jump of the mean radius, who is at the upper clip, whose radius is an outlier or missing, and who was absent."""
        radii, old, new = _radii(reports), float(before.mean_rho), float(after.mean_rho)
        at_clip = [client for client, rho in radii.items() if rho >= self.rho_max * (1 - 1e-6)]
        missed = f"; absent: {_listed(absent)}" if absent else ""
        found = []
        if old > 0 and new > JUMP * old:
            wide = _listed([client for client, rho in radii.items() if rho > JUMP * old])
            found.append(f"the mean SAM radius jumped to {new:.3g}, {new / old:.1f} times the last round's, by {wide}{missed}")
        if at_clip:
            found.append(f"SAM radius at rho_max = {self.rho_max:g}: {_listed(at_clip)}{missed}")
        suspicious = [report.client for report, is_odd in zip(reports, _is_odd(reports), strict=True) if is_odd]
        if suspicious:
            found.append(f"SAM radius over twice the round's median, or missing: {_listed(suspicious)}")
        return tuple(found)

    def signals(self, kept: Kept) -> dict[str, Tensor]:
        """rho and the noise (s / m) that set it; the norm's running mean and deviation; the share of steps with a second pass; clips."""
        clipped = (kept.rho <= self.rho_min) | (kept.rho >= self.rho_max)
        noise, is_known = self._noise_of(kept)
        return {
            "rho": kept.rho,
            "noise": torch.where(is_known, noise, torch.nan),
            "noise_used": kept.noise,
            "norm_mean": kept.norms.mean,
            "norm_deviation": kept.norms.deviation,
            "two_pass": kept.two_pass,
            "clipped": clipped.to(kept.rho.dtype),
        }

    def confidence(self, reports: Sequence[ClientReport]) -> Tensor:
        """1 / (1 + s / m) where asked for; `outlier_weight` for suspicious radii. The source's 1 / (1 + s) depends on the model's scale."""
        by_noise = SERVER_WEIGHTS[self.server_weight]
        factors = [by_noise(max(0.0, report.signals.get("noise") or 0.0)) for report in reports]
        odd = [self.outlier_weight if is_odd else 1.0 for is_odd in _is_odd(reports)]
        return torch.tensor(factors, dtype=torch.float64) * torch.tensor(odd, dtype=torch.float64)


def _radii(reports: Sequence[ClientReport]) -> dict[int, float]:
    """Of those that can be: a negative one is a lie, which would make an outlier of everybody else."""
    return {report.client: rho for report in reports if (rho := report.signals.get("rho")) is not None and rho >= 0}


def _is_odd(reports: Sequence[ClientReport]) -> list[bool]:
    """Whether each radius is over twice the median of those reported, or missing. Absent clients do not count."""
    radii = _radii(reports)
    median = float(torch.tensor(sorted(radii.values()), dtype=torch.float64).quantile(0.5)) if radii else 0.0
    return [report.client not in radii or radii[report.client] > 2 * median for report in reports]


def _listed(clients: Sequence[int], most: int = 10) -> str:
    shown = ", ".join(str(client) for client in clients[:most]) or "nobody"
    return shown + (f" and {len(clients) - most} more" if len(clients) > most else "")


def _positions(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """For each layer the positions of its parameters in the layout."""
    layers = layout.layers()
    return tuple(tuple(i for i, layer in enumerate(layers) if layer == each) for each in dict.fromkeys(layers))
