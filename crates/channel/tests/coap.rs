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
    Channel::Coaps { coap, security: security(version, suite, "X25519", "ECDSA-P256", library) }
}

fn security(version: TlsVersion, suite: &str, group: &str, certificate: &str, library: &str) -> Security {
    let (suite, group) = (suite.into(), group.into());
    Security { version, suite, group, certificate: certificate.into(), library: library.into() }
}

/// Unprotected, and protected by each library with each version.
fn all_channels(coap: Coap) -> Vec<Channel> {
    let protected = libraries().flat_map(|library| VERSIONS.map(|version| protected(coap, library, version)));
    protected.chain([Channel::Coap { coap }]).collect()
}

/// Starts a server for `channel` and says how to reach it.
async fn serve(channel: Channel) -> (Target, JoinHandle<()>) {
    serve_as(channel, &["localhost"]).await
}

/// The same with a certificate for `names`.
async fn serve_as(channel: Channel, names: &[&str]) -> (Target, JoinHandle<()>) {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let (Channel::Coap { coap } | Channel::Coaps { coap, .. }) = channel else { panic!() };
    let pinned = ciphertoll_channel::names::pin(&channel).unwrap();
    let secrets = pinned.map(|pinned| (pinned, Identity::new(pinned.certificate, &names).unwrap()));
    let ca_pem = secrets.as_ref().map(|(_, identity)| identity.ca_pem.clone());
    let server = spawn_local(coap::Server::new(secrets.as_ref(), coap).unwrap().run(socket));
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

/// Stands between a client and the server at `to`, and sends what `change` makes of each datagram; its first argument
/// says whether the datagram goes to the server.
async fn relay(to: SocketAddr, mut change: impl FnMut(bool, &[u8]) -> Vec<Vec<u8>> + 'static) -> SocketAddr {
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
                    let Ok((length, from)) = received else { continue };
                    client = Some(from);
                    for datagram in change(true, &up[..length]) {
                        let _ = far.send(&datagram).await;
                    }
                }
                received = far.recv(&mut down) => {
                    let (Ok(length), Some(client)) = (received, client) else { continue };
                    for datagram in change(false, &down[..length]) {
                        let _ = near.send_to(&datagram, client).await;
                    }
                }
            }
        }
    });
    address
}

/// Loses the datagrams whose numbers `lose` names, counted in both directions together.
async fn lossy(to: SocketAddr, lose: impl Fn(usize) -> bool + 'static) -> SocketAddr {
    let mut number = 0;
    relay(to, move |_, datagram| {
        number += 1;
        if lose(number - 1) { Vec::new() } else { vec![datagram.to_vec()] }
    })
    .await
}

