"""The verbs diagnose, quarantine and policy: happy path, --json, errors and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedaccord as fa
from fedaccord.cli.main import run as command
from fedaccord.runs import RunFolder

OPTIONS: dict[str, Any] = {"partition": fa.IID(clients=6), "cohort": 6, "rounds": 5, "local": fa.LocalPlan(lr=0.1, epochs=1, batch_size=40)}
Said = Callable[..., tuple[int, str]]


@pytest.fixture()
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def call(*words: str) -> tuple[int, str]:
        code = command(list(words))
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Client 2 reports a hundred times its examples: it is refused three times and then not asked."""
    folder = tmp_path_factory.mktemp("runs") / "hostile"
    fa.run(fa.digits("softmax"), fa.FedAvg(), attack=fa.InflatedCounts(clients=(2,), factor=1000.0), folder=folder, **OPTIONS)
    return folder


def test_quarantine_tells_who_when_why_and_until_when(hostile: Path, said: Said) -> None:
    code, text = said("quarantine", str(hostile))
    assert code == 0 and "count_too_large 3" in text and "until round 14" in text and "client 2, round 3: E106" in text
    code, text = said("quarantine", str(hostile), "--json")
    (row,) = json.loads(text)["refused"]
    assert (row["client"], row["refused"], row["last"]) == (2, 3, 3)


def test_a_release_is_obeyed_when_the_run_goes_on(hostile: Path, said: Said, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = {**OPTIONS, "rounds": 8, "attack": fa.InflatedCounts(clients=(2,), factor=1000.0), "checkpoint_every": 1}

    class Stop:
        def emit(self, event: Any) -> None:
            if event.kind == "round_finished" and event.data["round"] == 4:
                RunFolder(folder).ask_to_stop()

    fa.run(fa.digits("softmax"), fa.FedAvg(), folder=folder, telemetry=[Stop()], **options)
    code, text = said("quarantine", str(folder), "--release", "2")
    assert code == 0 and "released 2: the run obeys when it is resumed" in text
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), folder=folder, resume=True, **options)
    assert [2 in cohort for cohort in run.rounds.cohort] == [True, True, True, False, True, True, True, False]
    assert run.rounds.trust[4]["events"][0] == {"event": "released", "client": 2, "by": "operator"}
    for wrong, words in (("77", "E203 there is no client 77"), ("a", "E202 'a' is no list of client ids")):
        code, text = said("quarantine", str(folder), "--release", wrong)
        assert code == 2 and words in text
    assert hostile.exists()


def test_diagnose_leaves_with_six_where_something_holds_and_says_what_to_do(hostile: Path, said: Said, tmp_path: Path) -> None:
    code, text = said("diagnose", str(hostile))
    assert code == 6 and "HOLDS      clients are in quarantine: clients 2" in text and "fedaccord quarantine RUN" in text
    code, text = said("diagnose", str(hostile), "--json")
    assert code == 6 and {each["name"] for each in json.loads(text)["findings"] if each["holds"]} == {"clients are in quarantine"}
    fa.run(fa.digits("softmax"), fa.FedAvg(), folder=tmp_path / "clean", **OPTIONS)
    code, text = said("diagnose", str(tmp_path / "clean"))
    assert code == 0 and text.endswith("nothing holds\n")
    code, text = said("diagnose", str(tmp_path / "none"))
    assert code == 2 and "E210" in text


def test_a_policys_status_and_orders(said: Said, tmp_path: Path) -> None:
    policy, folder = fa.Residual(weights="untrained", explore=0.3), tmp_path / "run"
    fa.run(fa.digits("softmax"), fa.FedAvg(), policy=policy, rollout=fa.Rollout("shadow"), folder=folder, **OPTIONS)
    code, text = said("policy", "status", str(folder))
    assert code == 0 and text.startswith("residual  stage shadow  breaker closed  used in 0 of 5 rounds  validation loss ")
    code, text = said("policy", "status", str(folder), "--json")
    assert json.loads(text)["stage"] == "shadow" and json.loads(text)["used"] == 0
    assert said("policy", "promote", str(folder))[0] == 0 and said("policy", "rollback", str(folder), "--json")[0] == 0
    assert [order["order"] for order in RunFolder(folder).orders()] == ["promote", "rollback"]


def test_a_run_without_a_policy_of_stages_is_one_error(hostile: Path, said: Said) -> None:
    for verb in ("status", "promote", "rollback"):
        code, text = said("policy", verb, str(hostile))
        assert code == 2 and text.startswith("E208")


