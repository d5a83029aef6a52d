//! What the engine says.

use serde::{Deserialize, Serialize};

use crate::{Channel, Nanos, TlsVersion};

/// One line of an engine's standard output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The first line.
    Hello {
        /// [`crate::VERSION`] of the engine.
        version: u32,
        /// Release of the engine.
        engine: String,
        /// Optional parts of this build, for example `wolfssl`.
        features: Vec<String>,
        /// Process id.
        pid: u32,
    },
    /// The servers listen.
    Ready {
        /// In the order of the job.
        listeners: Vec<Listening>,
    },
    /// A connection is up, and what was negotiated has been proved equal to the channel.
    Connected(Connection),
    /// The load begins. Times are absolute.
    Started {
        /// First exchange due.
        from_ns: Nanos,
        /// Measured time begins.
        measure_from_ns: Nanos,
        /// Measured time ends.
        measure_to_ns: Nanos,
    },
    /// Once a second, from a thread that does no measuring.
    Progress {
        /// When.
        at_ns: Nanos,
        /// So far.
        counts: Counts,
    },
    /// The last line of a job that was understood.
    Finished {
        /// How it ended.
        outcome: Outcome,
        /// In words, if it did not end well.
        reason: Option<String>,
        /// What happened to the exchanges, warm-up included.
        counts: Counts,
        /// Records in the samples file; less than `counts.due` if the disk was full.
        records: u64,
        /// What the engine itself took.
        usage: Usage,
    },
    /// The last line of a job that was refused.
    Refused {
        /// What is wrong.
        what: String,
        /// Where in the job, for example `channel.suite`.
        at: String,
        /// What would be accepted.
        accepted: Vec<String>,
        /// What to do.
        hint: Option<String>,
    },
}

/// A server that listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listening {
    /// What it speaks.
    pub channel: Channel,
    /// Where.
    pub port: u16,
    /// PEM of the authority that signed its certificate; `null` where unprotected.
    pub ca_pem: Option<String>,
}

/// A connection that came up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// Counts from 0; the `connection` of its records.
    pub id: u16,
    /// First packet sent.
    pub opened_ns: Nanos,
    /// Handshakes of all layers done.
    pub ready_ns: Nanos,
    /// Read back from the library; `null` where unprotected.
    pub negotiated: Option<Negotiated>,
}

/// What a connection agreed on, read back from the library after the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Negotiated {
    /// TLS or DTLS version.
    pub version: TlsVersion,
    /// Cipher suite, IANA name.
    pub suite: String,
    /// Key-exchange group.
    pub group: String,
    /// Algorithm of the leaf's key.
    pub certificate: String,
    /// Whether an earlier session was resumed.
    pub resumed: bool,
}

/// What happened to exchanges. `due = done + timed_out + closed + refused + corrupt + unfinished`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "each is the number of records of the outcome of that name")]
pub struct Counts {
    /// Fell due.
    pub due: u64,
    pub done: u64,
    pub timed_out: u64,
    pub closed: u64,
    pub refused: u64,
    pub corrupt: u64,
    pub unfinished: u64,
    /// Had to wait because `in_flight` exchanges were under way; counted under their outcome too.
    pub held: u64,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As asked.
    Ok,
    /// A signal ended it.
    Interrupted,
    /// This build or library cannot do that.
    Unsupported,
    /// What was negotiated is not what was asked for.
    Mismatch,
    /// No connection could be made.
    Unreachable,
    /// The peer's certificate is not of the given authority, or not for the given name.
    Untrusted,
    /// The handshake failed, or the peer speaks another protocol.
    Garbage,
    /// The peer did not answer in time while connecting.
    TimedOut,
    /// The connection was lost after the load began and could not be made again.
    Vanished,
    /// The samples did not fit on the disk.
    DiskFull,
    /// The machine refused something: a port in use, a file that cannot be written.
    Machine,
    /// The engine itself failed.
    Panic,
}

/// Processor time of one thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadCpu {
    /// Name of the thread.
    pub thread: String,
    /// Over its whole life.
    pub total_ns: Nanos,
    /// Within the measured time; 0 for a server, which does not know it.
    pub measured_ns: Nanos,
}

/// What the engine itself took.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Per thread.
    pub threads: Vec<ThreadCpu>,
    /// Largest resident set, bytes.
    pub peak_rss_bytes: u64,
}
