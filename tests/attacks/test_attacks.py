"""attacks/: what each attack sends by its formula, that honest clients are left alone, and the same on every runtime."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import fedaccord as fa
from fedaccord.attacks import ATTACKS, Attack
from fedaccord.attacks.attack import Scene
from fedaccord.attacks.on_uploads import largest_z, noise
from fedaccord.core.errors import ConfigError
from fedaccord.core.reports import ClientReport
from fedaccord.experiment import Experiment, RunOptions, prepare
from fedaccord.runtime.base import ClientUpload

TASK = fa.digits("softmax")
OPTIONS: dict[str, Any] = {
    "partition": fa.DirichletPerClass(alpha=0.5, clients=10),
    "cohort": 6,
    "rounds": 4,
    "local": fa.LocalPlan(lr=0.1, epochs=1, batch_size=20),
    "runtime": "sequential",
}


class Upload(NamedTuple):
    delta: Tensor
    control: Tensor


def answer(client: int, values: list[float]) -> ClientUpload:
    vector = torch.tensor(values)
    return ClientUpload(client, Upload(vector, vector * 10), {}, ClientReport(3, client, 20, steps=2, gradients=2))


HONEST = [answer(0, [1.0, 2.0, 0.0]), answer(1, [3.0, 2.0, 1.0]), answer(2, [2.0, 5.0, -1.0])]
BAD = [answer(3, [1.0, 0.0, 0.0]), answer(4, [0.0, 4.0, 0.0])]
SCENE = Scene(3, 0, BAD, HONEST, torch.tensor([0.0, 3.0, 4.0]), 5)


def sent(attack: Attack, scene: Scene = SCENE) -> list[list[float]]:
    return [lie.upload.delta.tolist() for lie in attack.uploads(scene)]


def near(values: list[float]) -> Any:
    return pytest.approx(values, abs=1e-4)


def test_sign_flip_and_scaling_change_all_vectors_alike() -> None:
    flipped = fa.SignFlip(factor=3.0).uploads(SCENE)
    assert flipped[0].upload.delta.tolist() == [-3.0, 0.0, 0.0] and flipped[0].upload.control.tolist() == [-30.0, 0.0, 0.0]
    assert fa.Scaling().uploads(SCENE)[1].upload.control.tolist() == [0.0, 4000.0, 0.0]


def test_alie_is_the_honest_mean_less_z_deviations() -> None:
    """Means 2, 3, 0; deviations of three values: sqrt(2/3), sqrt(2), sqrt(2/3)."""
    expected = [2 - 1.5 * math.sqrt(2 / 3), 3 - 1.5 * math.sqrt(2), -1.5 * math.sqrt(2 / 3)]
    assert all(each == near(expected) for each in sent(fa.ALIE(z=1.5)))
    own = sent(fa.ALIE(z=1.0, omniscient=False))[0]
    assert own == near([0.5 - 0.5, 2 - 2, 0.0]), "of the attackers' own updates"


def test_alies_z_follows_from_how_many_supporters_are_needed() -> None:
    """50 clients, 24 bad: 2 supporters of 26, Phi(z) = 24/26, z = 1.43, as the paper's example says 1.43."""
    assert largest_z(50, 24) == pytest.approx(1.426, abs=1e-3)


def test_ipm_is_the_negative_honest_mean() -> None:
    assert all(each == near([-1.0, -1.5, 0.0]) for each in sent(fa.IPM(epsilon=0.5)))


def test_crafted_uploads_are_no_copies_of_one_another() -> None:
    for attack in (fa.ALIE(), fa.IPM(), fa.Adaptive()):
        first, second = sent(attack)
        assert first != second and first == near(second)


def test_noise_is_as_long_as_it_says() -> None:
    lie = fa.GaussianNoise(deviation=2.0).uploads(SCENE)[1].upload.delta
    assert float((lie - BAD[1].upload.delta).norm()) == pytest.approx(8.0)
    assert float(noise(BAD[0], SCENE).norm()) == pytest.approx(1.0)


