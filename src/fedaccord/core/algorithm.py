"""The contract that every federated method fulfils: what a client does, what the server does.

The model is a flat vector w [d], so a rule reads like its paper. A method is a frozen dataclass of pure rules: hyper-parameters are
its fields, state comes in and goes out by the signatures. No in-place change, no `.item()`, no branch on the values of tensors: that
is what lets one definition run one client after another, vectorised over clients, and on a Flower node.

One round of a method, in the order of the calls::

    sent = broadcast(server)
    effort = effort(epochs, steps, signals, device)               # each client: how much it does
    local = begin(start, sent, kept)
    each step: direction, local = direction(grad, w, sent, local);  w <- optimiser(w - lr beside(w, ...), direction)
    upload, kept = upload(w, sent, local, work)
    server = update(server, cohort)                         # the accepted uploads, summed in two ways
    server = observe(server, reports)                       # the scalars that they came with
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fedaccord.core.gradient import Grad
from fedaccord.core.reports import ClientReport
from fedaccord.core.state import State
from fedaccord.core.vector import Layout

NonNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(0)]
PositiveCount = Annotated[int, Ge(1)]

# What stays with each client: nothing; the buffers, as batch-norm statistics (SiloBN); batch norm's weights and biases as well (FedBN).
LocalParts = Literal["none", "buffers", "batch_norm"]
Objective = Callable[[Tensor], Tensor]  # w [d] -> loss []


class Batch(Protocol):
    """One mini-batch, bound to the model: what a method may build an objective from. It never touches the data.

    The first forward pass of an evaluation may move the model's buffers; those after it (a second model's) leave them alone.
    """

    def outputs(self, w: Tensor) -> Tensor:
        """The model's outputs [B, ...] at w."""
        ...

    def outputs_and_features(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs [B, ...] and the features [B, F]: what the model's last layer with weights sees, flattened."""
        ...

    def loss_of(self, outputs: Tensor) -> Tensor:
        """The task's loss [] of such outputs against the batch's labels."""
        ...


class BatchGrad(Protocol):
    """The gradient of the objective on one mini-batch. The first evaluation of a step is the clean pass: buffers move in it alone."""

    @property
    def step(self) -> int:
        """Of this round, counted from 0; the same for all clients, so rules may branch on it."""
        ...

    def __call__(self, w: Tensor) -> Tensor: ...

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """(loss [], gradient [d]) at w, from one pass."""
        ...

    def hessian_product(self, w: Tensor, v: Tensor) -> Tensor:
        """The Hessian of the objective at w times v [d], by double backward. Counts as two gradient evaluations."""
        ...


class RoundStart(NamedTuple):
    """What a client may look at before its first step."""

    round: int  # counted from 1
    lr: float  # local learning rate of this round
    reference: Sequence[BatchGrad]  # the mini-batches after the first one, at most `num_reference_batches - 1`
    validation: BatchGrad | None  # the client's own examples that do not train; None where it holds none
    random_direction: Callable[[], Tensor]  # a random unit vector [d] of this client and round
    layout: Layout  # which weights of w [d] belong to which parameter
    num_steps: int  # of this client in this round
    two_pass_share: float  # of the steps, as `effort` said
    steps_may_fail: bool = False  # float16: what an overflowing step has done, its `local` too, is taken back, and step 1 is then the first

    @property
    def two_pass_steps(self) -> int:
        """How many steps, the first ones, may take a second pass. Like `num_steps`, the same for clients that are vectorised together."""
        return round(self.two_pass_share * self.num_steps)


class Device(NamedTuple):
    """What a client computes on."""

    is_weak: bool = False
    gradients_per_second: float | None = None  # mini-batches; None where nobody measured
    deadline: float | None = None  # seconds of computing that a round leaves it


class Effort(NamedTuple):
    """How much a client does in one round."""

    epochs: int
    two_pass_share: float = 1.0  # share of the steps that may take a second pass, of methods that have one


class Work(NamedTuple):
    """Local work that a client has done in this round."""

    steps: float | Tensor  # local steps that counted
    lr: float  # local learning rate of this round, after decay
    effective_steps: float | Tensor  # displacement of `steps` unit gradients, in units of lr: `steps` for plain SGD, more with momentum


class Cohort(NamedTuple):
    """One round's accepted uploads, summed. Both trees have the shape of one `Upload`."""

    weighted: Any  # mean under the policy's weights: moves models
    uniform: Any  # plain mean over the accepted clients: moves duals and control variates
    size: int  # accepted clients
    population: int  # all clients, m


class Server(NamedTuple):
    """Default server state, and default broadcast: the global model alone."""

    w: Tensor  # [d]


class Upload(NamedTuple):
    """Default upload: the model change of this round."""

    delta: Tensor  # [d], w_K - w_t


@dataclass(frozen=True)
class Algorithm:
    """The defaults are FedAvg. A method overrides the rules in which it differs."""

    def init_server(self, w: Tensor) -> State:
        """Server state before round 1; its first field is the model `w` [d]."""
        return Server(w)

    def init_client(self, w: Tensor) -> State:
        """State that a client keeps between rounds, before its first one; `()` for a stateless method."""
        return ()

    def broadcast(self, server: State) -> State:
        """The part of the server state that clients receive; it has a field `w`."""
        return Server(server.w)

    def effort(self, epochs: int, steps_per_epoch: int, signals: Mapping[str, float], device: Device) -> Effort:
        """How much a client does in this round, from what it reported after its last accepted one (empty before) and its device."""
        return Effort(epochs)

    def begin(self, start: RoundStart, sent: State, kept: State) -> State:
        """Before the first step: the state that the steps thread through. What it adds to `kept` lives for this round only."""
        return kept

    def objective(self, batch: Batch, sent: State, local: State) -> Objective:
        """What a step differentiates. Override it to add terms that need the model's outputs (distillation, contrast)."""
        return lambda w: batch.loss_of(batch.outputs(w))

    def direction(self, grad: BatchGrad, w: Tensor, sent: State, local: State) -> tuple[Tensor, State]:
        """One local step goes against this direction [d]: plain SGD does w <- w - lr * direction."""
        return grad(w), local

    def beside(self, w: Tensor, sent: State, local: State) -> Tensor | None:
        """What is added to the step beside the optimiser, times lr, as AdamW does with weight decay [d]; None for nothing."""
        return None

    def upload(self, w: Tensor, sent: State, local: State, work: Work) -> tuple[Any, State]:
        """After the last step: what to send (its first field is `delta`), and what to keep if the upload is accepted."""
        return Upload(w - sent.w), local

    def moved(self, upload: Any) -> Tensor:
        """The client's move w_K - w_t [d] that an upload stands for: what reports call its norm and its drift."""
        delta: Tensor = upload.delta
        return delta

    def update(self, server: State, cohort: Cohort) -> State:
        """New server state from the accepted uploads."""
        return server._replace(w=server.w + cohort.weighted.delta)

    def observe(self, server: State, reports: Sequence[ClientReport]) -> State:
        """Server state after it has seen what the accepted clients report, in client order: scalars that are no sum (a median)."""
        return server

    def alerts(self, before: State, after: State, reports: Sequence[ClientReport], absent: Sequence[int]) -> tuple[str, ...]:
        """What an operator should know about this round, in words; `before` and `after` are server states.

        An alert begins with words that say its kind, then come a colon or the figures: repeats of a kind are told ever more rarely.
        """
        return ()

    def signals(self, kept: State) -> dict[str, Tensor]:
        """Scalars [] that a client reports with its upload, from the state it will keep."""
        return {}

    def confidence(self, reports: Sequence[ClientReport]) -> Tensor:
        """Factors [C] on the policy's weights, from what the accepted clients report; 1 is no opinion."""
        return torch.ones(len(reports), dtype=torch.float64)

    @property
    def num_reference_batches(self) -> int:
        """Mini-batches at the start of the round that `begin` and the first step look at; the first one costs nothing."""
        return 1

    @property
    def local_parts(self) -> LocalParts:
        """Which parts of the model stay with each client; `aggregation.local_parts` overrules it."""
        return "none"

    @property
    def objective_is_loss(self) -> bool:
        """Whether a step differentiates the task's loss and nothing else: then batches may be padded, and steps recorded."""
        return type(self).objective is Algorithm.objective

    @property
    def proximal_weight(self) -> float:
        """The factor of +w inside `direction` that a proximal term brings; `local.clip_scope = "reference"` leaves it out of the clip."""
        return 0.0


__all__ = [
    "Algorithm",
    "Batch",
    "BatchGrad",
    "Cohort",
    "Count",
    "Device",
    "Effort",
    "Grad",
    "LocalParts",
    "NonNegative",
    "Objective",
    "Positive",
    "PositiveCount",
    "RoundStart",
    "Server",
    "Share",
    "Upload",
    "Work",
]
