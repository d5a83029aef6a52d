//! MQTT from end to end, over real sockets on the loopback interface.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::{
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    task::Poll,
    time::Duration,
};

use ciphertoll_channel::{
    Client, ConnectionLog, Error, ExchangeError, Lane, Target, Times,
    identity::Identity,
    mqtt::{self, ALPN, MqttClient},
    names,
    tls::Acceptor,
};
use ciphertoll_wire::{Channel, Mqtt, MqttVersion, Nanos, Outcome, Security, TlsVersion};
use rumqttc::{AsyncClient, Event, EventLoop, MqttOptions, Packet, QoS};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, LocalSet, spawn_local},
};

const VERSIONS: [MqttVersion; 2] = [MqttVersion::V311, MqttVersion::V5];

fn plain(version: MqttVersion, qos: u8) -> Channel {
    Channel::Mqtt { mqtt: Mqtt { version, qos } }
}

fn protected(version: MqttVersion, qos: u8) -> Channel {
    let security = Security {
        version: TlsVersion::Tls13,
        suite: "TLS_CHACHA20_POLY1305_SHA256".into(),
        group: "X25519MLKEM768".into(),
        certificate: "ML-DSA-65".into(),
        library: "rustls".into(),
    };
    Channel::Mqtts { mqtt: Mqtt { version, qos }, security }
}

fn all_channels() -> impl Iterator<Item = Channel> {
    let settings = VERSIONS.into_iter().flat_map(|version| [(version, 0), (version, 1)]);
    settings.flat_map(|(version, qos)| [plain(version, qos), protected(version, qos)])
}

/// Starts a broker for `channel` and says how to reach it.
async fn serve(channel: Channel) -> (Target, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let pinned = names::pin(&channel).unwrap();
    let identity = pinned.map(|pinned| Identity::new(pinned.certificate, &["localhost".into()]).unwrap());
    let acceptor = Acceptor::new(pinned.as_ref().zip(identity.as_ref()), ALPN).unwrap();
    let broker = spawn_local(mqtt::serve(listener, acceptor));
    (target(channel, address, identity.map(|identity| identity.ca_pem)), broker)
}

fn target(channel: Channel, address: SocketAddr, ca_pem: Option<String>) -> Target {
    Target { channel, address, name: "localhost".into(), ca_pem, log: ConnectionLog::default() }
}

fn payload(size: usize) -> Vec<u8> {
    (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

async fn connect_error(target: Target) -> Error {
    let connected = within(MqttClient::connect(target)).await;
    connected.err().unwrap()
}

/// Nothing here takes long: what does is a hang.
async fn within<T>(step: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), step).await.unwrap()
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
    LocalSet::new().block_on(&runtime, within(test))
}

#[test]
fn echoes_come_back_with_every_version_quality_of_service_and_protection() {
    on_one_thread(async {
        for channel in all_channels() {
            let (target, _broker) = serve(channel).await;
            let log = target.log.clone();
            let client = MqttClient::connect(target).await.unwrap();
            let mut lane = client.lane().await.unwrap();
            for size in [1, 2048, 65_537, 1 << 20] {
                lane.exchange(&payload(size), &mut Times::default()).await.unwrap();
            }
            assert_eq!(log.snapshot().len(), 1);
            assert_eq!(lane.connection(), 0);
        }
    });
}

#[test]
fn what_tls_negotiated_is_recorded_and_the_connection_is_ready_after_connack() {
    on_one_thread(async {
        let (target, _broker) = serve(protected(MqttVersion::V5, 1)).await;
        let log = target.log.clone();
        MqttClient::connect(target).await.unwrap();
        let connection = log.snapshot().pop().unwrap();
        assert_eq!(connection.negotiated.unwrap().group, "X25519MLKEM768");
        assert!(connection.opened_ns < connection.ready_ns);
    });
}

