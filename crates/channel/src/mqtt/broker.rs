//! A small broker for both versions: quality of service 0 and 1, wildcards, one session per connection.
//!
//! It acknowledges a PUBLISH to its sender first and delivers it then; where sender and subscriber are the
//! same connection, both leave in one write. It does not offer quality of service 2, retained messages,
//! shared subscriptions, subscription identifiers, topic aliases or sessions that outlive their connection,
//! and says so to clients of 5.0. A will is read and never published.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use ciphertoll_wire::MqttVersion::{V5, V311};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    packet::{self, Connect, Fault, Filter, LARGEST_BYTES, Packet, Publish, reason},
    pipe::{Inbox, Pipe},
    topic,
};
use crate::tls::{Acceptor, ServerStream};

mod peer;

use peer::Peer;

/// For TLS and CONNECT together.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// For a last word to a client that is sent away.
const PARTING_TIME: Duration = Duration::from_secs(1);
/// After an error such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Is the broker of all clients that connect to `listener`, as long as it is polled.
pub async fn serve(listener: TcpListener, acceptor: Acceptor) {
    let hub = Rc::new(Hub::default());
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((tcp, _)) => drop(connections.spawn_local(attend(Rc::clone(&hub), tcp, acceptor.clone()))),
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Who is connected.
#[derive(Default)]
struct Hub(RefCell<Vec<Rc<Peer>>>);

impl Hub {
    /// A second client of the same name takes the place of the first (3.1.4).
    fn enter(&self, peer: &Rc<Peer>) {
        let mut peers = self.0.borrow_mut();
        peers.iter().filter(|p| p.client_id == peer.client_id).for_each(|p| p.send_away(reason::SESSION_TAKEN_OVER));
        peers.push(Rc::clone(peer));
    }

    fn leave(&self, peer: &Rc<Peer>) {
        self.0.borrow_mut().retain(|p| !Rc::ptr_eq(p, peer));
    }

    /// Sends `publish` once to each client that wants it.
    fn deliver(&self, from: &Rc<Peer>, publish: &Publish<'_>) {
        for peer in self.0.borrow().iter() {
            let own = Rc::ptr_eq(peer, from);
            let Some(qos) = peer.wants(publish.topic, own) else { continue };
            peer.deliver(publish, qos.min(publish.qos));
            if !own {
                // Its own task notices if its connection is lost.
                let _ = peer.pipe.send();
            }
        }
    }
}

/// One connection, from its first byte to its last.
async fn attend(hub: Rc<Hub>, tcp: TcpStream, acceptor: Acceptor) {
    let Ok(Some((peer, mut inbox))) = timeout(GREETING_TIME, greet(tcp, acceptor)).await else { return };
    let peer = Rc::new(peer);
    hub.enter(&peer);
    let seen = Cell::new(Instant::now());
    let ending = tokio::select! {
        ending = receive(&hub, &peer, &mut inbox, &seen) => ending,
        fault = peer.sent_away() => Err(fault),
        fault = silence(&seen, peer.keep_alive) => Err(fault),
        _ = peer.pipe.pump() => Ok(()),
    };
    hub.leave(&peer);
    if let Err(Fault(reason)) = ending {
        peer.part(reason);
        // A client that does not listen is not waited for.
        let _ = timeout(PARTING_TIME, peer.pipe.drain()).await;
    }
}

/// Answers CONNECT; `None` if the client is sent away.
async fn greet(tcp: TcpStream, acceptor: Acceptor) -> Option<(Peer, Inbox)> {
    let pipe = Pipe::new(acceptor.accept(tcp).await.ok()?);
    let mut inbox = Inbox::new();
    while let Ok(None) = packet::frame(inbox.filled()) {
        let length = pipe.fill(&mut inbox).await.ok()?;
        // What does not begin as CONNECT will not become one.
        if length == 0 || !inbox.filled().starts_with(&[0x10]) {
            return None;
        }
    }
    let frame = packet::frame(inbox.filled()).ok()??;
    let length = frame.length;
    let peer = match packet::parse(V311, frame) {
        Ok(Packet::Connect(connect)) => welcome(pipe, &connect).await?,
        Err(Fault(reason::UNSUPPORTED_VERSION)) => {
            const REFUSED_VERSION: u8 = 1;
            pipe.append(|out| packet::write_conn_ack(out, V311, REFUSED_VERSION, &[]));
            pipe.drain().await.ok()?;
            return None;
        }
        _ => return None,
    };
    inbox.consume(length);
    peer.pipe.drain().await.ok()?;
    Some((peer, inbox))
}

async fn welcome(pipe: Pipe<ServerStream>, connect: &Connect<'_>) -> Option<Peer> {
    const REFUSED_NAME: u8 = 2;
    let mut properties = limits();
    let mut client_id = connect.client_id.to_owned();
    if client_id.is_empty() {
        // Only a client that wants no session may leave the choice to the broker (3.1.1, 3.1.3.1).
        if connect.version == V311 && !connect.clean {
            pipe.append(|out| packet::write_conn_ack(out, V311, REFUSED_NAME, &[]));
            pipe.drain().await.ok()?;
            return None;
        }
        client_id = super::random_id()?;
        properties.extend([0x12, 0]);
        properties.extend(client_id.len().to_le_bytes().first());
        properties.extend(client_id.as_bytes());
    }
    pipe.append(|out| packet::write_conn_ack(out, connect.version, 0, &properties));
    Some(Peer::new(pipe, connect, client_id))
}

/// What a client of 5.0 must know before it asks for more.
fn limits() -> Vec<u8> {
    const MAXIMUM_QOS: [u8; 2] = [0x24, 1];
    const NO_RETAIN: [u8; 2] = [0x25, 0];
    const NO_SUBSCRIPTION_IDENTIFIER: [u8; 2] = [0x29, 0];
    const NO_SHARED_SUBSCRIPTION: [u8; 2] = [0x2A, 0];
    let largest = u32::try_from(LARGEST_BYTES).unwrap_or(u32::MAX);
    let mut properties = [MAXIMUM_QOS, NO_RETAIN, NO_SUBSCRIPTION_IDENTIFIER, NO_SHARED_SUBSCRIPTION].concat();
    properties.push(0x27);
    properties.extend(largest.to_be_bytes());
    properties
}

/// Waits until nothing has come for 1.5 times the keep-alive (3.1.2.10). No timer is set for a packet.
async fn silence(seen: &Cell<Instant>, keep_alive: Duration) -> Fault {
    if keep_alive.is_zero() {
        return std::future::pending().await;
    }
    loop {
        let deadline = seen.get() + keep_alive * 3 / 2;
        if deadline <= Instant::now() {
            return Fault(reason::KEEP_ALIVE_TIMEOUT);
        }
        sleep_until(deadline).await;
    }
}

/// Reads and answers until the client leaves or breaks the rules.
async fn receive(hub: &Hub, peer: &Rc<Peer>, inbox: &mut Inbox, seen: &Cell<Instant>) -> Result<(), Fault> {
    loop {
        while let Some(frame) = packet::frame(inbox.filled())? {
            match packet::parse(peer.version, frame)? {
                Packet::Disconnect => return Ok(()),
                packet => answer(hub, peer, &packet)?,
            }
            inbox.consume(frame.length);
        }
        if peer.pipe.send().is_err() || !peer.pipe.fill(inbox).await.is_ok_and(|length| length > 0) {
            return Ok(());
        }
        seen.set(Instant::now());
    }
}

fn answer(hub: &Hub, peer: &Rc<Peer>, packet: &Packet<'_>) -> Result<(), Fault> {
    match packet {
        Packet::Publish(publish) => {
            acceptable(peer, publish)?;
            if publish.qos > 0 {
                peer.pipe.append(|out| packet::write_pub_ack(out, publish.id));
            }
            hub.deliver(peer, publish);
        }
        Packet::PubAck { .. } => peer.acked(),
        Packet::Subscribe { id, filters } => {
            let codes: Vec<u8> = filters.iter().map(|filter| subscribe(peer, filter)).collect();
            peer.pipe.append(|out| packet::write_sub_ack(out, peer.version, *id, &codes));
        }
        Packet::Unsubscribe { id, filters } => {
            const NO_SUBSCRIPTION: u8 = 0x11;
            let code = |filter: &&str| if peer.unsubscribe(filter) { 0 } else { NO_SUBSCRIPTION };
            let codes: Vec<u8> = filters.iter().map(code).collect();
            peer.pipe.append(|out| packet::write_unsub_ack(out, peer.version, *id, &codes));
        }
        Packet::PingReq => peer.pipe.append(packet::ping_response),
        _ => return Err(Fault(reason::PROTOCOL_ERROR)),
    }
    Ok(())
}

fn acceptable(peer: &Peer, publish: &Publish<'_>) -> Result<(), Fault> {
    match publish {
        Publish { qos: 2, .. } => Err(Fault(reason::NO_SUCH_QOS)),
        Publish { properties, .. } if properties.alias => Err(Fault(reason::ALIAS_INVALID)),
        Publish { properties, .. } if properties.subscription => Err(Fault(reason::PROTOCOL_ERROR)),
        Publish { topic, .. } if !topic::is_name(topic) => Err(Fault(reason::TOPIC_INVALID)),
        // In 3.1.1 there is no way to refuse it; it is delivered and not kept.
        Publish { retain: true, .. } if peer.version == V5 => Err(Fault(reason::NO_RETAIN)),
        _ => Ok(()),
    }
}

/// The code of SUBACK: the quality of service that is granted, or why not.
fn subscribe(peer: &Peer, filter: &Filter<'_>) -> u8 {
    const FAILURE: u8 = 0x80;
    if topic::is_filter(filter.topics) {
        peer.subscribe(filter)
    } else if peer.version == V5 {
        reason::FILTER_INVALID
    } else {
        FAILURE
    }
}
