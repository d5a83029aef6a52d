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


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], sense=Sampling))
