"""Running trials: what lands, what is repeated, what is dropped, and that nothing is left behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import fake_engine
import synthetic
from ciphertoll import engine, execute, store, validity
from ciphertoll.errors import BugError, CiphertollError, MachineError, SpecError
from ciphertoll.judge import judge
from ciphertoll.model import NS, Cell, Channel, Command, Idle, NoWorkload, Paced, Sample, Spec, Trial, Workload
from ciphertoll.plan import plan
from fake_engine import real

MS = 1_000_000
HTTP = Channel("http", http="1.1")
HTTPS = synthetic.channel("https")
SHORT = Paced(100, 256, warm_up_ns=100 * MS, duration_ns=300 * MS, in_flight=64)
QUIET = Idle(100 * MS, 300 * MS)
LINES = Command(("sh", "-c", "while true; do echo one; sleep 0.01; done"))


@dataclass
class Sensors:
    """Sensors that only note who asked and when."""

    pids: dict[str, int]
    interval_ns: int
    throttled: bool = False
    asked: list[int] = field(default_factory=list)
    stopped: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    def start(self) -> None: ...

    def sample_now(self) -> None:
        self.asked.append(time.monotonic_ns())

    def stop(self) -> list[Sample]:
        self.stopped += 1
        return [Sample(at, "throttled", "processor", float(self.throttled)) for at in self.asked]


@dataclass
class Told:
    """Progress that is remembered."""

    sensors: list[Sensors] = field(default_factory=list)
    started: list[tuple[int, int, str]] = field(default_factory=list)
    ended: list[Trial] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds_left: list[float] = field(default_factory=list)
    throttled: Callable[[int], bool] = lambda _: False
    when_started: Callable[[Trial], None] = lambda _: None

    def trial_started(self, k: int, n: int, trial: Trial, seconds_left: float) -> None:
        self.started.append((k, n, trial.id))
        self.seconds_left.append(seconds_left)
        self.when_started(trial)

    def trial_ended(self, trial: Trial) -> None:
        self.ended.append(trial)

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    def sense(self, pids: dict[str, int], interval_ns: int) -> Sensors:
        self.sensors.append(Sensors(pids, interval_ns, self.throttled(len(self.sensors))))
        return self.sensors[-1]


@pytest.fixture(autouse=True)
def lock_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("runtime")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture(autouse=True)
def a_busy_machine_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validity, "LAG_FLOOR_NS", 60 * NS)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    listing = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    assert not [line for line in listing.stdout.splitlines() if "engine" in line or "ciphertoll" in line]


def spec_of(*cells: Cell, blocks: int = 1, retries: int = 1) -> Spec:
    return Spec("short", cells, blocks, seed=3, retries=retries)


def cell(channel: Channel | None = HTTP, workload: Workload = NoWorkload(), quiet: bool = False) -> Cell:  # noqa: B008 - frozen
    return Cell(channel, QUIET if quiet or channel is None else SHORT, workload)


def run(folder: Path, spec: Spec, told: Told | None = None, peer: execute.Remote | None = None) -> store.Results:
    told = told or Told()
    path = folder / "r"
    results = store.Results.resume(path, spec) if path.exists() else store.create(path, spec, {})
    execute.execute(results, plan(spec), progress=told, peer=peer, sense=told.sense)
    return store.Results.open(path)


@real
@pytest.mark.parametrize("channel", [HTTP, HTTPS], ids=lambda channel: channel.protocol)
def test_a_trial_lands_with_everything_that_was_observed(channel: Channel, tmp_path: Path) -> None:
    told = Told()
    results = run(tmp_path, spec_of(cell(channel, LINES)), told)
    (trial,) = results.trials
    assert (trial.status, trial.reasons) == ("ok", ())
    assert trial.window
    assert trial.window[1] - trial.window[0] == SHORT.duration_ns
    assert len(results.exchanges(trial)) == 40
    assert len(results.frames(trial)) > 10
    negotiated = trial.facts["connections"][0]["negotiated"]
    assert (negotiated and negotiated["suite"]) == (channel.security and channel.security.suite)
    assert trial.facts["counts"]["done"] == trial.facts["records"] == 40
    assert trial.facts["usage"]["peak_rss_bytes"] > 0
    assert trial.facts["server_usage"]["peak_rss_bytes"] > 0
    assert trial.facts["roles"] == ["engine", "self", "server", "workload"]
    assert set(trial.facts["placement"]) == {"engine", "self", "server", "workload"}
    assert trial.facts["workload"]["kind"] == "command"
    assert trial.facts["build"]["engine"].startswith("ciphertoll-engine")
    assert [entry.name for entry in (tmp_path / "r").glob(".*")] == []
    assert told.started == [(1, 1, trial.id)]
    assert told.ended == results.trials


@real
def test_sensors_are_read_as_the_measured_time_begins_and_before_it_ends(tmp_path: Path) -> None:
    told = Told()
    (trial,) = run(tmp_path, spec_of(cell()), told).trials
    (sensors,) = told.sensors
    assert trial.window
    first, last = sensors.asked
    assert 0 <= first - trial.window[0] < 20 * MS
    assert trial.window[0] < last < trial.window[1]
    assert set(sensors.pids) == {"engine", "server", "self"}
    assert sensors.stopped == 1


@real
def test_a_trial_costs_less_than_a_second_beyond_its_load(tmp_path: Path) -> None:
    (trial,) = run(tmp_path, spec_of(cell(HTTPS, LINES))).trials
    assert 0 < trial.facts["overhead_ns"] < NS


@real
def test_a_silent_connection_is_measured_too(tmp_path: Path) -> None:
    (trial,) = run(tmp_path, spec_of(cell(quiet=True))).trials
    assert (trial.status, trial.facts["counts"]["due"]) == ("ok", 0)
    assert len(trial.facts["connections"]) == 1


def test_a_workload_alone_needs_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engine.VARIABLE, "/nonexistent")
    told = Told()
    results = run(tmp_path, spec_of(cell(None, LINES)), told)
    (trial,) = results.trials
    assert trial.status == "ok"
    assert trial.window
    assert trial.window[1] - trial.window[0] == QUIET.duration_ns
    assert not results.frames(trial).is_empty()
    assert set(told.sensors[0].pids) == {"workload", "self"}


@real
def test_judge_pools_the_trials_of_one_run(tmp_path: Path) -> None:
    results = run(tmp_path, spec_of(cell(None, LINES), cell(HTTP, LINES), blocks=2))
    judged = judge(results)
    assert judged.invalid == []
    assert [row.counts.ok for row in judged.tables[0].rows] == [2, 2]


@real
def test_a_void_trial_is_repeated_at_the_end_of_its_block(tmp_path: Path) -> None:
    told = Told(throttled=lambda n: n == 0)
    results = run(tmp_path, spec_of(cell(HTTP), cell(HTTPS), blocks=2), told)
    assert [(trial.block, trial.status, trial.attempt) for trial in told.ended] == [
        (0, "void", 0),
        (0, "ok", 0),
        (0, "ok", 1),
        (1, "ok", 0),
        (1, "ok", 0),
    ]
    assert told.ended[2].cell == told.ended[0].cell
    assert told.ended[0].reasons == ("the processor was throttled in 2 of 2 samples",)
    assert len(results.exchanges(told.ended[0])) == 40
    assert [k for k, _, _ in told.started] == [1, 2, 3, 4, 5]
    assert told.started[-1][1] == 5


@real
def test_a_void_trial_is_not_repeated_for_ever(tmp_path: Path) -> None:
    told = Told(throttled=lambda _: True)
    run(tmp_path, spec_of(cell(), retries=2), told)
    assert [trial.attempt for trial in told.ended] == [0, 1, 2]
    again = Told()
    run(tmp_path, spec_of(cell(), retries=2), again)
    assert again.started == []


@real
def test_a_run_that_was_interrupted_keeps_what_landed_and_resumes(tmp_path: Path) -> None:
    spec = spec_of(cell(HTTP), cell(HTTPS), blocks=2)
    planned = plan(spec)

    def interrupt(trial: Trial) -> None:
        if trial.id == planned[2].id:
            threading.Timer(0.25, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, spec, Told(when_started=interrupt))
    assert [trial.id for trial in store.Results.open(tmp_path / "r").trials] == [trial.id for trial in planned[:2]]
    assert list((tmp_path / "r").glob(".scratch-*")) == []
    told = Told()
    results = run(tmp_path, spec, told)
    assert [(k, n) for k, n, _ in told.started] == [(3, 4), (4, 4)]
    assert [trial.id for trial in results.trials] == [trial.id for trial in planned]
    assert results.plan == planned


@real
def test_a_resumed_run_repeats_what_was_void(tmp_path: Path) -> None:
    spec = spec_of(cell())
    results = store.create(tmp_path / "r", spec, {})
    results.land(replace(plan(spec)[0], status="void"), None, None, [])
    told = Told()
    run(tmp_path, spec, told)
    assert [(trial.attempt, trial.status) for trial in told.ended] == [(1, "ok")]


@real
def test_a_server_elsewhere_is_used_and_left_alone(tmp_path: Path) -> None:
    server = engine.Server.start([(HTTP, 0), (HTTPS, 0)])
    remote = execute.Remote("127.0.0.1", tuple(server.wait_ready(10)))
    told = Told()
    results = run(tmp_path, spec_of(cell(HTTPS)), told, remote)
    assert results.trials[0].status == "ok"
    assert set(told.sensors[0].pids) == {"engine", "self"}
    assert server.alive()
    other = replace(HTTPS, http="2")
    with pytest.raises(SpecError, match="does not serve `https AES-128-GCM` with these settings"):
        run(tmp_path / "other", spec_of(cell(other)), Told(), remote)
    server.stop()


@real
def test_a_peer_that_is_gone_fails_the_trial(tmp_path: Path) -> None:
    remote = execute.Remote("127.0.0.1", (engine.Listening(HTTP, 9, None),))
    (trial,) = run(tmp_path, spec_of(cell()), peer=remote).trials
    assert (trial.status, trial.window) == ("failed", None)
    assert "unreachable" in trial.reasons[0]


@real
def test_a_workload_that_dies_fails_the_trial_with_its_last_words(tmp_path: Path) -> None:
    dying = Command(("sh", "-c", "for i in 1 2 3 4 5; do echo one; sleep 0.05; done; echo out of luck >&2; exit 7"))
    (trial,) = run(tmp_path, spec_of(cell(HTTP, dying))).trials
    assert trial.status == "failed"
    assert "sh" in trial.reasons[0]


@pytest.mark.parametrize("workload", [Command(("false",)), Command(("no-such-program",))], ids=["dies", "is absent"])
def test_a_workload_that_does_not_start_never_begins_the_measured_time(workload: Command, tmp_path: Path) -> None:
    spec = spec_of(cell(None, workload))
    if workload.argv == ("false",):
        (trial,) = run(tmp_path, spec).trials
        assert (trial.status, trial.window) == ("failed", None)
        assert trial.reasons
    else:
        with pytest.raises(SpecError, match="no-such-program"):
            run(tmp_path, spec)


def test_three_trials_that_do_not_begin_end_the_run(tmp_path: Path) -> None:
    told = Told()
    with pytest.raises(MachineError, match="3 trials in a row did not begin"):
        run(tmp_path, spec_of(cell(None, Command(("false",))), blocks=9), told)
    assert len(told.ended) == 3


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("vanishes", "exit status 9"), ("is killed", "SIGKILL"), ("is never ready", "did not begin its load")],
)
def test_an_engine_that_is_lost_fails_the_trial_and_the_next_one_runs(
    behaviour: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "ENGINE_TIMEOUT_S", 1.0)
    pretend(monkeypatch, tmp_path, behaviour)
    results = run(tmp_path, spec_of(cell(), blocks=2))
    assert [trial.status for trial in results.trials] == ["failed", "failed"]
    assert reason in results.trials[0].reasons[0]


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [("says garbage", BugError), ("refuses", SpecError), ("is of another version", MachineError)],
)
def test_an_engine_that_can_never_work_ends_the_run(
    behaviour: str, kind: type[CiphertollError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, tmp_path, behaviour)
    with pytest.raises(kind):
        run(tmp_path, spec_of(cell(), blocks=2))
    assert store.Results.open(tmp_path / "r").trials == []
    assert list((tmp_path / "r").glob(".scratch-*")) == []


def test_a_second_run_on_the_machine_is_warned_of(tmp_path: Path, lock_folder: Path) -> None:
    told = Told()
    with (lock_folder / "ciphertoll-run.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run(tmp_path, spec_of(cell(None, LINES)), told)
    assert len(told.warnings) == 1
    assert "another ciphertoll run" in told.warnings[0]
    assert told.ended[0].status == "ok"
    again = Told()
    run(tmp_path / "again", spec_of(cell(None, LINES)), again)
    assert again.warnings == []


def test_the_time_left_counts_what_is_still_to_run(tmp_path: Path) -> None:
    told = Told()
    run(tmp_path, spec_of(cell(None, LINES), blocks=3), told)
    assert told.seconds_left[0] == pytest.approx(3 * (0.4 + 1.0))
    assert told.seconds_left[0] > told.seconds_left[1] > told.seconds_left[2] > 0.4


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, behaviour: str) -> None:
    monkeypatch.setenv(engine.VARIABLE, str(fake_engine.write(folder, behaviour, serves=True)))
