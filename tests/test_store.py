"""The result folder: complete, append-only, and refused where it is not what it seems."""

from __future__ import annotations

import errno
import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import synthetic
from ciphertoll import store
from ciphertoll.errors import BugError, MachineError, SpecError
from ciphertoll.judge import judge
from ciphertoll.model import NS, Cell, Command, Detector, Idle, NoWorkload, Sample, Spec, Trial

CELL = Cell(synthetic.channel("https"), synthetic.paced(rate_hz=0.3, seconds=3), Detector())
EVERYTHING = Spec(
    "all kinds",
    (
        CELL,
        *(Cell(channel, synthetic.paced(), NoWorkload()) for channel in synthetic.channels()),
        Cell(None, Idle(1, 2 * NS), Command(("ls", "-l"), affinity=(0, 1))),
    ),
    blocks=2,
    seed=5,
    twins=(CELL.id,),
    peer="server.json",
)


def samples_file(path: Path, rows: int = 3, version: int = 1, record_bytes: int = 40) -> Path:
    records = b"".join(struct.pack("<QQQQBBHI", 100 + n, 110 + n, 0, 150 + n, n % 6, n % 2, n, 0) for n in range(rows))
    path.write_bytes(b"ctsample" + struct.pack("<II", version, record_bytes) + records)
    return path


def landed(folder: Path, spec: Spec = EVERYTHING) -> tuple[store.Results, Trial]:
    results = store.create(folder / "r", spec, {"host": "here"})
    trial = Trial(CELL, 0, 0, 7, status="ok", window=(100, 200), facts={"counts": {"due": 3}, "pi": 3.5})
    frames = pl.DataFrame({name: [1] for name in store.frame_schema()}, schema=store.frame_schema())
    sensors = [Sample(120, "cpu_busy_ns", "machine", 2.0), Sample(100, "cpu_busy_ns", "machine", 1.0)]
    results.land(trial, samples_file(folder / "s.bin"), frames, sensors)
    return results, trial


def test_every_kind_of_spec_survives_json() -> None:
    read = store.spec_from_json(json.loads(json.dumps(store.spec_to_json(EVERYTHING))))
    assert read == EVERYTHING
    assert read.id == EVERYTHING.id


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda content: content.update(colour="red"), "field `colour` is unknown"),
        (lambda content: content.pop("seed"), "field `seed` is missing"),
        (lambda content: content.update(blocks="2"), "`2` is not of type int"),
        (lambda content: content.update(blocks=True), "`True` is not of type int"),
        (lambda content: content["cells"][0]["load"].update(kind="bursts"), "kind `bursts` is unknown"),
        (lambda content: content["cells"][0]["channel"].update(protocol="ftp"), "`ftp` is not accepted"),
    ],
)
def test_a_spec_with_a_wrong_field_is_refused(edit: object, what: str) -> None:
    content = store.spec_to_json(EVERYTHING)
    edit(content)  # type: ignore[operator]
    with pytest.raises(SpecError) as refused:
        store.spec_from_json(content)
    assert refused.value.what == what


def test_what_landed_is_read_back(tmp_path: Path) -> None:
    _, trial = landed(tmp_path)
    results = store.Results.open(tmp_path / "r")
    assert results.spec == EVERYTHING
    assert results.provenance == {"host": "here", "metrics_version": 1}
    assert results.trials == [trial]
    exchanges = results.exchanges(trial)
    assert dict(exchanges.schema) == store.exchange_schema()
    assert exchanges["due_ns"].to_list() == [100, 101, 102]
    assert exchanges["outcome"].to_list() == ["unfinished", "done", "timed_out"]
    assert exchanges["held"].to_list() == [False, True, False]
    assert dict(results.frames(trial).schema) == store.frame_schema()
    assert results.sensors(trial)["at_ns"].to_list() == [100, 120]


def test_a_trial_without_tables_reads_as_typed_empty_ones(tmp_path: Path) -> None:
    results = store.create(tmp_path / "r", EVERYTHING, {})
    trial = Trial(CELL, 1, 4, 7, status="failed", reasons=("it did not start",))
    results.land(trial, tmp_path / "absent", None, [])
    opened = store.Results.open(tmp_path / "r")
    assert dict(opened.exchanges(trial).schema) == store.exchange_schema()
    assert dict(opened.frames(trial).schema) == store.frame_schema()
    assert dict(opened.sensors(trial).schema) == store.sensor_schema()