#[test]
fn the_times_of_puback_and_echo_are_both_noted_and_that_of_puback_only_with_quality_of_service_1() {
    on_one_thread(async {
        for channel in all_channels() {
            let acked = matches!(&channel, Channel::Mqtt { mqtt } | Channel::Mqtts { mqtt, .. } if mqtt.qos == 1);
            let (target, _broker) = serve(channel).await;
            let mut lane = MqttClient::connect(target).await.unwrap().lane().await.unwrap();
            let mut times = Times::default();
            lane.exchange(&payload(2048), &mut times).await.unwrap();
            assert!(Nanos(0) < times.sent_ns && times.sent_ns < times.done_ns);
            // The broker acknowledges first.
            assert!(!acked || times.sent_ns < times.acked_ns && times.acked_ns <= times.done_ns);
            assert!(acked || times.acked_ns == Nanos(0));
        }
    });
}

#[test]
fn two_hundred_lanes_of_mixed_sizes_share_one_connection_at_once() {
    on_one_thread(async {
        for channel in [plain(MqttVersion::V311, 1), protected(MqttVersion::V5, 1), protected(MqttVersion::V311, 0)] {
            let (target, _broker) = serve(channel).await;
            let client = MqttClient::connect(target).await.unwrap();
            let sizes = (1..200).map(|number| number * 37).chain([1 << 20; 4]);
            assert!(exchange_at_once(&client, sizes).await.iter().all(Result::is_ok));
        }
    });
}

async fn exchange_at_once(client: &MqttClient, sizes: impl Iterator<Item = usize>) -> Vec<Result<(), ExchangeError>> {
    let mut exchanges = tokio::task::JoinSet::new();
    for size in sizes {
        let mut lane = client.lane().await.unwrap();
        exchanges.spawn_local(async move { lane.exchange(&payload(size), &mut Times::default()).await });
    }
    exchanges.join_all().await
}

#[test]
fn an_exchange_that_is_given_up_leaves_no_half_of_a_packet_behind() {
    on_one_thread(async {
        for channel in all_channels() {
            let (target, _broker) = serve(channel).await;
            let client = MqttClient::connect(target).await.unwrap();
            for _ in 0..5 {
                give_up(client.lane().await.unwrap()).await;
            }
            let mut lane = client.lane().await.unwrap();
            lane.exchange(&payload(2048), &mut Times::default()).await.unwrap();
        }
    });
}

#[test]
fn clients_do_not_see_each_others_echoes() {
    on_one_thread(async {
        let (target, _broker) = serve(plain(MqttVersion::V5, 1)).await;
        let mut lanes = Vec::new();
        for _ in 0..2 {
            lanes.push(MqttClient::connect(target.clone()).await.unwrap().lane().await.unwrap());
        }
        let [a, b] = &mut lanes[..] else { panic!() };
        // The same lane number and different payloads: a stray echo would be corrupt.
        for size in 1..50 {
            let (mine, yours) = (payload(size), payload(size + 1));
            let (mut first, mut second) = (Times::default(), Times::default());
            let done = tokio::join!(a.exchange(&mine, &mut first), b.exchange(&yours, &mut second));
            assert_eq!(done, (Ok(()), Ok(())));
        }
        assert_eq!((a.connection(), b.connection()), (0, 1));
    });
}

#[test]
fn a_broker_that_goes_away_closes_its_exchanges_and_then_has_vanished() {
    on_one_thread(async {
        for channel in all_channels() {
            let (target, broker) = serve(channel).await;
            let client = MqttClient::connect(target).await.unwrap();
            let mut lane = client.lane().await.unwrap();
            lane.exchange(&payload(1), &mut Times::default()).await.unwrap();
            let (body, mut times) = (payload(1 << 20), Times::default());
            let (exchanged, ()) = tokio::join!(lane.exchange(&body, &mut times), async { broker.abort() });
            assert_eq!(exchanged, Err(ExchangeError::Closed));
            assert_eq!(times.done_ns, Nanos(0));
            assert_eq!(client.lane().await.err().unwrap().outcome(), Outcome::Vanished);
        }
    });
}

#[test]
fn a_port_where_nobody_listens_is_unreachable() {
    on_one_thread(async {
        let address = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let target = target(plain(MqttVersion::V5, 0), address, None);
        assert_eq!(connect_error(target).await.outcome(), Outcome::Unreachable);
    });
}

/// A peer that answers the first bytes of each connection with `answer`.
async fn peer_that_answers(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let _ = tcp.read(&mut [0; 512]).await;
            tcp.write_all(answer).await.unwrap();
        }
    });
    address
}

