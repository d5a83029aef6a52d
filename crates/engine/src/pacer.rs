//! When each exchange is due, and waiting for it on an absolute clock.

use std::os::fd::OwnedFd;

use ciphertoll_channel::clock;
use ciphertoll_wire::Nanos;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// Says when each exchange is due. It never reads a clock and never waits.
///
/// Latency is counted from the due time, so a slow server cannot hide its queue.
#[derive(Debug, Clone, Copy)]
pub struct Paced {
    from: Nanos,
    rate_hz: f64,
}

impl Paced {
    /// `rate_hz` exchanges per second, the first at `from`.
    pub fn new(from: Nanos, rate_hz: f64) -> Self {
        Self { from, rate_hz }
    }

    /// When exchange `index` is due: computed from the index, so that rounding never adds up.
    pub fn due(&self, index: usize) -> Nanos {
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 exchanges")]
        let after = index as f64 * 1e9 / self.rate_hz;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and u64 holds 584 years"
        )]
        let after = after.round() as u64;
        self.from + Nanos(after)
    }

    /// How many exchanges fall due within `span` of the start.
    pub fn count(&self, span: Nanos) -> usize {
        #[expect(clippy::cast_precision_loss, reason = "an estimate, corrected below")]
        let guess = span.0 as f64 * self.rate_hz / 1e9;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive and far below usize::MAX"
        )]
        let mut count = guess as usize;
        while self.due(count) < self.from + span {
            count += 1;
        }
        count
    }
}

/// A wait longer than this lets the processor sleep deeply.
const LONG_SLEEP: Nanos = Nanos(2_000_000);
/// How long before the end of such a wait the processor is woken.
const WAKE_UP: Nanos = Nanos(200_000);

/// Waits for points of `CLOCK_MONOTONIC` by a timerfd: the runtime's own timers have a resolution of 1 ms.
pub struct Waiter {
    timer: AsyncFd<OwnedFd>,
}

impl Waiter {
    /// A new timer; needs a running runtime.
    pub fn new() -> std::io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(deprecated, reason = "unsound only for a descriptor that closes early; this one is owned")]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { timer })
    }

    /// Returns at `when`, at once if that is past.
    ///
    /// A processor that has slept for long takes long to wake up, a virtual one over 100 us. A first alarm
    /// shortly before wakes it, the second one is exact: no spinning, and a lag of microseconds.
    pub async fn until(&self, when: Nanos) -> std::io::Result<()> {
        if when.since(clock::now()) > LONG_SLEEP {
            self.alarm(Nanos(when.0 - WAKE_UP.0)).await?;
        }
        self.alarm(when).await
    }

    async fn alarm(&self, when: Nanos) -> std::io::Result<()> {
        if clock::now() >= when {
            return Ok(());
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: zero, it_value: timespec(when) };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)?;
        loop {
            let mut ready = self.timer.readable().await?;
            ready.clear_ready();
            if clock::now() >= when {
                return Ok(());
            }
        }
    }
}

fn timespec(at: Nanos) -> Timespec {
    let (seconds, rest) = (at.0 / 1_000_000_000, at.0 % 1_000_000_000);
    Timespec { tv_sec: i64::try_from(seconds).unwrap_or(i64::MAX), tv_nsec: rest.try_into().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_do_not_drift() {
        let paced = Paced::new(Nanos(7), 3.0);
        assert_eq!(paced.due(0), Nanos(7));
        assert_eq!(paced.due(3_000_000), Nanos(7 + 1_000_000 * 1_000_000_000));
    }

    #[test]
    fn as_many_fall_due_as_the_rate_says() {
        for (rate, seconds, expected) in
            [(100.0, 2, 200), (0.1, 10, 1), (0.1, 11, 2), (10_000.0, 1, 10_000), (3.0, 1, 3)]
        {
            assert_eq!(Paced::new(Nanos(5), rate).count(Nanos(seconds * 1_000_000_000)), expected, "{rate}/s");
        }
    }

    #[tokio::test]
    async fn the_wait_ends_after_the_point_and_not_before() {
        let waiter = Waiter::new().unwrap();
        for _ in 0..20 {
            let when = clock::now() + Nanos(500_000);
            waiter.until(when).await.unwrap();
            assert!(clock::now() >= when);
        }
        waiter.until(Nanos(1)).await.unwrap();
    }
}