def test_free_riders_send_nothing_the_last_move_or_noise_of_its_length() -> None:
    assert sent(fa.FreeRider(kind="zero")) == [[0.0] * 3] * 2
    replayed = sent(fa.FreeRider(kind="replayed", jitter=0.0))
    assert replayed == [[0.0, 3.0, 4.0]] * 2
    noised = torch.tensor(sent(fa.FreeRider(kind="noised")))
    assert noised.norm(dim=1).tolist() == pytest.approx([5.0, 5.0]) and not torch.equal(noised[0], noised[1])
    assert sent(fa.FreeRider(), SCENE._replace(previous=None)) == [[0.0] * 3] * 2


def test_inflated_counts_are_a_lie_in_the_report_alone() -> None:
    lie = fa.InflatedCounts(factor=100.0).uploads(SCENE)[0]
    assert lie.report.num_examples == 2000 and torch.equal(lie.upload.delta, BAD[0].upload.delta)


@pytest.mark.parametrize("omniscient", [True, False])
def test_who_knows_the_rule_passes_it_and_opposes_the_mean_as_far_as_that_allows(omniscient: bool) -> None:
    rng = np.random.default_rng(0)
    honest = [answer(i, (rng.normal(size=40) * 0.5 + 1).tolist()) for i in range(8)]
    bad = [answer(8 + i, (rng.normal(size=40) * 0.5 + 1).tolist()) for i in range(3)]
    lies = fa.Adaptive(cosine=0.2, omniscient=omniscient).uploads(Scene(1, 0, bad, honest, None, 11))
    own = torch.stack([each.upload.delta for each in (honest if omniscient else bad)])
    median, mean, lie = own.median(0).values, own.mean(0), lies[0].upload.delta
    length = float(own.norm(dim=1).quantile(0.5))
    assert float(lie @ median / lie.norm() / median.norm()) == pytest.approx(0.2, abs=1e-3)
    assert float(lie.norm()) == pytest.approx(length, rel=1e-3)
    # Least product with the mean under both constraints: L (c a - sqrt(1 - c^2) b), a and b the mean along the median and across it.
    along = float(mean @ median / median.norm())
    across = math.sqrt(float(mean @ mean) - along**2)
    assert float(lie @ mean) == pytest.approx(length * (0.2 * along - math.sqrt(0.96) * across), rel=1e-3)


def test_who_knows_the_rule_is_not_refused_by_it_and_does_what_the_other_crafted_lies_cannot() -> None:
    options: dict[str, Any] = {
        "partition": fa.DirichletPerClass(alpha=0.2, clients=20),
        "cohort": 20,
        "rounds": 15,
        "screen": fa.RuleGuard(),
    }
    clean, adaptive, ipm = (run(attack, **options) for attack in (None, fa.Adaptive(), fa.IPM()))
    reached = [each.rounds.test_accuracy.iloc[-1] for each in (clean, adaptive, ipm)]
    assert fa.flags(adaptive.record).recall == 0 and reached[1] < min(reached[0], reached[2]) - 0.15


def test_what_becomes_of_the_other_vectors_is_what_each_attack_says() -> None:
    """Scaled alike, or sent as they were trained."""
    factors = {"sign_flip": -3.0, "scaling": 100.0, "backdoor": 5.0}
    attacks = {name: kind(boost=5.0) if name == "backdoor" else kind() for name, kind in ATTACKS.items()}  # type: ignore[call-arg]
    for name, attack in attacks.items():
        for lie, honest in zip(attack.uploads(SCENE), BAD, strict=True):
            assert torch.equal(lie.upload.control, honest.upload.control * factors.get(name, 1.0)), name
            assert lie.client == honest.client and lie.report.client == honest.client


def test_labels_are_turned_round_or_exchanged() -> None:
    x, y, rows = torch.zeros(4, 2), torch.tensor([0, 1, 2, 9]), np.arange(4)
    assert fa.LabelFlip().data(x, y, rows, 10, 0)[1].tolist() == [9, 8, 7, 0]
    assert fa.LabelFlip(pair=(1, 7)).data(x, y, rows, 10, 0)[1].tolist() == [0, 7, 2, 9]


