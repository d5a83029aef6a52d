"""Every setting once: its key in TOML, its option, how it is read and what it means.

The command line, the TOML reader and docs/spec.md all follow this table.
"""

from __future__ import annotations

import difflib
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ciphertoll.errors import SpecError, unknown
from ciphertoll.model import NS
from ciphertoll.spec import names
from ciphertoll.spec.values import Reader, flag, many, name, number, processors, span, text


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that a user can set.

    key      in TOML, dotted.
    option   on the command line; None if it is in TOML only.
    read     from text or a TOML value to the value.
    help     one line, for `--help`.
    metavar  what stands behind the option in `--help`; None for a flag.
    """

    key: str
    option: str | None
    read: Reader
    help: str
    metavar: str | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """A value, where it was given, and how near to the user: 0 preset, 1 file, 2 command line."""

    value: Any
    at: str
    rank: int


# By key. A missing key was given nowhere.
Choices = Mapping[str, Given]

WORKLOADS = ("detector", "none")


def _pair(value: Any, at: str) -> tuple[float, int]:
    """`100x2048`: 100 exchanges per second of 2048 bytes."""
    rate, cross, size = str(value).partition("x")
    if not cross:
        raise SpecError(f"load `{value}` is no rate and size", at=at, accepted=["1x512", "100x2048"])
    return _rate(rate.strip(), at), _size(size.strip(), at)


def _workload(value: Any, at: str) -> str | tuple[str, ...]:
    """`detector`, `none`, or the words of a command."""
    if isinstance(value, dict):
        value = value.get("command")
    words = shlex.split(value) if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise SpecError(
            f"workload `{value}` is neither a name nor a command", at=at, accepted=[*WORKLOADS, "a command"]
        )
    if len(words) == 1 and words[0] in WORKLOADS:
        return str(words[0])
    near = difflib.get_close_matches(words[0], WORKLOADS, n=1, cutoff=0.6)
    if len(words) == 1 and near and shutil.which(words[0]) is None:
        raise unknown("workload", words[0], (*WORKLOADS, "a command"), at=at)
    return tuple(words)


def _workloads(value: Any, at: str) -> list[str | tuple[str, ...]]:
    """One, or several in a list; `detector,none` is a list too, other commas belong to a command."""
    if isinstance(value, str) and set(parts := value.split(",")) <= set(WORKLOADS):
        value = parts
    items = value if isinstance(value, list) else [value]
    return list(dict.fromkeys(found for item in items for found in _flattened(item, at)))


def _flattened(item: Any, at: str) -> list[str | tuple[str, ...]]:
    several = isinstance(item, str) and "," in item and set(item.split(",")) <= set(WORKLOADS)
    return [_workload(part, at) for part in (item.split(",") if several else [item])]


_rate = number("rate", 0.1, 10_000, unit=" per second")
_size = number("size", 1, 1 << 20, whole=True, unit=" bytes")
_VERSION_ALIASES = {"1.3": names.TLS_1_3, "tls1.3": names.TLS_1_3, "1.2": names.DTLS_1_2}

SETTINGS = (
    Setting("preset", "--preset", text("preset"), "where to begin: `quick` or `paper`", "NAME"),
    Setting("name", None, text("name"), "what to call this spec"),
    Setting(
        "channel.protocol",
        "--protocol",
        many(name("protocol", names.PROTOCOLS)),
        "https, h3, mqtts, coaps, or unprotected http, mqtt, coap",
        "P,..",
    ),
    Setting(
        "channel.suite",
        "--suite",
        many(name("suite", names.SUITE_NAMES, names.SUITE_ALIASES)),
        "aes128, aes256, chacha20, or IANA names",
        "S,..",
    ),
    Setting(
        "channel.group",
        "--group",
        many(name("group", names.GROUPS)),
        "key exchange: X25519, X25519MLKEM768, ..",
        "G,..",
    ),
    Setting(
        "channel.certificate",
        "--certificate",
        many(name("certificate", names.CERTIFICATES)),
        "ECDSA-P256, Ed25519, RSA-2048, ML-DSA-65, ..",
        "C,..",
    ),
    Setting(
        "channel.library",
        "--library",
        many(name("library", names.LIBRARIES)),
        "rustls; for coaps wolfssl or dimpl",
        "L,..",
    ),
    Setting(
        "channel.tls",
        "--tls",
        many(name("version", names.VERSIONS, _VERSION_ALIASES)),
        "tls1.3, dtls1.3, dtls1.2",
        "V,..",
    ),
    Setting("channel.http", "--http", many(name("HTTP version", ("1.1", "2"))), "1.1, 2 (for http and https)", "V,.."),
    Setting(
        "channel.mqtt_version",
        "--mqtt-version",
        many(name("MQTT version", ("3.1.1", "5.0"), {"5": "5.0"})),
        "3.1.1, 5.0",
        "V,..",
    ),
    Setting("channel.qos", "--qos", many(number("QoS", 0, 1, whole=True)), "of MQTT: 0, 1", "N,.."),
    Setting(
        "channel.coap",
        "--coap",
        many(name("CoAP message type", ("con", "non"), {"confirmable": "con", "non-confirmable": "non"})),
        "con or non: (non-)confirmable messages",
        "TYPE,..",
    ),
    Setting(
        "channel.nstart",
        "--nstart",
        many(number("NSTART", 0, 65_535, whole=True)),
        "CoAP exchanges at once; 0: as many as are due",
        "N,..",
    ),
    Setting(
        "channel.datagram",
        "--datagram",
        many(number("datagram size", 256, 65_507, whole=True, unit=" bytes")),
        "largest CoAP datagram, bytes",
        "N,..",
    ),
    Setting("channel.baselines", "--baselines", flag("baselines"), "also the unprotected twin of each protocol"),
    Setting("load.rate", "--rate", many(_rate), "exchanges per second, 0.1 to 10,000", "R,.."),
    Setting("load.size", "--size", many(_size), "bytes each way, 1 to 1,048,576", "N,.."),
    Setting("load.pairs", "--pairs", many(_pair), "rate and size together, not every combination", "RxN,.."),
    Setting("load.duration", "--duration", span("duration", shortest_ns=1), "measured time of a trial", "TIME"),
    Setting("load.warm_up", "--warm-up", span("warm-up"), "time before it, dropped", "TIME"),
    Setting(
        "load.duration_without_workload",
        "--duration-without-workload",
        span("duration", shortest_ns=1),
        "the same where nothing runs beside the traffic",
        "TIME",
    ),
    Setting(
        "load.warm_up_without_workload",
        "--warm-up-without-workload",
        span("warm-up"),
        "the same where nothing runs beside the traffic",
        "TIME",
    ),
    Setting(
        "load.in_flight",
        "--in-flight",
        number("in_flight", 1, 65_535, whole=True),
        "exchanges under way at once, at most",
        "N",
    ),
    Setting("workload.kind", "--workload", _workloads, "detector, none, or a command that prints a line per unit", "W"),
    Setting(
        "workload.model", "--model", text("model"), "builtin, a .onnx or .tflite file, or a name like yolo11n", "M"
    ),
    Setting("workload.video", "--video", text("video"), "builtin, a file, a folder of frames, a camera's index", "V"),
    Setting("workload.provider", "--provider", text("provider"), "cpu, cuda, tensorrt, ..", "P"),
    Setting("workload.threads", "--threads", number("threads", 0, 1024, whole=True), "0: half the processors", "N"),
    Setting("workload.confidence", "--confidence", number("confidence", 0, 1), "least score of a detection", "X"),
    Setting("workload.iou", "--iou", number("iou", 0, 1), "overlap above which detections are one", "X"),
    Setting("workload.spinning", "--spinning", flag("spinning"), "idle threads of the runtime spin"),
    Setting("workload.cpus", "--workload-cpus", processors, "processors of the workload", "LIST"),
    Setting("device.name", None, text("device"), "what to call the machine under test"),
    Setting("device.engine_cpus", "--engine-cpus", processors, "processors of the sending engine: 0,2-3", "LIST"),
    Setting("device.server_cpus", "--server-cpus", processors, "processors of the server", "LIST"),
    Setting("server.host", "--server", text("server"), "where `ciphertoll serve` runs", "HOST"),
    Setting("server.token", "--token", text("token"), "the token that it wrote", "FILE"),
    Setting("blocks", "--blocks", number("blocks", 1, 10_000, whole=True), "how often every cell is measured", "N"),
    Setting("seed", "--seed", number("seed", 0, 2**63 - 1, whole=True), "of the order of the trials", "N"),
    Setting(
        "retries", "--retries", number("retries", 0, 100, whole=True), "how often a spoiled trial is repeated", "N"
    ),
    Setting(
        "sensor_interval",
        "--sensor-interval",
        span("sensor interval", shortest_ns=NS // 10),
        "time between sensor samples, 100ms or more",
        "TIME",
    ),
)

BY_KEY = {setting.key: setting for setting in SETTINGS}
