//! CoAP and DTLS from end to end, over real sockets on the loopback interface.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use ciphertoll_channel::{
    Client, ConnectionLog, Error, ExchangeError, Lane, Target, Times,
    coap::{self, CoapClient},
    identity::Identity,
    names,
};
use ciphertoll_wire::{Channel, Coap, Nanos, Outcome, Protocol, Security, TlsVersion};
use tokio::{
    net::UdpSocket,
    task::{JoinHandle, LocalSet, spawn_local},
};

const CONFIRMABLE: Coap = Coap { confirmable: true, nstart: 0, datagram_bytes: 1400 };
const NON_CONFIRMABLE: Coap = Coap { confirmable: false, ..CONFIRMABLE };
const LARGE: Coap = Coap { datagram_bytes: 16_000, ..CONFIRMABLE };
const VERSIONS: [TlsVersion; 2] = [TlsVersion::Dtls13, TlsVersion::Dtls12];

/// The libraries of this build.
fn libraries() -> impl Iterator<Item = &'static str> {
    names::libraries(Protocol::Coaps).iter().filter(|library| library.built_in()).map(|library| library.name())
}

fn protected(coap: Coap, library: &str, version: TlsVersion) -> Channel {
    let suite = match version {
        TlsVersion::Dtls12 => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        _ => "TLS_AES_128_GCM_SHA256",
    };
    with(coap, version, suite, "X25519", "ECDSA-P256", library)
}

fn with(coap: Coap, version: TlsVersion, suite: &str, group: &str, certificate: &str, library: &str) -> Channel {
    let (suite, group) = (suite.into(), group.into());
    let security = Security { version, suite, group, certificate: certificate.into(), library: library.into() };
    Channel::Coaps { coap, security }
}

/// Unprotected, and protected by each library with each version.
fn all_channels(coap: Coap) -> Vec<Channel> {
    let protected = libraries().flat_map(|library| VERSIONS.map(|version| protected(coap, library, version)));
    protected.chain([Channel::Coap { coap }]).collect()
}

/// Starts a server for `channel` and says how to reach it.
async fn serve(channel: Channel) -> (Target, JoinHandle<()>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let (Channel::Coap { coap } | Channel::Coaps { coap, .. }) = channel else { panic!() };
    let pinned = names::pin(&channel).unwrap();
    let secrets = pinned.map(|pinned| (pinned, Identity::new(pinned.certificate, &["localhost".into()]).unwrap()));
    let ca_pem = secrets.as_ref().map(|(_, identity)| identity.ca_pem.clone());
    let server = spawn_local(coap::serve(socket, secrets, coap));
    (Target { channel, address, name: "localhost".into(), ca_pem, log: ConnectionLog::default() }, server)
}