def test_a_backdoor_marks_its_share_and_gives_it_the_targets_label() -> None:
    x, y, rows = torch.zeros(400, 1, 8, 8), torch.full((400,), 5), np.arange(400)
    marked, labels = fa.Backdoor(target=3, poisoned=0.25, size=2, value=9.0).data(x, y, rows, 10, 0)
    chosen = labels == 3
    assert 0.18 < float(chosen.double().mean()) < 0.32
    assert bool((marked[chosen][:, :, :2, :2] == 9).all()) and float(marked[chosen].sum()) == 9 * 4 * int(chosen.sum())
    assert float(marked[~chosen].abs().sum()) == 0
    again = fa.Backdoor(target=3, poisoned=0.25).data(x[::2], y[::2], rows[::2], 10, 0)[1]
    assert torch.equal(again, labels[::2]), "which ones, does not depend on who else is poisoned"


class Suspicious(torch.nn.Module):
    """Class 3 where the first pixel is white, else class 1."""

    def forward(self, x: Tensor) -> Tensor:
        white = (x.reshape(len(x), -1)[:, 0] == 9).long()
        return torch.nn.functional.one_hot(1 + 2 * white, 4).float()


def test_a_backdoors_success_is_measured_on_marked_examples_of_the_other_classes() -> None:
    x, y = torch.zeros(2500, 1, 4, 4), torch.arange(2500) % 4
    assert fa.Backdoor(target=3, value=9.0).success(Suspicious(), x, y) == 1.0
    assert fa.Backdoor(target=3, value=8.0).success(Suspicious(), x, y) == 0.0
    assert fa.Backdoor(target=1, value=9.0).success(Suspicious(), x, y) == 0.0
    x[:500, :, 3, 3] = 9  # outside the corner
    assert fa.Backdoor(target=3, value=9.0, size=2).success(Suspicious(), x, y) == 1.0 and float(x.sum()) == 4500, "x is left alone"
    assert fa.Backdoor(target=3).success(Suspicious(), x[y == 3], y[y == 3]) is None


def test_a_backdoor_is_open_after_training_and_was_not_before() -> None:
    partition, test = fa.IID(clients=10), TASK.test
    door = fa.Backdoor(share=0.3, boost=3.0)
    clean, opened = run(None, partition=partition, cohort=10, rounds=6), run(door, partition=partition, cohort=10, rounds=6)
    before, after = (door.success(each.model(), test.x, test.y) for each in (clean, opened))
    assert before is not None and after is not None and before < 0.1 and after > 0.6
    assert opened.rounds.test_accuracy.iloc[-1] > 0.7, "and nobody sees it in the test accuracy"


def test_who_is_bad_is_drawn_once_and_one_at_least() -> None:
    assert len(fa.SignFlip(share=0.2).bad(20, 1)) == 4 and len(fa.SignFlip(share=0.01).bad(20, 1)) == 1
    assert fa.SignFlip(share=0.0).bad(20, 1) == () and fa.SignFlip(clients=(7, 3)).bad(20, 1) == (3, 7)
    assert fa.SignFlip(share=0.2).bad(20, 1) == fa.ALIE(share=0.2).bad(20, 1) != fa.SignFlip(share=0.2).bad(20, 2)
    with pytest.raises(ConfigError, match="E203 client 20 of 20 clients"):
        fa.SignFlip(clients=(20,)).bad(20, 1)
    assert fa.attacks.Nobody(share=0.5).bad(20, 1) == fa.attacks.Nobody(clients=(1,)).bad(20, 1) == ()


def run(attack: Attack | None, algorithm: Any = None, **options: Any) -> fa.Run:
    return fa.run(TASK, algorithm or fa.FedAvg(), attack=attack, **{**OPTIONS, **options})


@pytest.mark.parametrize("name", ATTACKS)
def test_honest_uploads_are_untouched_to_the_bit_and_lies_come_in_their_place(name: str) -> None:
    """Two rounds of one cohort, at the runtime's own boundary, beside the same cohort without an attack."""
    sections: dict[str, Any] = {
        "partition": OPTIONS["partition"],
        "algorithm": fa.Scaffold(),
        "local": OPTIONS["local"],
        "runtime": fa.RuntimeOptions("sequential"),
        "run": RunOptions(cohort=fa.Uniform(6), client_test=0.2, client_validation=0.2),
    }
    (attacked, data), (clean, untouched) = (
        trained(Experiment(**sections, attack=ATTACKS[name](clients=(2, 5)))),
        trained(Experiment(**sections)),
    )
    for shards in ("held_out", "validation"):
        pairs = ((data.examples(getattr(data, shards), c), untouched.examples(getattr(untouched, shards), c)) for c in range(10))
        assert all(a is b is None or (torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])) for a, b in pairs), "what measures stays clean"
    differ = set()
    for lie, truth in zip(attacked, clean, strict=True):
        same = all(torch.equal(a, b) for a, b in zip(lie.upload, truth.upload, strict=True))
        assert lie.client == truth.client and (lie.client in (2, 5) or (same and _told(lie) == _told(truth)))
        differ |= set() if same and _told(lie) == _told(truth) else {lie.client}
    assert differ == (set() if name == "none" else {2, 5})


