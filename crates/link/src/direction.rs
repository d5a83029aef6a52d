//! What one direction of a link does to packets.

use std::fmt;

use crate::{Jitter, Loss};

/// One direction of a link. The default changes nothing; the two directions need not be alike.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Direction {
    /// Time from the last bit sent to the packet delivered, in nanoseconds.
    pub delay_ns: u64,
    /// How the delay varies.
    pub jitter: Jitter,
    /// Which packets never arrive.
    pub loss: Loss,
    /// Bits per second, whatever the caller counts as a packet's size included; `None` sends in no time.
    pub rate_bps: Option<u64>,
    /// Packets that may wait, the one being sent included; one more is dropped. `None` has no bound. It only
    /// matters with a rate: packets that are travelling do not wait.
    pub queue_packets: Option<usize>,
    /// Which packets let others pass.
    pub reorder: Option<Reorder>,
    /// Probability that a packet arrives twice, 0 to 1. The second copy arrives right behind the first.
    pub duplicate: f64,
}

/// Packets that take a longer way. Those behind do not wait for them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reorder {
    /// Probability of a packet, 0 to 1.
    pub probability: f64,
    /// How much longer it takes, in nanoseconds.
    pub late_ns: u64,
}

/// A direction that makes no sense: what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid(String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

impl Direction {
    /// # Errors
    /// A probability is not within 0 to 1, the rate or the queue is 0, the jitter could exceed the delay, or a
    /// time is longer than an hour.
    pub fn validate(&self) -> Result<(), Invalid> {
        const HOUR_NS: u64 = 3_600_000_000_000;
        self.loss.validate()?;
        probability("duplicate", self.duplicate)?;
        if let Some(reorder) = self.reorder {
            probability("reorder", reorder.probability)?;
            refuse(reorder.late_ns > HOUR_NS, || "`late_ns` of `reorder` is longer than an hour".into())?;
        }
        refuse(self.delay_ns > HOUR_NS, || "`delay_ns` is longer than an hour".into())?;
        refuse(self.jitter.reach_ns() > self.delay_ns, || {
            let reach = self.jitter.reach_ns();
            format!("jitter of up to {reach} ns is more than the delay of {} ns", self.delay_ns)
        })?;
        refuse(self.rate_bps == Some(0), || "`rate_bps` is 0".into())?;
        refuse(self.queue_packets == Some(0), || "`queue_packets` is 0".into())
    }
}

pub(crate) fn probability(name: &str, value: f64) -> Result<(), Invalid> {
    refuse(!(0.0..=1.0).contains(&value), || format!("`{name}` is {value}; a probability is within 0 to 1"))
}

fn refuse(wrong: bool, why: impl FnOnce() -> String) -> Result<(), Invalid> {
    if wrong { Err(Invalid(why())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(direction: &Direction) -> String {
        direction.validate().unwrap_err().to_string()
    }

    #[test]
    fn the_default_is_valid() {
        assert_eq!(Direction::default().validate(), Ok(()));
    }

    #[test]
    fn a_value_that_makes_no_sense_is_named() {
        let base = Direction::default();
        let loss = Loss::Independent { probability: 1.5 };
        assert!(message(&Direction { loss, ..base.clone() }).contains("`loss` is 1.5"));
        assert!(message(&Direction { duplicate: f64::NAN, ..base.clone() }).contains("`duplicate` is NaN"));
        assert!(message(&Direction { rate_bps: Some(0), ..base.clone() }).contains("`rate_bps`"));
        assert!(message(&Direction { queue_packets: Some(0), ..base.clone() }).contains("`queue_packets`"));
        let jitter = Jitter::per_flight(2);
        assert!(message(&Direction { delay_ns: 1, jitter, ..base }).contains("up to 2 ns"));
    }
}