async fn negotiates_what_it_asks_for(security: Security) {
    let (target, _server) = serve(Channel::Coaps { coap: CONFIRMABLE, security: security.clone() }).await;
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
                let asked = security(version, suite, group, pin.certificate.name, pin.library.name());
                negotiates_what_it_asks_for(asked).await;
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
                let asked = security(version, pin.suite.name, group, certificate, "wolfssl");
                negotiates_what_it_asks_for(asked).await;
            }
        }
        for certificate in ["Ed25519", "RSA-2048", "ML-DSA-65"] {
            let suite = "TLS_CHACHA20_POLY1305_SHA256";
            let asked = security(TlsVersion::Dtls13, suite, "MLKEM1024", certificate, "wolfssl");
            negotiates_what_it_asks_for(asked).await;
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
fn an_address_in_the_certificate_is_a_name_like_any_other() {
    on_one_thread(async {
        for channel in all_channels(CONFIRMABLE).into_iter().filter(|channel| channel.security().is_some()) {
            for (name, expected) in [("127.0.0.1", None), ("127.0.0.2", Some(Outcome::Untrusted))] {
                let (mut target, _server) = serve_as(channel.clone(), &["localhost", "127.0.0.1"]).await;
                target.name = name.into();
                let connected = CoapClient::connect(target).await;
                let outcome = connected.err().map(|error| error.outcome());
                assert_eq!(outcome, expected, "{channel:?} {name}");
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

#[test]
fn a_payload_that_fits_goes_in_one_datagram_each_way() {
    on_one_thread(async {
        for channel in all_channels(LARGE) {
            let (mut target, _server) = serve(channel).await;
            let sizes = Rc::new(RefCell::new(Vec::new()));
            let seen = sizes.clone();
            target.address = relay(target.address, move |up, datagram| {
                seen.borrow_mut().push((up, datagram.len()));
                vec![datagram.to_vec()]
            })
            .await;
            let client = CoapClient::connect(target).await.unwrap();
            let mut lane = client.lane().await.unwrap();
            // What the handshake has left to say has been said then.
            echo(&mut lane, 1).await.unwrap();
            sizes.borrow_mut().clear();
            echo(&mut lane, 2048).await.unwrap();
            let sizes = sizes.borrow();
            assert!(matches!(sizes[..], [(true, 2049..=2125), (false, 2049..=2125)]), "{sizes:?}");
        }
    });
}

/// The largest datagram of a handshake and of exchanges of several sizes; of the exchanges alone with dimpl, which
/// fills its first flight up to a size of its own.
async fn largest_datagram(channel: Channel, datagram_bytes: usize) -> usize {
    let dimpl = channel.security().is_some_and(|security| security.library == "dimpl");
    let (mut target, _server) = serve(channel).await;
    let largest = Rc::new(Cell::new(0));
    let seen = largest.clone();
    target.address = relay(target.address, move |_, datagram| {
        seen.set(seen.get().max(datagram.len()));
        vec![datagram.to_vec()]
    })
    .await;
    let client = CoapClient::connect(target).await.unwrap();
    if dimpl {
        largest.set(0);
    }
    let mut lane = client.lane().await.unwrap();
    for size in [1, datagram_bytes / 2, datagram_bytes - 80, datagram_bytes, 20_000] {
        echo(&mut lane, size).await.unwrap();
    }
    largest.get()
}

#[test]
fn no_datagram_is_larger_than_asked() {
    on_one_thread(async {
        for datagram_bytes in [700, 1200, 1400] {
            for channel in all_channels(Coap { datagram_bytes, ..CONFIRMABLE }) {
                let largest = largest_datagram(channel.clone(), datagram_bytes).await;
                assert!(largest <= datagram_bytes, "{channel:?}: {largest}");
            }
        }
    });
}

/// Exchanges a payload that consists of `number` alone.
async fn exchange_filled(mut lane: impl Lane, number: u8) -> Result<(), ExchangeError> {
    lane.exchange(&vec![number; 5000 + 100 * usize::from(number)], &mut Times::default()).await
}

#[test]
fn twenty_lanes_at_once_do_not_mix_their_blocks() {
    on_one_thread(async {
        for channel in [CONFIRMABLE, NON_CONFIRMABLE].into_iter().flat_map(all_channels) {
            let (target, _server) = serve(channel).await;
            let client = CoapClient::connect(target).await.unwrap();
            let mut exchanges = tokio::task::JoinSet::new();
            for number in 0..20 {
                exchanges.spawn_local(exchange_filled(client.lane().await.unwrap(), number));
            }
            assert!(exchanges.join_all().await.iter().all(Result::is_ok));
        }
    });
}

/// The most requests that were outstanding when five lanes exchanged `size` bytes each.
async fn outstanding(coap: Coap, size: usize) -> i32 {
    let (mut target, _server) = serve(Channel::Coap { coap }).await;
    let (most, mut now) = (Rc::new(Cell::new(0)), 0);
    let seen = most.clone();
    target.address = relay(target.address, move |up, datagram| {
        now += if up { 1 } else { -1 };
        seen.set(seen.get().max(now));
        vec![datagram.to_vec()]
    })
    .await;
    let client = CoapClient::connect(target).await.unwrap();
    let mut exchanges = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let mut lane = client.lane().await.unwrap();
        exchanges.spawn_local(async move { echo(&mut lane, size).await.unwrap() });
    }
    exchanges.join_all().await;
    most.get()
}

#[test]
fn nstart_bounds_the_exchanges_that_are_outstanding() {
    on_one_thread(async {
        assert_eq!(outstanding(Coap { nstart: 1, ..CONFIRMABLE }, 100).await, 1);
        assert_eq!(outstanding(Coap { nstart: 1, ..CONFIRMABLE }, 3000).await, 1);
        assert_eq!(outstanding(Coap { nstart: 2, ..NON_CONFIRMABLE }, 100).await, 2);
        assert!(outstanding(CONFIRMABLE, 100).await > 1);
    });
}

/// Connects and exchanges, without the datagram whose number is `lost`.
async fn handshake_without(lost: usize, channel: Channel) {
    let (mut target, _server) = serve(channel.clone()).await;
    target.address = lossy(target.address, move |number| number == lost).await;
    let connected = tokio::time::timeout(Duration::from_secs(8), CoapClient::connect(target)).await;
    let client = connected.unwrap_or_else(|_| panic!("{channel:?} without datagram {lost}")).unwrap();
    let mut failures = 0;
    // The datagram that is lost may be one of these exchanges' own.
    for _ in 0..3 {
        let mut lane = client.lane().await.unwrap();
        let exchanged = tokio::time::timeout(Duration::from_secs(4), echo(&mut lane, 10)).await;
        failures += usize::from(exchanged != Ok(Ok(())));
    }
    assert!(failures < 2, "{channel:?} without datagram {lost}");
}

#[test]
fn a_handshake_survives_the_loss_of_any_one_datagram() {
    on_one_thread(async {
        let mut handshakes = tokio::task::JoinSet::new();
        for channel in all_channels(NON_CONFIRMABLE).into_iter().filter(|channel| channel.security().is_some()) {
            for lost in 0..14 {
                handshakes.spawn_local(handshake_without(lost, channel.clone()));
            }
        }
        handshakes.join_all().await;
    });
}

#[test]
fn a_lost_confirmable_message_is_repeated() {
    on_one_thread(async {
        // The request is lost, or the answer.
        let losses = [0, 1].map(async |lost| {
            let (mut target, _server) = serve(Channel::Coap { coap: CONFIRMABLE }).await;
            target.address = lossy(target.address, move |number| number == lost).await;
            let client = CoapClient::connect(target).await.unwrap();
            let started = std::time::Instant::now();
            echo(&mut client.lane().await.unwrap(), 10).await.unwrap();
            // ACK_TIMEOUT, and up to ACK_RANDOM_FACTOR times that.
            assert!((2000..3500).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
        });
        let [request, answer] = losses;
        tokio::join!(request, answer);
    });
}

#[test]
fn a_lost_non_confirmable_message_stops_its_own_exchange_only() {
    on_one_thread(async {
        for lost in [0, 1] {
            let (mut target, _server) = serve(Channel::Coap { coap: NON_CONFIRMABLE }).await;
            target.address = lossy(target.address, move |number| number == lost).await;
            let client = CoapClient::connect(target).await.unwrap();
            let mut lane = client.lane().await.unwrap();
            let exchanged = tokio::time::timeout(Duration::from_millis(100), echo(&mut lane, 10)).await;
            assert!(exchanged.is_err());
            echo(&mut client.lane().await.unwrap(), 3000).await.unwrap();
        }
    });
}

#[test]
fn an_exchange_that_is_given_up_frees_its_place() {
    on_one_thread(async {
        for channel in all_channels(Coap { nstart: 1, ..CONFIRMABLE }) {
            let (target, _server) = serve(channel).await;
            let client = CoapClient::connect(target).await.unwrap();
            for _ in 0..5 {
                let mut lane = client.lane().await.unwrap();
                let (body, mut times) = (payload(5000), Times::default());
                let mut exchange = pin!(lane.exchange(&body, &mut times));
                assert!(poll_fn(|cx| Poll::Ready(exchange.as_mut().poll(cx))).await.is_pending());
            }
            echo(&mut client.lane().await.unwrap(), 5000).await.unwrap();
        }
    });
}

/// What a stranger could send with a forged address, having seen `datagram`.
fn forgeries(datagram: &[u8]) -> Vec<Vec<u8>> {
    let mut forgeries = vec![datagram.to_vec(), Vec::new(), vec![0; 1], vec![0xFF; 3000], payload(1400)];
    for kind in (20..=26).chain([0x20, 0x2C, 0x2D, 0x2E, 0x2F, 0x3F]) {
        for epoch in 0..4 {
            for body in [&[][..], &[1], &[2, 40], &[1, 0], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0; 64]] {
                let mut forgery = vec![kind, 0xFE, 0xFD, 0, epoch, 0, 0, 0, 0, 7, epoch, 0, 0];
                forgery[12] = u8::try_from(body.len()).unwrap();
                forgery.extend(body);
                forgeries.push(forgery);
            }
        }
    }
    for at in 0..datagram.len().min(40) {
        let mut forgery = datagram.to_vec();
        forgery[at] ^= 0x55;
        forgeries.extend([forgery, datagram[..at].to_vec()]);
    }
    forgeries
}

#[test]
fn forged_datagrams_do_not_end_an_association() {
    on_one_thread(async {
        for channel in all_channels(CONFIRMABLE).into_iter().filter(|channel| channel.security().is_some()) {
            let (mut target, _server) = serve(channel.clone()).await;
            let established = Rc::new(Cell::new(false));
            let forge = established.clone();
            target.address = relay(target.address, move |_, datagram| {
                let before = forge.get().then(|| forgeries(datagram)).into_iter().flatten();
                before.chain([datagram.to_vec()]).collect()
            })
            .await;
            let client = CoapClient::connect(target).await.unwrap();
            let mut lane = client.lane().await.unwrap();
            echo(&mut lane, 10).await.unwrap();
            established.set(true);
            for _ in 0..3 {
                let exchanged = tokio::time::timeout(Duration::from_secs(1), echo(&mut lane, 10)).await;
                assert_eq!(exchanged, Ok(Ok(())), "{channel:?}");
            }
        }
    });
}

#[test]
fn garbage_in_place_of_coap_is_survived_on_both_sides() {
    on_one_thread(async {
        let (mut target, _server) = serve(Channel::Coap { coap: CONFIRMABLE }).await;
        target.address = relay(target.address, |_, datagram| {
            // Without those that are the datagram, or one that says something else in its place.
            let mut all: Vec<_> = forgeries(datagram).into_iter().filter(|forgery| forgery.len() < 8).collect();
            all.push(datagram.to_vec());
            all
        })
        .await;
        let client = CoapClient::connect(target).await.unwrap();
        let mut lane = client.lane().await.unwrap();
        for size in [1, 100, 3000] {
            tokio::time::timeout(Duration::from_secs(1), echo(&mut lane, size)).await.unwrap().unwrap();
        }
    });
}

#[test]
fn a_server_that_is_gone_closes_its_exchanges_and_then_has_vanished() {
    on_one_thread(async {
        for channel in all_channels(CONFIRMABLE) {
            let (target, server) = serve(channel).await;
            let client = CoapClient::connect(target).await.unwrap();
            let mut lane = client.lane().await.unwrap();
            echo(&mut lane, 1).await.unwrap();
            server.abort();
            assert!(server.await.is_err());
            let exchanged = tokio::time::timeout(Duration::from_secs(1), echo(&mut lane, 1)).await;
            assert_eq!(exchanged, Ok(Err(ExchangeError::Closed)));
            assert_eq!(client.lane().await.err().unwrap().outcome(), Outcome::Vanished);
        }
    });
}

#[test]
fn a_port_where_nobody_listens_is_unreachable() {
    on_one_thread(async {
        for channel in all_channels(CONFIRMABLE).into_iter().filter(|channel| channel.security().is_some()) {
            let (target, server) = serve(channel).await;
            server.abort();
            assert!(server.await.is_err());
            assert_eq!(connect_error(target).await.outcome(), Outcome::Unreachable);
        }
    });
}

#[cfg(feature = "wolfssl")]
#[test]
fn each_library_speaks_with_the_other() {
    on_one_thread(async {
        for (ours, theirs) in [("dimpl", "wolfssl"), ("wolfssl", "dimpl")] {
            for version in VERSIONS {
                let (mut target, _server) = serve(protected(CONFIRMABLE, theirs, version)).await;
                target.channel = protected(CONFIRMABLE, ours, version);
                let client = CoapClient::connect(target).await.unwrap();
                let mut lane = client.lane().await.unwrap();
                echo(&mut lane, 1).await.unwrap();
                echo(&mut lane, 20_000).await.unwrap();
            }
        }
    });
}
