"""What ciphertoll itself costs: `make bench`.

Every figure is a ratio or a difference within one run, because absolute times of a shared machine mean little.
Each line names its target; a miss is marked and is no error: this measures, it does not judge.

usage: python bench/run.py [part ...]     parts: lag cpu memory sensors detector help trial
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from ciphertoll import store
from ciphertoll.devices.meter import Sampler, discover
from ciphertoll.engine import Finished, LoadJob, LoadRun, Peer, Server, Started, child
from ciphertoll.model import NS, Channel, Coap, Detector, Idle, Mqtt, Paced, Security
from ciphertoll.workloads.base import start as start_workload

SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
# One datagram each way, as the figures to compare with were taken.
WHOLE = Coap(datagram_bytes=16000)
# As fast as the engine paces, one at a time: hardly any sleep between two exchanges.
FASTEST_HZ = 10_000.0


def tls(suite: str) -> Security:
    return Security("TLS 1.3", suite)


def dtls(suite: str, library: str) -> Security:
    return Security("DTLS 1.3", suite, library=library)


# Name, channel, target of net client CPU per exchange in us (None: a twin, for orientation).
def channels() -> Iterator[tuple[str, Channel, float | None]]:
    yield "http", Channel("http", http="1.1"), None
    yield "mqtt", Channel("mqtt", mqtt=Mqtt()), None
    yield "coap", Channel("coap", coap=WHOLE), None
    for suite in SUITES:
        yield "https", Channel("https", tls(suite), http="1.1"), 20
        yield "h3", Channel("h3", tls(suite)), 50
        yield "mqtts", Channel("mqtts", tls(suite), mqtt=Mqtt()), 20
        yield "coaps", Channel("coaps", dtls(suite, "wolfssl"), coap=WHOLE), 15
        yield "coaps dimpl", Channel("coaps", dtls(suite, "dimpl"), coap=WHOLE), 15


def say(name: str, value: str, target: str = "", *, met: bool | None = None) -> None:
    mark = {None: "", True: "met", False: "MISSED"}[met]
    print(f"{name:<44} {value:<34} {target:<22} {mark}".rstrip(), flush=True)


@contextmanager
def serving(channel: Channel) -> Iterator[tuple[Server, Peer]]:
    server = Server.start([(channel, 0)])
    try:
        (listening,) = server.wait_ready(10)
        yield server, Peer("127.0.0.1", listening.port, "localhost", listening.ca_pem)
    finally:
        server.stop()


def load(channel: Channel, peer: Peer, paced: Paced | Idle, look: Callable[[LoadRun], None] | None = None) -> Any:
    """Runs one load; returns what the engine said and the measured exchanges."""
    with tempfile.TemporaryDirectory() as folder:
        run = LoadRun.start(LoadJob(channel, peer, paced, Path(folder) / "samples.bin"))
        started = run.wait_started(10)
        if started is not None and look is not None:
            run.sleep_until((started.measure_from_ns + started.measure_to_ns) // 2)
            look(run)
        finished = run.wait(120)
        exchanges = store.read_samples(Path(folder) / "samples.bin")
    return finished, measured(started, exchanges)


def measured(started: Started | None, exchanges: pl.DataFrame) -> pl.DataFrame:
    if started is None:
        raise SystemExit("error: a load did not start")
    return exchanges.filter((pl.col("due_ns") >= started.measure_from_ns) & (pl.col("outcome") == "done"))


def paced(rate_hz: float, seconds: float, in_flight: int = 256) -> Paced:
    return Paced(rate_hz, 2048, NS // 2, int(seconds * NS), in_flight)


def floor(rate_hz: float, seconds: int) -> dict[str, float]:
    """The engine's pacing alone."""
    import json

    out = subprocess.run(
        [child.find(), "floor", f"{rate_hz}", f"{seconds}"], capture_output=True, check=True, text=True
    )
    return dict(json.loads(out.stdout))


def bench_lag() -> None:
    channel = Channel("https", tls(SUITES[0]), http="1.1")
    with serving(channel) as (_, peer):
        for rate_hz, target_us in ((100.0, 150), (1000.0, 250)):
            p99s = []
            for _ in range(5):
                _, exchanges = load(channel, peer, paced(rate_hz, 8))
                lag = exchanges["sent_ns"] - exchanges["due_ns"]
                p99s.append(float(lag.quantile(0.99) or 0) / 1e3)
            p99 = statistics.median(p99s)
            say(
                f"send lag p99, https at {rate_hz:g}/s",
                f"{p99:.0f} us (5 runs: {min(p99s):.0f} to {max(p99s):.0f})",
                f"<= {target_us} us",
                met=p99 <= target_us,
            )


def main_cpu_us(finished: Finished, n: int) -> float:
    (main,) = (thread for thread in finished.usage["threads"] if thread["thread"] == "main")
    return float(main["measured_ns"]) / max(n, 1) / 1e3