#[test]
fn a_peer_that_does_not_speak_mqtt_is_garbage() {
    on_one_thread(async {
        for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"", b"\x20", b"\xFF\xFF\xFF\xFF\xFF\xFF", b"\xD0\x00"]
        {
            let address = peer_that_answers(answer).await;
            for version in VERSIONS {
                let error = connect_error(target(plain(version, 1), address, None)).await;
                assert_eq!(error.outcome(), Outcome::Garbage, "{error}");
            }
        }
    });
}

#[test]
fn a_broker_that_refuses_is_named_with_its_reason() {
    on_one_thread(async {
        for (version, answer, outcome, words) in [
            (MqttVersion::V311, &b"\x20\x02\x00\x01"[..], Outcome::Mismatch, "version"),
            (MqttVersion::V5, b"\x20\x02\x00\x01", Outcome::Mismatch, "version"),
            (MqttVersion::V5, b"\x20\x05\x00\x00\x02\x24\x00", Outcome::Mismatch, "quality of service 1"),
            (MqttVersion::V311, b"\x20\x02\x00\x05", Outcome::Garbage, "let this client in"),
            (MqttVersion::V5, b"\x20\x03\x00\x86\x00", Outcome::Garbage, "password"),
        ] {
            let error = connect_error(target(plain(version, 1), peer_that_answers(answer).await, None)).await;
            assert_eq!(error.outcome(), outcome);
            assert!(error.to_string().contains(words), "{error}");
        }
    });
}

#[test]
fn an_echo_that_differs_is_corrupt() {
    on_one_thread(async {
        let (target, _broker) = serve(plain(MqttVersion::V311, 0)).await;
        let address = target.address;
        let (intruder, mut events) = independent_client(address, "intruder");
        intruder.subscribe("ciphertoll/+/+", QoS::AtMostOnce).await.unwrap();
        until(&mut events, |packet| matches!(packet, Packet::SubAck(_))).await;
        let mut lane = MqttClient::connect(target).await.unwrap().lane().await.unwrap();
        lane.exchange(b"honest", &mut Times::default()).await.unwrap();
        let Packet::Publish(seen) = until(&mut events, |p| matches!(p, Packet::Publish(_))).await else { panic!() };
        intruder.publish(seen.topic, QoS::AtLeastOnce, false, "forged").await.unwrap();
        until(&mut events, |packet| matches!(packet, Packet::PubAck(_))).await;
        // The forged message is already on its way to the client and overtakes the echo.
        assert_eq!(lane.exchange(b"honest", &mut Times::default()).await, Err(ExchangeError::Corrupt));
    });
}

fn independent_client(address: SocketAddr, name: &str) -> (AsyncClient, EventLoop) {
    let mut options = MqttOptions::new(name, address.ip().to_string(), address.port());
    options.set_max_packet_size(2 << 20, 2 << 20);
    AsyncClient::new(options, 10)
}

async fn until(events: &mut EventLoop, wanted: impl Fn(&Packet) -> bool) -> Packet {
    loop {
        if let Event::Incoming(packet) = events.poll().await.unwrap()
            && wanted(&packet)
        {
            return packet;
        }
    }
}

#[test]
fn independent_clients_share_a_topic_at_the_lower_quality_of_service() {
    on_one_thread(async {
        let (target, _broker) = serve(plain(MqttVersion::V311, 0)).await;
        let (low, mut low_events) = independent_client(target.address, "low");
        let (high, mut high_events) = independent_client(target.address, "high");
        low.subscribe("shared/#", QoS::AtMostOnce).await.unwrap();
        high.subscribe("shared/+", QoS::ExactlyOnce).await.unwrap();
        let granted = until(&mut high_events, |packet| matches!(packet, Packet::SubAck(_))).await;
        assert!(format!("{granted:?}").contains("AtLeastOnce"));
        until(&mut low_events, |packet| matches!(packet, Packet::SubAck(_))).await;
        low.publish("shared/topic", QoS::AtLeastOnce, false, "to both").await.unwrap();
        for (events, qos) in [(&mut low_events, QoS::AtMostOnce), (&mut high_events, QoS::AtLeastOnce)] {
            let Packet::Publish(message) = until(events, |p| matches!(p, Packet::Publish(_))).await else { panic!() };
            assert_eq!((&message.payload[..], message.qos), (&b"to both"[..], qos));
        }
        low.unsubscribe("shared/#").await.unwrap();
        until(&mut low_events, |packet| matches!(packet, Packet::UnsubAck(_))).await;
    });
}

