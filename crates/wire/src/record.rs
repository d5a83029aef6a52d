//! The file of raw samples.
//!
//! A header of [`SAMPLES_HEADER_BYTES`] bytes: the eight bytes `ctsample`, then the version and the size of a
//! record, each a `u32`. Then one [`Record`] per exchange in the order in which they fell due. All numbers
//! are little-endian.

use crate::{Nanos, VERSION};

/// Size of the header.
pub const SAMPLES_HEADER_BYTES: usize = 16;
/// Size of a record.
pub const RECORD_BYTES: usize = 40;

/// The header of a samples file.
#[must_use]
pub fn samples_header() -> [u8; SAMPLES_HEADER_BYTES] {
    let mut header = *b"ctsample\0\0\0\0\0\0\0\0";
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&40u32.to_le_bytes());
    header
}

/// One exchange. A time of 0 means that it did not come to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// When it should have started.
    pub due_ns: Nanos,
    /// When its first byte was handed to the channel.
    pub sent_ns: Nanos,
    /// When the peer acknowledged it apart from the echo (MQTT PUBACK).
    pub acked_ns: Nanos,
    /// When the last byte of the echo had arrived.
    pub done_ns: Nanos,
    /// How it ended.
    pub outcome: ExchangeOutcome,
    /// Whether it had to wait for another because `in_flight` were under way.
    pub held: bool,
    /// Which connection carried it.
    pub connection: u16,
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum ExchangeOutcome {
    /// Still under way, or still waiting, when the job ended.
    #[default]
    Unfinished = 0,
    /// The echo arrived and equals the payload.
    Done = 1,
    /// The echo did not arrive in time.
    TimedOut = 2,
    /// The connection was lost.
    Closed = 3,
    /// The peer answered with an error status.
    Refused = 4,
    /// The echo differs from the payload.
    Corrupt = 5,
}

impl Record {
    /// The bytes of this record: four `u64` times, `u8` outcome, `u8` held, `u16` connection, four zero bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        for (slot, time) in bytes.chunks_exact_mut(8).zip([self.due_ns, self.sent_ns, self.acked_ns, self.done_ns]) {
            slot.copy_from_slice(&time.0.to_le_bytes());
        }
        bytes[32] = self.outcome as u8;
        bytes[33] = u8::from(self.held);
        bytes[34..36].copy_from_slice(&self.connection.to_le_bytes());
        bytes
    }
}