def test_judge_reads_a_result_folder(tmp_path: Path) -> None:
    cell = Cell(synthetic.channel("https"), synthetic.paced(rate_hz=20, seconds=2), Detector())
    made = synthetic.Synthetic(synthetic.spec([cell], blocks=2))
    results = store.create(tmp_path / "r", made.spec, {})
    for trial in made.trials:
        table = made.exchanges(trial)
        path = tmp_path / "s.bin"
        rows = np.zeros((len(table), 40), dtype=np.uint8)
        rows[:, :32] = (
            table.select("due_ns", "sent_ns", "acked_ns", "done_ns").to_numpy(order="c").view(np.uint8).reshape(-1, 32)
        )
        rows[:, 32] = 1
        path.write_bytes(b"ctsample" + struct.pack("<II", 1, 40) + rows.tobytes())
        sensors = [Sample(*row) for row in made.sensors(trial).iter_rows()]
        results.land(trial, path, made.frames(trial), sensors)
    assert judge(store.Results.open(tmp_path / "r")).tables == judge(made).tables


def test_the_plan_is_written_once(tmp_path: Path) -> None:
    results = store.create(tmp_path / "r", EVERYTHING, {})
    assert results.plan == []
    planned = [Trial(cell, 0, order, order) for order, cell in enumerate(EVERYTHING.cells)]
    results.keep_plan(planned)
    results.keep_plan([])
    assert store.Results.open(tmp_path / "r").plan == planned


def test_a_trial_lands_once(tmp_path: Path) -> None:
    results, trial = landed(tmp_path)
    with pytest.raises(BugError):
        results.land(replace(trial, status="void"), None, None, [])
    assert store.Results.open(tmp_path / "r").trials == [trial]


def test_a_full_disk_leaves_no_part_of_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, trial = landed(tmp_path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="No space left on device") as refused:
        results.land(replace(trial, order=1), None, None, [])
    assert refused.value.hint
    assert [entry.name for entry in (tmp_path / "r" / "trials").iterdir()] == [trial.id]
    assert results.trials == [trial]


def test_a_part_left_by_a_crash_is_not_a_trial(tmp_path: Path) -> None:
    results, trial = landed(tmp_path)
    crashed = tmp_path / "r" / "trials" / f".partial-{replace(trial, order=1).id}"
    crashed.mkdir()
    (crashed / "trial.json").write_text("{")
    assert store.Results.open(tmp_path / "r").trials == [trial]
    results.land(replace(trial, order=1), None, None, [])
    assert not crashed.exists()


def test_a_folder_with_something_in_it_is_not_begun(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(SpecError, match="not an empty folder"):
        store.create(tmp_path, EVERYTHING, {})
    landed(tmp_path)
    with pytest.raises(SpecError) as refused:
        store.create(tmp_path / "r", EVERYTHING, {})
    assert "--resume" in (refused.value.hint or "")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="the result folder cannot be written"):
        store.create(tmp_path / "file" / "r", EVERYTHING, {})


def test_a_folder_without_a_run_is_not_a_result_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not a result folder"):
        store.Results.open(tmp_path)


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    landed(tmp_path)
    file = tmp_path / "r" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema_version": 9}))
    with pytest.raises(MachineError, match="schema version `9`, this build reads version `1`"):
        store.Results.open(tmp_path / "r")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    _, trial = landed(tmp_path)
    file = tmp_path / "r" / "trials" / trial.id / "trial.json"
    for content in ("{", '{"cell": 1}'):
        file.write_text(content)
        with pytest.raises(MachineError, match="the file is damaged") as refused:
            store.Results.open(tmp_path / "r")
        assert str(file) in (refused.value.at or "")


def test_resuming_under_another_spec_names_both(tmp_path: Path) -> None:
    landed(tmp_path)
    other = replace(EVERYTHING, seed=6)
    with pytest.raises(SpecError) as refused:
        store.Results.resume(tmp_path / "r", other)
    assert EVERYTHING.id in refused.value.what
    assert other.id in refused.value.what
    assert store.Results.resume(tmp_path / "r", EVERYTHING).trials


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda _: b"", "not a samples file"),
        (lambda _: b"x" * 16, "not a samples file"),
        (lambda content: content[:8] + b"\x02" + content[9:], "version `2`, this build reads version `1`"),
        (lambda content: content[:-1], "end within a record"),
        (lambda content: content[:-8] + b"\x09" + content[-7:], "outcome `9`"),
    ],
)
def test_a_samples_file_of_another_kind_is_refused(tmp_path: Path, edit: object, what: str) -> None:
    path = samples_file(tmp_path / "s.bin")
    path.write_bytes(edit(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(MachineError, match=what):
        store.read_samples(path)
