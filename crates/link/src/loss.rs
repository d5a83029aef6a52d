//! Which packets are lost.

use crate::{
    Invalid,
    direction::probability,
    random::{SplitMix64, Stream},
};

/// Which packets are lost. Probabilities are 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each packet for itself. With the same seed, what is lost at a lower probability is lost at a higher too.
    Independent {
        /// Of a packet to be lost.
        probability: f64,
    },
    /// In bursts: a good and a bad state (Gilbert 1960, Elliott 1963), the good one first. For each packet the state
    /// may change, then its loss is drawn.
    GilbertElliott {
        /// From good to bad, p.
        to_bad: f64,
        /// From bad to good, r: a bad state lasts 1 / r packets on average.
        to_good: f64,
        /// Of a packet to be lost while good, 1 - k.
        loss_good: f64,
        /// Of a packet to be lost while bad, 1 - h.
        loss_bad: f64,
    },
}

impl Loss {
    /// The share of packets lost in the long run, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        match *self {
            Self::None => 0.0,
            Self::Independent { probability } => probability,
            // A state that is never left is the one that it starts in.
            Self::GilbertElliott { to_bad, loss_good, .. } if to_bad <= 0.0 => loss_good,
            Self::GilbertElliott { to_bad, to_good, loss_good, loss_bad } => {
                (to_good * loss_good + to_bad * loss_bad) / (to_bad + to_good)
            }
        }
    }

    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        match *self {
            Self::None => Ok(()),
            Self::Independent { probability: value } => probability("loss", value),
            Self::GilbertElliott { to_bad, to_good, loss_good, loss_bad } => {
                probability("to_bad", to_bad)?;
                probability("to_good", to_good)?;
                probability("loss_good", loss_good)?;
                probability("loss_bad", loss_bad)
            }
        }
    }
}

/// Draws the losses.
#[derive(Debug)]
pub(crate) struct LossDraw {
    loss: Loss,
    fate: SplitMix64,
    state: SplitMix64,
    bad: bool,
}

impl LossDraw {
    pub(crate) fn new(loss: Loss, seed: u64, connection: u64) -> Self {
        Self {
            loss,
            fate: SplitMix64::new(seed, connection, Stream::Loss),
            state: SplitMix64::new(seed, connection, Stream::LossState),
            bad: false,
        }
    }

    /// Whether the next packet is lost. To be asked exactly once for every packet.
    pub(crate) fn next(&mut self) -> bool {
        let (fate, change) = (self.fate.unit(), self.state.unit());
        match self.loss {
            Loss::None => false,
            Loss::Independent { probability } => fate < probability,
            Loss::GilbertElliott { to_bad, to_good, loss_good, loss_bad } => {
                self.bad ^= change < if self.bad { to_good } else { to_bad };
                fate < if self.bad { loss_bad } else { loss_good }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(loss: Loss, packets: usize) -> Vec<bool> {
        let mut draw = LossDraw::new(loss, 42, 0);
        (0..packets).map(|_| draw.next()).collect()
    }

    fn count(pattern: &[bool]) -> f64 {
        f64::from(u32::try_from(pattern.iter().filter(|lost| **lost).count()).unwrap())
    }

    #[test]
    fn independent_loss_is_within_its_binomial_interval() {
        for probability in [0.01, 0.05, 0.2] {
            let lost = count(&pattern(Loss::Independent { probability }, 20_000));
            let deviation = (20_000.0 * probability * (1.0 - probability)).sqrt();
            // 2.58 deviations: the 99 % interval.
            assert!((lost - 20_000.0 * probability).abs() < 2.58 * deviation, "{probability}: {lost}");
        }
    }

    #[test]
    fn what_is_lost_at_5_percent_is_lost_at_10_percent_too() {
        let low = pattern(Loss::Independent { probability: 0.05 }, 10_000);
        let high = pattern(Loss::Independent { probability: 0.1 }, 10_000);
        assert!(low.iter().zip(&high).all(|(low, high)| !low || *high));
    }

    #[test]
    fn bursts_are_as_long_and_as_many_as_the_model_says() {
        let loss = Loss::GilbertElliott { to_bad: 0.0125, to_good: 0.25, loss_good: 0.0, loss_bad: 1.0 };
        let pattern = pattern(loss, 400_000);
        let all_lost = count(&pattern);
        let starts: Vec<bool> = pattern.windows(2).map(|pair| !pair[0] && pair[1]).collect();
        assert!((all_lost / 400_000.0 - loss.share()).abs() < 0.003, "{all_lost}");
        assert!((all_lost / count(&starts) - 4.0).abs() < 0.15, "{}", all_lost / count(&starts));
    }

    #[test]
    fn the_share_of_a_state_that_is_never_left_is_its_own() {
        let loss = Loss::GilbertElliott { to_bad: 0.0, to_good: 0.0, loss_good: 0.1, loss_bad: 1.0 };
        assert!((loss.share() - 0.1).abs() < 1e-12);
    }
}
