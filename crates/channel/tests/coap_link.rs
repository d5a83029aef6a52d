//! CoAP and DTLS over links that repeat, reorder and forget.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::{
    cell::Cell,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use ciphertoll_channel::{
    Client, ConnectionLog, ExchangeError, Lane, Target, Times,
    coap::{CoapClient, Server},
    identity::Identity,
    names,
};
use ciphertoll_wire::{Channel, Coap, Protocol, Security, TlsVersion};
use tokio::{
    net::UdpSocket,
    task::{JoinSet, LocalSet, spawn_local},
    time::timeout,
};

const CONFIRMABLE: Coap = Coap { confirmable: true, nstart: 0, datagram_bytes: 1400 };

/// Unprotected, and protected by each library with each version.
fn channels(coap: Coap) -> Vec<Channel> {
    let libraries = names::libraries(Protocol::Coaps).iter().filter(|library| library.built_in());
    let versions = [
        (TlsVersion::Dtls13, "TLS_CHACHA20_POLY1305_SHA256"),
        (TlsVersion::Dtls12, "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ];
    let protected = libraries.flat_map(|library| {
        versions.map(|(version, suite)| {
            let [suite, group, certificate] = [suite, "X25519", "ECDSA-P256"].map(str::to_owned);
            let security = Security { version, suite, group, certificate, library: library.name().into() };
            Channel::Coaps { coap, security }
        })
    });
    protected.chain([Channel::Coap { coap }]).collect()
}

/// Starts a server for `channel` and says how to reach it.
async fn serve(channel: Channel) -> Target {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let (Channel::Coap { coap } | Channel::Coaps { coap, .. }) = channel else { panic!() };
    let pinned = names::pin(&channel).unwrap();
    let secrets = pinned.map(|pinned| (pinned, Identity::new(pinned.certificate, &["localhost".into()]).unwrap()));
    spawn_local(Server::new(secrets.as_ref(), coap).unwrap().run(socket));
    let ca_pem = secrets.map(|(_, identity)| identity.ca_pem);
    Target { channel, address, name: "localhost".into(), ca_pem, log: ConnectionLog::default() }
}

/// Runs `test` as the engine runs a load: on one thread. Nothing here takes long: what does is a hang.
fn on_one_thread<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async { timeout(Duration::from_secs(60), test).await.unwrap() })
}

/// A datagram, and after how many milliseconds it goes on.
type Later = (u64, Vec<u8>);

/// Stands between clients and the server at `to`, to which all of them look like one. `pass` makes of one datagram those
/// that go on.
async fn relay(to: SocketAddr, mut pass: impl FnMut(&[u8]) -> Vec<Later> + 'static) -> SocketAddr {
    let near = Rc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
    let far = Rc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
    let address = near.local_addr().unwrap();
    spawn_local(async move {
        let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
        let mut client = None;
        loop {
            tokio::select! {
                Ok((length, from)) = near.recv_from(&mut up) => {
                    client = Some(from);
                    for later in pass(&up[..length]) {
                        spawn_local(forward(far.clone(), to, later));
                    }
                }
                Ok((length, _)) = far.recv_from(&mut down), if client.is_some() => {
                    for later in pass(&down[..length]) {
                        spawn_local(forward(near.clone(), client.unwrap(), later));
                    }
                }
            }
        }
    });
    address
}

async fn forward(socket: Rc<UdpSocket>, to: SocketAddr, (after_ms, datagram): Later) {
    if after_ms > 0 {
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
    }
    socket.send_to(&datagram, to).await.unwrap();
}

/// The datagram as it is.
fn whole(datagram: &[u8]) -> Vec<Later> {
    vec![(0, datagram.to_vec())]
}

fn payload(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|i| u8::try_from((i * 7 + seed) % 251).unwrap()).collect()
}

async fn echo(client: &CoapClient, size: usize) -> Result<(), ExchangeError> {
    client.lane().await.unwrap().exchange(&payload(size, size), &mut Times::default()).await
}

