"""pfl 0.6 (PyTorch, one process): DATA.npz. Batches are what its loss function saw."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from serving import Turns, part, workload
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

MANY = 1_000_000  # rounds


class Module(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.steps, self.examples = inner, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        return found

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps, self.examples = self.steps + 1, self.examples + len(x)
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(F.cross_entropy(self(x), y, reduction="sum").item(), len(x))}


class OneByOne(TrainingProcessCallback):
    """Tells what a round did, and waits for the next."""

    def __init__(self, module: Module) -> None:
        self._module, self._turns = module, Turns()

    def on_train_begin(self, *, model: Any) -> Metrics:
        self._next()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        moved = (parameters_to_vector(self._module.parameters()).detach() - self._before).norm()
        self._turns.done(steps=self._module.steps, examples=self._module.examples, moved=float(moved))
        self._next()
        return False, Metrics()

    def _next(self) -> None:
        self._module.steps = self._module.examples = 0
        self._turns.wait()
        self._before = parameters_to_vector(self._module.parameters()).detach()


def main() -> None:
    torch.set_num_threads(1)
    work = workload(sys.argv[1])
    assert not work.rho, "only FedAvg here"

    def shuffled(client: int) -> PyTorchTensorDataset:
        x, y = part(work, client)
        order = torch.randperm(len(x))
        return PyTorchTensorDataset((x[order], y[order]), user_id=str(client))

    module, clients = Module(work.module()), len(work.sizes)
    data = FederatedDataset(shuffled, get_user_sampler("minimize_reuse", list(range(clients))))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=MANY, evaluation_frequency=MANY, train_cohort_size=clients, val_cohort_size=0
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch_size),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[OneByOne(module)],
    )


if __name__ == "__main__":
    main()
