"""Which cell is compared with which, and what each is called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from ciphertoll.model import TWIN_OF, Cell, Channel, NoWorkload, Workload


def loads(cells: Sequence[Cell]) -> list[str]:
    """Labels of the loads of cells with a channel, in the order of the spec; without such cells, of all."""
    with_channel = [cell for cell in cells if cell.channel is not None]
    return list(dict.fromkeys(cell.load.label for cell in with_channel or cells))


def cells_of(cells: Sequence[Cell], load: str) -> list[Cell]:
    """The cells of a load, the workloads alone first: one that has no traffic belongs to every load."""
    alone = [cell for cell in cells if cell.channel is None]
    return alone + [cell for cell in cells if cell.channel is not None and cell.load.label == load]


def workload_alone(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    if cell.channel is None or cell.workload.kind == "none":
        return None
    fit = [other for other in cells if other.channel is None and _place(other) == _place(cell)]
    # Several differ in how long they ran: an equally long one is the fairer base.
    return min(fit, key=lambda other: abs(other.load.duration_ns - cell.load.duration_ns), default=None)


def unprotected(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """The same exchange without security: equal settings, except that h3 has no HTTP version to share."""
    channel = cell.channel
    if channel is None or channel.security is None:
        return None
    for other in cells:
        twin = other.channel
        if twin is None or twin.security is not None or _place(other) != _place(cell):
            continue
        same_http = channel.protocol == "h3" or twin.http == channel.http
        if twin.protocol == TWIN_OF[channel.protocol] and same_http and _same_settings(twin, channel):
            return other
    return None


def _same_settings(one: Channel, other: Channel) -> bool:
    return (one.mqtt, one.coap) == (other.mqtt, other.coap)


def without_workload(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    if cell.channel is None or cell.workload.kind == "none":
        return None
    wanted = (cell.channel, NoWorkload(), cell.link, cell.device)
    return next((c for c in cells if (c.channel, c.workload, c.link, c.device) == wanted), None)


def _place(cell: Cell) -> tuple[object, ...]:
    return (cell.workload, cell.link, cell.device)


def names(cells: Sequence[Cell]) -> dict[str, tuple[str, str]]:
    """Label and suite of each cell; where two channels would read alike, with the settings that differ."""
    alike: dict[str, set[Channel]] = defaultdict(set)
    for cell in cells:
        if cell.channel is not None:
            alike[cell.channel.label].add(cell.channel)
    found = {}
    for cell in cells:
        if cell.channel is None:
            found[cell.id] = ("workload alone", "none")
            continue
        group = [set(_settings(channel)) for channel in alike[cell.channel.label]]
        own = [text for text in _settings(cell.channel) if not all(text in settings for settings in group)]
        found[cell.id] = (" ".join([cell.channel.label, *own]), " ".join([cell.channel.suite_label, *own]))
    return found


def workload_names(cells: Iterable[Cell]) -> dict[Workload, str]:
    """The kind of each workload; where a kind occurs with several settings, with those that differ."""
    distinct = list(dict.fromkeys(cell.workload for cell in cells))
    found = {}
    for workload in distinct:
        group = [set(map(str, asdict(other).items())) for other in distinct if other.kind == workload.kind]
        own = [
            f"{name} {value}"
            for name, value in asdict(workload).items()
            if not all(str((name, value)) in settings for settings in group)
        ]
        found[workload] = " ".join([workload.kind, *own])
    return found


def _settings(channel: Channel) -> list[str]:
    found = [f"HTTP/{channel.http}"] if channel.http else []
    if channel.security is not None:
        own = channel.security
        found += [own.version, own.group, own.certificate, own.library]
    if channel.mqtt is not None:
        found += [f"MQTT {channel.mqtt.version}", f"QoS {channel.mqtt.qos}"]
    if channel.coap is not None:
        kind = "confirmable" if channel.coap.confirmable else "non-confirmable"
        found += [kind, f"NSTART {channel.coap.nstart}", f"{channel.coap.datagram_bytes} B datagrams"]
    return found
