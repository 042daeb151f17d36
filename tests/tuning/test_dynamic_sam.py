"""dynamic_sam's verdicts, each rule on signals made up for it, and on one real run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedaccord as fa
from fedaccord.core.errors import ConfigError
from fedaccord.core.reports import ClientReport, RoundReport
from fedaccord.experiment import Experiment, RunOptions
from fedaccord.federation import RoundResult, RunState
from fedaccord.tuning.dynamic_sam import ALPHA, KAPPA, RHO_MAX, Consistency, Sharpness, different_data, is_unet, stages
from fedaccord.tuning.stages import Measured

POINT = {RHO_MAX: 0.05, ALPHA: 0.4, KAPPA: 0.1}
PLAN = fa.LocalPlan(epochs=2, batch_size=10)


def measured(**figures: float | None) -> Measured:
    return Measured(0.5, None, figures, 100, 10.0, 50)


def report(round: int, client: int, steps: int = 4, accepted: bool = True, **signals: float | None) -> ClientReport:
    return ClientReport(round, client, 20, steps=steps, accepted=accepted, signals=signals)


def result(round: int, *clients: ClientReport, absent: tuple[int, ...] = ()) -> RoundResult:
    asked = (*(each.client for each in clients), *absent)
    values: dict[str, Any] = {name: None for name in RoundReport.__dataclass_fields__}
    whole = RoundReport(**(values | {"round": round, "cohort": asked, "absent": absent}))
    return RoundResult(RunState(round, (), {}), whole, clients, ())


# Stage 1: sigma in 0.1-1.0, else rho_max moves.


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0])
def test_sigma_in_range_passes(sigma: float) -> None:
    judgement = Sharpness(3, False).judge(measured(sigma_median=sigma), POINT)
    assert judgement.passed and not judgement.moves and judgement.why == f"median sigma {sigma:g} lies in 0.1-1.0"


@pytest.mark.parametrize(
    ("sigma", "rho"),
    [(0.0316228, 0.5), (0.05, 0.316), (3.16228, 0.005), (0.0, 0.5), (0.0001, 0.5), (1000.0, 0.005)],
    ids=["ten times too low", "half", "ten times too high", "none", "a move is bounded", "a move is bounded below"],
)
def test_sigma_out_of_range_moves_rho_max_by_what_is_missing(sigma: float, rho: float) -> None:
    judgement = Sharpness(3, False).judge(measured(sigma_median=sigma), POINT)
    assert not judgement.passed and judgement.moves == ({RHO_MAX: rho},)
    assert f"is {'above 1.0' if sigma > 1 else 'below 0.1'}" in judgement.why


def test_a_unet_that_is_too_steep_gets_a_third_of_rho_max() -> None:
    unet = Sharpness(3, True)
    assert unet.judge(measured(sigma_median=2.0), POINT).moves == ({RHO_MAX: 0.0167},)
    assert "the model is a U-Net" in unet.judge(measured(sigma_median=2.0), POINT).why
    assert unet.judge(measured(sigma_median=0.05), POINT).moves == ({RHO_MAX: 0.316},), "a third would make it worse"
    assert is_unet(fa.synthetic_segmentation(num_train=8, num_test=4, width=2, depth=1), 0) and not is_unet(fa.digits(), 0)


def test_nearer_to_the_range_scores_higher() -> None:
    score = [Sharpness(3, False).judge(measured(sigma_median=sigma), POINT).score for sigma in (0.0, 0.01, 0.09, 0.2, 1.1, 5.0)]
    assert all(each is not None for each in score)
    assert score[0] < score[1] < score[2] < score[3] > score[4] > score[5] and score[3] == 0  # type: ignore[operator]


def test_sigma_is_read_after_warm_up_from_those_whose_upload_counted() -> None:
    rounds = [
        result(3, report(3, 0, sigma=9.0)),
        result(4, report(4, 0, sigma=0.2), report(4, 1, sigma=0.4), report(4, 2, accepted=False, sigma=50.0), report(4, 3, sigma=None)),
        result(5, report(5, 0, sigma=0.6)),
    ]
    figures = Sharpness(3, False).figures(rounds)
    assert figures["sigma_median"] == pytest.approx(0.4) and figures["measured"] == 3
    none = Sharpness(5, False).figures(rounds)
    assert none["sigma_median"] is None
    judgement = Sharpness(5, False).judge(replace(measured(**none), reason="2 of 5 rounds changed nothing"), POINT)
    assert judgement.score is None and not judgement.passed and "2 of 5 rounds changed nothing" in judgement.why


# Stage 2: 80% of the clients with gamma > 0.8, else alpha and kappa move.


def consistent(share: float | None, ratio: float = 1.0, absent: float = 0.0, clipped: float = 0.1) -> Measured:
    return measured(gamma_share=share, clients=10.0, epochs_ratio=ratio, absent_share=absent, clipped_share=clipped)


def test_enough_consistent_clients_pass() -> None:
    judgement = Consistency(3, PLAN, "the data differ very much").judge(consistent(0.8), POINT)
    assert judgement.passed and judgement.why == "80% of 10 clients have gamma > 0.8"


@pytest.mark.parametrize(
    ("data", "ratio", "absent", "move"),
    [
        ("label entropy 0.5", 1.0, 0.0, {ALPHA: 0.6}),
        (None, 2.5, 0.0, {KAPPA: 0.2}),
        (None, 1.0, 0.2, {KAPPA: 0.2}),
        ("label entropy 0.5", 2.5, 0.0, {ALPHA: 0.6, KAPPA: 0.2}),
        (None, 2.0, 0.05, None),
    ],
    ids=["data", "devices", "absent devices", "both", "neither"],
)
def test_too_few_consistent_clients_move_what_the_differences_ask_for(
    data: str | None, ratio: float, absent: float, move: dict[str, float] | None
) -> None:
    judgement = Consistency(3, PLAN, data).judge(consistent(0.7, ratio, absent), POINT)
    assert not judgement.passed and judgement.moves == (() if move is None else (move,))
    assert "70% of 10 clients have gamma > 0.8, under 80%" in judgement.why
    assert data is None or data in judgement.why
    assert ("the devices differ" in judgement.why) == bool(move and KAPPA in move)


def test_what_is_at_its_place_already_does_not_move() -> None:
    assert Consistency(3, PLAN, "different").judge(consistent(0.7), POINT | {ALPHA: 0.6}).moves == ()
    assert Consistency(3, PLAN, None).judge(consistent(0.7, ratio=3.0), POINT | {KAPPA: 0.3}).moves == ()


def test_idle_adaptation_is_said() -> None:
    assert (
        "adaptation inactive: 60% of them have lambda at a clip"
        in Consistency(3, PLAN, None).judge(consistent(0.9, clipped=0.6), POINT).why
    )
    assert "inactive" not in Consistency(3, PLAN, None).judge(consistent(0.9, clipped=0.5), POINT).why


def test_a_client_counts_once_with_its_last_gamma() -> None:
    rounds = [
        result(3, report(3, 5, gamma=0.9)),
        result(4, report(4, 0, gamma=0.1, clipped=1.0), report(4, 1, steps=12, gamma=0.85, clipped=0.0), absent=(7,)),
        result(5, report(5, 0, gamma=0.95, clipped=0.0), report(5, 2, gamma=0.8, clipped=1.0), report(5, 3, accepted=False, gamma=0.99)),
    ]
    figures = Consistency(3, PLAN, None).figures(rounds)
    assert figures["clients"] == 3 and figures["gamma_share"] == pytest.approx(2 / 3), "0.8 is not above 0.8"
    assert figures["clipped_share"] == pytest.approx(1 / 3)
    assert figures["epochs_ratio"] == 3.0 and figures["absent_share"] == pytest.approx(1 / 7)
    nothing = Consistency(9, PLAN, None).figures(rounds)
    assert Consistency(9, PLAN, None).judge(measured(**nothing), POINT).score is None


def test_how_much_the_data_differ_comes_from_the_partition() -> None:
    task = fa.digits(model="softmax")
    skewed = different_data(Experiment(partition=fa.DirichletPerClass(alpha=0.1, clients=10)), task)
    assert skewed is not None and "label entropy 0." in skewed
    assert different_data(Experiment(partition=fa.IID(clients=10)), task) is None
    x = torch.linspace(0, 1, 40)[:, None]
    numbers = fa.Task(model=lambda: torch.nn.Linear(1, 1), loss=torch.nn.functional.mse_loss, train=(x, x), test=(x, x))

    class Halves:
        def split(self, attributes: Any, rng: Any) -> fa.Partition:
            return fa.Partition(fa.Shards.of(np.array_split(np.arange(attributes.num_examples), 2)))

    shifted = different_data(Experiment(partition=Halves(), run=RunOptions(client_test=0.0)), numbers)
    assert shifted is not None and "inputs shifted by 0.8" in shifted


# All of it.


def test_the_stages_are_those_of_the_method() -> None:
    task = fa.digits(model="softmax")
    experiment = Experiment(algorithm=fa.DynamicSAM(warmup_rounds=2), run=RunOptions(rounds=40))
    first, second, third = stages(experiment, task, None, (0.01, 0.1, 1.0), None)
    assert [(each.share, each.rounds, list(each.space)) for each in (first, second, third)] == [
        (0.01, 5, [RHO_MAX]),
        (0.1, 20, [ALPHA, KAPPA]),
        (1.0, 40, []),
    ]
    assert third.goal is None and third.with_start
    with pytest.raises(ConfigError, match="E203 2 shares"):
        stages(experiment, task, None, (0.1, 1.0), None)


def test_a_real_run_moves_a_radius_that_is_far_too_small_and_ends_with_values_for_the_whole_data() -> None:
    tuned = fa.tune(
        fa.digits(model="softmax"),
        fa.DynamicSAM(rho_max=0.005),
        partition=fa.DirichletPerClass(alpha=0.3, clients=10),
        cohort=5,
        rounds=6,
        local=fa.LocalPlan(lr=0.1, epochs=1, batch_size=20),
        trials=3,
        stage_rounds=(6, 8, 6),
    )
    assert tuned.state == "finished" and len(tuned.stages) == 3
    first = tuned.stages[0].attempts[0]
    sigma = first.measured.figures["sigma_median"]
    assert (
        sigma is not None and sigma < 0.1 and first.verdict == f"move algorithm.rho_max from 0.005 to {tuned.attempts[1].point[RHO_MAX]:g}"
    )
    assert tuned.stages[0].passed and 0.1 <= (tuned.stages[0].chosen[0].measured.figures["sigma_median"] or 0) <= 1.0
    gamma = tuned.stages[1].attempts[0]
    assert gamma.measured.figures["gamma_share"] is not None
    assert gamma.passed or gamma.verdict.startswith("move algorithm.alpha from 0.4 to 0.6")
    last = tuned.stages[2]
    assert {each.origin for each in last.attempts} == {"stage 2", "configured"}
    best = max(each.measured.metric or 0 for each in last.attempts)
    assert last.chosen[0].measured.metric == best and tuned.values == last.chosen[0].point
    assert isinstance(tuned.algorithm, fa.DynamicSAM) and tuned.algorithm.rho_max == tuned.values[RHO_MAX]
