//! HTTP/3 from end to end, over real sockets on the loopback interface.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::{
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    pin::pin,
    task::Poll,
    time::Duration,
};

use ciphertoll_channel::{
    Client, ConnectionLog, Error, ExchangeError, Lane, Target, Times,
    h3::{self, H3Client},
    identity::Identity,
    names,
};
use ciphertoll_wire::{Channel, Nanos, Outcome, Security, TlsVersion};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

const SUITES: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
const GROUPS: [&str; 3] = ["X25519", "X25519MLKEM768", "MLKEM1024"];
const CERTIFICATES: [&str; 2] = ["ECDSA-P256", "ML-DSA-65"];

fn channel(suite: &str, group: &str, certificate: &str) -> Channel {
    let security = Security {
        version: TlsVersion::Tls13,
        suite: suite.into(),
        group: group.into(),
        certificate: certificate.into(),
        library: "rustls".into(),
    };
    Channel::H3 { security }
}

fn usual() -> Channel {
    channel(SUITES[0], GROUPS[0], CERTIFICATES[0])
}

fn identity(channel: &Channel) -> Identity {
    let pinned = names::pin(channel).unwrap().unwrap();
    Identity::new(pinned.certificate, &["localhost".into(), "127.0.0.1".into()]).unwrap()
}

/// Starts a server of `channel` and says how to reach it.
fn serve(channel: Channel) -> (Target, JoinHandle<()>) {
    let identity = identity(&channel);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let target = target(channel, socket.local_addr().unwrap(), &identity);
    let server = h3::serve(socket, &names::pin(&target.channel).unwrap().unwrap(), &identity).unwrap();
    (target, spawn_local(server))
}

fn target(channel: Channel, address: SocketAddr, identity: &Identity) -> Target {
    let ca_pem = Some(identity.ca_pem.clone());
    Target { channel, address, name: "localhost".into(), ca_pem, log: ConnectionLog::default() }
}

