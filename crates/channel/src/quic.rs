//! QUIC version 1 by quinn with TLS 1.3 by rustls, pinned to one suite, one group and one certificate algorithm.
//!
//! quinn does not say which suite and group a connection negotiated. So the client gives quinn its own
//! [`crypto::Session`], a thin one over rustls' QUIC connection, and reads them back from rustls itself.
//!
//! The packets of the Initial space are always protected with AES-128-GCM under keys that anyone can derive
//! (RFC 9001, 5.2); the suite of the channel protects everything else.

use std::{
    io,
    net::UdpSocket,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ciphertoll_wire::{Nanos, Negotiated, Outcome, TlsVersion};
use quinn::{
    ConnectError, Connection, ConnectionError, Endpoint, EndpointConfig, IdleTimeout, TokioRuntime, TransportConfig,
    TransportErrorCode, VarInt, crypto,
};
use rustls::{HandshakeKind, crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256, pki_types::CertificateDer};
use tokio::task::JoinSet;

use crate::{Error, Target, clock, identity::Identity, names, names::Pinned, tls};

mod session;
mod socket;

use session::{Handshake, ProvingConfig};
use socket::PeerSocket;

/// The one QUIC version (RFC 9000).
const VERSION: u32 = 1;
/// A connection on which nothing arrives for so long is lost.
const IDLE: Duration = Duration::from_secs(60);
/// A client that has been silent for so long sends a PING. Loads of 0.1/s and more never are, so it adds
/// packets to idle loads only.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// One body of 1 MiB, its frames, and the next one's beginning.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// Many bodies on their way at once.
const SEND_WINDOW_BYTES: u64 = 64 << 20;
/// More than the exchanges that a load may have under way.
const STREAMS: u32 = 10_000;

/// A connection that is up.
pub struct Established {
    /// It.
    pub connection: Connection,
    /// When its first packet was sent.
    pub opened_ns: Nanos,
    /// Equal to what the channel asks for.
    pub negotiated: Negotiated,
    /// What must run as long as the connection is used; it closes it when nobody listens any more.
    pub upkeep: JoinSet<()>,
}

/// Connects and proves what was negotiated.
///
/// # Errors
/// The peer cannot be reached, is not trusted, or does not speak the channel.
pub async fn connect(target: &Target, alpn: &[u8]) -> Result<Established, Error> {
    connect_within(target, alpn, IDLE).await
}

/// An endpoint that accepts what [`connect`] connects; it must be made inside a Tokio runtime.
///
/// # Errors
/// The library cannot do it, or the machine refuses the socket.
pub fn listen(socket: UdpSocket, pinned: &Pinned, identity: &Identity, alpn: &[u8]) -> Result<Endpoint, Error> {
    let config = tls::server_config(&tls::provider(pinned)?, identity, alpn)?;
    let crypto = crypto::rustls::QuicServerConfig::with_initial(Arc::new(config), initial_suite()?)
        .map_err(|e| Error::failed(Outcome::Unsupported, e))?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::new(transport(IDLE, None)?));
    Endpoint::new(endpoint_config(), Some(config), socket, Arc::new(TokioRuntime))
        .map_err(|e| Error::failed(Outcome::Machine, e))
}

async fn connect_within(target: &Target, alpn: &[u8], idle: Duration) -> Result<Established, Error> {
    let pinned = names::pin(&target.channel)?
        .ok_or_else(|| Error::failed(Outcome::Unsupported, "QUIC is always protected, the channel is not"))?;
    tls::server_name(&target.name)?;
    let tls = tls::client_config(&tls::provider(&pinned)?, target.ca_pem.as_deref(), alpn)?;
    let failure = Failure::default();
    let crypto = ProvingConfig { tls: Arc::new(tls), initial: initial_suite()?, failure: failure.clone() };
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport(idle, Some(KEEP_ALIVE))?));
    let unreachable = |e| Error::failed(Outcome::Unreachable, format!("cannot connect to {}: {e}", target.address));
    let socket = Arc::new(PeerSocket::connect(target.address).map_err(unreachable)?);
    let endpoint =
        Endpoint::new_with_abstract_socket(endpoint_config(), None, Arc::clone(&socket) as _, Arc::new(TokioRuntime))
            .map_err(|e| Error::failed(Outcome::Machine, e))?;

    let opened_ns = clock::now();
    let connecting = endpoint.connect_with(config, target.address, &target.name);
    let connecting = connecting.map_err(|e| connect_error(&e, &failure))?;
    let connection = tokio::select! {
        connected = connecting => connected.map_err(|e| connection_error(&e, &failure))?,
        () = socket.refused() => return Err(unreachable(io::ErrorKind::ConnectionRefused.into())),
    };
    let negotiated = prove(&pinned, &connection)?;
    let mut upkeep = JoinSet::new();
    let watched = connection.clone();
    upkeep.spawn_local(async move {
        socket.refused().await;
        watched.close(VarInt::from_u32(0), b"nobody listens");
    });
    Ok(Established { connection, opened_ns, negotiated, upkeep })
}

fn endpoint_config() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.supported_versions(vec![VERSION]);
    config
}

/// Path MTU discovery is off: its probes would be counted as bytes of the load. So datagrams stay at the
/// 1200 bytes that every path carries (RFC 9000, 14).
fn transport(idle: Duration, keep_alive: Option<Duration>) -> Result<TransportConfig, Error> {
    let idle = IdleTimeout::try_from(idle).map_err(|e| Error::failed(Outcome::Unsupported, e))?;
    let mut transport = TransportConfig::default();
    transport
        .mtu_discovery_config(None)
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(keep_alive)
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES);
    Ok(transport)
}

