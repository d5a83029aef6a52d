"""The AI job that runs beside the traffic, as the executor sees it: start, wait until ready, stop, read its frames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ciphertoll.errors import CiphertollError
from ciphertoll.model import Detector, NoWorkload, Workload

if TYPE_CHECKING:
    import polars as pl


class Running(Protocol):
    """A workload that was started.

    pid   of the process that does the work; final once `wait_ready` has returned.
    """

    pid: int

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """Wait until work is under way; return what to record about it (JSON values only).

        Raises SpecError or MachineError for what keeps it from working; it has ended then.
        """
        ...

    def alive(self) -> bool:
        """Whether it still works."""
        ...

    def failure(self) -> CiphertollError | None:
        """Why it ended by itself; None otherwise."""
        ...

    def stop(self) -> pl.DataFrame:
        """End it and return a row per unit of work: started_ns, done_ns (CLOCK_MONOTONIC), decode_ns, preprocess_ns,
        inference_ns, postprocess_ns (spans), all UInt64, and detections, UInt32.

        Raises if it had ended by itself or does not end within 5 seconds.
        """
        ...

    def frames(self) -> pl.DataFrame:
        """What `stop` returns, also of a workload that ended by itself; no rows while it works."""
        ...

    def kill(self) -> None:
        """End it and all that it started, at once."""
        ...


def start(workload: Workload, folder: Path) -> Running | None:
    """Start `workload` in the background and return at once; None for no workload.

    folder   where it leaves its frames until they are read and, if it wrote any, its standard error; must exist.

    Raises SpecError for what can be seen without starting it: a missing file, a name that is not known.
    """
    from ciphertoll.workloads.process import WorkloadProcess
    from ciphertoll.workloads.resolve import resolve

    if isinstance(workload, NoWorkload):
        return None
    config = resolve(workload)
    if isinstance(workload, Detector):
        return WorkloadProcess(
            "ciphertoll.workloads.detector", config, folder, name="the detector", unready="completed no frame"
        )
    name = f"command `{workload.argv[0]}`"
    return WorkloadProcess("ciphertoll.workloads.command", config, folder, name=name, unready="printed no line")


def unfit(facts: dict[str, Any], frames: pl.DataFrame) -> str | None:
    """Why these frames are not those of a workload that works; None if nothing speaks against them.

    facts    as `wait_ready` returned them.
    frames   those of the measured time.

    A detector that sees nobody in the built-in video is broken, however fast it is.
    """
    if frames.is_empty():
        return "the workload completed no frame in the measured time"
    least = facts.get("least_detections_per_frame")
    mean = frames["detections"].mean()
    if least is not None and isinstance(mean, float) and mean < least:
        return f"the detector found {mean:.2f} people per frame in the built-in video, which shows more than {least:g}"
    return None
