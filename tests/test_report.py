"""What is printed, and above all what is not."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ciphertoll.judge import Judgement, judge
from ciphertoll.model import Estimate, Trial
from ciphertoll.report import page, show, text, words
from synthetic import Synthetic, cells, channel, paced, spec, spoiled

PAIR = [channel("http"), channel("https")]


def judged(blocks: int = 5, load=None, **more: object) -> Judgement:
    of = cells(PAIR, [load or paced()])
    return judge(Synthetic(spec(of, blocks, twins=[of[0]]), **more))  # type: ignore[arg-type]


def line_of(report: str, begin: str) -> str:
    return next(line for line in report.splitlines() if line.startswith(begin))


def test_a_wide_interval_prints_fewer_digits():
    assert show.value_text("fps", Estimate(28.123, 28.1, 28.146)) == "28.12"
    assert show.value_text("fps", Estimate(28.123, 26.1, 30.1)) == "28"
    assert show.value_text("fps", Estimate(28.123, 10.0, 70.0)) == "30"
    assert show.interval_text("fps", Estimate(28.123, 26.1, 30.1)) == "26–30"


def test_a_number_without_an_interval_has_three_digits():
    assert show.value_text("fps", Estimate(28.123)) == "28.1"
    assert show.value_text("rtt_ns.p50", Estimate(1_234_567.0)) == "1.23"
    assert show.value_text("cpu_percent", Estimate(0.0, 0.0, 0.0)) == "0.0"


def test_a_missing_upper_bound_is_said():
    assert show.interval_text("rtt_ns.p99", Estimate(9e6, 7e6, None, status="no_upper_bound")).startswith("≥ ")
    short = Estimate(None, n=60, status="insufficient_samples", lower_bound=3.2e6, n_required=368)
    assert (show.value_text("rtt_ns.p99", short), show.interval_text("rtt_ns.p99", short)) == ("–", "≥ 3.20")


def test_sixty_samples_never_print_a_p99():
    judgement = judged(1, paced(1, 512, 60))
    largest = [row.estimates["rtt_ns.p99"] for row in judgement.tables[0].rows if "rtt_ns.p99" in row.estimates]
    assert largest
    assert all(estimate.value is None for estimate in largest)
    report = text.render(judgement)
    assert "RTT p99 of 4 of 5 cells: not estimable, 60 of 368 samples" in report
    assert "7 blocks are needed, 37 min more" in " ".join(report.split())
    rows = [row for row in csv.DictReader(io.StringIO(text.to_csv(judgement))) if row["metric"] == "rtt_ns.p99"]
    assert {(row["value"], row["status"]) for row in rows} == {("", "insufficient_samples")}


def test_a_void_trial_is_counted_in_every_form_of_the_report():
    def void_once(trial: Trial) -> Trial:
        return spoiled(trial) if (trial.block, trial.cell.channel) == (1, PAIR[1]) else trial

    judgement = judged(change=void_once)
    report = text.render(judgement)
    assert "2 void: the processor was throttled" in report
    assert "1 void" in report
    assert "2 void: the processor was throttled" in page.render(judgement)


def test_when_every_trial_failed_the_report_says_so_and_prints_no_number():
    def fail(trial: Trial) -> Trial:
        return replace(trial, status="failed", reasons=("connection refused",))

    judgement = judged(change=fail)
    for report in (text.render(judgement), page.render(judgement)):
        assert "No trial is valid" in report
        assert "connection refused" in report
    assert "<svg" not in page.render(judgement)


def test_a_result_folder_without_trials_gives_a_page():
    source = Synthetic(spec(cells(PAIR, [paced()]), 1))
    source.trials.clear()
    assert "No trial is valid" in page.render(judge(source))
    empty = judge(Synthetic(spec([], 1)))
    assert "There are no cells" in page.render(empty)
    assert text.render(empty)


def test_hostile_labels_are_escaped_on_the_page():
    hostile = '<script>alert("x")</script>'

    def fail(trial: Trial) -> Trial:
        return replace(trial, status="failed", reasons=(hostile,)) if trial.block == 0 else trial

    judgement = judged(change=fail, provenance={hostile: {"machine": hostile}})
    judgement.name = hostile
    for row in judgement.tables[0].rows:
        row.label = row.suite = hostile
    rendered = page.render(judgement)
    assert "<script" not in rendered
    assert "&lt;script&gt;" in rendered


class _Outside(HTMLParser):
    """Collects whatever would make a browser ask for something, and unclosed tags."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.requests += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "data")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.requests += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_asks_for_nothing_and_closes_what_it_opens():
    rendered = page.render(judged(3, gpu=True))
    parser = _Outside()
    parser.feed(rendered)
    assert parser.requests == []
    assert parser.open == []
    assert not re.search(r"url\(|@import|<script|<link", rendered)