#[test]
fn an_independent_client_of_5_0_meets_one_of_3_1_1() {
    use rumqttc::v5::{AsyncClient, Event, MqttOptions, mqttbytes::QoS, mqttbytes::v5::Packet};
    on_one_thread(async {
        let (target, _broker) = serve(plain(MqttVersion::V5, 0)).await;
        let (old, mut old_events) = independent_client(target.address, "old");
        old.subscribe("a/b", rumqttc::QoS::AtLeastOnce).await.unwrap();
        until(&mut old_events, |packet| matches!(packet, rumqttc::Packet::SubAck(_))).await;
        let options = MqttOptions::new("new", target.address.ip().to_string(), target.address.port());
        let (new, mut events) = AsyncClient::new(options, 10);
        new.publish("a/b", QoS::AtLeastOnce, false, "from 5.0").await.unwrap();
        while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::PubAck(_))) {}
        let seen = until(&mut old_events, |p| matches!(p, rumqttc::Packet::Publish(_))).await;
        assert!(matches!(seen, rumqttc::Packet::Publish(message) if message.payload == "from 5.0"));
    });
}

/// CONNECT of a client without a name.
fn hello(version: MqttVersion) -> &'static [u8] {
    match version {
        MqttVersion::V311 => b"\x10\x0C\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
        MqttVersion::V5 => b"\x10\x0D\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00",
    }
}

/// Everything that the broker says to `bytes` until it closes the connection.
async fn last_words(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut tcp = TcpStream::connect(address).await.unwrap();
    tcp.write_all(bytes).await.unwrap();
    let mut said = Vec::new();
    // A reset is an end too.
    let _ = within(tcp.read_to_end(&mut said)).await;
    said
}

#[test]
fn malformed_bytes_close_only_the_connection_that_they_came_from() {
    on_one_thread(async {
        let (target, _broker) = serve(plain(MqttVersion::V311, 1)).await;
        let address = target.address;
        let mut lane = MqttClient::connect(target).await.unwrap().lane().await.unwrap();
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\xC0\x00", b"\x10\x02\x00\x00", b"\x00\x00\x00\x00\x00"] {
            assert_eq!(last_words(address, bytes).await, b"");
            for version in VERSIONS {
                let after_hello = [hello(version), b"\x00\x00"].concat();
                assert_eq!(last_words(address, &after_hello).await[0], 0x20);
            }
            lane.exchange(&payload(100), &mut Times::default()).await.unwrap();
        }
    });
}

#[test]
fn what_the_broker_does_not_offer_ends_the_connection_with_the_reason_of_5_0() {
    on_one_thread(async {
        let (target, _broker) = serve(plain(MqttVersion::V5, 0)).await;
        for (packet, reason) in [
            (&b"\x34\x06\x00\x01t\x00\x01\x00"[..], 0x9B), // PUBLISH with quality of service 2
            (b"\x31\x04\x00\x01t\x00", 0x9A),              // PUBLISH to keep
            (b"\x30\x07\x00\x01t\x03\x23\x00\x01", 0x94),  // PUBLISH with a topic alias
            (b"\x30\x04\x00\x01+\x00", 0x90),              // PUBLISH to a wildcard
            (b"\x62\x02\x00\x01", 0x82),                   // PUBREL
            (b"\x30\xFF\xFF\xFF\x7F", 0x95),               // 256 MiB
            (b"\x00\x00", 0x81),                           // nothing
        ] {
            let said = last_words(target.address, &[hello(MqttVersion::V5), packet].concat()).await;
            assert_eq!(said[said.len() - 4..], [0xE0, 2, reason, 0], "{packet:02x?}");
        }
    });
}

