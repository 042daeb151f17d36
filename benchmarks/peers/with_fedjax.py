"""fedjax 0.0.17 on today's JAX: DATA.npz, for models without convolutions. Batches are what its clients handed out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from serving import serve, workload

jax.tree_map = jax.tree_util.tree_map  # fedjax (2023) knows it by its old name


class Counted:
    """A client's data; counts the batches that are taken from it. fedjax's own would fill the last one from the next epoch."""

    steps = examples = 0
    rng = np.random.default_rng(0)

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._y)

    def shuffle_repeat_batch(self, hparams: Any) -> Iterator[Any]:
        order = Counted.rng.permutation(len(self))
        for start in range(0, len(self), hparams.batch_size):
            rows = order[start : start + hparams.batch_size]
            Counted.steps, Counted.examples = Counted.steps + 1, Counted.examples + len(rows)
            yield {"x": self._x[rows], "y": self._y[rows]}


def loss(parameters: dict[str, Any], batch: Any, rng: Any) -> Any:
    """Mean cross-entropy of dense layers with ReLU between them."""
    x, layers = batch["x"], sorted({name.rpartition(".")[0] for name in parameters})
    for number, layer in enumerate(layers):
        prefix = f"{layer}." if layer else ""
        x = x @ parameters[f"{prefix}weight"].T + parameters[f"{prefix}bias"]
        if number < len(layers) - 1:
            x = jax.nn.relu(x)
    return -jnp.take_along_axis(jax.nn.log_softmax(x), batch["y"][:, None], axis=1).mean()


def main() -> None:
    work = workload(sys.argv[1])
    assert work.model in ("mlp", "softmax") and not work.rho, "dense layers and FedAvg only"
    data = [Counted(work.x[start:end], work.y[start:end]) for start, end in work.bounds()]
    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch_size, num_epochs=1, drop_remainder=False)
    method = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss), fedjax.optimizers.sgd(work.lr), fedjax.optimizers.sgd(1.0), batches
    )
    state = method.init({name: jnp.asarray(value) for name, value in work.start.items()})

    def round() -> dict[str, Any]:
        nonlocal state
        Counted.steps = Counted.examples = 0
        before = state.params
        keys = jax.random.split(jax.random.PRNGKey(0), len(data))
        state, _ = method.apply(state, [(str(i).encode(), client, key) for i, (client, key) in enumerate(zip(data, keys, strict=True))])
        jax.block_until_ready(state.params)
        moved = np.sqrt(sum(float(((state.params[name] - before[name]) ** 2).sum()) for name in before))
        return {"steps": Counted.steps, "examples": Counted.examples, "moved": float(moved)}

    serve(round)


if __name__ == "__main__":
    main()
