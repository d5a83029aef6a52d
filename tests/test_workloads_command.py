"""The command workload, with real programs."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from ciphertoll.errors import MachineError, SpecError
from ciphertoll.model import Command
from ciphertoll.workloads import base

TICKING = "import time\nwhile True:\n    print('tick')\n    time.sleep(0.005)"
READY_S = 20.0


def started(folder: Path, *argv: str, affinity: tuple[int, ...] = ()) -> base.Running:
    running = base.start(Command(argv=argv, affinity=affinity), folder)
    assert running
    return running


def script(folder: Path, text: str) -> tuple[str, str]:
    path = folder / "program.py"
    path.write_text(text)
    return sys.executable, str(path)


def wait_for_end(pid: int, timeout_s: float = 10.0) -> bool:
    """Whether the process ends in time; also true for one that is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def wait_for_text(path: Path, running: base.Running) -> str:
    while running.alive() and not path.exists():
        select.select([], [], [], 0.01)
    return path.read_text()


def test_each_line_is_one_unit_that_began_when_the_last_arrived(tmp_path):
    mark = tmp_path / "mark"
    text = (
        "import pathlib, time\n"
        "for i in range(40):\n    print(i)\n    time.sleep(0.005)\n"
        f"part = pathlib.Path({str(mark) + '.part'!r})\npart.write_text('done')\npart.rename({str(mark)!r})\n"
        "time.sleep(60)"
    )
    running = started(tmp_path, *script(tmp_path, text))
    facts = running.wait_ready(READY_S)
    wait_for_text(mark, running)
    frames = running.stop()
    assert facts["kind"] == "command"
    assert len(frames) == 39
    assert frames["started_ns"][1:].to_list() == frames["done_ns"][:-1].to_list()
    assert (frames["done_ns"] > frames["started_ns"]).mean() > 0.9  # no stall in which lines queue up
    assert (frames["done_ns"] - frames["started_ns"] == frames["inference_ns"]).all()


def test_lines_arrive_one_by_one_though_the_program_does_not_flush(tmp_path):
    running = started(tmp_path, sys.executable, "-c", TICKING)
    running.wait_ready(READY_S)
    select.select([], [], [], 0.5)
    frames = running.stop()
    assert frames["done_ns"].n_unique() > 0.9 * len(frames) > 9


def test_the_pid_is_that_of_the_program(tmp_path):
    running = started(tmp_path, sys.executable, "-c", f"import os\nprint(os.getpid(), flush=True)\n{TICKING}")
    running.wait_ready(READY_S)
    command_line = Path(f"/proc/{running.pid}/cmdline").read_bytes()
    running.stop()
    assert b"os.getpid()" in command_line


def test_stopping_ends_what_the_program_started(tmp_path):
    mark = tmp_path / "pid"
    shell = f"sleep 1000 & echo $! > {mark}.part; mv {mark}.part {mark}; while :; do echo tick; sleep 0.05; done"
    running = started(tmp_path, "sh", "-c", shell)
    running.wait_ready(READY_S)
    grandchild = int(wait_for_text(mark, running))
    running.stop()
    assert wait_for_end(grandchild)
    assert wait_for_end(running.pid)


def test_a_program_that_ignores_the_request_to_end_is_killed_and_its_frames_are_kept(tmp_path):
    text = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{TICKING}"
    running = started(tmp_path, *script(tmp_path, text))
    running.wait_ready(READY_S)
    select.select([], [], [], 0.1)
    frames = running.stop()
    assert len(frames) > 0
    assert wait_for_end(running.pid)


def test_a_program_that_ends_by_itself_is_named_with_its_status_and_keeps_its_frames(tmp_path):
    running = started(tmp_path, *script(tmp_path, "for i in range(5): print(i)\nraise SystemExit(3)"))
    running.wait_ready(READY_S)
    assert wait_for_end(running._child.pid)
    error = running.failure()
    assert isinstance(error, MachineError)
    assert "exit status 3 after 4 units" in error.what
    with pytest.raises(MachineError, match="exit status 3"):
        running.stop()
    assert len(running.frames()) == 4


def test_a_program_that_prints_nothing_before_it_ends_is_never_ready(tmp_path):
    running = started(tmp_path, "true")
    with pytest.raises(MachineError, match="exit status 0 before it had done a unit of work"):
        running.wait_ready(READY_S)


def test_a_silent_program_runs_into_the_timeout_and_is_ended(tmp_path):
    running = started(tmp_path, "sleep", "1000")
    with pytest.raises(MachineError, match=r"command `sleep` printed no line within 0\.5 s"):
        running.wait_ready(0.5)
    assert not running.alive()


def test_a_program_that_does_not_exist_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(SpecError, match="no-such-program"):
        started(tmp_path, "no-such-program")


def test_a_command_without_a_program_is_refused(tmp_path):
    with pytest.raises(SpecError, match="needs a program"):
        started(tmp_path)


def test_a_processor_that_does_not_exist_is_refused_with_those_that_do(tmp_path):
    running = started(tmp_path, "yes", affinity=(4095,))
    with pytest.raises(SpecError, match="processor 4095") as caught:
        running.wait_ready(READY_S)
    assert str(min(os.sched_getaffinity(0))) in caught.value.accepted


def test_what_the_program_says_on_standard_error_is_kept(tmp_path):
    text = "import sys\nprint('no camera here', file=sys.stderr)\nprint(1)\nimport time\ntime.sleep(60)"
    running = started(tmp_path, *script(tmp_path, text))
    running.wait_ready(READY_S)
    running.stop()
    assert "no camera here" in (tmp_path / "workload-stderr.txt").read_text()


def test_the_program_ends_when_its_supervisor_is_killed(tmp_path):
    running = base.start(Command(("sh", "-c", "trap '' TERM; while true; do echo x; sleep 0.02; done")), tmp_path)
    assert running is not None
    program = running.wait_ready(READY_S)["pid"]
    (supervisor,) = Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[1:2]
    os.kill(int(supervisor), signal.SIGKILL)
    until = time.monotonic() + 5
    while Path(f"/proc/{program}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{program}").exists()
    running.kill()
