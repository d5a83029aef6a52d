"""Judging results whose truth is known."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest

from ciphertoll.errors import MachineError
from ciphertoll.judge import judge, measure, metric_of, title_of
from ciphertoll.model import Cell, Channel, Detector, Idle, NoWorkload, Security, Trial
from synthetic import NS, SUITES, Synthetic, cells, channel, paced, spec, spoiled

PAIR = [channel("http"), channel("https")]


def results(blocks: int = 6, **more: object) -> Synthetic:
    of = cells(PAIR, [paced()])
    return Synthetic(spec(of, blocks, twins=[of[0]]), **more)  # type: ignore[arg-type]


def row_of(judgement, label: str, workload: str = "detector"):
    return next(row for row in judgement.tables[0].rows if (row.label, row.workload) == (label, workload))


def test_a_trial_is_measured_only_within_its_window():
    source = results(1)
    trial = next(trial for trial in source.trials if trial.cell.channel == PAIR[1])
    assert measure(trial, source)["achieved_hz"] == 100.0
    half = replace(trial, window=(trial.window[0], trial.window[0] + 5 * NS))
    assert measure(half, source)["fps"] == pytest.approx(measure(trial, source)["fps"], rel=0.02)


def test_processor_use_comes_from_the_ends_of_its_counters_and_one_core_is_a_hundred_percent():
    source = results(1)
    scalars = measure(source.trials[0], source)
    assert scalars["cpu_percent"] == pytest.approx(310.0)
    assert scalars["workload_cpu_percent"] == pytest.approx(180.0, rel=0.1)
    assert scalars["memory_percent"] == pytest.approx(6.0, abs=0.2)


def test_the_machine_is_at_least_as_busy_as_its_own_processes_whatever_the_ticks_saw():
    source = results(1)
    trial = source.trials[0]
    sensors = source.sensors(trial).with_columns(
        pl.when(pl.col("metric") == "cpu_busy_ns").then(0.0).otherwise(pl.col("value")).alias("value")
    )
    source.sensors = lambda _: sensors
    scalars = measure(trial, source)
    assert scalars["cpu_percent"] >= scalars["workload_cpu_percent"] > 100


def test_a_trial_whose_time_never_began_has_no_numbers():
    source = results(1)
    assert measure(replace(source.trials[0], window=None), source) == {}


def test_a_known_loss_of_frames_is_found_and_a_negligible_one_is_called_the_same():
    judgement = judge(results(8))
    secured = row_of(judgement, "https AES-128-GCM").change("fps", "workload alone")
    assert secured.decision == "worse"
    assert secured.effect.low < 0.94 < secured.effect.high
    assert row_of(judgement, "http").change("fps", "workload alone").decision == "same"


def test_a_secured_channel_is_compared_with_its_unprotected_twin_in_the_same_blocks():
    change = row_of(judge(results(8)), "https AES-128-GCM").change("rtt_ns.p50", "unprotected twin")
    assert change.base_label == "http"
    assert change.effect.n == 8
    assert change.effect.low < 2.0 / 1.2 < change.effect.high
    # 0.8 x 1.5 = 1.2 ms more, so beyond the margin of 1 ms only in part
    assert change.margin == pytest.approx(1e6 / 1.8e6, rel=0.1)


def test_what_the_detector_does_to_the_round_trip_is_measured_on_the_same_channel_without_it():
    judgement = judge(results(8))
    row = row_of(judgement, "https AES-128-GCM")
    change = row.change("rtt_ns.p95", "no workload")
    assert change.effect.low < 1.5 < change.effect.high
    assert judgement.tables[0].row(row.without_id).workload == "none"


def test_a_void_trial_is_counted_and_not_averaged():
    def void_in_block_two(trial: Trial) -> Trial:
        return spoiled(trial) if (trial.block, trial.cell.channel) == (2, PAIR[1]) else trial

    source = results(change=void_in_block_two)
    judgement = judge(source)
    row = row_of(judgement, "https AES-128-GCM")
    assert (row.counts.ok, row.counts.void, row.counts.missing) == (5, 1, 0)
    assert row.estimates["fps"].n == 5
    assert row.change("fps", "workload alone").effect.n == 5
    void = [trial.id for trial in source.trials if trial.status == "void"]
    assert not set(void) & set(source.read)
    assert {invalid.trial_id for invalid in judgement.invalid} == set(void)
    assert judgement.invalid[0].reasons == ("the processor was throttled",)


def test_a_repeated_attempt_replaces_the_void_one_and_both_are_counted():
    source = results(1)
    first = next(trial for trial in source.trials if trial.cell.channel == PAIR[1])
    source.trials.remove(first)
    source.trials += [spoiled(first), replace(first, attempt=1)]
    counts = row_of(judge(source), "https AES-128-GCM").counts
    assert (counts.ok, counts.void, counts.missing) == (1, 1, 0)


def test_unsupported_and_failed_are_told_apart():
    def change(trial: Trial) -> Trial:
        if trial.cell.channel == PAIR[1]:
            return replace(trial, status="unsupported" if trial.block else "failed", reasons=("no",))
        return trial

    counts = row_of(judge(results(3, change=change)), "https AES-128-GCM").counts
    assert (counts.ok, counts.failed, counts.unsupported) == (0, 1, 2)


def test_trials_of_another_build_are_not_pooled_and_are_counted():
    def rebuilt(trial: Trial) -> Trial:
        return replace(trial, facts={"build": "b" if trial.block == 5 else "a"})

    judgement = judge(results(change=rebuilt))
    assert all(row.counts.not_pooled == 1 and row.counts.ok == 5 for row in judgement.tables[0].rows)
    assert "another build" in judgement.invalid[0].reasons[0]


def test_results_of_another_metric_version_are_refused():
    with pytest.raises(MachineError, match="metric version `99`"):
        judge(results(1, provenance={"metrics_version": 99}))


def test_lost_exchanges_count_as_endless_and_lower_the_share_that_completed():
    estimates = row_of(judge(results(4, lost_share=0.02)), "https AES-128-GCM").estimates
    assert estimates["rtt_ns.p99"].value is None
    assert estimates["rtt_ns.p99"].lower_bound is not None
    assert estimates["rtt_ns.p50"].value is not None
    assert 0.97 < estimates["completed"].value < 0.99


def test_sixty_samples_give_a_lower_bound_in_place_of_a_p99_and_no_comparison_of_it():
    of = cells([channel("https")], [paced(1, 512, 60)])
    row = row_of(judge(Synthetic(spec(of, 1))), "https AES-128-GCM")
    p99 = row.estimates["rtt_ns.p99"]
    assert (p99.value, p99.status, p99.n, p99.n_required) == (None, "insufficient_samples", 60, 368)
    assert row.change("rtt_ns.p99", "no workload") is None


def test_the_noise_floor_is_what_identical_cells_differ_by():
    table = judge(results(8)).tables[0]
    floor = table.floors["fps"]
    assert floor.effect.low < 1 < floor.effect.high
    assert 0 < floor.log < 0.02
    assert "rtt_ns.p95" not in table.floors


def test_the_puback_is_a_number_of_mqtt_only():
    of = cells([channel("mqtts"), channel("https")], [paced()])
    judgement = judge(Synthetic(spec(of, 3)))
    assert "puback_ns.p95" in row_of(judgement, "mqtts AES-128-GCM").estimates
    assert "puback_ns.p95" not in row_of(judgement, "https AES-128-GCM").estimates


def test_one_block_gives_values_and_no_decision():
    judgement = judge(results(1))
    assert row_of(judgement, "https AES-128-GCM").estimates["fps"].value is not None
    assert {verdict.decision for verdict in judgement.verdicts} == {"unclear"}


def test_channels_that_would_read_alike_are_named_by_what_differs():
    other = Channel("https", Security("TLS 1.3", SUITES[0], group="X25519MLKEM768"), http="1.1")
    judgement = judge(Synthetic(spec(cells([channel("https"), other], [paced()]), 2)))
    labels = {row.label for row in judgement.tables[0].rows}
    assert {"https AES-128-GCM X25519", "https AES-128-GCM X25519MLKEM768"} <= labels


def test_blocks_that_were_not_run_are_counted():
    source = results(4)
    source.trials = [trial for trial in source.trials if trial.block < 3]
    assert {row.counts.missing for row in judge(source).tables[0].rows} == {1}


def test_two_settings_of_one_workload_are_named_by_what_differs_and_have_their_own_base():
    both = [Detector(threads=1), Detector(threads=2)]
    of = [Cell(None, Idle(NS, 10 * NS), one) for one in both] + [Cell(PAIR[1], paced(), one) for one in both]
    rows = judge(Synthetic(spec(of, 3))).tables[0].rows
    assert [row.workload for row in rows] == ["detector threads 1", "detector threads 2"] * 2
    assert [row.changes[0].base_id for row in rows[2:]] == [rows[0].cell_id, rows[1].cell_id]


def test_n_of_n_carries_the_exact_lower_bound():
    completed = row_of(judge(results(3)), "http").estimates["completed"]
    assert (completed.value, completed.n) == (1.0, 3000)
    assert completed.lower_bound == pytest.approx(0.05 ** (1 / 3000))


def test_a_twin_with_other_settings_is_no_twin():
    http2 = Channel("http", http="2")
    judgement = judge(Synthetic(spec(cells([http2, channel("https")], [paced()]), 2)))
    assert row_of(judgement, "https AES-128-GCM").change("rtt_ns.p50", "unprotected twin") is None


def test_every_load_has_a_table_and_each_begins_with_the_workload_alone():
    judgement = judge(Synthetic(spec(cells(PAIR, [paced(), paced(10, 512)]), 2)))
    assert [table.load for table in judgement.tables] == ["100/s x 2048 B", "10/s x 512 B"]
    assert all(table.rows[0].label == "workload alone" for table in judgement.tables)


def test_results_without_any_channel_still_have_a_table():
    alone = cells(PAIR, [paced()])[0]
    judgement = judge(Synthetic(spec([alone], 2)))
    assert [row.label for row in judgement.tables[0].rows] == ["workload alone"]


def test_a_trial_that_left_no_files_gives_no_numbers_and_no_crash():
    class Bare(Synthetic):
        def exchanges(self, _: Trial) -> pl.DataFrame:
            return pl.DataFrame()

        frames = sensors = exchanges

    row = row_of(judge(Bare(results(2).spec)), "https AES-128-GCM")
    assert "rtt_ns.p50" not in row.estimates
    assert row.estimates["fps"].value == 0.0
    assert row.change("fps", "workload alone").effect.status == "no_data"


def test_a_judgement_is_plain_json():
    parsed = json.loads(judge(results(2, lost_share=0.5)).to_json())
    assert parsed["tables"][0]["rows"][0]["label"] == "workload alone"
    assert parsed["verdicts"]


def test_every_key_of_an_estimate_has_a_unit_and_a_title():
    for row in judge(results(2, gpu=True)).tables[0].rows:
        for key in row.estimates:
            assert metric_of(key).shown_unit
            assert title_of(key)
    assert title_of("rtt_ns.p95") == "RTT p95"


def test_a_channel_that_ran_only_without_a_workload_is_judged_too():
    only = Cell(channel("https"), paced(), NoWorkload())
    row = row_of(judge(Synthetic(spec([only], 2))), "https AES-128-GCM", "none")
    assert "fps" not in row.estimates
    assert row.estimates["rtt_ns.p50"].value is not None
    assert row.changes == []
    assert Detector().kind == "detector"


def test_a_frame_that_an_end_of_the_window_cuts_counts_in_part() -> None:
    from ciphertoll.judge.observe import _completed

    done = pl.Series([0, 400, 800, 1200, 1600], dtype=pl.UInt64)
    assert _completed(done, (0, 1000)) == pytest.approx(2.5)
    assert _completed(done, (200, 1000)) == pytest.approx(2.0)
    assert _completed(done, (1000, 9000)) == pytest.approx(1.5), "nothing is made up behind the last frame"
    assert _completed(pl.Series([500], dtype=pl.UInt64), (0, 1000)) == pytest.approx(1.0)