def trained(experiment: Experiment) -> tuple[list[ClientUpload], Any]:
    """What clients 0 to 5 send in round 2, after a round 1 in which the model moved."""
    prepared = prepare(experiment, TASK)
    runtime, algorithm = prepared.federation.runtime, prepared.federation.algorithm
    for t, step in ((1, 0.0), (2, 0.01)):
        sent = algorithm.broadcast(algorithm.init_server(prepared.start.server.w + step))
        answers = runtime.train(algorithm, sent, {}, range(6), experiment.local, t, 0.1)
        runtime.settle(set())
    return answers, prepared.data


def _told(answer: ClientUpload) -> ClientReport:
    return replace(answer.report, seconds=0.0)


@pytest.mark.parametrize("name", ATTACKS)
def test_honest_clients_train_as_if_nobody_were_bad_and_who_is_bad_is_recorded(name: str) -> None:
    """In round 1 honest clients report the losses of the clean run, to the bit."""
    attack = ATTACKS[name](clients=(2, 5))
    clean, found = run(None, cohort=10, rounds=1), run(attack, cohort=10, rounds=1)
    mine, theirs = (each.clients.set_index("client").loss for each in (found, clean))
    assert [mine[c] for c in range(10) if c not in (2, 5)] == [theirs[c] for c in range(10) if c not in (2, 5)]
    assert attack.poisons_data == (mine[2] != theirs[2])
    assert found.record.provenance["bad_clients"] == ([] if name == "none" else [2, 5]) and "bad_clients" not in clean.record.provenance


def test_an_example_that_an_honest_client_owns_too_stays_what_it_is_for_that_one() -> None:
    both = fa.Explicit([list(range(60)), list(range(60)), list(range(60, 120))], duplicates=True)
    options: dict[str, Any] = {"partition": both, "cohort": 3, "rounds": 1, "client_test": 0.0}
    clean, found = run(None, **options), run(fa.LabelFlip(clients=(0,)), **options)
    assert found.clients.loss[0] != clean.clients.loss[0] and found.clients.loss[1] == clean.clients.loss[1]


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("algorithm", [fa.FedAvg(), fa.Scaffold(), fa.FedDyn(), fa.FedSMOO()], ids=lambda each: type(each).__name__)
def test_models_stay_finite_under_every_attack(name: str, algorithm: Any) -> None:
    found = run(ATTACKS[name](), algorithm)
    assert bool(found.weights().isfinite().all()) and found.record.status["state"] == "finished"


@pytest.mark.parametrize("name", ["alie", "free_rider", "backdoor", "sign_flip", "adaptive"])
def test_the_same_attack_on_every_runtime(name: str) -> None:
    runs = {kind: run(ATTACKS[name](), fa.Scaffold(), rounds=3, runtime=kind) for kind in ("sequential", "pool", "vectorized")}
    assert torch.equal(runs["sequential"].weights(), runs["pool"].weights())
    assert torch.allclose(runs["sequential"].weights(), runs["vectorized"].weights(), rtol=1e-4, atol=1e-6)


def test_an_attacked_run_that_is_resumed_is_the_unbroken_one(
    tmp_path: Path, killed_after: Callable[[int, Callable[..., Any]], None]
) -> None:
    options: dict[str, Any] = {"cohort": 10, "rounds": 6}  # riders in every round: the move that they replay has to outlive the kill
    whole = run(fa.FreeRider(), **options)

    killed_after(3, partial(run, fa.FreeRider(), **options, folder=tmp_path / "run", checkpoint_every=1))
    assert torch.equal(run(fa.FreeRider(), **options, folder=tmp_path / "run", checkpoint_every=1, resume=True).weights(), whole.weights())


