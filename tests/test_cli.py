"""The command line as a user meets it: real processes, exit codes, messages. Sensors are fake, see fake_devices.py."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciphertoll.cli import main
from ciphertoll.cli.options import parse
from ciphertoll.cli.progress import Progress, duration
from ciphertoll.engine.child import find
from ciphertoll.errors import CiphertollError
from ciphertoll.model import Cell, Channel, Idle, NoWorkload, Trial
from ciphertoll.store import Results

ROOT = Path(__file__).resolve().parent.parent
PYTHONPATH = os.pathsep.join(str(ROOT / name) for name in ("python", "tests"))
SHORT = ("--workload", "none", "--duration", "100ms", "--warm-up", "0s", "--blocks", "2")
HTTP = ("--protocol", "http", *SHORT)


def have_engine() -> bool:
    try:
        find()
    except CiphertollError:
        return False
    return True


needs_engine = pytest.mark.skipif(not have_engine(), reason="ciphertoll-engine is not installed")


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "tests" / "fake_devices.py"), *arguments]


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PYTHONPATH, "XDG_RUNTIME_DIR": str(folder), **more}


def call(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(folder, **more), capture_output=True, text=True, timeout=60
    )


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command(*arguments), cwd=folder, env=environment(folder), stdout=pipe, stderr=pipe, text=True
    )


def until(condition: Any, timeout_s: float = 15.0) -> None:
    """Wait until `condition` holds: there is no other sign of what another process did."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def landed(folder: Path) -> int:
    return len(list(folder.glob("trials/b*")))


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        one.kill()
        one.communicate()


def test_help_takes_at_most_150_ms() -> None:
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "ciphertoll", "--help"],
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            check=True,
            capture_output=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) <= 0.150


