"""Eigenvalues and trace of a Hessian that is known by its products with vectors.

scipy's eigsh (ARPACK: implicitly restarted Lanczos with full re-orthogonalisation) does the work. PyHessian is no longer maintained;
curvlinops finds eigenvalues through the same eigsh, and would bring eight more packages for a product that takes five lines here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]  # v [d] -> H v [d]

DENSE = 40  # weights; so small a Hessian is written out, since Lanczos needs room to work in
TOLERANCE = 1e-4  # relative, of an eigenvalue
RESTARTS = 30  # of Lanczos, each about 15 products


def top_eigenvalues(product: Product, like: Tensor, count: int, rng: np.random.Generator) -> tuple[float, ...]:
    """The `count` largest eigenvalues, largest first (fewer where the model has fewer weights). `like`: a vector [d].

    Largest, not largest in size: a saddle's negative curvature is another matter. Raises RuntimeError where Lanczos does not converge,
    ArithmeticError where a product is not finite.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    size = like.numel()

    def times(v: np.ndarray) -> np.ndarray:
        found = product(torch.from_numpy(np.asarray(v, dtype=np.float64).reshape(-1)).to(like))
        if not torch.isfinite(found).all():
            raise ArithmeticError("a Hessian-vector product is not finite")
        return found.double().numpy()

    if size <= max(DENSE, 2 * count):
        dense = np.stack([times(column) for column in np.eye(size)])
        found = np.linalg.eigvalsh((dense + dense.T) / 2)
    else:
        start = rng.standard_normal(size)
        # From scipy 1.17 on, what ARPACK draws where the Krylov space is exhausted comes from `rng`; before, from seeds of its own.
        more: dict[str, Any] = {"rng": rng} if "rng" in inspect.signature(eigsh).parameters else {}
        operator = LinearOperator((size, size), matvec=times, dtype=np.float64)
        found = eigsh(operator, count, which="LA", v0=start, tol=TOLERANCE, maxiter=RESTARTS, return_eigenvectors=False, **more)
    return tuple(float(value) for value in sorted(found, reverse=True)[:count])


def trace(product: Product, like: Tensor, probes: int, rng: np.random.Generator) -> tuple[float, float | None]:
    """(mean, standard error) of Hutchinson's estimate: v^T H v over vectors v of random signs. One probe has no standard error."""
    found = []
    for _ in range(probes):
        v = torch.from_numpy(rng.choice((-1.0, 1.0), size=like.numel())).to(like)
        found.append(float(v.double() @ product(v).double()))
    return mean_and_error(found)


def mean_and_error(values: list[float]) -> tuple[float, float | None]:
    """The mean and its standard error; None for one value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
