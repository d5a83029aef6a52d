"""The nouns. If you read one file, read this.

A Spec says what to vary; its Cells are the combinations; a Trial is one timed execution of a Cell; what was
observed are Samples (in Parquet files beside the trial); a Verdict answers one question about them.

Times are integers: nanoseconds of CLOCK_MONOTONIC, the same clock in the engine, in files and here.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 1
NS = 1_000_000_000
# Longest time to connect, handshake included, and from due to done of one exchange.
CONNECT_TIMEOUT_NS = 5 * NS
EXCHANGE_TIMEOUT_NS = 5 * NS

Protocol = Literal["http", "https", "h3", "mqtt", "mqtts", "coap", "coaps"]
SECURED: tuple[Protocol, ...] = ("https", "h3", "mqtts", "coaps")
# The unprotected twin of each secured protocol: what the same exchange costs without security.
TWIN_OF: dict[str, Protocol] = {"https": "http", "h3": "http", "mqtts": "mqtt", "coaps": "coap"}


@dataclass(frozen=True, slots=True)
class Security:
    """What protects a channel: exactly one of each. Names as the engine's `channels` prints them."""

    version: str  # "TLS 1.3", "DTLS 1.3", "DTLS 1.2"
    suite: str  # IANA name
    group: str = "X25519"
    certificate: str = "ECDSA-P256"
    library: str = "rustls"


@dataclass(frozen=True, slots=True)
class Mqtt:
    """MQTT settings. qos is 0 or 1."""

    version: str = "3.1.1"
    qos: int = 1


@dataclass(frozen=True, slots=True)
class Coap:
    """CoAP settings. nstart 0: as many exchanges at once as the load has under way."""

    confirmable: bool = True
    nstart: int = 0
    datagram_bytes: int = 1400


