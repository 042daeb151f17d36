from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedaccord.core.rng import stream
from fedaccord.measures import PooledLoss
from fedaccord.measures.hessian import DENSE, top_eigenvalues, trace

Quadratic = Callable[..., PooledLoss]


def symmetric(eigenvalues: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(len(eigenvalues), len(eigenvalues), generator=draw, dtype=torch.float64))
    return q @ torch.diag(eigenvalues) @ q.T


def known(size: int) -> Tensor:
    """Eigenvalues of both signs; the largest in size is negative."""
    spectrum = torch.linspace(-1, 1, size, dtype=torch.float64)
    spectrum[0], spectrum[-5:] = -50.0, torch.tensor([3.0, 4.0, 6.0, 9.0, 12.0])
    return spectrum


@pytest.mark.parametrize("size", [8, DENSE, 120])
def test_the_largest_eigenvalues_of_a_quadratic_are_found(quadratic: Quadratic, size: int) -> None:
    pooled, w = quadratic(symmetric(known(size))), torch.ones(size, dtype=torch.float64)
    found = top_eigenvalues(lambda v: pooled.product(w, v), w, 5, stream(0, "lanczos"))
    assert found == pytest.approx([12.0, 9.0, 6.0, 4.0, 3.0], rel=1e-4)


def test_the_same_stream_finds_the_same_bits(quadratic: Quadratic) -> None:
    low_rank = torch.zeros(90, dtype=torch.float64)
    low_rank[:7] = torch.arange(1, 8)  # the Krylov space of one start is exhausted after eight products
    pooled, w = quadratic(symmetric(low_rank)), torch.zeros(90, dtype=torch.float64)
    first, again = (top_eigenvalues(lambda v: pooled.product(w, v), w, 5, stream(4, "lanczos")) for _ in range(2))
    assert first == again
    assert first == pytest.approx([7, 6, 5, 4, 3], rel=1e-4)


def test_a_model_of_few_weights_has_few_eigenvalues(quadratic: Quadratic) -> None:
    pooled, w = quadratic(torch.diag(torch.tensor([2.0, 5.0], dtype=torch.float64))), torch.zeros(2, dtype=torch.float64)
    assert top_eigenvalues(lambda v: pooled.product(w, v), w, 5, stream(0, "lanczos")) == pytest.approx((5.0, 2.0))


def test_the_trace_of_a_diagonal_hessian_is_exact(quadratic: Quadratic) -> None:
    spectrum = known(60)
    pooled, w = quadratic(torch.diag(spectrum)), torch.zeros(60, dtype=torch.float64)
    mean, error = trace(lambda v: pooled.product(w, v), w, 3, stream(0, "trace"))
    assert mean == pytest.approx(float(spectrum.sum()), abs=1e-9)
    assert error == pytest.approx(0, abs=1e-9)


def test_the_trace_lies_within_its_standard_error_and_that_has_the_size_of_theory(quadratic: Quadratic) -> None:
    hessian = symmetric(known(60))
    pooled, w = quadratic(hessian), torch.zeros(60, dtype=torch.float64)
    mean, error = trace(lambda v: pooled.product(w, v), w, 200, stream(0, "trace"))
    off = hessian - torch.diag(hessian.diagonal())
    in_theory = float((2 * (off**2).sum() / 200).sqrt())  # of random signs: Var = 2 sum over i != j of H_ij^2
    assert error == pytest.approx(in_theory, rel=0.2)
    assert abs(mean - float(hessian.trace())) < 3 * in_theory
    assert trace(lambda v: pooled.product(w, v), w, 1, stream(0, "trace"))[1] is None


def test_products_eigenvalues_and_trace_of_softmax_regression_are_those_of_its_written_out_hessian(softmax: PooledLoss) -> None:
    w = torch.randn(24, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def loss(w: Tensor) -> Tensor:
        weight, bias = w[:20].view(4, 5), w[20:]
        return torch.nn.functional.cross_entropy(softmax.x @ weight.T + bias, softmax.y)

    hessian = torch.autograd.functional.hessian(loss, w)
    columns = torch.stack([softmax.product(w, column) for column in torch.eye(24, dtype=torch.float64)])
    torch.testing.assert_close(columns, hessian, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(softmax.gradient(w), torch.autograd.functional.jacobian(loss, w), rtol=1e-10, atol=1e-12)
    assert softmax.value(w) == pytest.approx(float(loss(w)), rel=1e-12)
    top = torch.linalg.eigvalsh(hessian).flip(0)[:5].tolist()
    assert top_eigenvalues(lambda v: softmax.product(w, v), w, 5, stream(0, "lanczos")) == pytest.approx(top, rel=1e-6)
    mean, error = trace(lambda v: softmax.product(w, v), w, 100, stream(0, "trace"))
    assert error is not None and abs(mean - float(hessian.trace())) < 4 * error


def test_a_loss_that_is_linear_in_the_weights_has_no_curvature(quadratic: Quadratic) -> None:
    pooled = quadratic(torch.zeros(3, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    w = torch.ones(3, dtype=torch.float64)
    assert pooled.product(w, w).tolist() == [0, 0, 0]
    assert top_eigenvalues(lambda v: pooled.product(w, v), w, 5, stream(0, "lanczos")) == (0, 0, 0)


def test_a_product_that_is_not_finite_is_no_eigenvalue() -> None:
    with pytest.raises(ArithmeticError, match="not finite"):
        top_eigenvalues(lambda v: v * torch.nan, torch.zeros(100), 5, stream(0, "lanczos"))