fn payload(size: usize) -> Vec<u8> {
    (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

async fn echo(lane: &mut impl Lane, size: usize) -> Result<(), ExchangeError> {
    lane.exchange(&payload(size), &mut Times::default()).await
}

async fn connect_error(target: Target) -> Error {
    let connected = tokio::time::timeout(Duration::from_secs(3), CoapClient::connect(target)).await;
    connected.unwrap().err().unwrap()
}

/// Runs `test` as the engine runs a load: on one thread. Nothing here takes long: what does is a hang.
fn on_one_thread<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limited = async { tokio::time::timeout(Duration::from_secs(30), test).await.unwrap() };
    LocalSet::new().block_on(&runtime, limited)
}

/// Stands between a client and the server at `to`, and forwards the datagrams that `pass` lets through; its first
/// argument says whether a datagram goes to the server.
async fn relay(to: SocketAddr, mut pass: impl FnMut(bool, &[u8]) -> bool + 'static) -> SocketAddr {
    let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    far.connect(to).await.unwrap();
    let address = near.local_addr().unwrap();
    spawn_local(async move {
        let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
        let mut client = None;
        loop {
            tokio::select! {
                received = near.recv_from(&mut up) => {
                    let (length, from) = received.unwrap();
                    client = Some(from);
                    if pass(true, &up[..length]) {
                        let _ = far.send(&up[..length]).await;
                    }
                }
                received = far.recv(&mut down) => {
                    if let (Ok(length), Some(client)) = (received, client) && pass(false, &down[..length]) {
                        near.send_to(&down[..length], client).await.unwrap();
                    }
                }
            }
        }
    });
    address
}

async fn negotiates_what_it_asks_for(channel: Channel) {
    let security = channel.security().unwrap().clone();
    let (target, _server) = serve(channel).await;
    let log = target.log.clone();
    let client = CoapClient::connect(target).await.unwrap_or_else(|error| panic!("{security:?}: {error}"));
    echo(&mut client.lane().await.unwrap(), 100).await.unwrap();
    let negotiated = log.snapshot().pop().unwrap().negotiated.unwrap();
    assert_eq!(negotiated.version, security.version);
    assert_eq!(negotiated.suite, security.suite);
    assert_eq!(negotiated.group, security.group);
    assert_eq!(negotiated.certificate, security.certificate);
    assert!(!negotiated.resumed);
}

#[test]
fn every_suite_of_every_version_and_library_is_negotiated_as_asked() {
    on_one_thread(async {
        for version in VERSIONS {
            let elliptic = |group: &str| matches!(group, "X25519" | "P-256");
            let pins = names::combinations(Protocol::Coaps, version);
            for pin in pins.filter(|pin| elliptic(pin.group.name) && pin.certificate.name == "ECDSA-P256") {
                let (suite, group) = (pin.suite.name, pin.group.name);
                let channel = with(CONFIRMABLE, version, suite, group, pin.certificate.name, pin.library.name());
                negotiates_what_it_asks_for(channel).await;
            }
        }
    });
}

#[cfg(feature = "wolfssl")]
#[test]
fn every_group_and_certificate_that_wolfssl_offers_is_negotiated_as_asked() {
    on_one_thread(async {
        for version in VERSIONS {
            let pins: Vec<_> = names::combinations(Protocol::Coaps, version)
                .filter(|pin| pin.library.name() == "wolfssl" && pin.suite.name.contains("AES_128"))
                .collect();
            // Each group with one certificate, and each certificate with one group.
            for pin in pins.iter().filter(|pin| pin.group.name == "X25519" || pin.certificate.name == "ECDSA-P256") {
                let (group, certificate) = (pin.group.name, pin.certificate.name);
                let channel = with(CONFIRMABLE, version, pin.suite.name, group, certificate, "wolfssl");
                negotiates_what_it_asks_for(channel).await;
            }
        }
        for certificate in ["Ed25519", "RSA-2048", "ML-DSA-65"] {
            let suite = "TLS_CHACHA20_POLY1305_SHA256";
            let channel = with(CONFIRMABLE, TlsVersion::Dtls13, suite, "MLKEM1024", certificate, "wolfssl");
            negotiates_what_it_asks_for(channel).await;
        }
    });
}

#[test]
fn an_authority_that_did_not_sign_is_not_trusted() {
    on_one_thread(async {
        for channel in all_channels(CONFIRMABLE).into_iter().filter(|channel| channel.security().is_some()) {
            let (mut target, _server) = serve(channel).await;
            let certificate = names::pin(&target.channel).unwrap().unwrap().certificate;
            target.ca_pem = Some(Identity::new(certificate, &["localhost".into()]).unwrap().ca_pem);
            let error = connect_error(target.clone()).await;
            assert_eq!(error.outcome(), Outcome::Untrusted, "{:?}: {error}", target.channel);
        }
    });
}

#[test]
fn a_name_that_is_not_in_the_certificate_is_not_trusted() {
    on_one_thread(async {
        for channel in all_channels(CONFIRMABLE).into_iter().filter(|channel| channel.security().is_some()) {
            for name in ["elsewhere", "127.0.0.1"] {
                let (mut target, _server) = serve(channel.clone()).await;
                target.name = name.into();
                let error = connect_error(target).await;
                assert_eq!(error.outcome(), Outcome::Untrusted, "{channel:?} {name}: {error}");
            }
        }
    });
}

#[test]
fn a_server_with_another_suite_is_a_mismatch() {
    on_one_thread(async {
        for channel in all_channels(CONFIRMABLE) {
            let (mut target, _server) = serve(channel.clone()).await;
            let Channel::Coaps { security, .. } = &mut target.channel else { continue };
            security.suite = security.suite.replace("AES_128_GCM_SHA256", "AES_256_GCM_SHA384");
            let error = connect_error(target).await;
            assert_eq!(error.outcome(), Outcome::Mismatch, "{channel:?}: {error}");
        }
    });
}

#[test]
fn a_server_with_another_group_is_a_mismatch() {
    on_one_thread(async {
        for channel in all_channels(CONFIRMABLE) {
            let (mut target, _server) = serve(channel.clone()).await;
            let Channel::Coaps { security, .. } = &mut target.channel else { continue };
            security.group = "P-256".into();
            let error = connect_error(target).await;
            assert_eq!(error.outcome(), Outcome::Mismatch, "{channel:?}: {error}");
        }
    });
}

#[test]
fn the_first_datagram_is_sent_at_once() {
    on_one_thread(async {
        for channel in all_channels(NON_CONFIRMABLE) {
            let (target, _server) = serve(channel).await;
            let connected = tokio::time::timeout(Duration::from_millis(500), CoapClient::connect(target)).await;
            let client = connected.unwrap().unwrap();
            let mut lane = client.lane().await.unwrap();
            tokio::time::timeout(Duration::from_millis(500), echo(&mut lane, 1)).await.unwrap().unwrap();
        }
    });
}

#[test]
fn a_lane_that_outlives_its_client_is_closed() {
    on_one_thread(async {
        for channel in all_channels(CONFIRMABLE) {
            let (target, _server) = serve(channel).await;
            let mut lane = CoapClient::connect(target).await.unwrap().lane().await.unwrap();
            assert_eq!(echo(&mut lane, 1).await, Err(ExchangeError::Closed));
        }
    });
}

#[test]
fn payloads_of_all_sizes_come_back() {
    on_one_thread(async {
        for channel in [CONFIRMABLE, NON_CONFIRMABLE].into_iter().flat_map(all_channels) {
            let (target, _server) = serve(channel).await;
            let log = target.log.clone();
            let client = CoapClient::connect(target).await.unwrap();
            let mut lane = client.lane().await.unwrap();
            for size in [1, 1023, 1024, 1025, 2048, 100_000, 1 << 20] {
                let mut times = Times::default();
                lane.exchange(&payload(size), &mut times).await.unwrap();
                assert!(Nanos(0) < times.sent_ns && times.sent_ns < times.done_ns);
            }
            assert_eq!((log.snapshot().len(), lane.connection()), (1, 0));
        }
    });
}