def test_every_plot_has_a_text_alternative():
    rendered = page.render(judged(5))
    plots = re.findall(r"<svg[^>]*>", rendered)
    assert len(plots) == 2
    assert all('role="img"' in plot and "https AES-128-GCM" in plot for plot in plots)


def test_a_decision_is_a_word_and_colour_only_repeats_it():
    judgement = judged(8)
    plain = text.render(judgement)
    coloured = text.render(judgement, colour=True)
    assert "worse" in line_of(plain, "https")
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain


def test_a_stream_that_is_no_terminal_gets_no_colour():
    stream = io.StringIO()
    text.print_to(stream, judged(2))
    assert "\x1b" not in stream.getvalue()


def test_the_tables_fit_a_terminal():
    longest = max(len(line) for line in text.render(judged(5, gpu=True)).splitlines())
    assert longest <= 120


def test_the_csv_has_one_line_per_cell_and_metric_and_per_change():
    judgement = judged(3)
    rows = list(csv.DictReader(io.StringIO(text.to_csv(judgement))))
    expected = sum(len(row.estimates) + len(row.changes) for table in judgement.tables for row in table.rows)
    assert len(rows) == expected
    fps = next(row for row in rows if (row["metric"], row["protocol"], row["against"]) == ("fps", "https", ""))
    assert float(fps["low"]) < float(fps["value"]) < float(fps["high"])
    assert (fps["n"], fps["unit"], fps["unit_of_n"]) == ("3", "1/s", "blocks")


def test_one_block_yields_a_verdict_that_asks_for_more():
    said = " ".join(words.sentences(judged(1)))
    assert "at least two blocks" in said
    assert "run at least 5 blocks" in said


def test_the_verdict_names_the_largest_resolved_cost_with_its_interval():
    said = words.sentences(judged(8))
    assert 2 <= len(said) <= 6
    assert re.search(r"largest resolved cost in FPS is −\d\.\d+ % \(.* to .* %\) for https AES-128-GCM", said[0])


def test_no_resolved_cost_is_said_with_the_bound_that_the_intervals_give():
    said = words.sentences(judged(5, paced(1, 512, 20)))
    assert re.search(r"No channel's FPS cost is resolved, and none exceeds \d\.\d %", said[0])


def test_a_missing_noise_floor_is_said():
    lines = words.floor_lines(judged(5))
    assert any("FPS: −" in line for line in lines)
    assert any("RTT p95: not measured" in line for line in lines)


GOLDEN = """\
channel                 FPS      FPS change            RTT        RTT        RTT      CPU   memory  n
                                    v alone         p50 ms     p95 ms     p99 ms        %        %
"""


def test_the_table_has_the_columns_of_the_published_ones():
    report = text.render(judged(4))
    head = report.split("with the workload\n", 1)[1].splitlines()[:2]
    assert [" ".join(line.split()) for line in head] == [" ".join(line.split()) for line in GOLDEN.splitlines()]
    row = report.splitlines()[report.splitlines().index(line_of(report, "https")) + 1]
    assert row.startswith("  AES-128-GCM")


@pytest.mark.parametrize(("ns", "said"), [(45e9, "45 s"), (720e9, "12 min"), (3.5 * 3600e9, "3.5 h"), (89.4e9, "89 s")])
def test_durations_read_like_durations(ns: float, said: str):
    assert show.duration_text(ns) == said


def test_a_time_keeps_one_significant_digit_however_wide_its_interval():
    estimate = Estimate(0.31e6, 0.1e6, 4.0e6, 300)
    assert show.value_text("rtt_ns.p95", estimate) == "0.3"
    assert show.interval_text("rtt_ns.p95", estimate) == "0.1–4.0"