fn initial_suite() -> Result<rustls::quic::Suite, Error> {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(rustls::Tls13CipherSuite::quic_suite);
    suite.ok_or_else(|| Error::failed(Outcome::Unsupported, "rustls does not offer QUIC"))
}

fn prove(pinned: &Pinned, connection: &Connection) -> Result<Negotiated, Error> {
    let silent = || Error::failed(Outcome::Mismatch, "the library does not say what was negotiated");
    let handshake: Box<Handshake> =
        connection.handshake_data().and_then(|data| data.downcast().ok()).ok_or_else(silent)?;
    let chain: Box<Vec<CertificateDer<'static>>> =
        connection.peer_identity().and_then(|data| data.downcast().ok()).ok_or_else(silent)?;
    let leaf = chain.first().map(AsRef::as_ref);
    let resumed = !matches!(handshake.kind, Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest));
    let negotiated = tls::negotiated(TlsVersion::Tls13, handshake.suite, handshake.group, leaf, resumed)?;
    tls::prove_equal(pinned, &negotiated)?;
    Ok(negotiated)
}

/// Why rustls ended a handshake, kept because quinn passes on only the number of the alert.
#[derive(Clone, Default)]
struct Failure(Arc<Mutex<Option<rustls::Error>>>);

impl Failure {
    fn keep(&self, error: rustls::Error) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    fn outcome(&self) -> Option<Outcome> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(tls::outcome_of)
    }
}

/// Sorts an attempt to connect that failed before the first packet.
fn connect_error(error: &ConnectError, failure: &Failure) -> Error {
    let outcome = match error {
        ConnectError::InvalidServerName(_) => Outcome::Untrusted,
        ConnectError::InvalidRemoteAddress(_) => Outcome::Unreachable,
        _ => failure.outcome().unwrap_or(Outcome::Machine),
    };
    Error::failed(outcome, format!("cannot connect by QUIC: {error}"))
}

/// Sorts a handshake that failed by who is to blame.
fn connection_error(error: &ConnectionError, failure: &Failure) -> Error {
    let outcome = failure.outcome().unwrap_or_else(|| outcome_of(error));
    Error::failed(outcome, format!("QUIC handshake failed: {error}"))
}

fn outcome_of(error: &ConnectionError) -> Outcome {
    match error {
        ConnectionError::TimedOut => Outcome::TimedOut,
        ConnectionError::VersionMismatch => Outcome::Mismatch,
        ConnectionError::ConnectionClosed(close) if close.error_code == TransportErrorCode::CONNECTION_REFUSED => {
            Outcome::Unreachable
        }
        ConnectionError::ConnectionClosed(close) => outcome_of_code(u64::from(close.error_code)),
        _ => Outcome::Garbage,
    }
}

/// Codes 0x100 to 0x1FF carry a TLS alert (RFC 9001, 4.8; alerts: RFC 8446, 6).
fn outcome_of_code(code: u64) -> Outcome {
    const BAD_CERTIFICATE: u64 = 42;
    const CERTIFICATE_UNKNOWN: u64 = 46;
    const UNKNOWN_CA: u64 = 48;
    match code.checked_sub(0x100) {
        Some(BAD_CERTIFICATE..=CERTIFICATE_UNKNOWN | UNKNOWN_CA) => Outcome::Untrusted,
        Some(0..=0xFF) => Outcome::Mismatch,
        _ => Outcome::Garbage,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use Outcome::{Garbage, Mismatch, Untrusted};
    use ciphertoll_wire::{Channel, Security};
    use tokio::task::LocalSet;

    use super::*;
    use crate::ConnectionLog;

    #[test]
    fn alerts_about_certificates_are_apart_from_other_alerts_and_other_codes() {
        let outcomes = [0x12A, 0x130, 0x128, 0x178, 0x0A, 0x200].map(outcome_of_code);
        assert_eq!(outcomes, [Untrusted, Untrusted, Mismatch, Mismatch, Garbage, Garbage]);
    }

    #[test]
    fn a_peer_that_answers_garbage_is_ignored_until_the_time_is_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let failed = LocalSet::new().block_on(&runtime, async {
            let socket = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let target = target(socket.local_addr().unwrap());
            tokio::task::spawn_local(send_back_reversed(socket));
            connect_within(&target, b"h3", Duration::from_millis(300)).await.err()
        });
        assert_eq!(failed.unwrap().outcome(), Outcome::TimedOut);
    }

    async fn send_back_reversed(socket: tokio::net::UdpSocket) {
        let mut datagram = [0; 2048];
        while let Ok((length, client)) = socket.recv_from(&mut datagram).await {
            datagram[..length].reverse();
            let _ = socket.send_to(&datagram[..length], client).await;
        }
    }

    fn target(address: SocketAddr) -> Target {
        let security = Security {
            version: TlsVersion::Tls13,
            suite: "TLS_AES_128_GCM_SHA256".into(),
            group: "X25519".into(),
            certificate: "ECDSA-P256".into(),
            library: "rustls".into(),
        };
        let pinned = names::pin(&Channel::H3 { security: security.clone() }).unwrap().unwrap();
        let ca_pem = Some(Identity::new(pinned.certificate, &["localhost".into()]).unwrap().ca_pem);
        let channel = Channel::H3 { security };
        Target { channel, address, name: "localhost".into(), ca_pem, log: ConnectionLog::default() }
    }
}
