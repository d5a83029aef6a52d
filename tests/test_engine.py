"""The engine as Python sees it: a child that is found, told, listened to and never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fake_engine
import synthetic
from ciphertoll import engine
from ciphertoll.errors import BugError, CiphertollError, MachineError, SpecError
from ciphertoll.model import NS, Channel, Idle, Paced
from fake_engine import real

HTTP = Channel("http", http="1.1")
HTTPS = synthetic.channel("https")
SHORT = Paced(100, 256, warm_up_ns=NS // 10, duration_ns=3 * NS // 10, in_flight=64)
TIMEOUT_S = 10.0


def pretend(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    monkeypatch.setenv(engine.VARIABLE, str(program))


def job(
    channel: Channel = HTTP, peer: engine.Peer | None = None, folder: Path = Path("/nonexistent")
) -> engine.LoadJob:
    return engine.LoadJob(channel, peer or engine.Peer("127.0.0.1", 9, "localhost"), SHORT, folder / "s.bin")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@real
@pytest.mark.parametrize("channel", [HTTP, HTTPS], ids=lambda channel: channel.protocol)
def test_a_load_is_sent_and_every_connection_says_what_it_negotiated(channel: Channel, tmp_path: Path) -> None:
    server = engine.Server.start([(channel, 0)])
    (listening,) = server.wait_ready(TIMEOUT_S)
    assert listening.channel == channel
    peer = engine.Peer("127.0.0.1", listening.port, "localhost", listening.ca_pem)
    load = engine.LoadRun.start(job(channel, peer, tmp_path))
    started = load.wait_started(TIMEOUT_S)
    assert started
    assert started.measure_to_ns - started.measure_from_ns == SHORT.duration_ns
    finished = load.wait(TIMEOUT_S)
    assert (finished.outcome, finished.records, finished.counts["due"]) == ("ok", 40, 40)
    assert load.release
    negotiated = finished.connections[0]["negotiated"]
    assert (negotiated and negotiated["suite"]) == (channel.security and channel.security.suite)
    assert (tmp_path / "s.bin").stat().st_size == 16 + 40 * 40
    usage = server.stop()
    assert usage
    assert usage["peak_rss_bytes"] > 0
    assert gone(server.pid)
    assert gone(load.pid)


@real
def test_a_load_ends_early_when_told_to(tmp_path: Path) -> None:
    server = engine.Server.start([(HTTP, 0)])
    (listening,) = server.wait_ready(TIMEOUT_S)
    peer = engine.Peer("127.0.0.1", listening.port, "localhost")
    load = engine.LoadRun.start(engine.LoadJob(HTTP, peer, Idle(0, 60 * NS), tmp_path / "s.bin"))
    load.wait_started(TIMEOUT_S)
    load.terminate()
    assert load.wait(TIMEOUT_S).outcome == "interrupted"
    server.stop()


@real
def test_a_job_that_the_engine_refuses_is_the_spec_s_mistake() -> None:
    channel = synthetic.channel("https", "TLS_AES_128_CCM_SHA256")
    with pytest.raises(SpecError) as refused:
        engine.LoadRun.start(job(channel)).wait_started(TIMEOUT_S)
    assert "TLS_AES_128_CCM_SHA256" in refused.value.what
    assert refused.value.at
    assert "TLS_AES_128_GCM_SHA256" in refused.value.accepted


@real
def test_an_unreachable_peer_ends_the_job_before_it_begins(tmp_path: Path) -> None:
    load = engine.LoadRun.start(job(folder=tmp_path))
    assert load.wait_started(TIMEOUT_S) is None
    assert load.wait(TIMEOUT_S).outcome == "unreachable"


@real
def test_the_engine_says_what_it_can_do() -> None:
    assert {"http", "https", "h3"} <= {row["protocol"] for row in engine.channels()}
    assert engine.version().startswith("ciphertoll-engine ")
    assert all(row["bytes_per_second"] > 0 for row in engine.speeds())


@real
def test_no_engine_outlives_its_parent() -> None:
    program = (
        "import os, signal, sys; sys.path[:0] = ['python']\n"
        "from ciphertoll import engine\nfrom ciphertoll.model import Channel\n"
        "server = engine.Server.start([(Channel('http', http='1.1'), 0)])\nserver.wait_ready(10)\n"
        "print(server.pid, flush=True)\nif sys.argv[1] == 'killed': os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for how in ("killed", "ended"):
        done = subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, check=False)
        pid = int(done.stdout)
        deadline = time.monotonic() + TIMEOUT_S
        while not gone(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert gone(pid), how


@pytest.mark.parametrize(
    ("behaviour", "kind", "what"),
    [
        ("vanishes", engine.EngineDiedError, "ended unexpectedly: exit status 9"),
        ("is killed", engine.EngineDiedError, "ended unexpectedly: signal SIGKILL"),
        ("says garbage", BugError, "a line that is no event: `Segmentation fault`"),
        ("is never ready", engine.EngineDiedError, "within 1 s"),
        ("says nothing", engine.EngineDiedError, "within 1 s"),
        ("refuses", SpecError, "suite `X` is unknown"),
        ("is of another version", MachineError, "wire version `2`, this build speaks `1`"),
        ("forgets hello", BugError, "did not say which version it is first"),
        ("has a field too many", BugError, "other fields than expected: mood"),
        ("has an event too many", BugError, "event `mood`"),
    ],
)
def test_an_engine_that_misbehaves_is_ended_with_a_reason(
    behaviour: str, kind: type[CiphertollError], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, fake_engine.write(tmp_path, behaviour))
    server = engine.Server.start([(HTTP, 0)])
    load = engine.LoadRun.start(job())
    with pytest.raises(kind, match=what) as refused:
        server.wait_ready(1.0)
    assert type(refused.value) is kind
    with pytest.raises(kind, match=what):
        load.wait(1.0)
    assert gone(server.pid)
    assert gone(load.pid)


def test_what_a_dying_engine_said_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, fake_engine.write(tmp_path, "vanishes"))
    with pytest.raises(engine.EngineDiedError) as died:
        engine.LoadRun.start(job()).wait(TIMEOUT_S)
    assert died.value.hint == "it said: out of luck"


def test_a_refusal_keeps_all_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, fake_engine.write(tmp_path, "refuses"))
    with pytest.raises(SpecError) as refused:
        engine.LoadRun.start(job()).wait_started(TIMEOUT_S)
    error = refused.value
    assert (error.what, error.at, error.accepted, error.hint) == (
        "suite `X` is unknown",
        "channel.suite",
        ("Y",),
        "try Y",
    )


def test_a_server_that_cannot_listen_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, fake_engine.write(tmp_path, "is unreachable"))
    with pytest.raises(MachineError, match="the server did not start: in words"):
        engine.Server.start([(HTTP, 0)]).wait_ready(TIMEOUT_S)


def test_a_variable_that_names_no_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, tmp_path / "absent")
    with pytest.raises(MachineError) as refused:
        engine.find()
    assert engine.VARIABLE in (refused.value.at or "")


def test_without_an_engine_the_hint_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(engine.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(MachineError) as refused:
        engine.find()
    assert "pip install" in (refused.value.hint or "")
    beside = tmp_path / engine.BINARY
    beside.touch(mode=0o755)
    assert engine.find() == beside
