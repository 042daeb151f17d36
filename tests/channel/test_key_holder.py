"""key_holder.py and its process: started, asked, killed, stopped, left alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedaccord.channel import key_file, key_holder, paillier
from fedaccord.channel.key_holder import KeyHolder, Link
from fedaccord.channel.private_sum import Opened, PrivateSum
from fedaccord.core.errors import ConfigError, DeadlineError, NetworkError, StorageError, WorkerDied

VALUES = {client: 0.1 for client in range(6)}


def opened(private: PrivateSum, round: int) -> Opened:
    return private.open_sum(round, private.contribute(round, VALUES))


def is_alive(pid: int) -> bool:
    """A process that has ended and waits for its parent counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ended(pid: int, within: float = 10.0) -> bool:
    until = time.monotonic() + within
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_alive(pid)


def test_it_is_a_process_of_its_own_and_gone_after_the_block() -> None:
    with KeyHolder(bits=2048) as holder:
        assert opened(PrivateSum(holder), 1).sum == pytest.approx(0.6, abs=1e-6)
        pid, folder = holder.process.pid, Path(holder.for_server.address).parent
        assert pid != os.getpid() and is_alive(pid)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not is_alive(pid)
    assert not folder.exists()


def test_a_killed_key_holder_is_one_clear_error() -> None:
    with KeyHolder(bits=2048, deadline=20) as holder:
        private = PrivateSum(holder)
        contributions = private.contribute(1, VALUES)
        holder.process.kill()
        started = time.monotonic()
        with pytest.raises(WorkerDied, match=r"E702 the key holder has ended .*SIGKILL"):
            private.open_sum(1, contributions)
        assert time.monotonic() - started < 10


def test_a_hanging_key_holder_is_one_clear_error_within_its_deadline() -> None:
    with KeyHolder(bits=2048) as holder:
        private = PrivateSum(holder)
        contributions = private.contribute(1, VALUES)
        holder.process.send_signal(signal.SIGSTOP)
        holder.for_server = holder.for_server._replace(deadline=0.5)
        started = time.monotonic()
        with pytest.raises(DeadlineError, match=r"E501 no answer within 0\.5 s"):
            private.open_sum(1, contributions)
        assert 0.4 < time.monotonic() - started < 5
        pid, folder = holder.process.pid, Path(holder.for_server.address).parent
    assert not is_alive(pid), "closing ends one that hangs"
    assert not folder.exists()


def test_a_closed_key_holder_says_so() -> None:
    holder = KeyHolder(bits=2048)
    holder.start()
    private = PrivateSum(holder)
    contributions = private.contribute(1, VALUES)
    holder.close()
    holder.close()
    with pytest.raises(WorkerDied, match="E702"):
        private.open_sum(1, contributions)


def test_it_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    code = (
        "from fedaccord.channel.key_holder import KeyHolder\n"
        "import sys\n"
        "holder = KeyHolder(bits=2048); holder.start()\n"
        "print(holder.process.pid, holder.for_server.address, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, address = process.stdout.readline().split()
        assert is_alive(int(pid))
        process.kill()
    assert ended(int(pid))
    assert not Path(address).parent.exists()


def test_a_key_holder_that_nobody_closed_ends_with_its_object() -> None:
    holder = KeyHolder(bits=2048)
    holder.start()
    pid = holder.process.pid
    del holder
    assert ended(pid)


def test_with_a_file_key_enrolments_and_the_last_round_outlive_the_process(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    with KeyHolder(bits=2048, file=file) as holder:
        private, public = PrivateSum(holder), holder.public
        assert opened(private, 3).reason is None
        later = private.contribute(4, VALUES)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with KeyHolder(bits=2048, file=file) as holder:
        assert holder.public == public
        private = PrivateSum(holder)
        assert holder.open(3, list(VALUES), public.encrypt(0)).reason == "repeated_round"
        assert private.open_sum(4, later).sum == pytest.approx(0.6, abs=1e-6)


def test_the_key_lies_on_no_disk_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    with KeyHolder(bits=2048) as holder:
        opened(PrivateSum(holder), 1)
        (folder,) = tmp_path.iterdir()
        assert [each.name for each in folder.iterdir()] == ["socket"]


def test_what_is_wrong_with_the_file_is_the_error_of_the_start(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.write_text("{}")
    file.chmod(0o600)
    with pytest.raises(StorageError, match="E322"):
        KeyHolder(bits=2048, file=file).start()
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="E208"):
        KeyHolder(bits=2048, file=file).start()
    with pytest.raises(StorageError, match="E323"):
        KeyHolder(bits=2048, file=tmp_path / "no" / "key.json").start()


def test_a_file_with_a_key_of_another_size_is_refused(tmp_path: Path, key: paillier.PrivateKey) -> None:
    key_file.write(tmp_path / "key.json", key_file.Held(key))
    with pytest.raises(ConfigError, match="E208 the file holds a key of 2048 bits, not of 3072"):
        KeyHolder(file=tmp_path / "key.json").start()


def test_a_file_that_can_no_longer_be_written_opens_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    with KeyHolder(bits=2048, file=folder / "key.json") as holder:
        private = PrivateSum(holder)
        contributions = private.contribute(1, VALUES)
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match="E323"):
            private.open_sum(1, contributions)
        (tmp_path / "elsewhere").rename(folder)
        assert private.open_sum(1, contributions).sum == pytest.approx(0.6, abs=1e-6)


@pytest.mark.parametrize(("options", "code"), [({"bits": 1024}, "E203"), ({"min_clients": 4}, "E203"), ({"min_clients": 0}, "E203")])
def test_weaker_settings_are_refused_before_anything_is_started(options: dict[str, int], code: str) -> None:
    with pytest.raises(ConfigError, match=code):
        KeyHolder(**options)


def test_without_its_libraries_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paillier, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="E209 phe and gmpy2 not installed"):
        KeyHolder()


