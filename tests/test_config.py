from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedaccord as fa
from fedaccord.aggregation.policies import POLICIES
from fedaccord.aggregation.screens import SCREENS
from fedaccord.algorithms import REGISTRY
from fedaccord.attacks import ATTACKS
from fedaccord.config import ConfigErrors, Resolved, alternatives, check, comparison, read_settings, resolve, runs_of, to_toml
from fedaccord.core.errors import ConfigError
from fedaccord.core.optimizer import LOCAL_OPTIMIZERS
from fedaccord.core.rng import stream
from fedaccord.core.schedule import SCHEDULES
from fedaccord.core.server_optimizer import SERVER_OPTIMIZERS
from fedaccord.experiment import CHOICES, Experiment, RunOptions, plain
from fedaccord.partition import SCHEMES
from fedaccord.runtime.options import RuntimeOptions

BASE = """
[task]
name = "digits"

[algorithm]
name = "fedsmoo"
rho = 0.1
"""

Read = Callable[..., list[Resolved]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """``read(text, *overrides, NAME="environment")`` -> the runs."""

    def of(text: str = BASE, *overrides: str, seeds: int | None = None, seed: int | None = None, **environment: str) -> list[Resolved]:
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        return runs_of(read_settings(path, overrides, environment), seeds, seed)

    return of


def fault(read: Read, text: str, *overrides: str, **environment: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(text, *overrides, **environment)
    return caught.value


def test_what_is_not_given_has_its_default_and_what_is_given_is_taken(read: Read) -> None:
    (run,) = read()
    assert run.experiment == Experiment(algorithm=fa.FedSMOO(rho=0.1))
    assert run.sources["algorithm.rho"] == "file" and run.sources["algorithm.beta"] == "default"


def test_a_choice_is_a_name_or_a_table(read: Read) -> None:
    text = (
        BASE
        + '\n[local]\noptimizer = "adam"\nschedule = { name = "cosine", final = 0.5 }\n[run]\ncohort = 7\n[aggregation]\npolicy = "equal"\n'
    )
    experiment = read(text)[0].experiment
    assert experiment.local.optimizer == fa.Adam() and experiment.local.schedule == fa.Cosine(final=0.5)
    assert experiment.run.cohort == fa.Uniform(7) and experiment.aggregation.policy == fa.Equal()
    assert read(text, "run.cohort=0.25")[0].experiment.run.cohort == fa.Coin(0.25)
    assert read(text, "local.optimizer.beta1=0.5")[0].experiment.local.optimizer == fa.Adam(beta1=0.5)
    assert read(text, "local.schedule.final=0.2")[0].experiment.local.schedule == fa.Cosine(final=0.2)
    assert read(BASE, "local.optimizer.momentum=0.9")[0].experiment.local.optimizer == fa.Sgd(momentum=0.9)  # the default's class
    assert read('task = "digits"\nalgorithm = "scaffold"')[0].experiment.algorithm == fa.Scaffold()


def test_the_command_line_beats_the_environment_beats_the_file_beats_the_default(read: Read) -> None:
    environment = {"FEDACCORD__ALGORITHM__RHO": "0.2", "FEDACCORD__LOCAL__LR": "0.3"}
    (run,) = read(BASE, "algorithm.rho=0.05", **environment)
    assert (run.experiment.algorithm, run.experiment.local.lr) == (fa.FedSMOO(rho=0.05), 0.3)
    told = {key: run.sources[key] for key in ("algorithm.rho", "local.lr", "algorithm.name", "algorithm.beta")}
    assert told == {"algorithm.rho": "command line", "local.lr": "environment", "algorithm.name": "file", "algorithm.beta": "default"}


def test_an_override_is_read_as_toml_and_a_bare_word_is_a_string(read: Read) -> None:
    overrides = ["task.model=softmax", "task.validation=0.5", "local.drop_last=true", "local.batch_size=full", "task.hidden=[3]"]
    (run,) = read(BASE, *overrides)
    assert run.task.options == {"model": "softmax", "validation": 0.5, "hidden": (3,)}
    assert run.experiment.local.drop_last is True and run.experiment.local.batch_size == "full"


@pytest.mark.parametrize(
    ("override", "code", "where", "words"),
    [
        ("algorithm.roh=1", "E201", "-s algorithm.roh", "'rho'"),
        ("algoritm.rho=1", "E201", "-s algoritm.rho", "'algorithm'"),
        ("local.optimiser=sgd", "E201", "-s local.optimiser", "'optimizer'"),
        ("task.modle=mlp", "E201", "-s task.modle", "'model'"),
        ("run.cohort={name='uniform', sise=3}", "E201", "-s run.cohort", "'size'"),
        ("algorithm.mu=1", "E201", "-s algorithm.mu", "fedprox"),
        ("algorithm.rho='0.3'", "E202", "-s algorithm.rho", "without quotes"),
        ("algorithm.rho=true", "E202", "-s algorithm.rho", "number"),
        ("run.rounds=2.0", "E202", "-s run.rounds", "integer"),
        ("run.rounds=true", "E202", "-s run.rounds", "integer"),
        ("local=3", "E202", "-s local", "[local]"),
        ("run.cohort=true", "E202", "-s run.cohort", "uniform"),
        ("algorithm.rho=-1", "E203", "-s algorithm.rho", "greater than or equal to 0"),
        ("algorithm.rho=nan", "E203", "-s algorithm.rho", "finite"),
        ("run.client_test=1", "E203", "-s run.client_test", "less than 1"),
        ("local.batch_size=0", "E203", "-s local.batch_size", "greater than or equal to 1"),
        ("partition.name=dirichlet_per_class", "E204", "-s partition", "alpha"),
        ("server_optimizer.lr=1", "E204", "-s server_optimizer.lr", "adam"),
        ("algorithm.name=fedsmo", "E205", "-s algorithm.name", "'fedsmoo'"),
        ("task=digit", "E205", "-s task", "'digits'"),
        ("local.batch_size=ful", "E205", "-s local.batch_size", "'full'"),
        ("task.model=lenet", "E205", "-s task.model", "softmax"),
        ("algorithm.rho", "E206", "-s algorithm.rho", "key=value"),
        ("algorithm.rho=[]", "E203", "-s algorithm.rho", "value"),
        ("algorithm='nowhere:Mine'", "E207", "", "nowhere"),
    ],
)
def test_a_fault_has_its_code_its_place_and_its_remedy(read: Read, override: str, code: str, where: str, words: str) -> None:
    error = fault(read, BASE, override)
    assert error.code == code
    assert where in error.where
    assert words in f"{error.what} {error.remedy}"


def test_a_fault_of_the_file_is_placed_by_section_and_key(read: Read) -> None:
    error = fault(read, BASE.replace("rho = 0.1", "rho = -1"))
    assert (error.code, error.where) == ("E203", "[algorithm] rho in experiment.toml")


def test_a_fault_of_the_environment_is_placed_by_its_variable(read: Read) -> None:
    error = fault(read, BASE, FEDACCORD__ALGORITHM__ROH="1")
    assert (error.code, error.where) == ("E201", "FEDACCORD__ALGORITHM__ROH")
    assert len(read(BASE, FEDACCORD_DATA="/data", FEDACCORD_CI="1")) == 1  # other variables of ours are no keys


def test_what_is_no_toml_is_e206_with_its_line(read: Read, tmp_path: Path) -> None:
    error = fault(read, "[task]\nname = digits\n")
    assert error.code == "E206" and error.where.endswith("experiment.toml, line 2")
    with pytest.raises(ConfigError, match="E206 no such file"):
        read_settings(tmp_path / "missing.toml")


def test_without_a_task_it_is_e204(read: Read) -> None:
    error = fault(read, "[run]\nrounds = 1\n")
    assert error.code == "E204" and "digits" in error.remedy


def test_all_faults_come_together(read: Read) -> None:
    error = fault(read, BASE, "local.lr=-1", "run.rounds='3'", "algorithm.roh=1")
    assert isinstance(error, ConfigErrors)
    assert {error.code, *(other.code for other in error.others)} == {"E201", "E202", "E203"}


def test_switching_the_method_names_the_keys_that_it_lacks(read: Read) -> None:
    error = fault(read, BASE, "algorithm.name=fedprox")
    assert error.code == "E201" and "'rho' of fedprox" in error.what and error.where == "[algorithm] rho in experiment.toml"
    assert read(BASE, "algorithm=fedprox")[0].experiment.algorithm == fa.FedProx()  # the section anew, with its defaults


def test_lists_sweep_in_every_combination_and_the_first_varies_slowest(read: Read) -> None:
    runs = read(BASE.replace("rho = 0.1", "rho = [0.1, 1]"), "local.lr=[0.5, 0.25]", seeds=2, seed=3)
    assert len(runs) == 8
    assert runs[1].varied == (("algorithm.rho", 0.1), ("local.lr", 0.5), ("run.seed", 4))
    assert [(run.experiment.algorithm.rho, run.experiment.local.lr, run.experiment.run.seed) for run in runs] == [
        (rho, lr, seed) for rho in (0.1, 1.0) for lr in (0.5, 0.25) for seed in (3, 4)
    ]
    assert len({repr(run.experiment) for run in runs}) == 8


def test_choices_sweep_and_fields_that_hold_lists_do_not(read: Read) -> None:
    assert [run.experiment.algorithm for run in read(BASE, "algorithm=[fedavg, scaffold]")] == [fa.FedAvg(), fa.Scaffold()]
    assert [run.experiment.run.cohort for run in read(BASE, "run.cohort=[2, 3]")] == [fa.Uniform(2), fa.Uniform(3)]
    assert [run.task.options["hidden"] for run in read(BASE, "task.hidden=[10, 20]")] == [(10, 20)]
    assert [run.task.options["hidden"] for run in read(BASE, "task.hidden=[[10], [20]]")] == [(10,), (20,)]
    scripted = read(BASE, "run.cohort={name='scripted', cohorts=[[0, 1], [2]]}")
    assert [run.experiment.run.cohort for run in scripted] == [fa.Scripted(((0, 1), (2,)))]
    assert fault(read, BASE, "algorithm.rho=[0.1, -1]").code == "E203"


def test_changing_seed_or_alpha_changes_the_experiment(read: Read) -> None:
    """Field report 39: an override that nothing reads is an error, one that is read changes what is run."""
    text = BASE + '[partition]\nname = "dirichlet_per_class"\nalpha = 1.0\nclients = 5\n'
    runs = read(text, "partition.alpha=[0.1, 1.0]", seeds=2)
    drawn = set()
    for run in runs:
        attributes = fa.Attributes(100, np.arange(100) % 5)
        shards = run.experiment.partition.split(attributes, stream(run.experiment.run.seed, "partition")).shards
        drawn.add(shards.indices.tobytes() + shards.sizes.tobytes())
    assert len(drawn) == 4
    assert fault(read, text, "seed=3").code == "E201"


PARTITIONS = {
    "iid": {"clients": 3},
    "dirichlet_per_class": {"alpha": 1e-06, "clients": 3},
    "dirichlet_per_client": {"alpha": 0.1, "clients": 3, "draw": "with_replacement"},
    "label_shards": {"clients": 3},
    "pathological_labels": {"clients": 3, "labels_per_client": 4},
    "quantity_dirichlet": {"alpha": 2, "clients": 3},
    "few_hold_most": {"clients": 3},
    "feature_noise": {"clients": 3, "std": 0.5},
    "by_site": {"clients_per_site": 2},
    "by_modality": {"single": {"CT": 2, "MR": 1}, "mixed": 3},
    "natural_ids": {"min_size": 2},
}
SECTIONS = [
    *({"algorithm": {"name": name}} for name in REGISTRY),
    *({"partition": {"name": name, **PARTITIONS[name]}} for name in SCHEMES),
    *({"local": {"optimizer": name}} for name in LOCAL_OPTIMIZERS),
    *({"local": {"schedule": name, "clip_norm": 1.5, "batch_size": "full"}} for name in SCHEDULES),
    *({"server_optimizer": name} for name in SERVER_OPTIMIZERS),
    *({"aggregation": {"policy": name, "max_examples": 10}} for name in POLICIES),
    *({"aggregation": {"screen": name, "rollout": {"stage": "shadow"}}} for name in SCREENS),
    *({"attack": {"name": name, "share": 0.1}} for name in ATTACKS),
    {"run": {"cohort": 3, "stop_at": 0.5}},
    {"run": {"cohort": 0.5}},
    {"run": {"cohort": {"name": "scripted", "cohorts": [[0, 1], []]}}},
    {"run": {"cohort": {"name": "stability_aware", "size": 3, "floor": 0.1}}},
    {"run": {"cohort": {"name": "favor", "size": 3, "components": 5}}},
    {"devices": {"weak_share": 0.3, "gradients_per_second": 50.0, "deadline": 2.0}},
    {"runtime": {"state": "disk", "debug": True}},
]


@pytest.mark.parametrize("section", SECTIONS, ids=repr)
def test_a_resolved_experiment_reads_back_as_itself(read: Read, section: dict[str, Any]) -> None:
    text = to_toml({"task": {"name": "digits", "hidden": [3, 4]}, **section}, {})
    (run,) = read(text)
    resolved = to_toml(run.tables, run.sources)
    (again,) = read(resolved)
    assert again.experiment == run.experiment and again.tables == run.tables
    assert to_toml(again.tables, run.sources) == resolved
    values = [line for line in resolved.splitlines() if " = " in line]
    assert values and all(line.rpartition(" # ")[2] in ("file", "default") for line in values)
    check(run.experiment)


def test_every_choice_that_exists_is_read_back(read: Read) -> None:
    assert set(PARTITIONS) == set(SCHEMES)
    assert sum(len(registry) for registry in CHOICES.values()) == len(SECTIONS) - 2  # all names, the devices and the runtime


@pytest.mark.parametrize(
    ("experiment", "code", "words"),
    [
        (Experiment(algorithm=fa.FedSMOO(rho=-1)), "E203", "algorithm.rho"),
        (Experiment(algorithm=fa.DynamicSAM(lambda_min=0.5)), "E203", "lambda_min = 0.5 is above lambda_max = 0.3"),
        (Experiment(algorithm=fa.FedSMOO(rho="0.1")), "E202", "algorithm.rho"),  # type: ignore[arg-type]
        (Experiment(algorithm=fa.FedAvg), "E202", "FedAvg(...)"),  # type: ignore[arg-type]
        (Experiment(algorithm="fedavg"), "E202", "fa.FedAvg(...)"),  # type: ignore[arg-type]
        (Experiment(algorithm=None), "E202", "Algorithm"),  # type: ignore[arg-type]
        (Experiment(partition=object()), "E202", "'split'"),  # type: ignore[arg-type]
        (Experiment(local=fa.LocalPlan(lr=0)), "E203", "local.lr"),
        (Experiment(local=fa.LocalPlan(optimizer=fa.Sgd(momentum=2))), "E203", "local.optimizer.momentum"),
        (Experiment(local={"lr": 1}), "E202", "LocalPlan(...)"),  # type: ignore[arg-type]
        (Experiment(run=RunOptions(rounds=0)), "E203", "run.rounds"),
        (Experiment(run=RunOptions(rounds=True)), "E202", "run.rounds"),
        (Experiment(run=RunOptions(cohort=fa.Uniform(0))), "E203", "run.cohort.size"),
        (Experiment(runtime=RuntimeOptions(state="tape")), "E205", "memory"),  # type: ignore[arg-type]
    ],
)
def test_objects_are_held_to_the_rules_of_a_file(experiment: Experiment, code: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(experiment)
    assert caught.value.code == code and words in str(caught.value)


def test_classes_that_are_not_ours_pass_the_check_and_have_a_name_in_the_tables() -> None:
    @dataclass(frozen=True)
    class Mine(fa.FedAvg):
        strength: float = -1.0

    class Elsewhere:
        load_partition = num_partitions = None

    check(Experiment(algorithm=Mine(), partition=fa.Explicit([np.arange(3)])))
    with pytest.raises(ConfigError, match=r"Wrap it: fa\.FromPartitioner"):
        check(Experiment(partition=Elsewhere()))  # type: ignore[arg-type]
    assert plain(Mine())["name"].endswith(":" + Mine.__qualname__) and plain(Mine())["strength"] == -1.0


COMPARED = BASE + '\n[compare]\nalgorithms = ["fedavg", "fedsam", "fedsmoo"]\nseeds = 2\ntarget = 0.5\n[compare.fedsam]\nrho = 0.3\n'


@pytest.fixture
def methods(tmp_path: Path) -> Callable[..., dict[str, fa.Algorithm]]:
    def of(text: str, *overrides: str, algorithms: tuple[str, ...] = ()) -> dict[str, fa.Algorithm]:
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        found = comparison(read_settings(path, overrides), algorithms)
        return {str(method.get(("algorithm", "name"))): resolve(method).experiment.algorithm for method in found.methods}

    return of


def test_a_comparison_gives_each_method_its_own_keys(methods: Callable[..., dict[str, fa.Algorithm]]) -> None:
    assert methods(COMPARED) == {"fedavg": fa.FedAvg(), "fedsam": fa.FedSAM(rho=0.3), "fedsmoo": fa.FedSMOO(rho=0.1)}
    assert methods(COMPARED, "compare.fedsmoo.beta=3")["fedsmoo"] == fa.FedSMOO(rho=0.1, beta=3)
    assert methods(COMPARED, algorithms=("scaffold", "fedsmoo")) == {"scaffold": fa.Scaffold(), "fedsmoo": fa.FedSMOO(rho=0.1)}


def test_a_key_on_the_command_line_goes_to_every_method_that_has_it(methods: Callable[..., dict[str, fa.Algorithm]]) -> None:
    assert methods(COMPARED, "algorithm.rho=0.7") == {"fedavg": fa.FedAvg(), "fedsam": fa.FedSAM(rho=0.7), "fedsmoo": fa.FedSMOO(rho=0.7)}


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("compare.seeds=0", "E203"),
        ("compare.seeds='2'", "E202"),
        ("compare.sedes=2", "E201"),
        ("compare.fedsam.roh=1", "E201"),
        ("compare.fedsma.rho=1", "E201"),
        ("compare.algorithms=[fedsma]", "E205"),
        ("algorithm.mu=1", "E201"),
        ("compare=3", "E202"),
    ],
)
def test_faults_of_the_comparison_are_named(methods: Callable[..., dict[str, fa.Algorithm]], override: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        methods(COMPARED, override)
    assert caught.value.code == code


ATTACKED = BASE + '\n[attack]\nname = "sign_flip"\nfactor = 5.0\nshare = 0.4\n[aggregation]\nscreen = "median"\n'


@pytest.fixture
def under(tmp_path: Path) -> Callable[..., list[Resolved]]:
    def of(*overrides: str, text: str = ATTACKED, seeds: int | None = None, **asked: str) -> list[Resolved]:
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        points = alternatives(read_settings(path, overrides), {f"--{option}": names.split() for option, names in asked.items()})
        return [each for settings, varied in points for each in runs_of(settings, seeds, None, varied)]

    return of


def test_each_attack_has_its_own_keys_and_those_that_all_have(under: Callable[..., list[Resolved]]) -> None:
    """Nobody is always among them; the file's factor is the sign flip's, its share everybody's."""
    runs = under(attack="sign_flip scaling alie")
    assert [run.experiment.attack for run in runs] == [
        fa.attacks.Nobody(share=0.4),
        fa.SignFlip(share=0.4, factor=5.0),
        fa.Scaling(share=0.4),
        fa.ALIE(share=0.4),
    ]
    assert [run.varied for run in runs] == [(("attack.name", name),) for name in ("none", "sign_flip", "scaling", "alie")]
    assert runs[1].sources["attack.factor"] == "file" and runs[2].sources["attack.factor"] == "default"


def test_a_key_on_the_command_line_goes_to_every_attack_that_has_it(under: Callable[..., list[Resolved]]) -> None:
    _, flip, scaling, alie = under("attack.factor=7.0", "attack.from_round=3", attack="sign_flip scaling alie")
    assert (flip.experiment.attack, scaling.experiment.attack) == (
        fa.SignFlip(share=0.4, factor=7.0, from_round=3),
        fa.Scaling(share=0.4, factor=7.0, from_round=3),
    )
    assert alie.experiment.attack == fa.ALIE(share=0.4, from_round=3)
    assert len(under("attack.factor=[1.0, 2.0]", attack="sign_flip")) == 3, "a list still sweeps, where there is the key"


def test_attacks_screens_policies_and_seeds_are_combined(under: Callable[..., list[Resolved]]) -> None:
    runs = under(attack="alie", screens="none rule_guard", policies="equal", seeds=2)
    assert len(runs) == 8
    assert {type(run.experiment.aggregation.screen) for run in runs} == {fa.Unscreened, fa.RuleGuard}
    assert all(isinstance(run.experiment.aggregation.policy, fa.Equal) for run in runs)
    assert dict(runs[-1].varied) == {"attack.name": "alie", "aggregation.screen.name": "rule_guard", "run.seed": 1}
    (plain,) = under(screens="krum", text=BASE)
    assert isinstance(plain.experiment.aggregation.screen, fa.Krum) and plain.varied == () and plain.experiment.attack is None


@pytest.mark.parametrize(
    ("overrides", "asked", "code", "words"),
    [
        ((), {"attack": ""}, "E204", "--attack names nothing"),
        ((), {"attack": "sing_flip"}, "E205", "sign_flip"),
        ((), {"screens": "median median"}, "E208", "median is named twice"),
        (("attack.z=1.0",), {"attack": "ipm"}, "E201", "none of none, ipm has the key 'z'"),
    ],
)
def test_faults_of_what_is_compared_are_named(
    under: Callable[..., list[Resolved]], overrides: tuple[str, ...], asked: dict[str, str], code: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        under(*overrides, **asked)
    assert caught.value.code == code


def test_a_task_of_your_own_has_its_keywords_as_keys(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "camera.py").write_text("def make_task(lens: str, zoom: float = 2.0, *, dark: bool = False): ...\n")
    (run,) = read('[task]\nname = "camera:make_task"\nlens = "wide"\nzoom = 3\n')
    assert run.task.options == {"lens": "wide", "zoom": 3.0} and run.tables["task"]["dark"] is False
    assert fault(read, 'task = "camera:make_task"').code == "E204"
    assert fault(read, '[task]\nname = "camera:make_task"\nlens = "wide"\nzom = 3\n').remedy == "Did you mean 'zoom'?"
    assert fault(read, '[task]\nname = "camera:make_task"\nlens = 1\n').code == "E202"
    assert len(read('[task]\nname = "camera:make_task"\nlens = ["wide", "tele"]\n')) == 2


def test_the_python_door_checks_what_it_is_given() -> None:
    task = fa.TASKS["digits"](model="softmax")
    with pytest.raises(ConfigError, match="E203"):
        fa.run(task, fa.FedSMOO(rho=-1), partition=fa.IID(clients=3), cohort=2, rounds=1)
    with pytest.raises(ConfigError, match="E203"):
        fa.run(task, fa.FedAvg(), partition=fa.IID(clients=3), cohort=2, rounds=1, local=replace(fa.LocalPlan(), lr=-1.0))


def test_a_smallest_value_above_the_largest_is_named_with_its_place(read: Read) -> None:
    with pytest.raises(ConfigError, match=r"E203 rho_min = 0.2 is above rho_max = 0.15.*algorithm"):
        read('[task]\nname = "digits"\n[algorithm]\nname = "noise_adaptive_sam"\nrho_min = 0.2\n')
    assert read('[task]\nname = "digits"\n[algorithm]\nname = "noise_adaptive_sam"\nrho_min = 0.15\n')
