"""The verbs diagnose, quarantine and policy: happy path, --json, errors and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

import fedaccord as fa
from fedaccord.cli.main import run as command
from fedaccord.runs import RunFolder, short_id

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


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody is bad."""
    folder = tmp_path_factory.mktemp("runs") / "clean"
    fa.run(fa.digits("softmax"), fa.FedAvg(), folder=folder, **OPTIONS)
    return folder


def test_quarantine_tells_who_when_why_and_until_when(hostile: Path, said: Said) -> None:
    code, text = said("quarantine", str(hostile))
    head, row, message = text.splitlines()
    assert code == 0 and head.split() == ["client", "refused", "reasons", "rounds", "not", "asked"]
    assert row.split("  ")[0] == "2" and "count too large 3" in row and "1, 2, 3" in row and row.endswith("before round 14")
    assert message.startswith("client 2, round 3: E106 the sample count is ")
    code, text = said("quarantine", str(hostile), "--json")
    (told,) = json.loads(text)["refused"]
    assert code == 0 and told.pop("message").startswith("E106 ")
    assert told == {
        "client": 2,
        "refused": 3,
        "rounds": [1, 2, 3],
        "reasons": {"count_too_large": 3},
        "code": "E106",
        "until": 14,
        "release": False,
    }


def test_a_run_that_refused_nobody_says_so(clean: Path, said: Said) -> None:
    assert said("quarantine", str(clean)) == (0, "nobody was refused\n")
    assert json.loads(said("quarantine", str(clean), "--json")[1])["refused"] == []


def test_show_tells_who_is_in_quarantine_and_the_refusals_of_all_codes(hostile: Path, said: Said, tmp_path: Path) -> None:
    text = said("show", str(hostile))[1]
    assert "in quarantine, not asked: client 2 before round 14. See: fedaccord quarantine " in text
    assert json.loads(said("show", str(hostile), "--json")[1])["quarantine"] == [{"client": 2, "until": 14}]
    told = said("show", str(hostile), "--client", "2")[1]
    assert "in quarantine: not asked before round 14" in told and "refused (3rd time, count too large): E106" in told
    assert json.loads(said("show", str(hostile), "--client", "2", "--json")[1])["not_asked_before"] == 14
    assert "quarantine" not in said("show", str(hostile), "--client", "1")[1]
    folder, lines = tmp_path / "all_codes", (hostile / "rounds.jsonl").read_text().splitlines()
    copytree(hostile, folder)
    refused = [
        {"client": client, "code": code, "reason": reason, "message": f"{code} so it is"}
        for client, (code, reason) in enumerate(
            (("E115", "replayed"), ("E116", "opposed"), ("E117", "stale"), ("E118", "contradiction"), ("E111", "no_weight"))
        )
    ]
    (folder / "rounds.jsonl").write_text(json.dumps(json.loads(lines[0]) | {"refused": refused}) + "\n")
    text = said("show", str(folder))[1]
    assert all(f"client {c}  1 times  {each['code']} {each['reason'].replace('_', ' ')}" in text for c, each in enumerate(refused))
    assert "E118 so it is" in said("show", str(folder), "--client", "3")[1]


def test_a_release_is_obeyed_when_the_run_goes_on(said: Said, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = {**OPTIONS, "rounds": 8, "attack": fa.InflatedCounts(clients=(2,), factor=1000.0), "checkpoint_every": 1}

    class Stop:
        def emit(self, event: Any) -> None:
            if event.kind == "round_finished" and event.data["round"] == 4:
                RunFolder(folder).ask_to_stop()

    fa.run(fa.digits("softmax"), fa.FedAvg(), folder=folder, telemetry=[Stop()], **options)
    for wrong, words in (("77", "E203 there is no client 77"), ("-1", "E203"), ("a", "E202 'a' is no list of client ids"), ("", "E202")):
        code, text = said("quarantine", str(folder), "--release", wrong)
        assert code == 2 and words in text and not (folder / "orders.jsonl").exists()
    code, text = said("quarantine", str(folder), "--release", "2,5")
    assert (
        code == 0 and text == "released 2, 5: the run obeys when it is resumed\nnot in quarantine: 5; their refusals so far are forgotten\n"
    )
    assert "before round 14 (released)" in said("quarantine", str(folder))[1]
    assert "before round 14 (released)" not in said("show", str(folder))[1]
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), folder=folder, resume=True, **options)
    assert [2 in cohort for cohort in run.rounds.cohort] == [True, True, True, False, True, True, True, False]
    assert run.rounds.trust[4]["events"][0] == {"event": "released", "client": 2, "by": "operator"}
    (row,) = json.loads(said("quarantine", str(folder), "--json")[1])["refused"]
    assert (row["refused"], row["until"], row["release"]) == (6, 18, False), "a release forgets what was before, and is used up"
    code, text = said("quarantine", str(folder), "--release", "2", "--json")
    assert code == 2 and json.JSONDecoder().raw_decode(text)[0]["error"]["code"] == "E214" and len(RunFolder(folder).orders()) == 1