def bench_cpu() -> None:
    floors = {
        rate: [floor(rate, 3)["cpu_ns_per_exchange"] / 1e3 for _ in range(3)] for rate in (100.0, 1000.0, FASTEST_HZ)
    }
    for rate, values in floors.items():
        say(f"pacing alone at {rate:g}/s", f"{statistics.median(values):.1f} us of CPU per exchange")
    for name, channel, target in channels():
        row = []
        with serving(channel) as (_, peer):
            for rate, in_flight, base in (
                (100.0, 256, statistics.median(floors[100.0])),
                (1000.0, 256, statistics.median(floors[1000.0])),
                (FASTEST_HZ, 1, statistics.median(floors[FASTEST_HZ])),
            ):
                values = []
                for _ in range(3):
                    finished, exchanges = load(channel, peer, paced(rate, 1, in_flight))
                    values.append(main_cpu_us(finished, exchanges.height) - base)
                row.append(statistics.median(values))
        best = min(row[1:])
        say(
            f"client CPU per 2048 B exchange, {name} {channel.suite_label}",
            "net {:.0f} | {:.0f} | {:.0f} us".format(*row),
            f"about {target} us" if target else "100|1000|10,000 per s",
            met=None if target is None else best <= target * 1.1,
        )


def pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def memory_of(channel: Channel) -> tuple[float, float]:
    """PSS of client and server under load, MB."""
    sizes: list[float] = []
    with serving(channel) as (server, peer):
        load(channel, peer, paced(100, 3), lambda run: sizes.extend((pss_bytes(run.pid), pss_bytes(server.pid))))
    return sizes[0] / 1e6, sizes[1] / 1e6


def bench_memory() -> None:
    for name, channel, target in channels():
        if target is None or channel.security is None or channel.security.suite != SUITES[0]:
            continue
        client, at_server = memory_of(channel)
        say(
            f"PSS at 100/s, {name}",
            f"client {client:.1f} MB, server {at_server:.1f} MB",
            "<= 25 MB each",
            met=max(client, at_server) <= 25,
        )


def bench_sensors() -> None:
    running = start_workload(Detector(), Path(tempfile.mkdtemp()))
    if running is None:
        return
    try:
        running.wait_ready(30)
        meters = discover({"workload": running.pid, "self": os.getpid()})
        sampler = Sampler(meters, NS)
        before = time.process_time_ns()
        sampler.start()
        time.sleep(10.5)
        samples = sampler.stop()
        share = (time.process_time_ns() - before) / 10.5e9
    finally:
        running.stop()
    say(
        "sensors at 1 s",
        f"{share * 100:.2f} % of a core, {len(samples)} samples",
        "<= 1 % of a core",
        met=share <= 0.01,
    )


def bench_detector() -> None:
    """Detector FPS alone, and beside sensors and an idle engine, in alternating slices of one second."""
    channel = Channel("https", tls(SUITES[0]), http="1.1")
    slices: list[tuple[int, int, bool]] = []
    running = start_workload(Detector(), Path(tempfile.mkdtemp()))
    if running is None:
        return
    running.wait_ready(30)
    time.sleep(3)
    with serving(channel) as (server, peer):
        for n in range(24):
            beside = n % 2 == 1
            run = sampler = None
            if beside:
                run = LoadRun.start(LoadJob(channel, peer, Idle(0, 60 * NS), Path(os.devnull)))
                run.wait_started(10)
                roles = {"engine": run.pid, "server": server.pid, "workload": running.pid, "self": os.getpid()}
                sampler = Sampler(discover(roles), NS)
                sampler.start()
            time.sleep(0.3)
            begin = time.monotonic_ns()
            time.sleep(2)
            slices.append((begin, time.monotonic_ns(), beside))
            if run is not None and sampler is not None:
                sampler.stop()
                run.kill()
    frames = running.stop()["done_ns"]
    fps = [(((frames >= a) & (frames < b)).sum() / ((b - a) / 1e9), beside) for a, b, beside in slices]
    ratios = [fps[n + 1][0] / fps[n][0] for n in range(0, len(fps), 2)]
    median = statistics.median(ratios)
    spread = statistics.stdev(ratios) / len(ratios) ** 0.5
    say(
        "detector FPS, sensors and idle engine / alone",
        f"{median:.4f} (12 pairs, s.e. {spread:.4f})",
        ">= 0.995",
        met=median >= 0.995,
    )


def bench_help() -> None:
    def median_ms(argv: list[str]) -> float:
        times = []
        for _ in range(15):
            begin = time.perf_counter()
            subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times)

    bare = median_ms([sys.executable, "-c", "pass"])
    ours = median_ms([str(Path(sys.executable).with_name("ciphertoll")), "--help"])
    say("ciphertoll --help", f"{ours:.0f} ms (python alone {bare:.0f} ms)", "<= 150 ms", met=ours <= 150)


def bench_trial() -> None:
    """What a trial takes beyond its warm-up and measured time, by the trial's own books."""
    argv = [str(Path(sys.executable).with_name("ciphertoll")), "run", "--protocol", "https,h3,mqtts,coaps"]
    argv += ["--suite", "aes128", "--duration", "500ms", "--warm-up", "200ms", "--blocks", "3", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results"
        subprocess.run([*argv, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
        overheads = [trial.facts["overhead_ns"] / 1e9 for trial in store.Results.open(out).trials]
    median = statistics.median(overheads)
    say(
        "overhead of a trial",
        f"median {median:.2f} s, largest {max(overheads):.2f} s ({len(overheads)} trials)",
        "<= 1.0 s",
        met=median <= 1.0,
    )


PARTS = {
    "lag": bench_lag,
    "cpu": bench_cpu,
    "memory": bench_memory,
    "sensors": bench_sensors,
    "detector": bench_detector,
    "help": bench_help,
    "trial": bench_trial,
}


def main() -> None:
    parts = sys.argv[1:] or list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise SystemExit(f"error: part `{unknown[0]}` is unknown\n  accepted: {', '.join(PARTS)}")
    for part in parts:
        PARTS[part]()


if __name__ == "__main__":
    main()
