"""dynamic_sam's own stages: is the surface's sharpness in range, do clients stay with the global model, does it pay?

1. 1% of the data, a few rounds: sigma should lie in 0.1-1.0, else rho_max moves (to a third for U-Nets, whose Lipschitz constant is about
   three times a ResNet's).
2. 10%, 20 rounds: at least 80% of the clients with gamma > 0.8, else alpha moves to 0.6 where the data differ very much, kappa to 0.2
   where the devices do.
3. All data: the validation metric decides between the values found and the configured ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedaccord.core.errors import ConfigError
from fedaccord.core.local import LocalPlan
from fedaccord.core.reports import ClientReport, number
from fedaccord.experiment import Experiment, share_out
from fedaccord.federation import RoundResult
from fedaccord.partition import summary
from fedaccord.partition.examine import ENTROPY_FLOOR, SHIFT_CEILING
from fedaccord.partition.measures import feature_shift, mean_of
from fedaccord.tasks import Task
from fedaccord.tuning.space import Point, Range
from fedaccord.tuning.stages import Judgement, Measured, Stage, figure

RHO_MAX, ALPHA, KAPPA = "algorithm.rho_max", "algorithm.alpha", "algorithm.kappa"

SIGMA = (0.1, 1.0)
SIGMA_AIM = math.sqrt(SIGMA[0] * SIGMA[1])  # the middle of the range, in the logarithm
MOST = 10.0  # times that one move of rho_max changes it
GAMMA = 0.8
SHARE = 0.8  # of the clients
DIFFERENT_DATA, DIFFERENT_DEVICES = 0.6, 0.2  # alpha and kappa
EPOCHS_RATIO = 2.0  # between clients: beyond it their devices differ (halved epochs alone, while tau is high, give 2)
ABSENT = 0.1  # share of those asked who did not answer
INACTIVE = 0.5  # share of clients whose lambda is at a clip

ATTEMPTS = 6  # trials of each of the first two stages
ROUNDS = (3, 20)  # of the first stage, after warm-up; of the second
RHO_RANGE, ALPHA_RANGE, KAPPA_RANGE = (0.001, 1.0), (0.1, 1.0), (0.02, 0.5)


def stages(
    experiment: Experiment, task: Task, trials: int | None, shares: Sequence[float], rounds: Sequence[int] | None
) -> tuple[Stage, ...]:
    """The three stages for this experiment. E203 unless there are three shares, and three numbers of rounds where they are given."""
    if len(shares) != 3:
        raise ConfigError("E203", f"{len(shares)} shares of the data", "--shares", "dynamic_sam is tuned in three stages, e.g. 0.01,0.1,1")
    warmup = int(getattr(experiment.algorithm, "warmup_rounds", 0))
    lengths = rounds or (max(warmup, 0) + ROUNDS[0], ROUNDS[1], experiment.run.rounds)
    attempts = ATTEMPTS if trials is None else trials
    sharpness = Sharpness(warmup, is_unet(task, experiment.run.seed))
    consistency = Consistency(warmup, experiment.local, different_data(experiment, task))
    return (
        Stage(shares[0], lengths[0], {RHO_MAX: Range(*RHO_RANGE)}, attempts, sharpness),
        Stage(shares[1], lengths[1], {ALPHA: Range(*ALPHA_RANGE), KAPPA: Range(*KAPPA_RANGE)}, attempts, consistency),
        Stage(shares[2], lengths[2], with_start=True),
    )


@dataclass(frozen=True)
class Sharpness:
    """Stage 1. sigma = L(w + e) - L(w) grows with the radius, so the rule moves rho_max by the ratio that is missing."""

    warmup_rounds: int
    is_unet: bool

    def figures(self, rounds: Sequence[RoundResult]) -> dict[str, float | None]:
        """Quantiles of sigma over all participations after warm-up (in warm-up nobody looks ahead)."""
        found = [value for report in _trained(rounds, self.warmup_rounds) if (value := number(report.signals.get("sigma"))) is not None]
        low, middle, high = (float(q) for q in np.quantile(found, (0.1, 0.5, 0.9))) if found else (None, None, None)
        return {"sigma_median": middle, "sigma_low": low, "sigma_high": high, "measured": float(len(found))}

    def judge(self, measured: Measured, point: Point) -> Judgement:
        sigma, rho = measured.figures.get("sigma_median"), float(point[RHO_MAX])
        if sigma is None:
            return Judgement(None, False, f"no sigma was measured after warm-up: {measured.reason or 'no round came after it'}")
        text = f"median sigma {figure(sigma)}"
        if SIGMA[0] <= sigma <= SIGMA[1]:
            return Judgement(0.0, True, f"{text} lies in {SIGMA[0]}-{SIGMA[1]}")
        is_steep = sigma > SIGMA[1]
        bound = SIGMA[1] if is_steep else SIGMA[0]
        score = -abs(math.log(max(sigma, SIGMA[0] / 100) / bound))
        if is_steep and self.is_unet:
            return Judgement(score, False, f"{text} is above {bound}, and the model is a U-Net", _rho(rho / 3, rho))
        ratio = min(max(SIGMA_AIM / sigma if sigma > 0 else MOST, 1 / MOST), MOST)
        return Judgement(score, False, f"{text} is {'above' if is_steep else 'below'} {bound}", _rho(rho * ratio, rho))


@dataclass(frozen=True)
class Consistency:
    """Stage 2."""

    warmup_rounds: int
    plan: LocalPlan
    different_data: str | None  # how the clients' data differ, where they differ very much

    def figures(self, rounds: Sequence[RoundResult]) -> dict[str, float | None]:
        """gamma of each client's last participation after warm-up, whether its lambda was at a clip; how uneven the devices are."""
        reports = list(_trained(rounds, self.warmup_rounds))
        last = {report.client: report for report in reports}
        gammas = [gamma for report in last.values() if (gamma := number(report.signals.get("gamma"))) is not None]
        clipped = [at_clip for report in last.values() if (at_clip := number(report.signals.get("clipped"))) is not None]
        epochs = [report.steps / self.plan.steps_per_epoch(int(report.num_examples)) for report in reports if report.num_examples >= 1]
        asked, absent = sum(len(each.report.cohort) for each in rounds), sum(len(each.report.absent) for each in rounds)
        return {
            "gamma_share": float(np.mean(np.array(gammas) > GAMMA)) if gammas else None,
            "gamma_median": float(np.median(gammas)) if gammas else None,
            "clipped_share": float(np.mean(clipped)) if clipped else None,
            "clients": float(len(gammas)),
            "epochs_ratio": max(epochs) / min(epochs) if epochs else None,
            "absent_share": absent / asked if asked else None,
        }

    def judge(self, measured: Measured, point: Point) -> Judgement:
        share = measured.figures.get("gamma_share")
        if share is None:
            return Judgement(None, False, f"no gamma was measured after warm-up: {measured.reason or 'no round came after it'}")
        text = f"{share:.0%} of {measured.figures['clients']:.0f} clients have gamma > {GAMMA}"
        clipped = measured.figures.get("clipped_share")
        idle = f"; adaptation inactive: {clipped:.0%} of them have lambda at a clip" if clipped is not None and clipped > INACTIVE else ""
        if share >= SHARE:
            return Judgement(share, True, text + idle)
        devices = different_devices(measured)
        change: Point = {}
        if self.different_data and point[ALPHA] < DIFFERENT_DATA:
            change[ALPHA] = DIFFERENT_DATA
        if devices and point[KAPPA] < DIFFERENT_DEVICES:
            change[KAPPA] = DIFFERENT_DEVICES
        reasons = [each for each in (self.different_data, devices) if each]
        why = f"{text}, under {SHARE:.0%}{idle}" + "".join(f"; {each}" for each in reasons)
        return Judgement(share, False, why, (change,) if change else ())


