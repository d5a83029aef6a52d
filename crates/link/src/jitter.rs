//! How the delay varies.

use crate::random::{SplitMix64, Stream};

/// How the delay varies. It is added to the delay and may be negative.
///
/// Where order is kept, a packet cannot pass the one before it, so that packets which arrive closer together
/// than the jitter see more of its upper end than of its lower. With [`Jitter::PerPacket`] that shifts the mean of
/// every dense flow, which is why [`Jitter::PerFlight`] is what a bare spread should mean.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Jitter {
    /// Not at all.
    #[default]
    None,
    /// One draw, uniform within the spread, for all packets that arrive within one flight.
    PerFlight {
        /// To both sides, in nanoseconds.
        spread_ns: u64,
        /// A flight ends this long after its first packet.
        flight_ns: u64,
    },
    /// One draw for each packet, uniform within the spread.
    PerPacket {
        /// To both sides, in nanoseconds.
        spread_ns: u64,
        /// Keep the order of packets, which makes the mean larger than the delay; else they may pass each other.
        in_order: bool,
    },
    /// A normal process that forgets exponentially (Ornstein and Uhlenbeck 1930), cut at three deviations.
    Correlated {
        /// Standard deviation, in nanoseconds.
        deviation_ns: u64,
        /// Time after which the correlation has fallen to 1 / e, in nanoseconds.
        memory_ns: u64,
    },
}

/// A stack hands over the packets of one flight within a millisecond, and flights are a round trip apart.
const FLIGHT_NS: u64 = 5_000_000;
const CUT: f64 = 3.0;

impl Jitter {
    /// What a bare spread means: one draw per flight, a flight being 5 ms.
    #[must_use]
    pub fn per_flight(spread_ns: u64) -> Self {
        Self::PerFlight { spread_ns, flight_ns: FLIGHT_NS }
    }

    /// The farthest from the delay that it goes, in nanoseconds.
    #[must_use]
    pub fn reach_ns(&self) -> u64 {
        match *self {
            Self::None => 0,
            Self::PerFlight { spread_ns, .. } | Self::PerPacket { spread_ns, .. } => spread_ns,
            Self::Correlated { deviation_ns, .. } => deviation_ns.saturating_mul(3),
        }
    }

    /// Whether a packet waits for the one before it.
    pub(crate) fn keeps_order(&self) -> bool {
        !matches!(self, Self::PerPacket { in_order: false, .. })
    }
}

/// Draws the jitter.
#[derive(Debug)]
pub(crate) struct JitterDraw {
    jitter: Jitter,
    random: SplitMix64,
    /// When the flight began, or when the process was last read; `None` before the first packet.
    since_ns: Option<u64>,
    /// What was drawn then: standard normal for a correlated process, else within -1 to 1.
    level: f64,
}

impl JitterDraw {
    pub(crate) fn new(jitter: Jitter, seed: u64, connection: u64) -> Self {
        Self { jitter, random: SplitMix64::new(seed, connection, Stream::Jitter), since_ns: None, level: 0.0 }
    }