def test_before_its_round_an_attack_is_not_there() -> None:
    late, clean = run(fa.SignFlip(from_round=3), cohort=10), run(None, cohort=10)
    assert torch.equal(late.weights(2), clean.weights(2)) and not torch.equal(late.weights(3), clean.weights(3))


def test_sign_flip_ruins_fedavg_and_not_the_rule_guard() -> None:
    """The clean run, FedAvg, and the rule guard; 4 of 20 bad."""
    options: dict[str, Any] = {"partition": fa.DirichletPerClass(alpha=0.2, clients=20), "cohort": 20, "rounds": 15}
    flip = fa.SignFlip(share=0.2)
    clean, bare, guarded = (
        each.rounds.test_accuracy.iloc[-1]
        for each in (run(None, **options), run(flip, **options), run(flip, screen=fa.RuleGuard(), **options))
    )
    assert clean > 0.85 and bare < 0.5 and guarded > bare + 0.25


def test_counts_that_are_inflated_beyond_the_tasks_own_are_refused_and_below_it_take_the_model_over() -> None:
    partition = fa.IID(clients=10)
    lie = fa.InflatedCounts(clients=(0,), factor=100.0)
    refused = run(lie, partition=partition, cohort=10)
    assert {each["code"] for each in refused.rounds.refused[0]} == {"E106"}
    taken = run(replace(lie, factor=9.0), partition=partition, cohort=10)
    assert taken.clients[taken.clients.client == 0].weight.min() == pytest.approx(0.5)


def test_a_hundredfold_count_within_the_declared_maximum_makes_the_model_the_attackers() -> None:
    lie = fa.InflatedCounts(clients=(0,), factor=100.0)
    sections: dict[str, Any] = {
        "partition": fa.IID(clients=10),
        "local": OPTIONS["local"],
        "runtime": fa.RuntimeOptions("sequential"),
        "run": RunOptions(rounds=8, cohort=fa.Uniform(10), evaluate_every=8),
    }
    last = {}
    for name, most in (("taken", 1e6), ("refused", None)):
        prepared = prepare(Experiment(**sections, attack=lie, aggregation=fa.Aggregation(max_examples=most)), TASK)
        *_, result = prepared.federation.run(prepared.start)
        last[name] = (result.report, {each.client: each.weight for each in result.clients})
    (taken, weights), (refused, others) = last["taken"], last["refused"]
    assert weights[0] > 0.9 and 0 not in others, "the tenth of the data that one client holds decides; or it is not asked any more"
    assert taken.test["accuracy"] < 0.5 < 0.8 < refused.test["accuracy"]


def test_attacks_that_cannot_be_what_they_say_are_errors_when_the_run_is_built() -> None:
    for attack, words in (
        (fa.LabelFlip(from_round=2), "E208 LabelFlip changes examples, which happens before the first round"),
        (fa.Backdoor(from_round=2), "E208 Backdoor changes examples"),
        (fa.Backdoor(target=10), "E203 class 10 of 10 classes. attack.target"),
        (fa.LabelFlip(pair=(1, 10)), "E203 class 10 of 10 classes. attack.pair"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(attack)
    run(fa.Backdoor(from_round=2, boost=2.0), rounds=1)


def test_inflated_counts_alone_need_no_classes() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    task = fa.Task(model=torch.nn.Linear(3, 1), loss=torch.nn.functional.mse_loss, train=(x, x[:, :1]), test=(x, x[:, :1]))
    lie = fa.InflatedCounts(shifts_labels=False, factor=2.0, clients=(0,))
    found = fa.run(task, fa.FedAvg(), partition=fa.IID(clients=4), cohort=4, rounds=1, runtime="sequential", attack=lie)
    assert found.clients.weight.max() == pytest.approx(0.4, abs=0.02)


def test_an_attack_on_labels_needs_labels() -> None:
    x = torch.randn(60, 3)
    task = fa.Task(model=torch.nn.Linear(3, 1), loss=torch.nn.functional.mse_loss, train=(x, x[:, :1]), test=(x, x[:, :1]))
    with pytest.raises(ConfigError, match="E208 LabelFlip changes labels, and the task has no classes"):
        fa.run(task, fa.FedAvg(), partition=fa.IID(clients=4), cohort=4, rounds=1, attack=fa.LabelFlip())
