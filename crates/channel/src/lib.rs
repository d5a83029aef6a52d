//! The secure channels that ciphertoll measures, both ends of each.
//!
//! A protocol module gives a [`Client`] and a `serve` function. A client opens [`Lane`]s: places for one
//! exchange at a time. Where the protocol multiplexes, lanes share a connection; where it cannot, each
//! lane is a connection of its own. Everything runs on one thread, in a
//! Tokio `LocalRuntime` or `LocalSet`.
//!
//! What may be negotiated is pinned by [`tls`] and [`dtls`] to exactly one version, suite, group and
//! certificate algorithm, and read back from the library after each handshake.

pub mod clock;
pub mod coap;
pub mod dtls;
mod error;
pub mod h3;
pub mod https;
pub mod identity;
pub mod mqtt;
pub mod names;
pub mod quic;
pub mod tls;

use std::{cell::RefCell, net::SocketAddr, rc::Rc};

use ciphertoll_wire::{Channel, Connection, Nanos, Negotiated};
pub use error::{Error, ExchangeError, Refusal};

/// Whom to connect to, and what to speak.
#[derive(Clone)]
pub struct Target {
    /// What to speak: this and nothing else.
    pub channel: Channel,
    /// Where.
    pub address: SocketAddr,
    /// Name that the certificate must carry.
    pub name: String,
    /// PEM of the authority that must have signed it; `None` only where unprotected.
    pub ca_pem: Option<String>,
    /// Collects what each connection negotiated.
    pub log: ConnectionLog,
}

/// The connections of one client, in the order in which they came up.
#[derive(Clone, Default)]
pub struct ConnectionLog(Rc<RefCell<Vec<Connection>>>);

impl ConnectionLog {
    #[must_use]
    /// Adds a connection that is ready now and says its id.
    ///
    /// `opened_ns` is when its first packet was sent.
    pub fn ready(&self, opened_ns: Nanos, negotiated: Option<Negotiated>) -> u16 {
        let mut log = self.0.borrow_mut();
        let id = u16::try_from(log.len()).unwrap_or(u16::MAX);
        log.push(Connection { id, opened_ns, ready_ns: clock::now(), negotiated });
        id
    }

    /// Notes that a layer above the transport of a connection is ready only now.
    pub fn ready_above(&self, id: u16) {
        if let Some(connection) = self.0.borrow_mut().get_mut(usize::from(id)) {
            connection.ready_ns = clock::now();
        }
    }

    /// All connections so far.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Connection> {
        self.0.borrow().clone()
    }
}

/// When the steps of an exchange happened; 0 where it did not come to that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// The first byte was handed to the channel.
    pub sent_ns: Nanos,
    /// The peer acknowledged it apart from the echo (MQTT PUBACK).
    pub acked_ns: Nanos,
    /// The last byte of the echo arrived.
    pub done_ns: Nanos,
}

/// A client of one channel.
#[expect(async_fn_in_trait, reason = "everything stays on one thread, no future needs to be Send")]
pub trait Client: Sized + 'static {
    /// What it opens.
    type Lane: Lane;

    /// Connects, verifies the peer and proves that what was negotiated is what the channel asks for.
    ///
    /// # Errors
    /// The peer cannot be reached, is not trusted, or does not speak the channel.
    async fn connect(target: Target) -> Result<Self, Error>;

    /// Opens another lane: on the connection that is there where the protocol multiplexes, else on a new one.
    ///
    /// # Errors
    /// As [`Client::connect`]; also if the shared connection is lost.
    async fn lane(&self) -> Result<Self::Lane, Error>;
}

/// A place for one exchange at a time.
#[expect(async_fn_in_trait, reason = "everything stays on one thread, no future needs to be Send")]
pub trait Lane: 'static {
    /// The id of its connection in the [`ConnectionLog`].
    fn connection(&self) -> u16;

    /// Sends `payload`, waits for the echo, compares the two, and notes in `times` how far it came.
    ///
    /// It may be dropped when it takes too long; the lane is not used again then, nor after an error.
    ///
    /// # Errors
    /// The connection is lost, the peer answers with an error, or the echo differs.
    async fn exchange(&mut self, payload: &[u8], times: &mut Times) -> Result<(), ExchangeError>;
}
