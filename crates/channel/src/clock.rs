//! The one clock: `CLOCK_MONOTONIC`, the same for every process of a machine.

use ciphertoll_wire::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Now.
#[must_use]
pub fn now() -> Nanos {
    read(ClockId::Monotonic)
}

/// Processor time of the calling thread.
#[must_use]
pub fn thread_cpu() -> Nanos {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    // Neither clock is ever negative.
    Nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}
