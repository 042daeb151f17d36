"""Gradient transforms: Grad -> Grad. Compose by nesting; the innermost acts first.

`sam(proximal(g))` and `proximal(sam(g))` differ: the first looks for the worst point of the regularised loss, the second pulls a plain SAM
gradient. Each method's docstring states its order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Grad = Callable[[Tensor], Tensor]  # w [d] -> gradient on this step's mini-batch [d]

EPS = 1e-12  # added to norms before a division


def sam(grad: Grad, rho: float | Tensor) -> Grad:
    """Gradient at the worst point of a ball of radius `rho`, to first order (Foret et al. 2021, arXiv:2010.01412, eq. 2-3)."""

    def perturbed(w: Tensor) -> Tensor:
        g = grad(w)
        return grad(torch.addcmul(w, rho / (g.norm() + EPS), g))

    return perturbed


def asam(grad: Grad, rho: float | Tensor, eta: float = 0.2, scaled: Tensor | None = None) -> Grad:
    """SAM in a ball that scales with each weight: T = |w| + eta, e = rho T^2 g / |T g| (Kwon et al. 2021, arXiv:2102.11600, eq. 5).

    scaled: [d] bool, the weights that this holds for (default: all); the others have T = 1.
    """

    def perturbed(w: Tensor) -> Tensor:
        scale = w.abs() + eta
        if scaled is not None:
            scale = torch.where(scaled, scale, 1.0)
        ascent = scale * grad(w)
        return grad(w + rho * scale * ascent / (ascent.norm() + EPS))

    return perturbed


def proximal(grad: Grad, anchor: Tensor, mu: float) -> Grad:
    """Gradient of f(w) + mu/2 |w - anchor|^2 (the norm squared, and not detached)."""
    return lambda w: torch.add(grad(w), w - anchor, alpha=mu)


def weight_decay(grad: Grad, decay: float) -> Grad:
    """Gradient of f(w) + decay/2 |w|^2, coupled: an optimiser behind it accumulates the decay in its moments."""
    return lambda w: grad(w) + decay * w


def clip(grad: Grad, max_norm: float) -> Grad:
    """The gradient, shortened to `max_norm` where it is longer."""
    return lambda w: shortened(grad(w), max_norm)


def shortened(v: Tensor, max_norm: float | Tensor) -> Tensor:
    """v [d] scaled down to length `max_norm` where it is longer; the same bits where it is not."""
    factor: Tensor = (max_norm / (v.norm() + 1e-6)).clamp(max=1.0)
    return v * factor


# What `local.clip_norm` acts on; the keys are the values of `local.clip_scope`. Each takes the direction [d] of a step from w [d].


def clip_direction(direction: Tensor, w: Tensor, max_norm: float, proximal_weight: float) -> Tensor:
    """All that the method adds is clipped with the gradient."""
    return shortened(direction, max_norm)


def clip_nothing_more(direction: Tensor, w: Tensor, max_norm: float, proximal_weight: float) -> Tensor:
    """The data gradient was clipped before the method saw it."""
    return direction


def clip_reference(direction: Tensor, w: Tensor, max_norm: float, proximal_weight: float) -> Tensor:
    """As FL-Simulator: the half `proximal_weight * w` of a proximal term stays outside the clip.

    Use it to match the reference only: with |w| large the clip fires on the half inside and leaves a spurious weight decay.
    """
    outside = proximal_weight * w
    return shortened(direction - outside, max_norm) + outside


CLIP_SCOPES: dict[str, Callable[[Tensor, Tensor, float, float], Tensor]] = {
    "direction": clip_direction,
    "data_gradient": clip_nothing_more,
    "reference": clip_reference,
}


def ahead(w: Tensor, v: Tensor, rho: Tensor, otherwise: Tensor, flat: float = EPS) -> Tensor:
    """w + rho v / |v|, or w + rho `otherwise` (a unit vector) where |v| < `flat` and so has no direction."""
    norm = v.norm()
    is_flat = norm < flat
    along = torch.addcmul(w, torch.where(is_flat, 0.0, rho / norm.clamp(min=flat)), v)
    return torch.addcmul(along, torch.where(is_flat, rho, 0.0), otherwise)


def mixed(plain: Tensor, perturbed: Tensor, share: float) -> Tensor:
    """(1 - share) plain + share perturbed, and just one of them where the hyper-parameter `share` says so."""
    if share in (0.0, 1.0):
        return perturbed if share else plain
    return torch.lerp(plain, perturbed, share)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of two vectors [d], however short; 0 where one of them is zero."""
    least = torch.finfo(a.dtype).tiny
    directions: Tensor = (a / a.norm().clamp(min=least)) @ (b / b.norm().clamp(min=least))
    return directions.clamp(-1, 1)
