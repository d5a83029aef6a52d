"""The lines in schema/golden are what both languages write and read."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ciphertoll import engine
from ciphertoll.engine import child
from ciphertoll.errors import BugError, MachineError
from ciphertoll.model import Channel, Idle, Load, Paced
from fake_engine import real

GOLDEN = Path(__file__).resolve().parent.parent / "schema" / "golden"
JOBS = [json.loads(line) for line in (GOLDEN / "jobs.jsonl").read_text().splitlines()]
EVENTS = [json.loads(line) for line in (GOLDEN / "events.jsonl").read_text().splitlines()]


def rebuilt(wire: dict[str, Any]) -> dict[str, Any]:
    """The job of a golden line, made by engine.py from nouns."""
    pin_cpus = tuple(wire["pin_cpus"])
    if serve := wire["task"].get("serve"):
        listeners = tuple((engine.channel_from_wire(one["channel"]), one["port"]) for one in serve["listeners"])
        return engine.ServeJob(listeners, serve["bind"], tuple(serve["names"]), pin_cpus).to_wire()
    load = wire["task"]["load"]
    return engine.LoadJob(
        engine.channel_from_wire(load["channel"]),
        engine.Peer(**load["peer"]),
        load_of(load["load"]),
        Path(load["samples"]),
        pin_cpus,
        load["connect_timeout_ns"],
        load["exchange_timeout_ns"],
    ).to_wire()


def load_of(wire: dict[str, Any]) -> Load:
    return Paced(**wire["paced"]) if "paced" in wire else Idle(**wire["idle"])


def label(content: dict[str, Any]) -> str:
    return str(content.get("event") or next(iter(content["task"])))


@pytest.mark.parametrize("wire", JOBS, ids=label)
def test_python_writes_the_golden_jobs(wire: dict[str, Any]) -> None:
    assert rebuilt(wire) == wire


def test_every_protocol_and_load_has_a_golden_job() -> None:
    loads = [job["task"]["load"] for job in JOBS if "load" in job["task"]]
    served = {one["channel"]["protocol"] for one in JOBS[0]["task"]["serve"]["listeners"]}
    protocols = {"http", "https", "h3", "mqtt", "mqtts", "coap", "coaps"}
    assert served == {load["channel"]["protocol"] for load in loads} == protocols
    assert {kind for load in loads for kind in load["load"]} == {"paced", "idle"}


@pytest.mark.parametrize("wire", JOBS[0]["task"]["serve"]["listeners"], ids=lambda wire: wire["channel"]["protocol"])
def test_a_channel_survives_the_wire(wire: dict[str, Any]) -> None:
    assert engine.channel_from_wire(wire["channel"]).to_wire() == wire["channel"]


def test_a_channel_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(BugError, match="colour"):
        engine.channel_from_wire({**Channel("http", http="1.1").to_wire(), "colour": "red"})


@pytest.mark.parametrize("event", EVENTS, ids=label)
def test_python_reads_the_golden_events(event: dict[str, Any]) -> None:
    assert engine.parse_event(json.dumps(event)) == event


def places(content: Any) -> list[dict[str, Any]]:
    """Every object in a line, outermost first; a channel is judged by `channel_from_wire`."""
    if isinstance(content, list):
        return [place for item in content for place in places(item)]
    if not isinstance(content, dict):
        return []
    return [content, *(place for name, item in content.items() if name != "channel" for place in places(item))]


@pytest.mark.parametrize("event", EVENTS, ids=label)
def test_an_event_with_one_field_more_or_less_is_refused(event: dict[str, Any]) -> None:
    for n in range(len(places(event))):
        longer, shorter = json.loads(json.dumps(event)), json.loads(json.dumps(event))
        places(longer)[n]["colour"] = "red"
        places(shorter)[n].popitem()
        for wrong in (longer, shorter):
            with pytest.raises((BugError, MachineError)):
                engine.parse_event(json.dumps(wrong))


def test_every_event_of_the_engine_has_a_golden_line() -> None:
    assert {event["event"] for event in EVENTS} == set(child.EVENTS)


@real
@pytest.mark.parametrize("wire", JOBS, ids=label)
def test_the_engine_understands_the_golden_jobs(wire: dict[str, Any]) -> None:
    command = next(iter(wire["task"]))
    said = ask(command, without_place(wire))
    assert said["event"] != "refused", said


@real
@pytest.mark.parametrize("wire", JOBS, ids=label)
def test_the_engine_refuses_a_golden_job_with_an_unknown_field(wire: dict[str, Any]) -> None:
    command = next(iter(wire["task"]))
    wrong = without_place(wire)
    wrong["task"][command]["colour"] = "red"
    said = ask(command, wrong)
    assert said["event"] == "refused"
    assert "colour" in said["what"]


def without_place(wire: dict[str, Any]) -> dict[str, Any]:
    """The job on no particular processor, with a samples file that cannot be written: it is understood, then ends."""
    job: dict[str, Any] = json.loads(json.dumps(wire))
    job["pin_cpus"] = []
    if "load" in job["task"]:
        job["task"]["load"]["samples"] = "/nonexistent/samples.bin"
    return job


def ask(command: str, job: dict[str, Any]) -> dict[str, Any]:
    """What the engine says to a job, after its hello."""
    with subprocess.Popen([engine.find(), command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asked:
        assert asked.stdin
        assert asked.stdout
        asked.stdin.write(json.dumps(job).encode() + b"\n")
        asked.stdin.flush()
        engine.parse_event(asked.stdout.readline())
        said = engine.parse_event(asked.stdout.readline())
        asked.kill()
    return said