@dataclass(frozen=True, slots=True)
class Channel:
    """How bytes are protected. `http`, `mqtt`, `coap` are None where the protocol is another one."""

    protocol: Protocol
    security: Security | None = None
    http: str | None = None  # "1.1" or "2"; http and https only
    mqtt: Mqtt | None = None  # mqtt and mqtts only
    coap: Coap | None = None  # coap and coaps only

    def to_wire(self) -> dict[str, Any]:
        """This channel as the engine reads it: only the fields that its protocol has."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @property
    def suite_label(self) -> str:
        """Short name of the suite for tables; "none" where unprotected."""
        if self.security is None:
            return "none"
        for short, part in (("AES-128-GCM", "AES_128"), ("AES-256-GCM", "AES_256"), ("ChaCha20-Poly1305", "CHACHA20")):
            if part in self.security.suite:
                return short
        return self.security.suite

    @property
    def label(self) -> str:
        """One line for people, unique among the channels of one protocol and suite that have default settings."""
        return self.protocol if self.security is None else f"{self.protocol} {self.suite_label}"


@dataclass(frozen=True, slots=True)
class Paced:
    """Open loop: an exchange is due every 1 / rate_hz seconds, whether or not the last is done.

    rate_hz 0.1 .. 10,000; size_bytes 1 .. 1,048,576, each direction; in_flight >= 1.
    """

    rate_hz: float
    size_bytes: int
    warm_up_ns: int
    duration_ns: int
    in_flight: int
    kind: Literal["paced"] = "paced"

    @property
    def label(self) -> str:
        return f"{self.rate_hz:g}/s x {self.size_bytes} B"


@dataclass(frozen=True, slots=True)
class Idle:
    """No traffic: with a channel, connected and silent; without one, no engine at all."""

    warm_up_ns: int
    duration_ns: int
    kind: Literal["idle"] = "idle"

    @property
    def label(self) -> str:
        return "idle"


Load = Paced | Idle


@dataclass(frozen=True, slots=True)
class NoWorkload:
    """Nothing beside the traffic."""

    kind: Literal["none"] = "none"


@dataclass(frozen=True, slots=True)
class Detector:
    """An object detector on a video.

    model, video  "builtin", or a path; video may also be a folder of frames or a camera index.
    threads       threads of the runtime; 0 means half the cores, at least one (findings in docs/detector.md).
    affinity      processors it may run on; empty leaves the choice to the kernel.
    """

    model: str = "builtin"
    video: str = "builtin"
    provider: str = "cpu"
    threads: int = 0
    spinning: bool = False
    affinity: tuple[int, ...] = ()
    confidence: float = 0.5
    iou: float = 0.6
    kind: Literal["detector"] = "detector"


@dataclass(frozen=True, slots=True)
class Command:
    """Any program that prints one line per unit of work."""

    argv: tuple[str, ...]
    affinity: tuple[int, ...] = ()
    kind: Literal["command"] = "command"


Workload = NoWorkload | Detector | Command


@dataclass(frozen=True, slots=True)
class Link:
    """The path. "real" means untouched."""

    kind: Literal["real"] = "real"


@dataclass(frozen=True, slots=True)
class Device:
    """The machine under test and where its processes run (processor lists; empty: the kernel chooses)."""

    name: str = "local"
    engine_cpus: tuple[int, ...] = ()
    server_cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """One Channel x Load x Workload x Link x Device."""

    channel: Channel | None
    load: Load
    workload: Workload
    link: Link = field(default_factory=Link)
    device: Device = field(default_factory=Device)

    @property
    def id(self) -> str:
        """12 hexadecimal digits of a hash of the content."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """For progress lines."""
        what = self.channel.label if self.channel else "workload alone"
        beside = "" if self.workload.kind != "none" else " (no workload)"
        return f"{what}, {self.load.label}{beside}" if self.channel else what


Status = Literal["planned", "ok", "unsupported", "failed", "void"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One timed execution of a Cell.

    twin      the second appearance of a baseline cell in a block (A/A twin).
    attempt   0, or how many earlier attempts of the same place in the plan were void.
    status    "void": the machine spoiled it; kept, counted, left out of statistics.
    reasons   why it is not "ok", in words; empty otherwise.
    window    [from, to) of the measured time, ns; None if it never began.
    facts     what is needed to judge and to audit: negotiated parameters per connection, counts, own usage,
              where each process ran, versions of the workload's runtime. JSON values only.
    """

    cell: Cell
    block: int
    order: int
    seed: int
    twin: bool = False
    attempt: int = 0
    status: Status = "planned"
    reasons: tuple[str, ...] = ()
    window: tuple[int, int] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Unique in a result folder, sorts in the order of the plan."""
        return f"b{self.block:03d}-o{self.order:03d}-{self.cell.id}{'-twin' if self.twin else ''}-a{self.attempt}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One observed number. Its unit is that of its metric in the registry."""

    at_ns: int
    metric: str
    where: str
    value: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with what the data supports of its interval.

    value        None if it may not be printed.
    low, high    ends of the interval; None where the data gives no bound on that side.
    n            what it rests on (samples or blocks, as `unit_of_n` says).
    status       "ok", "no_upper_bound", "insufficient_samples", "no_data".
    lower_bound  a value that the quantity exceeds, where no estimate is possible.
    n_required   n from which on it could be printed.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    unit_of_n: str = "samples"
    level: float = 0.95
    status: Literal["ok", "no_upper_bound", "insufficient_samples", "no_data"] = "ok"
    lower_bound: float | None = None
    n_required: int | None = None


Decision = Literal["better", "worse", "same", "unclear"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer. effect is a ratio (cell / base) with its interval; 1.0 means no change."""

    question: str
    metric: str
    cell_id: str
    base_id: str
    effect: Estimate
    decision: Decision


@dataclass(frozen=True, slots=True)
class Spec:
    """What to run: the Cells of one block, how many blocks, and from which seed the order comes.

    twins    ids of the cells that appear twice in each block (the A/A noise floor).
    """

    name: str
    cells: tuple[Cell, ...]
    blocks: int
    seed: int
    twins: tuple[str, ...] = ()
    sensor_interval_ns: int = NS
    retries: int = 1  # how often a void trial is repeated within its block
    peer: str | None = None  # path of a server token; None: the embedded server on this machine
    peer_host: str | None = None  # where that server is; None: the first name in the token

    @property
    def id(self) -> str:
        """12 hexadecimal digits of a hash of the content: a run resumes only under the same one."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]
