//! dimpl: DTLS in Rust over AWS-LC, the library that HTTPS, HTTP/3 and MQTT use here. The control for wolfSSL.
//!
//! It verifies neither chain nor name, so that is done here, by webpki, before anything is sent; and it does not
//! say which suite and group it negotiated, so both are read from the server's messages, which are not encrypted.

mod hello;

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use ciphertoll_wire::{Negotiated, Outcome, TlsVersion};
use dimpl::{
    Config, Dtls, DtlsCertificate, NamedGroup, Output,
    crypto::{Dtls12CipherSuite, Dtls13CipherSuite},
};
use hello::Hello;
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

use super::{Association, LONGEST_PLAINTEXT_BYTES, Outgoing, State};
use crate::{
    Error,
    identity::Identity,
    names::{CERTIFICATES, Pinned},
    tls,
};

/// Room for a datagram or a plaintext of the largest size, and for what protection adds.
const BUFFER_BYTES: usize = LONGEST_PLAINTEXT_BYTES + 512;

/// A fatal alert `handshake_failure`, unencrypted: type, version, epoch, a sequence number that was not used yet,
/// length, level, description (RFC 6347, 4.1; RFC 5246, 7.2).
const HANDSHAKE_FAILURE: [u8; 15] = [21, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 63, 0, 2, 2, 40];

/// The largest datagram of a handshake. dimpl pads its `ClientHello` up to this, so that a larger one would fill
/// whatever datagrams the channel allows; application data is not bound by it.
const HANDSHAKE_DATAGRAM_BYTES: usize = 1400;

/// Makes the server's side of associations.
pub struct Server {
    config: Arc<Config>,
    certificate: DtlsCertificate,
    pinned: Pinned,
}

impl Server {
    /// Accepts `pinned` and nothing else.
    pub fn new(pinned: &Pinned, identity: &Identity, datagram_bytes: usize) -> Result<Self, Error> {
        let certificate = certificate(identity);
        Ok(Self { config: config(pinned, datagram_bytes)?, certificate, pinned: *pinned })
    }

    /// The server's side of a new association.
    pub fn accept(&self) -> Result<Dimpl, Error> {
        let mut association = Dimpl::new(&self.config, self.certificate.clone(), self.pinned, None);
        association.start()?;
        Ok(association)
    }
}

fn certificate(identity: &Identity) -> DtlsCertificate {
    DtlsCertificate { certificate: identity.leaf.to_vec(), private_key: identity.key.secret_der().to_vec() }
}

/// A certificate for the client: dimpl wants one on both sides, for WebRTC, but this client is never asked for it.
fn own_certificate() -> Result<DtlsCertificate, Error> {
    static OWN: OnceLock<DtlsCertificate> = OnceLock::new();
    if let Some(own) = OWN.get() {
        return Ok(own.clone());
    }
    let own = certificate(&Identity::new(&CERTIFICATES[0], &["client".to_owned()])?);
    Ok(OWN.get_or_init(|| own).clone())
}

fn config(pinned: &Pinned, datagram_bytes: usize) -> Result<Arc<Config>, Error> {
    let code = pinned.suite.code;
    let mut config = Config::builder()
        .mtu(datagram_bytes.min(HANDSHAKE_DATAGRAM_BYTES))
        .require_client_certificate(false)
        .kx_groups(&[NamedGroup::from_u16(pinned.group.code)]);
    config = if pinned.version == TlsVersion::Dtls12 {
        config.dtls12_cipher_suites(&[Dtls12CipherSuite::from_u16(code)]).dtls13_cipher_suites(&[])
    } else {
        config.dtls13_cipher_suites(&[Dtls13CipherSuite::from_u16(code)]).dtls12_cipher_suites(&[])
    };
    let config = config.build().map_err(|e| Error::failed(Outcome::Unsupported, format!("dimpl: {e}")))?;
    Ok(Arc::new(config))
}

/// Verifies chain and name of the peer's certificate.
struct Verifier {
    webpki: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
}

impl Verifier {
    fn new(ca_pem: &str, name: &str) -> Result<Self, Error> {
        let unusable = |e: &dyn std::fmt::Display| {
            Error::failed(Outcome::Untrusted, format!("the authority's certificate is not usable: {e}"))
        };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            roots.add(certificate.map_err(|e| unusable(&format!("{e:?}")))?).map_err(|e| unusable(&e))?;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Self { webpki: webpki.map_err(|e| unusable(&e))?, name: tls::server_name(name)? })
    }

    fn verify(&self, leaf: &[u8]) -> Result<(), Error> {
        let leaf = CertificateDer::from(leaf);
        let verified = self.webpki.verify_server_cert(&leaf, &[], &self.name, &[], UnixTime::now());
        verified.map(drop).map_err(|e| Error::failed(Outcome::Untrusted, format!("the peer's certificate: {e}")))
    }
}

/// One association.
pub struct Dimpl {
    dtls: Dtls,
    pinned: Pinned,
    /// `None` on the server's side.
    verifier: Option<Verifier>,
    buffer: Vec<u8>,
    outgoing: Outgoing,
    hello: Hello,
    leaf: Option<Vec<u8>>,
    negotiated: Option<Negotiated>,
    due: Option<Instant>,
}

