"""The sampler and its schedule: injected clocks, invented meters, and this machine once for real."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ciphertoll.devices import meter, process
from ciphertoll.errors import BugError, SpecError
from ciphertoll.metrics import METRICS
from ciphertoll.model import NS, Sample

SECOND = NS


@dataclass
class FakeMeter:
    """Counts how often it was read; `act` may raise or hang."""

    name: str = "fake"
    every: int = 1
    absent: tuple[str, ...] = ()
    act: Callable[[], object] = lambda: None
    read_at: list[int] = field(default_factory=list)

    def read(self, at_ns: int) -> list[Sample]:
        self.read_at.append(at_ns)
        self.act()
        return [Sample(at_ns, "temperature_celsius", self.name, 40.0)]


@dataclass
class FakeTime:
    """A clock that only sleeping moves; after `ticks` sleeps it says that it was told to stop."""

    ticks: int
    now_ns: int = 10 * SECOND

    def now(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> bool:
        self.now_ns += round(seconds * NS)
        self.ticks -= 1
        return self.ticks == 0


def scheduled(meters: list[FakeMeter], time: FakeTime) -> meter.Sampler:
    """A sampler that has run to the end of the fake time."""
    sampler = meter.Sampler(meters, SECOND, now_ns=time.now, wait=time.wait)
    sampler.start()
    while time.ticks:
        threading.Event().wait(0.001)
    return sampler


def test_samples_come_on_an_absolute_schedule() -> None:
    slow, time = FakeMeter(), FakeTime(ticks=4)

    def take_a_third_of_a_second() -> None:
        time.now_ns += SECOND // 3

    slow.act = take_a_third_of_a_second
    samples = scheduled([slow], time).stop()

    assert [sample.at_ns for sample in samples] == [10 * SECOND, 11 * SECOND, 12 * SECOND, 13 * SECOND]


def test_missed_ticks_are_left_out_and_not_made_up_for() -> None:
    assert meter.next_due(100, 10, now_ns=103) == 110
    assert meter.next_due(100, 10, now_ns=110) == 120
    assert meter.next_due(100, 10, now_ns=137) == 140


def test_a_dear_meter_is_read_on_each_nth_tick_and_at_the_edges() -> None:
    cheap, dear = FakeMeter("cheap"), FakeMeter("dear", every=5)
    sampler = scheduled([cheap, dear], FakeTime(ticks=7))
    assert (len(cheap.read_at), len(dear.read_at)) == (7, 2)

    at_ns = sampler.sample_now()

    assert (cheap.read_at[-1], dear.read_at[-1]) == (at_ns, at_ns)
    assert {sample.metric for sample in sampler.stop() if sample.at_ns == at_ns} == {"temperature_celsius"}


def test_a_meter_that_raises_is_named_and_the_others_go_on() -> None:
    def fail() -> None:
        raise OSError("the sensor was pulled out")

    good, bad = FakeMeter("good"), FakeMeter("bad", act=fail)
    sampler = scheduled([bad, good], FakeTime(ticks=3))

    assert {sample.where for sample in sampler.stop()} == {"good"}
    assert (len(good.read_at), len(bad.read_at)) == (3, 1)
    assert sampler.failures == {"bad": "OSError: the sensor was pulled out"}


def test_a_meter_that_hangs_is_left_behind_and_the_others_are_read_again() -> None:
    released = threading.Event()
    good, stuck = FakeMeter("good"), FakeMeter("stuck", act=released.wait)
    after = FakeMeter("after")
    sampler = meter.Sampler([good, stuck, after], hang_s=0.25)

    at_ns = sampler.sample_now()
    again_ns = sampler.sample_now()
    released.set()

    assert sampler.failures == {"stuck": "no answer within 0.25 s"}
    assert [(sample.where, sample.at_ns) for sample in sampler.stop()] == [
        ("good", at_ns),
        ("after", at_ns),
        ("good", again_ns),
        ("after", again_ns),
    ]
    assert after.read_at == [at_ns, again_ns]


def test_an_interval_below_100_ms_is_refused() -> None:
    with pytest.raises(SpecError, match="99 ms is too short"):
        meter.Sampler([], 99_000_000)


def test_a_stopped_sampler_refuses_to_sample_and_to_start_twice() -> None:
    sampler = meter.Sampler([], SECOND // 10)
    sampler.start()
    with pytest.raises(BugError):
        sampler.start()
    sampler.stop()
    with pytest.raises(BugError):
        sampler.sample_now()


def test_absence_is_said_once() -> None:
    sampler = meter.Sampler([FakeMeter("a", absent=("no fan",)), FakeMeter("b", absent=("no fan", "no sun"))])
    assert sampler.absent == ("no fan", "no sun")
    sampler.stop()


def test_this_machine_gives_known_metrics_and_counters_that_grow() -> None:
    sampler = meter.Sampler(meter.discover({"self": os.getpid(), "engine": os.getpid()}))
    first, last = sampler.sample_now(), sampler.sample_now()
    samples = sampler.stop()

    assert sampler.failures == {}
    assert {sample.metric for sample in samples} <= METRICS.keys()
    assert {"cpu_busy_ns", "process_cpu_ns", "memory_percent"} <= {sample.metric for sample in samples}
    at = {
        when: {(s.metric, s.where): s.value for s in samples if s.at_ns == when and METRICS[s.metric].cumulative}
        for when in (first, last)
    }
    assert all(at[last][key] >= value for key, value in at[first].items())
    assert at[last]["process_cpu_ns", "self"] > at[first]["process_cpu_ns", "self"]


BUSY_IN_ENDED_THREADS = """
import threading, time
def burn():
    end = time.thread_time_ns() + 50_000_000
    while time.thread_time_ns() < end:
        pass
for _ in range(3):
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
print(flush=True)
input()
"""


def test_process_clock_equals_what_the_kernel_says_at_the_end_ended_threads_included() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY_IN_ENDED_THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive_ns = process.process_clock_ns(child.pid)
        child.kill()
        usage = os.wait4(child.pid, 0)[2]
        child.returncode = 0
    total_ns = (usage.ru_utime + usage.ru_stime) * NS
    assert total_ns > 0.15 * NS
    assert alive_ns == pytest.approx(total_ns, rel=0.05)


def test_a_process_that_has_ended_gives_no_sample_and_fails_no_meter() -> None:
    with subprocess.Popen(["true"]) as child:
        meters = meter.discover({"server": child.pid})
    sampler = meter.Sampler(meters)
    sampler.sample_now()
    assert [sample for sample in sampler.stop() if sample.where == "server"] == []
    assert sampler.failures == {}


def test_a_workload_owns_the_time_of_its_children_alive_or_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.06: pass\n"
    script = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint(flush=True)\ninput()\n"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        meters = meter.discover({"workload": child.pid, "engine": child.pid})
        sampler = meter.Sampler(meters)
        sampler.sample_now()
        used = {sample.where: sample.value for sample in sampler.stop() if sample.metric == "process_cpu_ns"}
        child.kill()
    assert used["workload"] - used["engine"] >= 0.05 * NS