def different_data(experiment: Experiment, task: Task) -> str | None:
    """How the clients' data differ, where they differ very much: by their labels, or, where a row has no class, by their inputs."""
    data, _ = share_out(experiment, task)
    entropy = summary(data.train, task.labels, task.num_classes)["label_entropy_mean"]
    if entropy is not None:
        return f"the data differ very much: label entropy {entropy:.2f}" if entropy < ENTROPY_FLOOR else None
    shift = mean_of(feature_shift(data.train, data.x.numpy())) if data.x.is_floating_point() else None
    return f"the data differ very much: inputs shifted by {shift:.2f} deviations" if shift is not None and shift > SHIFT_CEILING else None


def different_devices(measured: Measured) -> str | None:
    """How the devices differ, as far as a round shows it: unequal numbers of local epochs, and clients that did not answer."""
    ratio, absent = measured.figures.get("epochs_ratio") or 1.0, measured.figures.get("absent_share") or 0.0
    if ratio > EPOCHS_RATIO:
        return f"the devices differ: some train {ratio:.1f} times as many epochs as others"
    return f"the devices differ: {absent:.0%} of those asked did not answer" if absent > ABSENT else None


def is_unet(task: Task, seed: int) -> bool:
    """Whether a part of the model is called a U-Net."""
    return any("unet" in type(part).__name__.lower() for part in task.build_model(seed).modules())


def _rho(value: float, present: float) -> tuple[Point, ...]:
    moved = float(f"{min(max(value, RHO_RANGE[0]), RHO_RANGE[1]):.3g}")
    return () if moved == present else ({RHO_MAX: moved},)


def _trained(rounds: Sequence[RoundResult], warmup_rounds: int) -> Iterator[ClientReport]:
    """Accepted reports of the rounds after warm-up, in order."""
    return (report for each in rounds if each.report.round > warmup_rounds for report in each.clients if report.accepted and report.steps)
