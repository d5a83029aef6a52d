"""Each rule that spoils a trial: what it catches, and what it lets pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

import synthetic
from ciphertoll import store
from ciphertoll.model import NS, Cell, Detector, Idle, Sample, Trial
from ciphertoll.validity import Finding, check, settle

MS = 1_000_000
WINDOW = (NS, 11 * NS)
ROLES = ("engine", "server", "workload", "self")
FACTS: dict[str, Any] = {
    "engine_outcome": "ok",
    "counts": {"due": 1200},
    "records": 1200,
    "processors": 2,
    "roles": list(ROLES),
}
TRIAL = Trial(Cell(synthetic.channel("https"), synthetic.paced(), Detector()), 0, 0, 1, window=WINDOW, facts=FACTS)


def exchanges(n: int = 1000, lag_ns: int = 20_000, rtt_ns: int = 2 * MS) -> pl.DataFrame:
    """n exchanges in the measured time, all done, after 200 of warm-up that lagged terribly."""
    due = [WINDOW[0] - (200 - k) * MS for k in range(200)] + [WINDOW[0] + k * (10 * NS // n) for k in range(n)]
    lags = [50 * MS] * 200 + [lag_ns] * n
    rows = [(at, at + late, 0, at + rtt_ns, "done", False, 0) for at, late in zip(due, lags, strict=True)]
    return pl.DataFrame(rows, schema=store.exchange_schema(), orient="row")


def frames() -> pl.DataFrame:
    rows = [(at, at + 9 * MS, 1, 1, 1, 1, 3) for at in range(WINDOW[0], WINDOW[1], 50 * MS)]
    return pl.DataFrame(rows, schema=store.frame_schema(), orient="row")


def sensors(
    own_cores: float = 1.2,
    foreign_cores: float = 0.05,
    stolen: float = 0.0,
    hertz: Callable[[int], float] = lambda _: 1.5e9,
    throttled_at_s: int | None = None,
    metric: str = "throttled",
) -> pl.DataFrame:
    """A sample of everything each second of the measured time."""
    samples = []
    for at in range(WINDOW[0], WINDOW[1] + 1, NS):
        elapsed = at - WINDOW[0]
        shares = dict(zip(ROLES, (0.1, 0.1, own_cores - 0.21, 0.01), strict=True))
        samples += [Sample(at, "process_cpu_ns", role, 5 + elapsed * share) for role, share in shares.items()]
        samples.append(Sample(at, "cpu_busy_ns", "machine", 7 + elapsed * (own_cores + foreign_cores)))
        samples.append(Sample(at, "steal_ns", "machine", elapsed * stolen))
        samples += [Sample(at, "frequency_hz", f"cpu{cpu}", hertz(elapsed // NS)) for cpu in range(2)]
        samples.append(Sample(at, metric, "processor", float(elapsed // NS == throttled_at_s)))
    return store.sensor_table(samples)


def verdict(trial: Trial = TRIAL, **tables: pl.DataFrame) -> list[Finding]:
    return check(
        trial, tables.get("exchanges", exchanges()), tables.get("frames", frames()), tables.get("sensors", sensors())
    )


def with_facts(**facts: Any) -> Trial:
    return replace(TRIAL, facts={**FACTS, **facts})


def with_outcomes(lost: int, outcome: str = "timed_out", held: bool = False) -> pl.DataFrame:
    table = exchanges().with_row_index()
    hit = pl.col("index") >= len(table) - lost
    return table.with_columns(
        outcome=pl.when(hit).then(pl.lit(outcome)).otherwise("outcome"), held=pl.when(hit).then(held).otherwise("held")
    ).drop("index")


def test_nothing_speaks_against_a_quiet_trial() -> None:
    assert verdict() == []
    assert settle(TRIAL, verdict()).status == "ok"


def test_a_generator_that_lags_makes_the_trial_void() -> None:
    assert verdict(exchanges=exchanges(lag_ns=1_100_000)) == [
        ("void", "the generator lagged: p99 1.10 ms, limit 1.00 ms")
    ]


def test_lag_is_judged_against_a_slow_round_trip() -> None:
    assert verdict(exchanges=exchanges(lag_ns=4 * MS, rtt_ns=50 * MS)) == []
    assert verdict(exchanges=exchanges(lag_ns=6 * MS, rtt_ns=50 * MS))[0][0] == "void"


def test_held_exchanges_do_not_count_as_lag() -> None:
    late = exchanges(lag_ns=90 * MS, rtt_ns=100 * MS).with_columns(held=pl.lit(True))
    assert verdict(exchanges=late) == []


def test_fewer_than_twenty_exchanges_say_nothing_of_lag() -> None:
    assert verdict(exchanges=exchanges(n=19, lag_ns=9 * MS)) == []
    assert verdict(exchanges=exchanges(n=20, lag_ns=9 * MS)) != []


def test_a_trial_that_loses_more_than_a_hundredth_fails_and_says_how_many() -> None:
    assert verdict(exchanges=with_outcomes(10)) == []
    assert verdict(exchanges=with_outcomes(11)) == [("failed", "only 989 of 1000 exchanges completed (11 timed out)")]


def test_a_paced_trial_in_which_nothing_fell_due_fails() -> None:
    assert verdict(exchanges=exchanges().clear()) == [("failed", "no exchange fell due in the measured time")]


@pytest.mark.parametrize("load", ["idle", "no channel"])
def test_a_trial_without_traffic_needs_no_exchanges(load: str) -> None:
    channel = TRIAL.cell.channel if load == "idle" else None
    trial = replace(TRIAL, cell=replace(TRIAL.cell, channel=channel, load=Idle(0, 10 * NS)))
    assert verdict(trial, exchanges=exchanges().clear()) == []


def test_an_engine_that_did_not_end_well_fails_the_trial() -> None:
    trial = with_facts(engine_outcome="mismatch", engine_reason="got X448")
    assert verdict(trial) == [("failed", "the engine ended with `mismatch`: got X448")]


def test_what_a_build_cannot_do_is_unsupported() -> None:
    assert settle(TRIAL, verdict(with_facts(engine_outcome="unsupported"))).status == "unsupported"


def test_records_that_are_missing_fail_the_trial() -> None:
    assert verdict(with_facts(records=1199)) == [("failed", "1199 of 1200 exchanges were recorded")]


@pytest.mark.parametrize("fact", ["workload_failure", "workload_unfit"])
def test_a_workload_that_did_not_work_fails_the_trial(fact: str) -> None:
    assert verdict(with_facts(**{fact: "the detector saw nothing"})) == [("failed", "the detector saw nothing")]


def test_a_throttled_processor_makes_the_trial_void() -> None:
    assert verdict(sensors=sensors(throttled_at_s=4)) == [
        ("void", "the processor was throttled in 1 of 11 samples"),
    ]


def test_too_low_a_voltage_makes_the_trial_void() -> None:
    found = verdict(sensors=sensors(throttled_at_s=4, metric="under_voltage"))
    assert found == [("void", "the voltage was too low in 1 of 11 samples")]


def test_throttling_before_the_measured_time_does_not_matter() -> None:
    early = store.sensor_table([Sample(WINDOW[0] - 1, "throttled", "processor", 1.0)])
    assert verdict(sensors=pl.concat([early, sensors()])) == []


def test_processors_that_become_slower_make_the_trial_void() -> None:
    found = verdict(sensors=sensors(hertz=lambda second: 1.5e9 if second < 5 else 1.0e9))
    assert found == [("void", "the processors went from 1.50 to 1.00 GHz")]


def test_a_governor_that_steps_up_and_down_does_not_matter() -> None:
    assert verdict(sensors=sensors(hertz=lambda second: 1.5e9 if second % 2 else 1.2e9)) == []


def test_other_programs_make_the_trial_void() -> None:
    assert verdict(sensors=sensors(foreign_cores=0.10)) == []
    assert verdict(sensors=sensors(foreign_cores=0.20)) == [("void", "other programs took 20 % of a processor")]


def test_ticks_of_the_kernel_are_not_other_programs() -> None:
    trial = replace(TRIAL, window=(WINDOW[0], WINDOW[0] + NS))  # 10 % of a second, and 3 ticks of each of 2 cores
    assert not [reason for _, reason in verdict(trial, sensors=sensors(foreign_cores=0.15)) if "other" in reason]
    assert [reason for _, reason in verdict(trial, sensors=sensors(foreign_cores=0.17)) if "other" in reason]


def test_a_process_that_was_not_seen_is_not_another_program() -> None:
    unseen = sensors(foreign_cores=0.5).filter(pl.col("where") != "workload")
    assert verdict(sensors=unseen) == []


def test_stolen_time_makes_the_trial_void() -> None:
    assert verdict(sensors=sensors(stolen=0.02)) == []
    assert verdict(sensors=sensors(stolen=0.05)) == [("void", "the hypervisor withheld 5.0 % of a processor")]


def test_a_trial_that_never_began_fails() -> None:
    assert verdict(replace(TRIAL, window=None)) == [("failed", "the measured time never began")]
    ended = replace(with_facts(engine_outcome="unreachable"), window=None)
    assert verdict(ended) == [("failed", "the engine ended with `unreachable`")]


def test_machines_without_sensors_can_still_measure() -> None:
    assert verdict(sensors=sensors().clear()) == []


def test_what_failed_stays_failed_on_a_machine_that_was_disturbed() -> None:
    found = verdict(with_facts(records=1), sensors=sensors(throttled_at_s=1))
    settled = settle(TRIAL, found)
    assert settled.status == "failed"
    assert len(settled.reasons) == 2
    assert settle(TRIAL, found[1:]).status == "void"