    /// The delay of the packet that arrives at `now_ns`. To be asked exactly once for every packet.
    pub(crate) fn vary(&mut self, delay_ns: u64, now_ns: u64) -> u64 {
        // Each packet takes two numbers of the stream, whatever becomes of them.
        let mut own = SplitMix64::clone(&self.random);
        self.random.next();
        self.random.next();
        let offset_ns = match self.jitter {
            Jitter::None => 0,
            Jitter::PerPacket { spread_ns, .. } => scaled(own.unit().mul_add(2.0, -1.0), spread_ns),
            Jitter::PerFlight { spread_ns, flight_ns } => {
                if self.since_ns.is_none_or(|since| now_ns.saturating_sub(since) >= flight_ns) {
                    self.since_ns = Some(now_ns);
                    self.level = own.unit().mul_add(2.0, -1.0);
                }
                scaled(self.level, spread_ns)
            }
            Jitter::Correlated { deviation_ns, memory_ns } => {
                let kept = self.since_ns.map_or(0.0, |since| correlation(now_ns.saturating_sub(since), memory_ns));
                self.since_ns = Some(now_ns);
                self.level = kept.mul_add(self.level, (1.0 - kept * kept).sqrt() * own.normal());
                scaled(self.level.clamp(-CUT, CUT), deviation_ns)
            }
        };
        delay_ns.saturating_add_signed(offset_ns)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a relative error of 2^-53 does not matter in a correlation")]
fn correlation(span_ns: u64, memory_ns: u64) -> f64 {
    // Without memory it is 0 / 0 for packets at the same time: they share their draw no more than others do.
    if memory_ns == 0 { 0.0 } else { (-(span_ns as f64) / memory_ns as f64).exp() }
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "an hour is less than 2^53 ns")]
fn scaled(level: f64, span_ns: u64) -> i64 {
    (level * span_ns as f64).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY_NS: u64 = 1_000_000;

    fn delays(jitter: Jitter, gap_ns: u64, packets: u64) -> Vec<f64> {
        let mut draw = JitterDraw::new(jitter, 9, 0);
        let delay = |packet| f64::from(u32::try_from(draw.vary(DELAY_NS, packet * gap_ns)).unwrap());
        (0..packets).map(delay).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / f64::from(u32::try_from(values.len()).unwrap())
    }

    /// Correlation of each value with the next.
    fn next_to_next(values: &[f64]) -> f64 {
        let mean = mean(values);
        let product: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
        product / values.iter().map(|value| (value - mean).powi(2)).sum::<f64>()
    }

    #[test]
    fn the_packets_of_a_flight_share_one_delay_and_flights_differ() {
        let jitter = Jitter::PerFlight { spread_ns: 500_000, flight_ns: 1_000 };
        let delays = delays(jitter, 100, 30);
        for flight in delays.chunks(10) {
            assert!(flight.iter().all(|delay| (delay - flight[0]).abs() < 0.5));
        }
        assert!((delays[0] - delays[10]).abs() > 1.0 && (delays[10] - delays[20]).abs() > 1.0);
    }

    #[test]
    fn uniform_jitter_fills_its_spread_evenly() {
        let delays = delays(Jitter::PerPacket { spread_ns: 1_000_000, in_order: false }, 1, 100_000);
        // Standard error of the mean: 1e6 / sqrt(3) / sqrt(1e5), about 1,800.
        assert!((mean(&delays) - 1e6).abs() < 8_000.0);
        assert!(delays.iter().all(|delay| (0.0..=2e6).contains(delay)));
        assert!(delays.iter().any(|delay| *delay < 2e4) && delays.iter().any(|delay| *delay > 1.98e6));
    }

    #[test]
    fn correlation_depends_on_time_and_not_on_the_number_of_packets() {
        let jitter = Jitter::Correlated { deviation_ns: 100_000, memory_ns: 10_000 };
        for gap_ns in [1_000, 10_000, 50_000] {
            let found = next_to_next(&delays(jitter, gap_ns, 100_000));
            assert!((found - correlation(gap_ns, 10_000)).abs() < 0.03, "{gap_ns}: {found}");
        }
    }

    #[test]
    fn a_correlated_process_keeps_its_deviation() {
        let delays = delays(Jitter::Correlated { deviation_ns: 100_000, memory_ns: 10_000 }, 10_000, 100_000);
        let mean = mean(&delays);
        let variance = delays.iter().map(|delay| (delay - mean).powi(2)).sum::<f64>() / 1e5;
        assert!((mean - 1e6).abs() < 3_000.0 && (variance.sqrt() / 1e5 - 1.0).abs() < 0.03, "{mean} {variance}");
        assert!(delays.iter().all(|delay| (7e5..=1.3e6).contains(delay)));
    }
}
