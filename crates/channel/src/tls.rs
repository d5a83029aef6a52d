//! TLS 1.3 by rustls, pinned to one suite, one group and one certificate algorithm.

use std::sync::Arc;

use ciphertoll_wire::{Negotiated, Outcome, TlsVersion};
use rustls::{
    ClientConfig, CommonState, HandshakeKind, RootCertStore, ServerConfig, SupportedCipherSuite,
    client::Resumption,
    crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs},
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use tokio_util::either::Either;

use crate::{
    ConnectionLog, Error, Target, clock,
    identity::Identity,
    names::{self, CERTIFICATES, GROUPS, Pinned, SUITES},
};

/// A byte stream of a client, protected or not.
pub type ClientStream = Either<client::TlsStream<TcpStream>, TcpStream>;
/// A byte stream of a server, protected or not.
pub type ServerStream = Either<server::TlsStream<TcpStream>, TcpStream>;

/// Connects over TCP, and TLS if the channel says so; says the id of the connection in the log.
///
/// # Errors
/// The peer cannot be reached, is not trusted, or does not speak the channel.
pub async fn connect(target: &Target, alpn: &[u8]) -> Result<(ClientStream, u16), Error> {
    let pinned = names::pin(&target.channel)?;
    let opened = clock::now();
    let tcp = TcpStream::connect(target.address)
        .await
        .map_err(|e| Error::failed(Outcome::Unreachable, format!("cannot connect to {}: {e}", target.address)))?;
    tcp.set_nodelay(true).map_err(|e| Error::failed(Outcome::Machine, e))?;
    let Some(pinned) = pinned else {
        return Ok((Either::Right(tcp), target.log.ready(opened, None)));
    };
    let connector = TlsConnector::from(Arc::new(client_config(&provider(&pinned)?, target.ca_pem.as_deref(), alpn)?));
    let stream = connector.connect(server_name(&target.name)?, tcp).await.map_err(|e| handshake_error(&e))?;
    let id = prove(&pinned, stream.get_ref().1, opened, &target.log)?;
    Ok((Either::Left(stream), id))
}

/// Accepts what [`connect`] connects.
#[derive(Clone)]
pub struct Acceptor(Option<TlsAcceptor>);

impl Acceptor {
    /// An acceptor that can negotiate `pinned` and nothing else; without protection if `None`.
    ///
    /// # Errors
    /// The library cannot do it.
    pub fn new(pinned: Option<(&Pinned, &Identity)>, alpn: &[u8]) -> Result<Self, Error> {
        let Some((pinned, identity)) = pinned else { return Ok(Self(None)) };
        let config = server_config(&provider(pinned)?, identity, alpn)?;
        Ok(Self(Some(TlsAcceptor::from(Arc::new(config)))))
    }

    /// The server's end of a new connection.
    ///
    /// # Errors
    /// The handshake failed.
    pub async fn accept(&self, tcp: TcpStream) -> std::io::Result<ServerStream> {
        tcp.set_nodelay(true)?;
        match &self.0 {
            Some(acceptor) => Ok(Either::Left(acceptor.accept(tcp).await?)),
            None => Ok(Either::Right(tcp)),
        }
    }
}

/// A provider that holds exactly one suite and one group.
///
/// # Errors
/// rustls does not have them.
pub fn provider(pinned: &Pinned) -> Result<CryptoProvider, Error> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![suite(pinned)?];
    provider.kx_groups = vec![group(pinned)?];
    Ok(provider)
}

/// The suite of `pinned` in rustls.
///
/// # Errors
/// rustls does not have it.
pub fn suite(pinned: &Pinned) -> Result<SupportedCipherSuite, Error> {
    let code = pinned.suite.code;
    let found = aws_lc_rs::ALL_CIPHER_SUITES.iter().find(|s| u16::from(s.suite()) == code);
    found.copied().ok_or_else(|| missing(pinned.suite.name))
}

/// The group of `pinned` in rustls.
///
/// # Errors
/// rustls does not have it.
pub fn group(pinned: &Pinned) -> Result<&'static dyn SupportedKxGroup, Error> {
    let code = pinned.group.code;
    let found = aws_lc_rs::ALL_KX_GROUPS.iter().find(|g| u16::from(g.name()) == code);
    found.copied().ok_or_else(|| missing(pinned.group.name))
}

fn missing(name: &str) -> Error {
    Error::failed(Outcome::Unsupported, format!("rustls does not have `{name}`"))
}

/// A client that trusts one authority and never resumes.
///
/// # Errors
/// `ca_pem` is missing or no certificate.
pub fn client_config(provider: &CryptoProvider, ca_pem: Option<&str>, alpn: &[u8]) -> Result<ClientConfig, Error> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| Error::failed(Outcome::Unsupported, e))?
        .with_root_certificates(roots(ca_pem)?)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(config)
}

