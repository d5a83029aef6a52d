//! DTLS without I/O: one side of one association takes datagrams and gives datagrams.
//!
//! wolfSSL (feature `wolfssl`) and dimpl implement it; [`Plain`] is the unprotected twin.

mod dimpl;
#[cfg(feature = "wolfssl")]
mod wolf;

use std::time::Duration;

use ciphertoll_wire::{Negotiated, Outcome};

use crate::{
    Error,
    identity::Identity,
    names::{Library, Pinned},
};

/// The most that protection adds to a plaintext in one datagram: DTLS 1.2 with AES-GCM needs 13 bytes of header,
/// 8 of explicit nonce and 16 of tag (RFC 6347, RFC 5288); DTLS 1.3 needs less (RFC 9147).
pub const OVERHEAD_BYTES: usize = 37;
/// The longest plaintext of a record (RFC 8446, 5.1).
pub const LONGEST_PLAINTEXT_BYTES: usize = 1 << 14;

/// Where an association stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Datagrams go back and forth, nothing can be sent yet.
    Handshaking,
    /// Plaintexts can be sent. What was negotiated; `None` where unprotected.
    Established(Option<Negotiated>),
}

/// One side of one association.
///
/// After each call, [`Association::transmit`] must be called: there may be something to send.
pub trait Association {
    /// Makes the first flight of a client. A server has none.
    ///
    /// # Errors
    /// The library cannot make it.
    fn start(&mut self) -> Result<(), Error>;

    /// Takes a datagram and hands the plaintexts in it to `deliver`.
    ///
    /// # Errors
    /// The association is over.
    fn receive(&mut self, datagram: &[u8], deliver: &mut dyn FnMut(&[u8])) -> Result<(), Error>;

    /// Protects a plaintext of at most [`LONGEST_PLAINTEXT_BYTES`].
    ///
    /// # Errors
    /// The association is over, or not there yet.
    fn send(&mut self, plaintext: &[u8]) -> Result<(), Error>;

    /// Hands every datagram that is due to `emit`.
    fn transmit(&mut self, emit: &mut dyn FnMut(&[u8]));

    /// How long to wait for a datagram before [`Association::on_timeout`]; `None` while there is nothing to repeat.
    fn timeout(&self) -> Option<Duration>;

    /// Repeats the last flight.
    ///
    /// # Errors
    /// The association is over.
    fn on_timeout(&mut self) -> Result<(), Error>;

    /// Where it stands.
    fn state(&self) -> State;

    /// Says goodbye.
    fn close(&mut self);
}

/// The client's side of a new association, to be started.
///
/// # Errors
/// The library cannot do what `pinned` says, or the authority's certificate is not usable.
pub fn connect(
    pinned: Option<&Pinned>,
    ca_pem: Option<&str>,
    name: &str,
    datagram_bytes: usize,
) -> Result<Box<dyn Association>, Error> {
    let Some(pinned) = pinned else { return Ok(Box::new(Plain::default())) };
    let ca_pem = ca_pem.ok_or_else(|| Error::failed(Outcome::Untrusted, "no authority was given"))?;
    match pinned.library {
        Library::Dimpl => Ok(Box::new(dimpl::Dimpl::client(pinned, ca_pem, name, datagram_bytes)?)),
        #[cfg(feature = "wolfssl")]
        Library::Wolfssl => Ok(Box::new(wolf::Wolf::client(pinned, ca_pem, name, datagram_bytes)?)),
        other => Err(Error::failed(Outcome::Unsupported, format!("library `{}` has no DTLS here", other.name()))),
    }
}

/// Makes the server's side of associations.
pub struct Acceptor(Kind);

enum Kind {
    Plain,
    Dimpl(dimpl::Server),
    #[cfg(feature = "wolfssl")]
    Wolf(std::rc::Rc<wolf::Context>),
}

impl Acceptor {
    /// Accepts `pinned` and nothing else; without protection if `None`.
    ///
    /// # Errors
    /// The library cannot do it.
    pub fn new(secrets: Option<&(Pinned, Identity)>, datagram_bytes: usize) -> Result<Self, Error> {
        let Some((pinned, identity)) = secrets else { return Ok(Self(Kind::Plain)) };
        match pinned.library {
            Library::Dimpl => Ok(Self(Kind::Dimpl(dimpl::Server::new(pinned, identity, datagram_bytes)?))),
            #[cfg(feature = "wolfssl")]
            Library::Wolfssl => Ok(Self(Kind::Wolf(wolf::Context::server(pinned, identity, datagram_bytes)?.into()))),
            other => Err(Error::failed(Outcome::Unsupported, format!("library `{}` has no DTLS here", other.name()))),
        }
    }

    /// Whether a datagram can be the first one of an association.
    #[must_use]
    pub fn welcomes(&self, datagram: &[u8]) -> bool {
        matches!(self.0, Kind::Plain) || client_hello_number(datagram).is_some()
    }

    /// The server's side of a new association.
    ///
    /// # Errors
    /// The library cannot make one.
    pub fn accept(&self) -> Result<Box<dyn Association>, Error> {
        Ok(match &self.0 {
            Kind::Plain => Box::new(Plain::default()),
            Kind::Dimpl(server) => Box::new(server.accept()?),
            #[cfg(feature = "wolfssl")]
            Kind::Wolf(context) => Box::new(wolf::Wolf::accept(context)?),
        })
    }
}

/// The number of the handshake message, if a datagram begins with an unencrypted `ClientHello`.
#[must_use]
pub fn client_hello_number(datagram: &[u8]) -> Option<u16> {
    // DTLSPlaintext: type, version, epoch, sequence number, length; then type, length, message number (RFC 9147, 4, 5.2).
    let handshake_of_epoch_0 = datagram.first() == Some(&22) && datagram.get(3..5) == Some(&[0, 0]);
    let client_hello = handshake_of_epoch_0 && datagram.get(13) == Some(&1);
    let number = datagram.get(17..19).filter(|_| client_hello)?;
    Some(u16::from_be_bytes([number[0], number[1]]))
}

/// No protection: a plaintext is a datagram.
#[derive(Default)]
pub struct Plain {
    outgoing: Outgoing,
}

impl Association for Plain {
    fn start(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn receive(&mut self, datagram: &[u8], deliver: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        deliver(datagram);
        Ok(())
    }

    fn send(&mut self, plaintext: &[u8]) -> Result<(), Error> {
        self.outgoing.push(plaintext);
        Ok(())
    }

    fn transmit(&mut self, emit: &mut dyn FnMut(&[u8])) {
        self.outgoing.drain(emit);
    }

    fn timeout(&self) -> Option<Duration> {
        None
    }

    fn on_timeout(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn state(&self) -> State {
        State::Established(None)
    }

    fn close(&mut self) {}
}

/// Datagrams that wait to be sent. Their buffers are used again.
#[derive(Default)]
struct Outgoing {
    buffers: Vec<Vec<u8>>,
    used: usize,
}

impl Outgoing {
    fn push(&mut self, datagram: &[u8]) {
        if self.used == self.buffers.len() {
            self.buffers.push(Vec::with_capacity(datagram.len().max(2048)));
        }
        let buffer = &mut self.buffers[self.used];
        buffer.clear();
        buffer.extend_from_slice(datagram);
        self.used += 1;
    }

    fn drain(&mut self, emit: &mut dyn FnMut(&[u8])) {
        for buffer in &self.buffers[..self.used] {
            emit(buffer);
        }
        self.used = 0;
    }
}
