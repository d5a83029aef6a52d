"""Specs that have a name. A preset is written as a user would write it in TOML."""

from __future__ import annotations

from typing import Any

from ciphertoll.errors import unknown
from ciphertoll.spec.settings import BY_KEY, Given

_EVERY_PRESET: dict[str, Any] = {
    "channel.protocol": ["https", "h3", "mqtts", "coaps"],
    "channel.suite": ["aes128", "aes256", "chacha20"],
    "channel.group": ["X25519"],
    "channel.certificate": ["ECDSA-P256"],
    "channel.http": ["1.1"],
    "channel.mqtt_version": ["3.1.1"],
    "channel.qos": [1],
    "channel.coap": ["con"],
    "channel.nstart": [0],
    "channel.datagram": [1400],
    "channel.baselines": True,
    "seed": 1,
    "retries": 1,
    "sensor_interval": "1s",
}

# 18 trials beside the detector of 2.25 s and 15 without it of 1.25 s, three times, are 178 s of measuring. A channel
# gets 675 exchanges beside the detector and 375 without: p99 needs 368 (findings on statistics, R1).
_QUICK: dict[str, Any] = {
    **_EVERY_PRESET,
    "load.rate": [100],
    "load.size": [2048],
    "load.duration": "2250ms",
    "load.warm_up": "1s",
    "load.duration_without_workload": "1250ms",
    "load.warm_up_without_workload": "500ms",
    "workload.kind": ["detector", "none"],
    "blocks": 3,
}

# The published experiment: sessions of 60 s, of which the first 5 s are dropped, ten times.
_PAPER: dict[str, Any] = {
    **_EVERY_PRESET,
    "load.pairs": ["1x512", "100x2048"],
    "load.duration": "55s",
    "load.warm_up": "5s",
    "workload.kind": ["detector"],
    "blocks": 10,
}

PRESETS = {"quick": _QUICK, "paper": _PAPER}
DESCRIPTIONS = {
    "quick": "12 secured channels and their unprotected twins at 100/s x 2048 B, beside the detector and without it",
    "paper": "the same channels at 1/s x 512 B and 100/s x 2048 B beside the detector, as published: 60 s, 10 blocks",
}


def choices(name: str, at: str) -> dict[str, Given]:
    """What the preset `name` chooses. Raises SpecError if there is none."""
    if name not in PRESETS:
        raise unknown("preset", name, tuple(PRESETS), at=at)
    where = f"preset {name}"
    return {key: Given(BY_KEY[key].read(value, where), where, 0) for key, value in PRESETS[name].items()}