def test_help_teaches_by_example() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ciphertoll", "run", "--help"],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "examples:" in done.stdout
    assert "--protocol https,h3" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["runn"], 2, "did you mean `run`?"),
        (["run", "--protocl", "h3"], 2, "did you mean `--protocol`?"),
        (["run", "a.toml", "b.toml"], 2, "`b.toml` is one too many"),
        (["run", "--suite", "aes512"], 2, "did you mean"),
        (["run", "--rate"], 2, "expected one argument"),
        (["run", "--json", "--csv"], 2, "not allowed with"),
        (["run", "--rate", "-1"], 2, "rate `-1` is out of range"),
        (["report", "nowhere"], 2, "is not a result folder"),
        (["run", "--resume", "nowhere"], 2, "is not a result folder"),
        (["run", "nowhere.toml"], 2, "cannot be read"),
        (["serve", "--port", "70000"], 2, "leaves no room"),
        (["run", "--protocol", "https", "--suite", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"], 2, "not offered"),
        (["run", "--model", "weights.pt"], 2, "PyTorch checkpoint"),
        (["run", "--model", "yolo12n"], 2, "did you mean"),
        (["run", "--video", "nowhere.mp4"], 2, "does not exist"),
        (["run", "--workload", "no-such-program --x"], 2, "is not found"),
        (["run", "--server", "h", "--token", "nowhere.token"], 2, "token `nowhere.token` cannot be read"),
        (["run", "--out", "/proc/x", *HTTP], 3, "cannot be written"),
    ],
)
@needs_engine
def test_what_a_user_can_do_wrong_ends_in_a_message(
    arguments: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ciphertoll.cli._listen_to_signals", lambda: None)
    monkeypatch.setattr("ciphertoll.cli.provenance.provenance", lambda *_: {})
    assert main(arguments) == code
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert expected in said.err
    assert list(tmp_path.iterdir()) == []


def test_without_an_engine_the_machine_is_not_fit(tmp_path: Path) -> None:
    done = call(tmp_path, "run", *HTTP, CIPHERTOLL_ENGINE="/nowhere/engine")
    assert done.returncode == 3
    assert "CIPHERTOLL_ENGINE" in done.stderr


def test_an_engine_that_prints_garbage_is_our_bug_without_a_traceback(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\necho Segmentation fault\n")
    program.chmod(0o755)
    done = call(tmp_path, "run", *HTTP, CIPHERTOLL_ENGINE=str(program))
    assert done.returncode == 4
    assert done.stderr.startswith("error: `ciphertoll-engine channels` printed `Segmentation fault`")
    assert "Traceback" not in done.stderr


def test_an_error_of_ours_is_told_apart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError("x / 0")

    monkeypatch.setattr("ciphertoll.cli._command", broken)
    monkeypatch.setattr("ciphertoll.cli._listen_to_signals", lambda: None)
    assert main(["presets"]) == 4
    said = capsys.readouterr().err
    assert "error: internal: ZeroDivisionError: x / 0" in said
    assert "Traceback" not in said
    assert main(["presets", "--debug"]) == 4
    assert "Traceback" in capsys.readouterr().err


@needs_engine
def test_a_run_ends_with_a_table_a_page_and_every_sample(tmp_path: Path) -> None:
    done = call(tmp_path, "run", "--protocol", "https,mqtts", "--suite", "chacha20", *SHORT, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "ChaCha20-Poly1305" in done.stdout
    assert "100/s x 2048 B" in done.stdout
    assert "takes about" in done.stderr
    results = Results.open(tmp_path / "out")
    assert len(results.trials) == 2 * (4 + 1)
    assert {trial.status for trial in results.trials} <= {"ok", "void"}
    assert all(len(results.exchanges(trial)) == 10 for trial in results.trials)
    assert "<html" in (tmp_path / "out" / "report.html").read_text()
    assert json.loads((tmp_path / "out" / "judgement.json").read_text())["trials"] == 10
    assert results.provenance["command_line"][:2] == ["ciphertoll", "run"]


@needs_engine
def test_the_result_can_be_printed_again_in_every_format(tmp_path: Path) -> None:
    first = call(tmp_path, "run", *HTTP, "--out", "out", "--json", "--quiet")
    assert json.loads(first.stdout)["trials"] == 4
    assert first.stderr == "" or "void" in first.stderr
    assert call(tmp_path, "report", "out", "--json").stdout == first.stdout
    assert call(tmp_path, "report", "out", "--csv").stdout.startswith("load,")
    assert "http" in call(tmp_path, "report", "out", "--html", "page.html").stdout
    assert (tmp_path / "page.html").read_text().startswith("<!")


@needs_engine
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    call(tmp_path, "run", *HTTP, "--out", "out")
    line = " ".join(command("report", "out")) + " | true; exit ${PIPESTATUS[0]}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_engine
def test_ctrl_c_saves_and_the_run_can_be_resumed(tmp_path: Path, running: list[subprocess.Popen[str]]) -> None:
    run = start(tmp_path, "run", "--protocol", "http", *SHORT[:-2], "--blocks", "12", "--out", "out")
    running.append(run)
    until(lambda: landed(tmp_path / "out") >= 2)
    run.send_signal(signal.SIGINT)
    run.send_signal(signal.SIGINT)  # as `timeout` does, to the process and to its group
    _, said = run.communicate(timeout=20)
    assert run.returncode == 130
    assert "ciphertoll run --resume out" in said
    assert "Traceback" not in said
    before = landed(tmp_path / "out")
    assert 2 <= before < 24
    done = call(tmp_path, "run", "--resume", "out")
    assert done.returncode == 0, done.stderr
    assert f"{24 - before} of 24 trials to run" in done.stderr
    assert len({(trial.block, trial.order) for trial in Results.open(tmp_path / "out").trials}) == 24
    assert [path.name for path in (tmp_path / "out").glob(".*")] == []


@needs_engine
def test_resuming_with_a_different_spec_names_both(tmp_path: Path) -> None:
    call(tmp_path, "run", *HTTP, "--out", "out")
    done = call(tmp_path, "run", *HTTP, "--rate", "50", "--resume", "out")
    assert done.returncode == 2
    own = Results.open(tmp_path / "out").spec.id
    assert own in done.stderr
    assert done.stderr.count("spec `") == 2
    assert call(tmp_path, "run", *HTTP, "--resume", "out").returncode == 0


@needs_engine
def test_an_output_folder_that_is_in_use_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("x")
    done = call(tmp_path, "run", *HTTP, "--out", "out")
    assert done.returncode == 2
    assert "not an empty folder" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


@needs_engine
@pytest.mark.privileged
def test_a_disk_that_runs_full_keeps_what_landed(tmp_path: Path) -> None:
    inner = " ".join(
        command("run", *HTTP[:-2], "--blocks", "40", "--rate", "1000", "--duration", "400ms", "--out", "small/out")
    )
    mount = "mkdir small && mount -t tmpfs -o size=100k none small"
    look = "code=$?; ls small/out/trials | wc -l; exit $code"
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", f"{mount} || exit 99; {inner}; {look}"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode in (1, 99):
        pytest.skip(f"this root may not mount: {done.stderr.strip()}")
    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert "--resume" in done.stderr
    assert int(done.stdout) >= 1


@needs_engine
def test_no_child_is_left_when_the_run_is_killed(tmp_path: Path, running: list[subprocess.Popen[str]]) -> None:
    counter = "bash -c 'while true; do echo x; sleep 0.05; done'"
    long = ("--duration", "30s", "--warm-up", "0s", "--blocks", "1")
    run = start(tmp_path, "run", "--protocol", "http", "--workload", counter, *long, "--out", "out")
    running.append(run)
    until(lambda: len(children_of(run.pid)) >= 2 or landed(tmp_path / "out"))
    until(lambda: len(children_of(run.pid)) >= 1)
    left = children_of(run.pid)
    left += [grandchild for child in left for grandchild in children_of(child)]
    run.kill()
    run.wait()
    until(lambda: all(gone(pid) for pid in left))


@needs_engine
def test_two_runs_at_once_are_warned_of(tmp_path: Path, running: list[subprocess.Popen[str]]) -> None:
    running.append(start(tmp_path, "run", "--protocol", "http", *SHORT[:-2], "--blocks", "50", "--out", "first"))
    until(lambda: landed(tmp_path / "first") >= 1)
    done = call(tmp_path, "run", *HTTP, "--out", "second")
    assert done.returncode == 0
    assert "another ciphertoll run" in done.stderr


@needs_engine
def test_what_the_engine_cannot_do_is_unsupported_with_the_reason(tmp_path: Path) -> None:
    done = call(
        tmp_path,
        "run",
        "--protocol",
        "https",
        "--suite",
        "aes128",
        "--group",
        "X25519,MLKEM512",
        *SHORT,
        "--out",
        "out",
    )
    assert done.returncode == 0, done.stderr
    trials = Results.open(tmp_path / "out").trials
    unsupported = [trial for trial in trials if trial.status == "unsupported"]
    assert len(unsupported) == 2
    assert all("MLKEM512" in trial.reasons[0] for trial in unsupported)


@needs_engine
def test_a_run_of_nothing_but_the_unsupported_is_refused(tmp_path: Path) -> None:
    done = call(tmp_path, "run", "--protocol", "https", "--group", "MLKEM512", *SHORT)
    assert done.returncode == 2
    assert "no group `MLKEM512`" in done.stderr
    assert "ciphertoll channels" in done.stderr


@needs_engine
def test_a_server_elsewhere_is_reached_by_its_token(tmp_path: Path, running: list[subprocess.Popen[str]]) -> None:
    server = start(
        tmp_path, "serve", "--protocol", "https", "--suite", "aes128", "--bind", "127.0.0.1", "--name", "bench.local"
    )
    running.append(server)
    until((tmp_path / "server.token").exists)
    axes = ("--protocol", "https", "--suite", "aes128", *SHORT)
    remote = ("--server", "127.0.0.1", "--token", "server.token")
    done = call(tmp_path, "run", *axes, *remote, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert {trial.status for trial in Results.open(tmp_path / "out").trials} <= {"ok", "void"}
    assert "server" not in Results.open(tmp_path / "out").trials[0].facts["placement"]
    other = call(tmp_path, "run", "--protocol", "https", "--suite", "chacha20", *SHORT, *remote)
    assert other.returncode == 2
    assert "does not serve" in other.stderr
    server.send_signal(signal.SIGINT)
    _, said = server.communicate(timeout=15)
    assert server.returncode == 0
    assert "ciphertoll run --server bench.local --token server.token" in said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("plain", "garbage"),
        ("authority", "untrusted"),
        ("nobody", "unreachable"),
    ],
)
@needs_engine
def test_a_wrong_server_ends_the_run_with_what_is_wrong(
    tmp_path: Path, running: list[subprocess.Popen[str]], change: str, expected: str
) -> None:
    axes = ("--protocol", "https", "--suite", "aes128")
    for out in ("a.token", "b.token"):
        running.append(start(tmp_path, "serve", *axes, "--bind", "127.0.0.1", "--out", out))
        until((tmp_path / out).exists)
    token, other = (json.loads((tmp_path / name).read_text()) for name in ("a.token", "b.token"))
    plain, secured = sorted(token["listeners"], key=lambda row: row["ca_pem"] is not None)
    if change == "plain":
        secured["port"] = plain["port"]
    elif change == "authority":
        secured["ca_pem"] = next(row["ca_pem"] for row in other["listeners"] if row["ca_pem"])
    else:
        secured["port"] = 1
    (tmp_path / "c.token").write_text(json.dumps(token))
    server = ("--server", "127.0.0.1", "--token", "c.token")
    done = call(tmp_path, "run", *axes, "--no-baselines", *SHORT[:-2], "--blocks", "4", *server, "--out", "out")
    assert done.returncode == 3
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_token_is_refused(tmp_path: Path) -> None:
    from ciphertoll.cli import token

    for content in ("{", "[]", '{"token_version": 2}', '{"token_version": 1, "names": [], "listeners": []}'):
        (tmp_path / "t").write_text(content)
        with pytest.raises(CiphertollError, match="is no token"):
            token.read(tmp_path / "t", None)


@needs_engine
def test_channels_and_presets_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ciphertoll.cli._listen_to_signals", lambda: None)
    assert main(["channels"]) == 0
    assert "https: TLS 1.3 by rustls" in capsys.readouterr().out
    assert main(["channels", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["channels"]
    assert main(["presets"]) == 0
    assert "paper: " in capsys.readouterr().out
    assert main(["presets", "--json"]) == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == {"quick", "paper"}


@needs_engine
def test_doctor_says_whether_the_machine_is_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ciphertoll.devices.doctor")
    monkeypatch.setattr("ciphertoll.cli._listen_to_signals", lambda: None)
    code = main(["doctor"])
    said = capsys.readouterr().out
    assert "fit to measure now" in said
    assert code == (3 if "fit to measure now: no" in said else 0)
    assert main(["doctor", "--json"]) in (0, 3)
    assert "fit" in json.loads(capsys.readouterr().out)


@needs_engine
def test_every_name_of_ours_is_one_of_the_engine() -> None:
    from ciphertoll import engine
    from ciphertoll.spec import names

    rows = engine.channels()
    assert {row["protocol"] for row in rows} == set(names.PROTOCOLS)
    assert {row["group"] for row in rows if "group" in row} == set(names.GROUPS)
    assert {row["certificate"] for row in rows if "certificate" in row} == set(names.CERTIFICATES)
    assert {row["suite"] for row in rows if "suite" in row} == {name for name in names.SUITE_NAMES if "_" in name}


def test_an_option_may_not_be_shortened() -> None:
    with pytest.raises(CiphertollError, match="is unknown"):
        parse(["run", "--proto", "h3"])


@pytest.mark.parametrize(("seconds", "text"), [(45, "45 s"), (360, "6 min"), (18720, "5 h 12 min"), (-1, "0 s")])
def test_durations_are_shown_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def trial(status: str = "ok", block: int = 0) -> Trial:
    cell = Cell(Channel("http", http="1.1"), Idle(0, 1), NoWorkload())
    return Trial(cell, block, 0, 1, status=status, reasons=() if status == "ok" else ("why",))  # type: ignore[arg-type]


def test_on_a_terminal_one_line_says_how_far_it_is() -> None:
    out = Terminal()
    progress = Progress(out, blocks=3)
    progress.trial_started(4, 12, trial(block=1), 200.0)
    assert out.getvalue().endswith("[4/12] block 2 of 3: http, idle (no workload) (3 min left)")
    assert "\n" not in out.getvalue()


def test_elsewhere_lines_are_few() -> None:
    out = io.StringIO()
    progress = Progress(out, blocks=2)
    for block in (0, 0, 0, 1, 1):
        progress.trial_started(1, 5, trial(block=block), 1.0)
        progress.trial_ended(trial(block=block))
    assert len(out.getvalue().splitlines()) == 2


def test_a_spoiled_trial_is_named_even_when_quiet_and_many_are_warned_of_once() -> None:
    out = io.StringIO()
    progress = Progress(out, blocks=1, quiet=True)
    for _ in range(6):
        progress.trial_started(1, 6, trial(), 1.0)
        progress.trial_ended(trial("void"))
    said = out.getvalue()
    assert said.count("void: http, idle") == 6
    assert said.count("warning: 4 trials in a row were spoiled") == 1