impl Dimpl {
    /// The client's side.
    pub fn client(pinned: &Pinned, ca_pem: &str, name: &str, datagram_bytes: usize) -> Result<Self, Error> {
        let verifier = Verifier::new(ca_pem, name)?;
        let mut client = Self::new(&config(pinned, datagram_bytes)?, own_certificate()?, *pinned, Some(verifier));
        client.dtls.set_active(true);
        Ok(client)
    }

    fn new(config: &Arc<Config>, certificate: DtlsCertificate, pinned: Pinned, verifier: Option<Verifier>) -> Self {
        let (config, now) = (config.clone(), Instant::now());
        let dtls = if pinned.version == TlsVersion::Dtls12 {
            Dtls::new_12(config, certificate, now)
        } else {
            Dtls::new_13(config, certificate, now)
        };
        Self {
            dtls,
            pinned,
            verifier,
            buffer: vec![0; BUFFER_BYTES],
            outgoing: Outgoing::default(),
            hello: Hello::default(),
            leaf: None,
            negotiated: None,
            due: None,
        }
    }

    /// Takes everything that the library has to say.
    fn poll(&mut self, deliver: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        loop {
            match self.dtls.poll_output(&mut self.buffer) {
                Output::Packet(datagram) => self.outgoing.push(datagram),
                Output::PeerCert(leaf) => {
                    self.verifier.as_ref().map_or(Ok(()), |verifier| verifier.verify(leaf))?;
                    self.leaf = Some(leaf.to_vec());
                }
                Output::ApplicationData(plaintext) => deliver(plaintext),
                Output::Connected => self.connected()?,
                Output::CloseNotify => {
                    return Err(Error::failed(Outcome::Vanished, "the peer closed the DTLS association"));
                }
                Output::BufferTooSmall { needed } => self.buffer.resize(needed, 0),
                Output::Timeout(due) => {
                    self.due = Some(due);
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    fn connected(&mut self) -> Result<(), Error> {
        let version = match self.dtls.protocol_version() {
            Some(dimpl::ProtocolVersion::DTLS1_2) => TlsVersion::Dtls12,
            _ => TlsVersion::Dtls13,
        };
        let negotiated = if self.verifier.is_some() {
            // dimpl has no resumption.
            tls::negotiated(version, self.hello.suite, self.hello.group, self.leaf.as_deref(), false)?
        } else {
            let pinned = &self.pinned;
            Negotiated {
                version,
                suite: pinned.suite.name.into(),
                group: pinned.group.name.into(),
                certificate: pinned.certificate.name.into(),
                resumed: false,
            }
        };
        tls::prove_equal(&self.pinned, &negotiated)?;
        self.negotiated = Some(negotiated);
        Ok(())
    }

    fn failed(&self, error: &dimpl::Error) -> Error {
        let outcome = match error {
            _ if self.negotiated.is_some() => Outcome::Vanished,
            dimpl::Error::CertificateError(_) => Outcome::Untrusted,
            dimpl::Error::Timeout(_) => Outcome::TimedOut,
            dimpl::Error::SecurityError(_) | dimpl::Error::ConnectionClosed => Outcome::Mismatch,
            _ => Outcome::Garbage,
        };
        Error::failed(outcome, format!("DTLS: {error}"))
    }
}

impl Association for Dimpl {
    fn start(&mut self) -> Result<(), Error> {
        // The first call of handle_timeout starts the state machine.
        self.on_timeout()
    }

    fn receive(&mut self, datagram: &[u8], deliver: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        if self.negotiated.is_none() {
            // dimpl counts the time to the next repetition from the last moment that it was told of.
            self.dtls.handle_timeout(Instant::now()).map_err(|e| self.failed(&e))?;
            if self.verifier.is_some() {
                self.hello.look(datagram);
            }
        }
        let handled = self.dtls.handle_packet(datagram).map_err(|e| self.failed(&e));
        if handled.is_err() && self.verifier.is_none() && self.negotiated.is_none() {
            // dimpl says nothing to a client that it cannot serve, which would then ask again and again.
            self.outgoing.push(&HANDSHAKE_FAILURE);
        }
        handled?;
        self.poll(deliver)
    }

    fn send(&mut self, plaintext: &[u8]) -> Result<(), Error> {
        self.dtls.send_application_data(plaintext).map_err(|e| self.failed(&e))?;
        self.poll(&mut |_| {})
    }

    fn transmit(&mut self, emit: &mut dyn FnMut(&[u8])) {
        self.outgoing.drain(emit);
    }

    fn timeout(&self) -> Option<Duration> {
        let patience = self.due?.saturating_duration_since(Instant::now());
        // dimpl names a time that is hours away while there is nothing to repeat.
        (patience < Duration::from_secs(3600)).then_some(patience)
    }

    fn on_timeout(&mut self) -> Result<(), Error> {
        self.dtls.handle_timeout(Instant::now()).map_err(|e| self.failed(&e))?;
        self.poll(&mut |_| {})
    }

    fn state(&self) -> State {
        self.negotiated.as_ref().map_or(State::Handshaking, |n| State::Established(Some(n.clone())))
    }

    fn close(&mut self) {
        // An association that is over already has nothing to say.
        if self.dtls.close().is_ok() {
            let _ = self.poll(&mut |_| {});
        }
    }
}