def test_a_process_that_ends_before_it_has_a_key_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerDied, match=r"E702 the key holder ended before it had a key \(exit code 1\)"):
        KeyHolder(bits=2048).start()


def test_a_process_that_makes_no_key_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    monkeypatch.setattr(key_holder, "START", 0.3)
    with pytest.raises(DeadlineError, match="E501"):
        KeyHolder(bits=2048).start()


def raw(holder: KeyHolder, data: bytes) -> bytes:
    """What the holder answers to these bytes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(holder.for_server.address)
        connection.sendall(data)
        return connection.recv(1 << 16)


def test_a_frame_that_says_it_is_too_long_or_holds_no_json_is_refused_and_the_holder_goes_on(
    holder: KeyHolder, private: PrivateSum, rounds: Iterator[int]
) -> None:
    for data in (b"\xff\xff\xff\xff", (3).to_bytes(4, "big") + b"abc"):
        assert json.loads(raw(holder, data)[4:])["refused"] == "malformed"
    assert opened(private, next(rounds)).sum == pytest.approx(0.6, abs=1e-6)


def test_who_connects_and_says_nothing_keeps_nobody_else_waiting(holder: KeyHolder, private: PrivateSum, rounds: Iterator[int]) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(holder.for_server.address)
        started = time.monotonic()
        assert opened(private, next(rounds)).sum == pytest.approx(0.6, abs=1e-6)
        assert time.monotonic() - started < 4


def test_the_tokens_are_on_no_command_line_and_in_no_environment(holder: KeyHolder) -> None:
    told = b"".join(Path(f"/proc/{holder.process.pid}/{each}").read_bytes() for each in ("cmdline", "environ"))
    assert told
    assert not any(link.token.encode() in told for link in (holder.for_server, holder.for_clients))


def test_with_the_other_roles_token_nothing_is_opened_and_nobody_enrols(holder: KeyHolder) -> None:
    address = holder.for_server.address
    stranger = Link(address, "0" * 64, 5)
    for link in (stranger, holder.for_clients):
        assert link.call("open", {})["refused"] == "not_allowed"
    for link in (stranger, holder.for_server):
        assert link.call("enrol", {"clients": []})["refused"] == "not_allowed"


def test_a_client_that_enrols_with_another_secret_is_an_error(holder: KeyHolder) -> None:
    holder.enrol({999: b"a" * 32})
    with pytest.raises(ConfigError, match="E208 the key holder refuses to enrol: client 999"):
        holder.enrol({999: b"b" * 32})


def test_where_nobody_listens_the_link_says_so(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="E401"):
        Link(str(tmp_path / "socket"), "", 1).call("open", {})


def test_a_key_holder_that_takes_no_more_connections_does_not_outlast_the_deadline() -> None:
    """The system takes a few in its stead; the next one waits."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as waiting:
        address = f"{folder}/socket"
        listening.bind(address)
        listening.listen(0)
        with contextlib.suppress(BlockingIOError):
            for _ in range(10):
                one = waiting.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(address)
        started = time.monotonic()
        with pytest.raises(DeadlineError, match="E501"):
            Link(address, "", 0.3).call("open", {})
        assert time.monotonic() - started < 3
