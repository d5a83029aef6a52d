//! What can go wrong, sorted by who is to blame.

use std::fmt;

use ciphertoll_wire::{ExchangeOutcome, Outcome};

/// A channel that could not be made or kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The job asks for what does not exist, or for what this build cannot do.
    Refused(Refusal),
    /// The peer or the machine did not play along.
    Failed {
        /// Named ending.
        outcome: Outcome,
        /// In words.
        reason: String,
    },
}

/// What is wrong with a job, where, what would be accepted and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusal {
    /// What is wrong.
    pub what: String,
    /// Where in the job.
    pub at: String,
    /// What would be accepted.
    pub accepted: Vec<String>,
    /// What to do.
    pub hint: Option<String>,
    /// The value exists, but this channel, library or build does not have it.
    pub unsupported: bool,
}

impl Error {
    /// A failure with its name and its words.
    pub fn failed(outcome: Outcome, reason: impl fmt::Display) -> Self {
        Self::Failed { outcome, reason: reason.to_string() }
    }

    /// The named ending of a job that fails with this.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Refused(_) => Outcome::Unsupported,
            Self::Failed { outcome, .. } => *outcome,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => f.write_str(&refusal.what),
            Self::Failed { reason, .. } => f.write_str(reason),
        }
    }
}

impl std::error::Error for Error {}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// An exchange that did not end with its echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeError {
    /// The connection was lost.
    Closed,
    /// The peer answered with an error status.
    Refused,
    /// The echo differs from the payload.
    Corrupt,
}

impl From<ExchangeError> for ExchangeOutcome {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Closed => Self::Closed,
            ExchangeError::Refused => Self::Refused,
            ExchangeError::Corrupt => Self::Corrupt,
        }
    }
}