/// Eight lanes that exchange at once, a few times each.
async fn exchange_much(client: &CoapClient) {
    let mut lanes = JoinSet::new();
    for number in 0..8 {
        let mut lane = client.lane().await.unwrap();
        lanes.spawn_local(async move {
            for size in [10, 5000, 1500, 12_345] {
                lane.exchange(&payload(size, number), &mut Times::default()).await.unwrap();
            }
        });
    }
    lanes.join_all().await;
}

#[test]
fn datagrams_that_come_twice_spoil_no_exchange() {
    on_one_thread(async {
        for confirmable in [true, false] {
            for channel in channels(Coap { confirmable, ..CONFIRMABLE }) {
                let mut target = serve(channel).await;
                target.address = relay(target.address, |datagram| vec![(0, datagram.to_vec()); 2]).await;
                exchange_much(&CoapClient::connect(target).await.unwrap()).await;
            }
        }
    });
}

#[test]
fn old_datagrams_that_come_again_late_spoil_no_exchange() {
    on_one_thread(async {
        for channel in channels(CONFIRMABLE) {
            let mut target = serve(channel).await;
            let mut past = std::collections::VecDeque::new();
            let again = move |datagram: &[u8]| {
                past.push_back((0, datagram.to_vec()));
                let late = (past.len() > 7).then(|| past.pop_front()).flatten();
                // Those of the other direction are nonsense there, and are to be ignored too.
                [past.back().cloned(), late].into_iter().flatten().collect()
            };
            target.address = relay(target.address, again).await;
            exchange_much(&CoapClient::connect(target).await.unwrap()).await;
        }
    });
}

#[test]
fn datagrams_that_change_places_spoil_no_exchange() {
    on_one_thread(async {
        for channel in channels(CONFIRMABLE) {
            let mut target = serve(channel).await;
            let mut number = 0;
            let jitter = move |datagram: &[u8]| {
                number += 1;
                vec![(number * 7 % 5, datagram.to_vec())]
            };
            target.address = relay(target.address, jitter).await;
            exchange_much(&CoapClient::connect(target).await.unwrap()).await;
        }
    });
}

#[test]
fn a_body_of_many_thousand_blocks_comes_back() {
    on_one_thread(async {
        let target = serve(Channel::Coap { coap: Coap { datagram_bytes: 200, ..CONFIRMABLE } }).await;
        let client = CoapClient::connect(target).await.unwrap();
        assert_eq!(echo(&client, 1 << 20).await, Ok(()));
    });
}

#[test]
fn the_largest_message_goes_in_one_datagram_each_way() {
    on_one_thread(async {
        for channel in channels(Coap { datagram_bytes: 16_384, ..CONFIRMABLE }) {
            let mut target = serve(channel).await;
            let count = Rc::new(Cell::new(0));
            let seen = count.clone();
            target.address = relay(target.address, move |datagram| {
                seen.set(seen.get() + 1);
                whole(datagram)
            })
            .await;
            let client = CoapClient::connect(target).await.unwrap();
            echo(&client, 1).await.unwrap();
            count.set(0);
            echo(&client, 16_300).await.unwrap();
            assert_eq!(count.get(), 2);
        }
    });
}

#[test]
fn a_client_on_the_port_of_one_that_went_away_silently_is_served() {
    on_one_thread(async {
        for channel in channels(CONFIRMABLE) {
            let mut target = serve(channel).await;
            let cut = Rc::new(Cell::new(false));
            let silent = cut.clone();
            let pass = move |datagram: &[u8]| if silent.get() { Vec::new() } else { whole(datagram) };
            target.address = relay(target.address, pass).await;
            let first = CoapClient::connect(target.clone()).await.unwrap();
            echo(&first, 5000).await.unwrap();
            cut.set(true);
            drop(first);
            // Let its farewell get lost.
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
            cut.set(false);
            let second = timeout(Duration::from_secs(5), CoapClient::connect(target)).await.unwrap().unwrap();
            assert_eq!(echo(&second, 5000).await, Ok(()));
        }
    });
}
