"""What will go wrong with this partition and this plan, before anything is trained: `fedaccord describe`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedaccord.partition.measures import GradientAngles, js_distance, label_entropy, mean_of, size_gini
from fedaccord.partition.shards import Int64

ENTROPY_FLOOR = 0.8  # mean label entropy below it is strong label skew
ANGLE_CEILING = 60.0  # degrees
STEP_RATIO = 5.0  # largest over smallest number of local steps
GINI_CEILING = 0.5
SHIFT_CEILING = 0.5  # pooled standard deviations
NORM_RATIO = 3.0
MESSAGE_CEILING = 512 * 2**20  # bytes; a common limit of one gRPC message
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Traits:
    """What the findings need to know of an algorithm: how many vectors [d] travel and stay, and whether unequal step counts unsettle it."""

    name: str = "fedavg"
    state_vectors: int = 0  # kept by each client between rounds
    upload_vectors: int = 1
    sent_vectors: int = 1
    control_variates: bool = False  # c_i is a mean gradient over K_i steps (SCAFFOLD)


@dataclass(frozen=True, eq=False)
class Facts:
    """The partition drawn (at least one client) and the plan for it. What is None is unknown and gives no finding."""

    sizes: Int64  # [N] training examples, after the held-out ones are taken off
    batch_size: int | None = None  # None: all of a client's examples in one batch
    local_epochs: int = 1
    num_parameters: int = 0  # d
    algorithm: Traits = Traits()
    has_batch_norm: bool = False
    cohort: int | None = None  # clients asked in a round
    label_counts: Int64 | None = None  # [N, C]
    holdout_sizes: Int64 | None = None  # [N]
    holdout_counts: Int64 | None = None  # [N, C]
    feature_shift: float | None = None  # mean over clients, in pooled standard deviations
    angles: GradientAngles | None = None
    partition_notes: tuple[str, ...] = ()
    memory_limit: int = 4 * 2**30  # bytes that client state may take in memory


@dataclass(frozen=True)
class Finding:
    """One thing to know: `what` with figures, the `clients` it holds for (all of them; the text names a few), and what to do."""

    severity: Literal["warning", "note"]
    name: str
    what: str
    remedy: str = ""
    clients: tuple[int, ...] = ()

    def record(self) -> dict[str, str | list[int]]:
        """As plain data, for `--json`."""
        return {"severity": self.severity, "name": self.name, "what": self.what, "remedy": self.remedy, "clients": list(self.clients)}


def findings(facts: Facts) -> list[Finding]:
    """Everything there is to say, warnings first, in a fixed order."""
    found = [finding for examine in EXAMINERS for finding in examine(facts)]
    return sorted(found, key=lambda finding: finding.severity != "warning")


def shorten(clients: Sequence[int] | Int64, shown: int = 5) -> str:
    """ "3, 7, 19 and 12 more": a list of clients as text."""
    few = ", ".join(str(int(client)) for client in clients[:shown])
    return few if len(clients) <= shown else f"{few} and {len(clients) - shown} more"


def local_steps(facts: Facts) -> Int64:
    """Local steps K_i of each client in a round, [N]."""
    batch = np.maximum(facts.sizes, 1) if facts.batch_size is None else facts.batch_size
    return facts.local_epochs * -(-facts.sizes // batch)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _named(severity: Literal["warning", "note"], name: str, which: Int64, what: str, remedy: str) -> Finding:
    """A finding about the clients `which`; `what` is completed by "client 3" or "12 clients (3, 7, ...)"."""
    who = f"client {which[0]}" if which.size == 1 else f"{which.size} clients ({shorten(which)})"
    return Finding(severity, name, what.format(who=who), remedy, tuple(which.tolist()))


def _repairs(facts: Facts) -> Iterator[Finding]:
    for note in facts.partition_notes:
        yield Finding("note", "partition_note", note)


def _sizes(facts: Facts) -> Iterator[Finding]:
    clients, empty, single = facts.sizes.size, np.flatnonzero(facts.sizes == 0), np.flatnonzero(facts.sizes == 1)
    if empty.size:
        idle = 0.0 if facts.cohort is None else facts.cohort * empty.size / clients
        lost = f"; of the {facts.cohort} clients asked in a round about {idle:.1f} have nothing to give" if idle else ""
        remedy = "they are skipped and reported, never an error; set `min_size` of the partition, use fewer clients or a larger alpha"
        yield _named("warning", "empty_clients", empty, "no training example: {who} of " + str(clients) + lost, remedy)
    if single.size:
        remedy = "set `min_size` of the partition, or use fewer clients; such a client cannot hold out an example of its own"
        yield _named("warning", "single_example_clients", single, "one training example only: {who}", remedy)
    if facts.holdout_sizes is not None:
        without = np.flatnonzero((facts.holdout_sizes == 0) & (facts.sizes > 0))
        if without.size and facts.holdout_sizes.any():
            remedy = (
                "their own metric is null with this reason and they are left out of means; a larger held-out fraction reaches more of them"
            )
            yield _named("note", "no_held_out_examples", without, "trains but holds out nothing: {who}", remedy)
    gini, largest, smallest = size_gini(facts.sizes), int(facts.sizes.max()), int(facts.sizes.min())
    text = f"sizes from {smallest} to {largest} examples, Gini {gini:.2f}"
    if gini > GINI_CEILING:
        yield Finding(
            "warning",
            "quantity_skew",
            f"strong quantity skew: {text}",
            "report the mean over clients beside the mean over examples, and the worst tenth",
        )
    else:
        yield Finding("note", "quantity_skew", f"quantity skew is mild: {text}")


def _labels(facts: Facts) -> Iterator[Finding]:
    counts = facts.label_counts
    if counts is None or counts.shape[1] < 2:
        return
    one_class = np.flatnonzero((counts > 0).sum(axis=1) == 1)
    if one_class.size:
        remedy = "AUC and the like are null on their own data; a larger alpha, more labels per client or fewer clients give a second class"
        yield _named("warning", "one_class_clients", one_class, "one class only: {who}", remedy)
    missing = np.flatnonzero(counts.sum(axis=0) == 0)
    if missing.size:
        yield Finding(
            "warning",
            "missing_classes",
            f"no client holds class {shorten(missing)}",
            "the model cannot learn it; check the partition and the labels",
        )
    if facts.holdout_counts is not None:
        flat = np.flatnonzero(((facts.holdout_counts > 0).sum(axis=1) == 1) & ((counts > 0).sum(axis=1) > 1))
        if flat.size:
            remedy = "a metric that needs two classes is null there; hold out a larger fraction"
            yield _named("note", "one_class_held_out", flat, "the held-out examples show one class only: {who}", remedy)
    entropy = mean_of(label_entropy(counts))
    if entropy is None:
        return
    distance = mean_of(js_distance(counts)) or 0.0
    text = f"mean label entropy {entropy:.2f} (1 = all classes alike), mean Jensen-Shannon distance to the pooled labels {distance:.2f}"
    if entropy < ENTROPY_FLOOR:
        yield Finding("warning", "label_skew", f"strong label skew: {text}, below {ENTROPY_FLOOR}", _fewer_epochs(facts))
    else:
        yield Finding("note", "label_skew", f"label skew is mild: {text}")


def _fewer_epochs(facts: Facts) -> str:
    now = f" ({facts.local_epochs} now)" if facts.local_epochs > 1 else ""
    return f"fewer local epochs{now}, not more: more local work lets clients drift further apart; see the suggestion of methods"


def _features(facts: Facts) -> Iterator[Finding]:
    if facts.feature_shift is None:
        return
    text = f"clients' mean inputs lie {facts.feature_shift:.2f} standard deviations from the pooled mean, beyond chance"
    if facts.feature_shift > SHIFT_CEILING:
        yield Finding(
            "warning",
            "feature_skew",
            f"strong feature skew: {text}",
            "normalise inputs per client or site, prefer GroupNorm, and look at each client's own accuracy",
        )
    else:
        yield Finding("note", "feature_skew", f"feature skew is mild: {text}")


def _gradients(facts: Facts) -> Iterator[Finding]:
    angles = facts.angles
    if angles is None:
        return
    spread = f"median {angles.median:.0f}, {angles.share_over_60:.0%} of the pairs over 60, {angles.num_clients} clients"
    text = f"mean angle between clients' gradients {angles.mean:.0f} degrees ({spread})"
    if angles.mean > ANGLE_CEILING:
        yield Finding("warning", "gradient_angles", f"clients pull in different directions: {text}", _fewer_epochs(facts))
    else:
        yield Finding("note", "gradient_angles", f"clients agree on the direction: {text}")
    if angles.norm_ratio > NORM_RATIO:
        remedy = "clip the update or the gradient, and watch the clients with the largest update norm"
        yield Finding("warning", "gradient_norms", f"the largest gradient is {angles.norm_ratio:.1f} times the smallest", remedy)


def _batch_norm(facts: Facts) -> Iterator[Finding]:
    if not facts.has_batch_norm:
        return
    ones = _lonely_batches(facts.sizes, facts.batch_size)
    if not ones.size:
        return
    batch = "the whole client" if facts.batch_size is None else str(facts.batch_size)
    better = _better_batch(facts)
    others = "" if better is None else f", or batch_size {better[0]}, which leaves {better[1]} such clients"
    remedy = f"use GroupNorm, or local.drop_last = true{others}"
    yield _named(
        "warning",
        "batch_norm_single",
        ones,
        f"batch-norm meets a batch of one example (batch_size {batch}): {{who}}; its variance is undefined there",
        remedy,
    )


def _lonely_batches(sizes: Int64, batch_size: int | None) -> Int64:
    """The clients whose last batch, or every batch, is a single example."""
    if batch_size is None:
        return np.flatnonzero(sizes == 1)
    return np.flatnonzero((sizes > 0) & ((sizes - 1) % batch_size == 0))


def _better_batch(facts: Facts) -> tuple[int, int] | None:
    """The batch size near the given one with the fewest single-example batches, and how many clients still have one."""
    if facts.batch_size is None:
        return None
    near = range(max(2, facts.batch_size // 2), 2 * facts.batch_size + 1)
    left = {size: _lonely_batches(facts.sizes, size).size for size in near}
    best = min(near, key=lambda size: (left[size], abs(size - (facts.batch_size or 0))))
    return (best, left[best]) if left[best] < _lonely_batches(facts.sizes, facts.batch_size).size else None


def _step_ratio(facts: Facts) -> float:
    steps = local_steps(facts)
    steps = steps[steps > 0]
    return float(steps.max() / steps.min()) if steps.size else 1.0


def _steps(facts: Facts) -> Iterator[Finding]:
    ratio = _step_ratio(facts)
    if ratio <= STEP_RATIO:
        return
    steps = local_steps(facts)
    text = f"clients take from {steps[steps > 0].min()} to {steps.max()} local steps a round, a ratio of {ratio:.0f}"
    most = np.flatnonzero(steps > STEP_RATIO * steps[steps > 0].min())
    if facts.algorithm.control_variates:
        remedy = "give all clients the same number of local steps instead of epochs, even out the sizes, or use feddyn or fedavg"
        yield Finding("warning", "unequal_steps", f"{facts.algorithm.name} is known to diverge: {text}", remedy, tuple(most.tolist()))
    else:
        yield Finding(
            "note",
            "unequal_steps",
            text,
            "clients with many steps move the model more; SCAFFOLD would be at risk here",
            tuple(most.tolist()),
        )


def _message(facts: Facts) -> Iterator[Finding]:
    if not facts.num_parameters:
        return
    up, down = (vectors * facts.num_parameters * FLOAT for vectors in (facts.algorithm.upload_vectors, facts.algorithm.sent_vectors))
    vectors = f"{_count(facts.algorithm.upload_vectors, 'vector')} of {facts.num_parameters} floats"
    text = f"a client receives {readable(down)} and sends {readable(up)} a round ({vectors} up)"
    if facts.cohort is not None:
        text += f"; {readable(facts.cohort * (up + down))} a round for {facts.cohort} clients"
    if max(up, down) > MESSAGE_CEILING:
        yield Finding(
            "warning",
            "message_size",
            f"{text}: over {readable(MESSAGE_CEILING)}, a common limit of one message",
            "send in chunks, use a smaller model or a method with fewer vectors",
        )
    else:
        yield Finding("note", "message_size", text)


def _state_bytes(facts: Facts, vectors: int) -> int:
    return vectors * facts.num_parameters * FLOAT * facts.sizes.size


def _state(facts: Facts) -> Iterator[Finding]:
    size = _state_bytes(facts, facts.algorithm.state_vectors)
    if not size:
        return
    kept = _count(facts.algorithm.state_vectors, "vector")
    text = f"{facts.algorithm.name} keeps {kept} a client: {readable(size)} for {facts.sizes.size} clients"
    if size > facts.memory_limit:
        yield Finding(
            "warning",
            "client_state",
            f"{text}, more than the {readable(facts.memory_limit)} allowed in memory",
            'keep client state on disk (runtime.state = "disk"), or use a method without state (fedprox, fedsam)',
        )
    else:
        yield Finding("note", "client_state", text)


def _suggestion(facts: Facts) -> Iterator[Finding]:
    entropy = None if facts.label_counts is None or facts.label_counts.shape[1] < 2 else mean_of(label_entropy(facts.label_counts))
    skewed = entropy is not None and entropy < ENTROPY_FLOOR
    apart = facts.angles is not None and facts.angles.mean > ANGLE_CEILING
    if not (skewed or apart):
        if entropy is not None or facts.angles is not None:
            yield Finding("note", "suggestion", "nothing here forbids plain fedavg: it is the one to beat")
        return
    methods = []
    if _state_bytes(facts, 1) <= facts.memory_limit:
        if _step_ratio(facts) <= STEP_RATIO:
            methods.append("scaffold (control variates cancel the drift; step counts are even enough for it)")
        methods.append("feddyn (duals pull the clients' optima together)")
        methods.append("fedsmoo (duals, and flat minima in one direction for all; two gradients a step)")
    methods.append("fedsam (flat minima without client state; two gradients a step)")
    methods.append("dynamic_sam (adapts radius and pull to each client's loss and drift; two gradients a step)")
    methods.append("fedprox (damps the drift only, but needs neither state nor further gradients)")
    reason = "label skew" if skewed else "gradients at wide angles"
    yield Finding(
        "note",
        "suggestion",
        f"for {reason}, to try beside fedavg: " + "; ".join(methods),
        "compare them with `fedaccord compare` on the same seeds",
    )


def readable(size: float) -> str:
    """Bytes for people: "9.1 MB" (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


EXAMINERS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _repairs,
    _sizes,
    _labels,
    _features,
    _gradients,
    _batch_norm,
    _steps,
    _message,
    _state,
    _suggestion,
)