fn payload(size: usize) -> Vec<u8> {
    (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

async fn connect_error(target: Target) -> Error {
    let limit = Duration::from_secs(10);
    let connected = tokio::time::timeout(limit, H3Client::connect(target)).await.unwrap();
    connected.err().unwrap()
}

/// Begins an exchange with `lane` and drops it before it is done.
async fn give_up(mut lane: impl Lane) {
    let (body, mut times) = (payload(1 << 20), Times::default());
    let mut exchange = pin!(lane.exchange(&body, &mut times));
    assert!(poll_fn(|cx| Poll::Ready(exchange.as_mut().poll(cx))).await.is_pending());
}

/// Runs `test` as the engine runs a load: on one thread.
fn on_one_thread<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn every_suite_group_and_certificate_is_negotiated_as_asked_and_recorded() {
    on_one_thread(async {
        for (suite, group, certificate) in combinations() {
            let (target, _server) = serve(channel(suite, group, certificate));
            let log = target.log.clone();
            let mut lane = H3Client::connect(target).await.unwrap().lane().await.unwrap();
            lane.exchange(&payload(2048), &mut Times::default()).await.unwrap();
            let connection = log.snapshot().pop().unwrap();
            assert_eq!(lane.connection(), connection.id);
            assert!(connection.opened_ns < connection.ready_ns);
            let negotiated = connection.negotiated.unwrap();
            assert_eq!((negotiated.suite.as_str(), negotiated.group.as_str()), (suite, group));
            assert_eq!((negotiated.certificate.as_str(), negotiated.resumed), (certificate, false));
        }
    });
}

fn combinations() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let pairs = SUITES.into_iter().flat_map(|s| GROUPS.into_iter().map(move |g| (s, g)));
    pairs.flat_map(|(s, g)| CERTIFICATES.into_iter().map(move |c| (s, g, c)))
}

#[test]
fn a_second_connection_is_not_resumed() {
    on_one_thread(async {
        let (target, _server) = serve(usual());
        for _ in 0..2 {
            H3Client::connect(target.clone()).await.unwrap();
        }
        assert!(target.log.snapshot().iter().all(|c| c.negotiated.as_ref().is_some_and(|n| !n.resumed)));
        assert_eq!(target.log.snapshot().len(), 2);
    });
}

#[test]
fn payloads_of_every_size_come_back_and_their_times_are_in_order() {
    on_one_thread(async {
        let (target, _server) = serve(usual());
        let client = H3Client::connect(target).await.unwrap();
        let mut lane = client.lane().await.unwrap();
        for size in [1, 2048, 65_537, 1 << 20] {
            let mut times = Times::default();
            lane.exchange(&payload(size), &mut times).await.unwrap();
            assert!(Nanos(0) < times.sent_ns && times.sent_ns < times.done_ns);
            assert_eq!(times.acked_ns, Nanos(0));
        }
    });
}

#[test]
fn fifty_lanes_share_one_connection_at_once() {
    on_one_thread(async {
        let (target, _server) = serve(usual());
        let log = target.log.clone();
        let client = H3Client::connect(target).await.unwrap();
        let mut exchanges = tokio::task::JoinSet::new();
        for size in 1..=50 {
            let mut lane = client.lane().await.unwrap();
            exchanges.spawn_local(async move { lane.exchange(&payload(size * 1000), &mut Times::default()).await });
        }
        assert!(exchanges.join_all().await.iter().all(Result::is_ok));
        assert_eq!(log.snapshot().len(), 1);
    });
}

#[test]
fn an_exchange_that_is_given_up_does_not_disturb_the_others() {
    on_one_thread(async {
        let (target, _server) = serve(usual());
        let client = H3Client::connect(target).await.unwrap();
        give_up(client.lane().await.unwrap()).await;
        let mut lane = client.lane().await.unwrap();
        lane.exchange(&payload(2048), &mut Times::default()).await.unwrap();
    });
}

#[test]
fn the_connection_outlives_the_client_while_a_lane_is_left() {
    on_one_thread(async {
        let (target, _server) = serve(usual());
        let client = H3Client::connect(target).await.unwrap();
        let mut lane = client.lane().await.unwrap();
        drop(client);
        lane.exchange(&payload(2048), &mut Times::default()).await.unwrap();
    });
}

#[test]
fn a_certificate_of_another_authority_is_not_trusted() {
    on_one_thread(async {
        for certificate in CERTIFICATES {
            let (mut target, _server) = serve(channel(SUITES[0], GROUPS[0], certificate));
            target.ca_pem = Some(identity(&target.channel).ca_pem);
            assert_eq!(connect_error(target).await.outcome(), Outcome::Untrusted);
        }
    });
}

#[test]
fn a_certificate_for_another_name_is_not_trusted() {
    on_one_thread(async {
        for name in ["elsewhere.example", "127.0.0.2", "not a name"] {
            let (mut target, _server) = serve(usual());
            target.name = name.into();
            assert_eq!(connect_error(target).await.outcome(), Outcome::Untrusted);
        }
    });
}

#[test]
fn a_certificate_for_an_address_is_trusted_under_that_address() {
    on_one_thread(async {
        let (mut target, _server) = serve(usual());
        target.name = "127.0.0.1".into();
        let mut lane = H3Client::connect(target).await.unwrap().lane().await.unwrap();
        lane.exchange(&payload(1), &mut Times::default()).await.unwrap();
    });
}

#[test]
fn a_server_with_another_suite_or_group_is_a_mismatch() {
    on_one_thread(async {
        for other in [channel(SUITES[1], GROUPS[0], CERTIFICATES[0]), channel(SUITES[0], GROUPS[1], CERTIFICATES[0])] {
            let (mut target, _server) = serve(other);
            target.channel = usual();
            assert_eq!(connect_error(target).await.outcome(), Outcome::Mismatch);
        }
    });
}

#[test]
fn a_server_with_another_certificate_algorithm_is_a_mismatch_although_it_is_trusted() {
    on_one_thread(async {
        let (mut target, _server) = serve(channel(SUITES[0], GROUPS[0], "ML-DSA-65"));
        target.channel = usual();
        let log = target.log.clone();
        assert_eq!(connect_error(target).await.outcome(), Outcome::Mismatch);
        assert!(log.snapshot().is_empty());
    });
}

#[test]
fn a_port_where_nobody_listens_is_unreachable() {
    on_one_thread(async {
        let address = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let target = target(usual(), address, &identity(&usual()));
        assert_eq!(connect_error(target).await.outcome(), Outcome::Unreachable);
    });
}

#[test]
fn a_server_that_goes_away_closes_its_exchanges_and_then_has_vanished() {
    on_one_thread(async {
        let (target, server) = serve(usual());
        let client = H3Client::connect(target).await.unwrap();
        let mut lane = client.lane().await.unwrap();
        lane.exchange(&payload(1), &mut Times::default()).await.unwrap();
        let (body, mut times) = (payload(1 << 20), Times::default());
        let (exchanged, ()) = tokio::join!(lane.exchange(&body, &mut times), async { server.abort() });
        assert_eq!(exchanged, Err(ExchangeError::Closed));
        assert!(times.sent_ns > Nanos(0));
        assert_eq!(times.done_ns, Nanos(0));
        assert_eq!(client.lane().await.err().unwrap().outcome(), Outcome::Vanished);
    });
}

#[test]
fn a_server_socket_that_is_closed_without_a_word_closes_the_exchange_too() {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let identity = identity(&usual());
    let target = target(usual(), socket.local_addr().unwrap(), &identity);
    let pinned = names::pin(&target.channel).unwrap().unwrap();
    let (connected, connected_to) = std::sync::mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    // The runtime of this thread ends with its sockets open, as a killed process does.
    let server = std::thread::spawn(move || {
        on_one_thread(async {
            let server = h3::serve(socket, &pinned, &identity).unwrap();
            connected.send(()).unwrap();
            tokio::select! { () = server => panic!("the server ended"), _ = stopped => {} }
        });
    });
    connected_to.recv().unwrap();
    on_one_thread(async {
        let client = H3Client::connect(target).await.unwrap();
        let mut lane = client.lane().await.unwrap();
        stop.send(()).unwrap();
        server.join().unwrap();
        assert_eq!(lane.exchange(&payload(2048), &mut Times::default()).await, Err(ExchangeError::Closed));
        assert_eq!(client.lane().await.err().unwrap().outcome(), Outcome::Vanished);
    });
}

#[test]
fn a_peer_of_another_quic_version_is_a_mismatch() {
    on_one_thread(async {
        let socket = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let target = target(usual(), socket.local_addr().unwrap(), &identity(&usual()));
        spawn_local(async move {
            let mut initial = [0; 2048];
            let (_, client) = socket.recv_from(&mut initial).await.unwrap();
            socket.send_to(&version_negotiation(&initial), client).await.unwrap();
        });
        assert_eq!(connect_error(target).await.outcome(), Outcome::Mismatch);
    });
}

/// Answers an Initial packet with a Version Negotiation packet (RFC 9000, 17.2.1) that offers no known version.
fn version_negotiation(initial: &[u8]) -> Vec<u8> {
    let (dcid, rest) = initial[6..].split_at(usize::from(initial[5]));
    let scid = &rest[1..=usize::from(rest[0])];
    [&[0x80, 0, 0, 0, 0], &rest[..1], scid, &initial[5..6], dcid, &[0x0A, 0x0A, 0x0A, 0x0A]].concat()
}

#[test]
fn only_post_is_answered_with_an_echo() {
    on_one_thread(async {
        let (target, _server) = serve(usual());
        let connection = ciphertoll_channel::quic::connect(&target, b"h3").await.unwrap().connection;
        let (mut driver, mut requests) = ::h3::client::new(h3_quinn::Connection::new(connection)).await.unwrap();
        let driver = spawn_local(async move { driver.wait_idle().await });
        for (method, status) in [("GET", 405), ("PUT", 405), ("POST", 200)] {
            let request = http::Request::builder().method(method).uri("https://localhost/").body(()).unwrap();
            let mut stream = requests.send_request(request).await.unwrap();
            stream.finish().await.unwrap();
            assert_eq!(stream.recv_response().await.unwrap().status(), status);
        }
        driver.abort();
    });
}