#[test]
fn a_client_of_3_1_1_with_quality_of_service_2_is_sent_away() {
    on_one_thread(async {
        let (target, _broker) = serve(plain(MqttVersion::V311, 0)).await;
        let bytes = [hello(MqttVersion::V311), b"\x34\x05\x00\x01t\x00\x01"].concat();
        assert_eq!(last_words(target.address, &bytes).await, b"\x20\x02\x00\x00");
        let unknown_version = b"\x10\x0C\x00\x04MQTT\x03\x02\x00\x00\x00\x00";
        assert_eq!(last_words(target.address, unknown_version).await, b"\x20\x02\x00\x01");
    });
}

#[test]
fn a_second_client_of_the_same_name_takes_the_place_of_the_first() {
    on_one_thread(async {
        let (target, _broker) = serve(plain(MqttVersion::V5, 0)).await;
        let named = b"\x10\x0E\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01x";
        let first = last_words(target.address, named);
        let second = async {
            // The broker must have met the first one before.
            tokio::task::yield_now().await;
            let mut second = TcpStream::connect(target.address).await.unwrap();
            second.write_all(named).await.unwrap();
            second.read_u8().await.unwrap();
            second
        };
        let (said, _second) = tokio::join!(first, second);
        assert_eq!(said[said.len() - 4..], [0xE0, 2, 0x8E, 0]);
    });
}

#[test]
fn a_silent_client_is_sent_away_after_one_and_a_half_times_its_keep_alive() {
    on_one_thread(async {
        let (target, _broker) = serve(plain(MqttVersion::V5, 0)).await;
        let begin = std::time::Instant::now();
        let said = last_words(target.address, b"\x10\x0D\x00\x04MQTT\x05\x02\x00\x01\x00\x00\x00").await;
        assert_eq!(said[said.len() - 4..], [0xE0, 2, 0x8D, 0]);
        assert!(begin.elapsed() >= Duration::from_millis(1490));
    });
}

#[test]
fn a_subscriber_that_takes_one_message_at_once_gets_the_next_when_it_has_acknowledged() {
    on_one_thread(async {
        let (target, _broker) = serve(plain(MqttVersion::V5, 0)).await;
        let mut tcp = TcpStream::connect(target.address).await.unwrap();
        let receive_maximum_1 = b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x03\x21\x00\x01\x00\x00";
        let subscribe = b"\x82\x07\x00\x01\x00\x00\x01t\x01";
        let publish = b"\x32\x07\x00\x01t\x00\x01\x00A\x32\x07\x00\x01t\x00\x02\x00B\xC0\x00";
        tcp.write_all(&[&receive_maximum_1[..], subscribe, publish].concat()).await.unwrap();
        let mut said = read_until(&mut tcp, b"\xD0\x00").await;
        assert!(said.ends_with(b"\x40\x02\x00\x01\x32\x07\x00\x01t\x00\x01\x00A\x40\x02\x00\x02\xD0\x00"));
        tcp.write_all(b"\x40\x02\x00\x01\xC0\x00").await.unwrap();
        said = read_until(&mut tcp, b"\xD0\x00").await;
        assert_eq!(said, b"\x32\x07\x00\x01t\x00\x02\x00B\xD0\x00");
    });
}

async fn read_until(tcp: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut said = Vec::new();
    while !said.ends_with(end) {
        said.push(within(tcp.read_u8()).await.unwrap());
    }
    said
}

#[test]
fn a_subscriber_that_does_not_read_holds_up_nobody_else() {
    on_one_thread(async {
        let (target, _broker) = serve(plain(MqttVersion::V311, 1)).await;
        let mut deaf = TcpStream::connect(target.address).await.unwrap();
        let subscribe_to_all = b"\x82\x06\x00\x01\x00\x01#\x00";
        deaf.write_all(&[hello(MqttVersion::V311), subscribe_to_all].concat()).await.unwrap();
        read_until(&mut deaf, b"\x90\x03\x00\x01\x00").await;
        let mut lane = MqttClient::connect(target).await.unwrap().lane().await.unwrap();
        for _ in 0..60 {
            lane.exchange(&payload(1 << 20), &mut Times::default()).await.unwrap();
        }
    });
}