/// A server that sends no tickets.
///
/// # Errors
/// The library refuses the certificate.
pub fn server_config(provider: &CryptoProvider, identity: &Identity, alpn: &[u8]) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|b| b.with_no_client_auth().with_single_cert(vec![identity.leaf.clone()], identity.key.clone_key()))
        .map_err(|e| Error::failed(Outcome::Unsupported, e))?;
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(config)
}

fn roots(ca_pem: Option<&str>) -> Result<RootCertStore, Error> {
    let bad = |why: &dyn std::fmt::Display| {
        Error::failed(Outcome::Untrusted, format!("the authority's certificate is not usable: {why}"))
    };
    let pem = ca_pem.ok_or_else(|| bad(&"none was given"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.map_err(|e| bad(&format!("{e:?}")))?).map_err(|e| bad(&e))?;
    }
    Ok(roots)
}

/// `name` as a DNS name or address.
///
/// # Errors
/// It is neither.
pub fn server_name(name: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| Error::failed(Outcome::Untrusted, format!("`{name}` is neither a DNS name nor an IP address")))
}

/// Demands that a certificate, whose chain is verified already, is for `name`.
///
/// # Errors
/// It is not, or it is no certificate.
pub fn verify_name(leaf: &[u8], name: &ServerName<'_>) -> Result<(), Error> {
    let leaf = CertificateDer::from(leaf);
    let valid = webpki::EndEntityCert::try_from(&leaf).and_then(|leaf| leaf.verify_is_valid_for_subject_name(name));
    valid.map_err(|e| Error::failed(Outcome::Untrusted, format!("the peer's certificate: {e}")))
}

/// Sorts a failed handshake by who is to blame.
#[must_use]
pub fn handshake_error(error: &std::io::Error) -> Error {
    let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    Error::failed(tls.map_or(Outcome::Garbage, outcome_of), format!("TLS handshake failed: {error}"))
}

/// The ending that a rustls error stands for.
#[must_use]
pub fn outcome_of(error: &rustls::Error) -> Outcome {
    match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => Outcome::Untrusted,
        rustls::Error::PeerIncompatible(_) | rustls::Error::AlertReceived(_) => Outcome::Mismatch,
        _ => Outcome::Garbage,
    }
}

fn prove(
    pinned: &Pinned,
    connection: &CommonState,
    opened: ciphertoll_wire::Nanos,
    log: &ConnectionLog,
) -> Result<u16, Error> {
    let suite = connection.negotiated_cipher_suite().map(|s| u16::from(s.suite()));
    let group = connection.negotiated_key_exchange_group().map(|g| u16::from(g.name()));
    let leaf = connection.peer_certificates().and_then(|chain| chain.first());
    let resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
    let negotiated = negotiated(TlsVersion::Tls13, suite, group, leaf.map(AsRef::as_ref), resumed)?;
    prove_equal(pinned, &negotiated)?;
    Ok(log.ready(opened, Some(negotiated)))
}

/// Names what a library says that it negotiated.
///
/// # Errors
/// The library does not say, or says something without a name here.
pub fn negotiated(
    version: TlsVersion,
    suite: Option<u16>,
    group: Option<u16>,
    leaf: Option<&[u8]>,
    resumed: bool,
) -> Result<Negotiated, Error> {
    let unknown = |noun: &str| Error::failed(Outcome::Mismatch, format!("the negotiated {noun} is not known"));
    let suite = SUITES.iter().find(|s| Some(s.code) == suite).ok_or_else(|| unknown("suite"))?;
    let group = GROUPS.iter().find(|g| Some(g.code) == group).ok_or_else(|| unknown("group"))?;
    let certificate = leaf.and_then(key_algorithm).ok_or_else(|| unknown("certificate algorithm"))?;
    Ok(Negotiated {
        version,
        suite: suite.name.into(),
        group: group.name.into(),
        certificate: certificate.into(),
        resumed,
    })
}

/// Demands that what was negotiated is what was asked for.
///
/// # Errors
/// It is not.
pub fn prove_equal(pinned: &Pinned, negotiated: &Negotiated) -> Result<(), Error> {
    let wanted = Negotiated {
        version: pinned.version,
        suite: pinned.suite.name.into(),
        group: pinned.group.name.into(),
        certificate: pinned.certificate.name.into(),
        resumed: false,
    };
    if *negotiated == wanted {
        return Ok(());
    }
    Err(Error::failed(Outcome::Mismatch, format!("asked for {wanted:?}, negotiated {negotiated:?}")))
}

/// The name of the algorithm of the public key in a certificate.
#[must_use]
pub fn key_algorithm(leaf: &[u8]) -> Option<&'static str> {
    let leaf = CertificateDer::from(leaf);
    let key = webpki::EndEntityCert::try_from(&leaf).ok()?.subject_public_key_info();
    // The identifier is the first thing in a SubjectPublicKeyInfo, behind at most 8 bytes of framing.
    let head = &key.as_ref()[..key.as_ref().len().min(48)];
    let row = CERTIFICATES.iter().find(|c| head.windows(c.key_algorithm.len()).take(9).any(|w| w == c.key_algorithm));
    row.map(|c| c.name)
}
