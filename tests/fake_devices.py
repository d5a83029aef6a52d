"""Sensors that always read the same, for tests that are not about sensors; and the command line with them."""

from __future__ import annotations

import sys
import time

from ciphertoll.cli import main
from ciphertoll.model import Sample


class Sampling:
    """Takes no time and finds nothing to object to."""

    def __init__(self, pids: dict[str, int], interval_ns: int) -> None:
        self.failures: list[str] = []
        self.pids = pids
        self.interval_ns = interval_ns
        self._samples: list[Sample] = []

    def start(self) -> None:
        self.sample_now()

    def sample_now(self) -> int:
        at_ns = time.monotonic_ns()
        self._samples.append(Sample(at_ns, "memory_percent", "machine", 6.0))
        return at_ns

    def stop(self) -> list[Sample]:
        return self._samples


def _pretend_doctor() -> None:
    import types

    doctor = types.ModuleType("ciphertoll.devices.doctor")
    doctor.fingerprint = lambda: {"fake": True}  # type: ignore[attr-defined]
    sys.modules[doctor.__name__] = doctor
    import ciphertoll.devices

    ciphertoll.devices.doctor = doctor  # type: ignore[attr-defined]


if __name__ == "__main__":
    _pretend_doctor()
    raise SystemExit(main(sys.argv[1:], sense=Sampling))
