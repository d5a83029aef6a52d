//! What crosses the pipe between `ciphertoll` and `ciphertoll-engine`: one [`Job`] line in,
//! [`Event`] lines out, and the layout of the file of raw samples beside them.
//!
//! Both ends refuse what they do not know: an unknown field is an error, not a default. The lines in
//! `schema/golden/` are read by the tests of both languages.

mod event;
mod job;
mod record;

pub use event::{Connection, Counts, Event, Listening, Negotiated, Outcome, ThreadCpu, Usage};
pub use job::{
    Channel, Coap, HttpVersion, Job, Listener, Load, LoadJob, Mqtt, MqttVersion, Peer, Protocol, Security, ServeJob,
    Task, TlsVersion,
};
pub use record::{ExchangeOutcome, RECORD_BYTES, Record, SAMPLES_HEADER_BYTES, samples_header};

use serde::{Deserialize, Serialize};

/// The version of everything in this crate. A line of another version is refused.
pub const VERSION: u32 = 1;

/// Nanoseconds of `CLOCK_MONOTONIC`, or a span of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// This span as a [`std::time::Duration`].
    #[must_use]
    pub fn duration(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
}

impl std::ops::Add for Nanos {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}
