"""From choices to a Spec: layers laid over each other, axes multiplied, limits checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from ciphertoll.errors import SpecError
from ciphertoll.model import (
    EXCHANGE_TIMEOUT_NS,
    NS,
    Cell,
    Command,
    Detector,
    Device,
    Idle,
    NoWorkload,
    Paced,
    Spec,
    Workload,
)
from ciphertoll.spec import presets
from ciphertoll.spec.channels import Offer, channels
from ciphertoll.spec.settings import Choices, Given
from ciphertoll.spec.values import shown

# A lane of a protocol that cannot multiplex is a connection: this many fit into the usual limit of 1,024 open files.
_IN_FLIGHT = (64, 960)
# A value that was given nearer to the user than another replaces it.
_REPLACED_BY = {
    "load.pairs": ("load.rate", "load.size"),
    "load.rate": ("load.pairs",),
    "load.size": ("load.pairs",),
    "load.duration_without_workload": ("load.duration",),
    "load.warm_up_without_workload": ("load.warm_up",),
}
_DETECTOR_ONLY = ("model", "video", "provider", "threads", "confidence", "iou", "spinning")


def build(*layers: Choices, offer: Offer | None = None) -> Spec:
    """The Spec of some layers of choices; a later layer goes over an earlier one, and all over a preset.

    offer   what the engine can do, as its `channels` says; None if that is not known.

    Raises SpecError for what cannot be.
    """
    choices = _laid(layers)
    found = channels(choices, offer)
    loads, workloads, device = _loads(choices), _workloads(choices), _device(choices)
    cells = [
        Cell(channel, _beside(load, workload, choices), workload, device=device)
        for workload, load, channel in product(workloads, loads, found)
    ]
    alone = [
        Cell(None, Idle(*spans), workload, device=device)
        for workload in workloads
        if workload.kind != "none"
        for spans in dict.fromkeys((load.warm_up_ns, load.duration_ns) for load in loads)
    ]
    host, token = (_value(choices, key) for key in ("server.host", "server.token"))
    return Spec(
        name=choices["name"].value,
        cells=(*alone, *cells),
        blocks=choices["blocks"].value,
        seed=choices["seed"].value,
        twins=_twins(alone, cells, workloads),
        sensor_interval_ns=choices["sensor_interval"].value,
        retries=choices["retries"].value,
        peer=_peer(choices, host, token),
        peer_host=host,
    )


def measured_ns(spec: Spec) -> int:
    """The measured time of all trials together, warm-ups left out."""
    of = {cell.id: cell.load.duration_ns for cell in spec.cells}
    return spec.blocks * (sum(of.values()) + sum(of[twin] for twin in spec.twins))


def _laid(layers: Sequence[Choices]) -> dict[str, Given]:
    """One layer, in which what was given nearer to the user replaces the rest."""
    given: dict[str, Given] = {}
    for layer in layers:
        given |= layer
    preset = given.get("preset", Given("quick", "--preset", 0))
    over = {**presets.choices(preset.value, preset.at), **given}
    over.setdefault("name", Given(preset.value, preset.at, 0))
    kept = {key: own for key, own in over.items() if not _replaced(key, own, over)}
    if "load.pairs" not in kept and "load.pairs" in over:
        # Only one of rate and size was given: the other stays what the pairs had.
        for index, key in enumerate(("load.rate", "load.size")):
            pairs = over["load.pairs"]
            kept.setdefault(key, replace(pairs, value=list(dict.fromkeys(pair[index] for pair in pairs.value))))
    return kept


def _replaced(key: str, own: Given, over: Choices) -> bool:
    return any(other in over and over[other].rank > own.rank for other in _REPLACED_BY.get(key, ()))


def _value(choices: Choices, key: str) -> Any:
    return choices[key].value if key in choices else None


def _loads(choices: Choices) -> list[Paced]:
    if "load.pairs" in choices:
        pairs = choices["load.pairs"].value
    else:
        pairs = list(product(choices["load.rate"].value, choices["load.size"].value))
    warm_up_ns, duration_ns = choices["load.warm_up"].value, choices["load.duration"].value
    return [
        Paced(rate, size, warm_up_ns, duration_ns, _value(choices, "load.in_flight") or _in_flight(rate))
        for rate, size in pairs
    ]


def _beside(load: Paced, workload: Workload, choices: Choices) -> Paced:
    """The load beside `workload`: without one, trials may be shorter."""
    warm_up, duration = choices["load.warm_up"], choices["load.duration"]
    if workload.kind == "none":
        warm_up = choices.get("load.warm_up_without_workload", warm_up)
        duration = choices.get("load.duration_without_workload", duration)
    _check_spans(warm_up, duration)
    return replace(load, warm_up_ns=warm_up.value, duration_ns=duration.value)


def _check_spans(warm_up: Given, duration: Given) -> None:
    if duration.value < warm_up.value:
        nearer = max(warm_up, duration, key=lambda given: given.rank)
        raise SpecError(
            f"duration `{shown(duration.value)}` is shorter than the warm-up `{shown(warm_up.value)}`",
            at=nearer.at,
            accepted=[f"a duration of {shown(warm_up.value)} or more"],
            hint="the duration does not contain the warm-up; set --warm-up too",
        )


def _in_flight(rate_hz: float) -> int:
    """Enough never to hold the schedule back until an exchange times out, within what one process can open."""
    least, most = _IN_FLIGHT
    return min(max(least, math.ceil(rate_hz * EXCHANGE_TIMEOUT_NS / NS)), most)


def _workloads(choices: Choices) -> list[Workload]:
    kinds = choices["workload.kind"].value
    asked = [choices[f"workload.{name}"] for name in _DETECTOR_ONLY if f"workload.{name}" in choices]
    if asked and "detector" not in kinds:
        raise SpecError("this setting belongs to the workload `detector`, which is not chosen", at=asked[0].at)
    cpus = _value(choices, "workload.cpus") or ()
    own = {name: choices[f"workload.{name}"].value for name in _DETECTOR_ONLY if f"workload.{name}" in choices}
    found: list[Workload] = []
    for kind in kinds:
        if kind == "detector":
            found.append(Detector(**own, affinity=cpus))
        else:
            found.append(NoWorkload() if kind == "none" else Command(kind, cpus))
    return found


def _device(choices: Choices) -> Device:
    keys = {"name": "device.name", "engine_cpus": "device.engine_cpus", "server_cpus": "device.server_cpus"}
    return Device(**{field: choices[key].value for field, key in keys.items() if key in choices})


def _twins(alone: Sequence[Cell], cells: Sequence[Cell], workloads: Sequence[Workload]) -> tuple[str, ...]:
    """The baselines that stand in each block twice: the workload alone, and per load the first channel beside the
    first workload, which is an unprotected one where there are any."""
    beside = [cell for cell in cells if cell.workload == workloads[0]]
    first = {cell.load.label: cell for cell in reversed(beside)}
    loads = dict.fromkeys(cell.load.label for cell in beside)
    return tuple(cell.id for cell in (*alone[:1], *(first[load] for load in loads)))


def _peer(choices: Choices, host: str | None, token: str | None) -> str | None:
    if host and not token:
        raise SpecError(
            f"server `{host}` needs its token",
            at=choices["server.host"].at,
            hint="copy the file that `ciphertoll serve` wrote there, and name it with --token",
        )
    return token