def test_train_and_evaluate_leave_weights_and_intervals(said: Said, tmp_path: Path) -> None:
    out = tmp_path / "p" / "w.safetensors"
    code, text = said("policy", "train", str(out), "--episodes", "2", "--minutes", "1")
    assert code == 0 and f"done  {out}" in text and json.loads(out.with_suffix(".json").read_text())["episodes"] >= 2
    code, text = said("policy", "evaluate", str(out), "--scenes", "2", "--json")
    told = json.JSONDecoder().raw_decode(text)[0]
    assert code == 0 and set(told["difference_to_fedavg"]["all"]) == {"accuracy", "loss", "worst"} and len(told["scenes"]) == 4


def test_wrong_words_have_their_code(said: Said, tmp_path: Path) -> None:
    assert said("policy", "train", str(tmp_path / "w"), "--kind", "residuel")[0] == 2
    code, text = said("policy", "train", str(tmp_path / "w"), "--learner", "sac")
    assert code == 2 and "E205" in text and "ppo" in text
    assert said("policy", "train", str(tmp_path / "w"), "--minutes", "0")[0] == 2
    code, text = said("policy", "evaluate", str(tmp_path / "none"), "--scenes", "2")
    assert code == 2 and "E301 the policy's weights cannot be read" in text


def test_compare_under_attacks_and_behind_screens(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e.toml").write_text(
        '[task]\nname = "digits"\nmodel = "softmax"\n[partition]\nname = "iid"\nclients = 10\n[run]\ncohort = 10\nrounds = 4\n'
    )
    monkeypatch.chdir(tmp_path)
    words = (
        "compare",
        "e.toml",
        "--algorithms",
        "fedavg",
        "--attack",
        "sign_flip",
        "--screens",
        "none,rule_guard",
        "--seeds",
        "1",
        "--json",
    )
    code, text = said(*words)
    told = json.JSONDecoder().raw_decode(text)[0]
    rows = {row["method"]: row for row in told["summary"]}
    assert code == 0 and len(told["runs"]) == 4
    assert set(rows) == {f"FedAvg (screen={s}, attack={a})" for s in ("none", "rule_guard") for a in ("none", "sign_flip")}
    by_attack = {(run["varied"]["aggregation.screen.name"], run["varied"]["attack.name"]): run["test"]["accuracy"] for run in told["runs"]}
    assert by_attack["none", "sign_flip"] < by_attack["rule_guard", "sign_flip"] - 0.2 < by_attack["none", "none"]
    code, text = said("compare", "e.toml", "--algorithms", "fedavg", "--policies", "by_size,fedadp", "--seeds", "1", "--json")
    rows = {row["method"] for row in json.JSONDecoder().raw_decode(text)[0]["summary"]}
    assert code == 0 and rows == {f"FedAvg (policy={name})" for name in ("by_size", "fedadp")}
    code, text = said("compare", "e.toml", "--algorithms", "fedavg", "--attack", "sing_flip")
    assert code == 2 and "is not known" in text and "sing_flip" in text and "sign_flip" in text


def test_a_run_under_attack_says_so_and_show_tells_who_was_caught(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e.toml").write_text(
        '[task]\nname = "digits"\nmodel = "softmax"\n[partition]\nname = "iid"\nclients = 10\n[run]\ncohort = 10\nrounds = 3\n'
    )
    monkeypatch.chdir(tmp_path)
    words = ("-s", "attack.name=sign_flip", "-s", "attack.clients=[2, 5]", "-s", "aggregation.screen=rule_guard")
    code, text = said("run", "e.toml", *words)
    assert code == 0
    (folder,) = Path("runs").iterdir()
    code, text = said("show", str(folder))
    assert code == 0 and "under attack: sign_flip" in text
    assert "attack sign_flip: clients 2, 5 of 10 are bad; 2 of 2 flagged within 5 of their uploads, recall 1.00, precision 1.00" in text
    told = json.loads(said("show", str(folder), "--json")[1])
    assert told["flags"]["bad"] == [2, 5] and told["provenance"]["bad_clients"] == [2, 5]
    code, text = said("describe", "e.toml", *words)
    assert code == 0 and "under attack: sign_flip" in text and "[attack]" in text
    assert "attack" not in said("describe", "e.toml")[1]