def test_a_running_run_obeys_a_release_in_its_next_round(said: Said, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    told = []

    class Release:
        def emit(self, event: Any) -> None:
            if event.kind == "round_finished" and event.data["round"] == 4:
                told.append(said("quarantine", str(folder), "--release", "2", "--json"))

    attack = fa.InflatedCounts(clients=(2,), factor=1000.0)
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), attack=attack, folder=folder, telemetry=[Release()], **{**OPTIONS, "rounds": 6})
    assert [(code, json.loads(text)["running"], json.loads(text)["not_in_quarantine"]) for code, text in told] == [(0, True, [])]
    assert [2 in cohort for cohort in run.rounds.cohort] == [True, True, True, False, True, True]


def test_diagnose_leaves_with_six_where_something_holds_and_says_what_to_do(hostile: Path, clean: Path, said: Said) -> None:
    code, text = said("diagnose", str(hostile))
    first, advice = text.splitlines()[:2]
    assert code == 6 and first == "HOLDS       clients are in quarantine: not asked are client 2 before round 14"
    assert advice.strip().startswith(f"See what they sent: fedaccord quarantine {short_id(hostile)};") and " RUN" not in advice
    assert text.splitlines()[-1].startswith("1 of 16 holds, of ")
    code, text = said("diagnose", str(hostile), "--json")
    told = json.loads(text)
    (holding,) = (each for each in told["findings"] if each["holds"])
    assert code == 6 and told["holds"] == 1 and (holding["rule"], holding["clients"]) == ("quarantine", [2])
    assert holding.keys() == {"rule", "name", "holds", "figures", "advice", "rounds", "clients"}
    code, text = said("diagnose", str(clean))
    assert code == 0 and "HOLDS" not in text and text.splitlines()[-1].startswith("none of 16 holds, of ")
    code, text = said("diagnose", str(clean), "--json")
    assert code == 0 and json.loads(text)["holds"] == 0


def test_diagnose_looks_into_the_newest_checkpoint_too(clean: Path, said: Said, tmp_path: Path) -> None:
    folder = tmp_path / "long_memory"
    copytree(clean, folder)
    trust = max((folder / "checkpoints").glob("0*")) / "trust.json"
    trust.write_text(json.dumps({"policy": {"clients": {"3": {"norms": [1.0] * 9}}}}))
    code, text = said("diagnose", str(folder))
    assert code == 6 and "what is remembered of a client grows: 9 norms a client at the most, where 3 are read: client 3" in text
    trust.write_text("{")
    code, text = said("diagnose", str(folder), "--json")
    assert code == 3 and "E322" in text


def test_a_run_that_has_not_begun_holds_nothing(clean: Path, said: Said, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    copytree(clean, folder)
    (folder / "rounds.jsonl").write_text("")
    (folder / "clients.jsonl").write_text("")
    assert said("diagnose", str(folder))[0] == 0


def test_both_verbs_say_where_there_is_no_run(said: Said, tmp_path: Path) -> None:
    for verb in ("diagnose", "quarantine"):
        code, text = said(verb, str(tmp_path / "none"), "--json")
        assert code == 2 and json.JSONDecoder().raw_decode(text)[0]["error"]["code"] == "E210"


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
