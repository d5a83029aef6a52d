//! Random streams that are the same everywhere for the same seed.

/// The impairments that need chance: each has a stream of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stream {
    Loss = 1,
    LossState = 2,
    Jitter = 3,
    Reorder = 4,
    Duplicate = 5,
}

/// `SplitMix64`: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    /// The stream of one impairment for one connection.
    pub(crate) fn new(seed: u64, connection: u64, stream: Stream) -> Self {
        Self(mix(seed ^ mix(connection ^ mix(stream as u64))))
    }

    pub(crate) fn next(&mut self) -> u64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(GAMMA);
        bits
    }

    /// Uniform in [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "both have at most 53 bits, which an f64 holds exactly")]
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal, from two numbers of the stream (Box and Muller 1958).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// 2^64 divided by the golden ratio, made odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(GAMMA);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_published_generator() {
        // Reference output of splitmix64.c (Vigna) for the state 1234567.
        let mut random = SplitMix64(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
        assert_eq!(random.next(), 9_817_491_932_198_370_423);
    }

    #[test]
    fn streams_connections_and_seeds_differ() {
        let first = |seed, connection, stream| SplitMix64::new(seed, connection, stream).next();
        let all = [
            first(1, 0, Stream::Loss),
            first(2, 0, Stream::Loss),
            first(1, 1, Stream::Loss),
            first(1, 0, Stream::Jitter),
            first(0, 1, Stream::Loss),
        ];
        for (index, value) in all.iter().enumerate() {
            assert!(!all[..index].contains(value));
        }
    }

    #[test]
    fn a_normal_has_mean_0_and_variance_1() {
        let mut random = SplitMix64(7);
        let values: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = values.iter().sum::<f64>() / 1e5;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e5;
        // Standard errors: 0.0032 and 0.0045.
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
