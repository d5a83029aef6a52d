//! A client whose lanes publish to topics of their own, to which the client itself has subscribed.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
    time::Duration,
};

use ciphertoll_wire::{Channel, Mqtt, MqttVersion, Outcome};
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinSet,
};

use super::{
    ALPN,
    packet::{self, Filter, LARGEST_BYTES, Packet, Properties, Publish, reason},
    pipe::{Inbox, Pipe},
};
use crate::{Client, Error, ExchangeError, Lane, Target, Times, clock, tls};

/// The broker may end the connection after 1.5 times as long without a packet.
const KEEP_ALIVE_S: u16 = 60;
const SUBSCRIBE_ID: u16 = 1;

/// One connection to a broker.
///
/// An exchange is done when its echo has arrived and, with quality of service 1, its PUBACK too, in whichever
/// order. The subscription has quality of service 0, so that the client acknowledges nothing itself.
pub struct MqttClient(Rc<Session>);

impl Client for MqttClient {
    type Lane = MqttLane;

    async fn connect(target: Target) -> Result<Self, Error> {
        let mqtt = settings(&target.channel)?;
        let (stream, connection) = tls::connect(&target, ALPN).await?;
        let mut greeting = Greeting { pipe: Pipe::new(stream), inbox: Inbox::new(), version: mqtt.version };
        let client_id = super::random_id().ok_or_else(|| Error::failed(Outcome::Machine, "no random numbers"))?;
        let limits = greeting.connect(&client_id, mqtt.qos).await?;
        target.log.ready_above(connection);
        let prefix = format!("ciphertoll/{client_id}/");
        greeting.subscribe(&format!("{prefix}+")).await?;

        let Greeting { pipe, inbox, .. } = greeting;
        let shared = Rc::new(Shared {
            pipe,
            mqtt,
            prefix,
            largest_bytes: limits.largest_bytes,
            lost: Cell::new(false),
            busy: Cell::new(true),
            lanes: RefCell::default(),
            unacked: RefCell::default(),
            last_id: Cell::new(SUBSCRIBE_ID),
            room: Semaphore::new(limits.unacked),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn_local(Rc::clone(&shared).run(inbox, limits.keep_alive));
        Ok(Self(Rc::new(Session { shared, connection, next_lane: Cell::new(0), _tasks: tasks })))
    }

    async fn lane(&self) -> Result<MqttLane, Error> {
        let Session { shared, next_lane, .. } = &*self.0;
        if shared.lost.get() {
            return Err(Error::failed(Outcome::Vanished, "the connection to the broker was lost"));
        }
        // Numbers are not used twice, so a late echo meets no other lane.
        let number = next_lane.get();
        next_lane.set(number + 1);
        let slot = Rc::new(Slot::default());
        shared.lanes.borrow_mut().insert(number, Rc::clone(&slot));
        let topic = format!("{}{number}", shared.prefix);
        Ok(MqttLane { session: Rc::clone(&self.0), number, topic, slot })
    }
}

fn settings(channel: &Channel) -> Result<Mqtt, Error> {
    let (Channel::Mqtt { mqtt } | Channel::Mqtts { mqtt, .. }) = channel else {
        return Err(Error::failed(Outcome::Unsupported, "the channel is not MQTT"));
    };
    if mqtt.qos > 1 {
        let what = format!("quality of service {} is not offered by this channel", mqtt.qos);
        return Err(Error::failed(Outcome::Unsupported, what));
    }
    Ok(*mqtt)
}

/// A connection before its first exchange.
struct Greeting {
    pipe: Pipe<tls::ClientStream>,
    inbox: Inbox,
    version: MqttVersion,
}

/// What the broker asks of the client.
struct Limits {
    unacked: usize,
    largest_bytes: usize,
    keep_alive: Duration,
}

impl Greeting {
    async fn connect(&mut self, client_id: &str, qos: u8) -> Result<Limits, Error> {
        self.pipe.append(|out| packet::write_connect(out, self.version, client_id, KEEP_ALIVE_S));
        match self.answer().await? {
            Packet::ConnAck { code: 0, properties } => limits(&properties, qos),
            Packet::ConnAck { code, .. } => Err(refusal(self.version, code)),
            _ => Err(garbage("the peer answers CONNECT with another packet")),
        }
    }

    async fn subscribe(&mut self, filter: &str) -> Result<(), Error> {
        let filter = Filter { topics: filter, qos: 0, no_local: false };
        self.pipe.append(|out| packet::write_subscribe(out, self.version, SUBSCRIBE_ID, &filter));
        match self.answer().await? {
            Packet::SubAck { id: SUBSCRIBE_ID, codes: [0] } => Ok(()),
            Packet::SubAck { codes, .. } => Err(garbage(&format!("the broker refuses the subscription: {codes:02x?}"))),
            _ => Err(garbage("the peer answers SUBSCRIBE with another packet")),
        }
    }

    /// Sends what was asked and waits for the packet that answers it.
    async fn answer(&mut self) -> Result<Packet<'_>, Error> {
        let lost = |e: std::io::Error| garbage(&format!("the peer ends the connection instead of an answer: {e}"));
        self.pipe.drain().await.map_err(lost)?;
        let length = loop {
            match packet::frame(self.inbox.filled()) {
                Ok(Some(frame)) => break frame.length,
                Ok(None) => {}
                Err(_) => return Err(garbage("the peer does not speak MQTT")),
            }
            if self.pipe.fill(&mut self.inbox).await.map_err(lost)? == 0 {
                return Err(lost(std::io::ErrorKind::UnexpectedEof.into()));
            }
        };
        let answer = self.inbox.take(length);
        let parsed = packet::frame(answer).ok().flatten().map(|frame| packet::parse(self.version, frame));
        parsed.and_then(Result::ok).ok_or_else(|| garbage("the peer does not speak MQTT"))
    }
}

fn garbage(why: &str) -> Error {
    Error::failed(Outcome::Garbage, why)
}

fn limits(properties: &Properties<'_>, qos: u8) -> Result<Limits, Error> {
    if properties.maximum_qos.is_some_and(|most| most < qos) {
        return Err(Error::failed(Outcome::Mismatch, format!("the broker does not offer quality of service {qos}")));
    }
    let largest_bytes = properties.largest_bytes.and_then(|most| usize::try_from(most).ok());
    let keep_alive_s = properties.server_keep_alive_s.unwrap_or(KEEP_ALIVE_S);
    Ok(Limits {
        // As many as there are identifiers, if the broker says nothing.
        unacked: usize::from(properties.receive_maximum.unwrap_or(u16::MAX)),
        largest_bytes: largest_bytes.unwrap_or(LARGEST_BYTES),
        keep_alive: Duration::from_secs(u64::from(keep_alive_s)),
    })
}

fn refusal(version: MqttVersion, code: u8) -> Error {
    let (outcome, words) = match (version, code) {
        (_, 1 | reason::UNSUPPORTED_VERSION) => (Outcome::Mismatch, "it does not speak this version"),
        (_, reason::NO_SUCH_QOS) => (Outcome::Mismatch, "it does not offer this quality of service"),
        (MqttVersion::V311, 2) | (_, 0x85) => (Outcome::Garbage, "it does not accept the client's name"),
        (MqttVersion::V311, 3) | (_, 0x88) => (Outcome::Garbage, "it is not available"),
        (_, 0x89) => (Outcome::Garbage, "it is busy"),
        (MqttVersion::V311, 4) | (_, 0x86) => (Outcome::Garbage, "it wants another user name or password"),
        (MqttVersion::V311, 5) | (_, 0x87) => (Outcome::Garbage, "it does not let this client in"),
        _ => (Outcome::Garbage, "it does not say why in a known word"),
    };
    Error::failed(outcome, format!("the broker refuses the connection: {words} (CONNACK 0x{code:02x})"))
}

/// What the client and its lanes hold; the connection ends with the last of them.
struct Session {
    shared: Rc<Shared>,
    connection: u16,
    next_lane: Cell<u32>,
    _tasks: JoinSet<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.pipe.append(|out| packet::disconnect(out, self.shared.mqtt.version, 0));
        // Best effort: the broker notices the end of the connection anyway.
        let _ = self.shared.pipe.send();
    }
}

struct Shared {
    pipe: Pipe<tls::ClientStream>,
    mqtt: Mqtt,
    /// Of the topics of all lanes.
    prefix: String,
    largest_bytes: usize,
    lost: Cell<bool>,
    /// Something was sent since the last look.
    busy: Cell<bool>,
    lanes: RefCell<HashMap<u32, Rc<Slot>>>,
    /// Identifiers of what was published and not acknowledged, and by which lane. A lane that is gone leaves
    /// its identifier here until the broker has answered.
    unacked: RefCell<HashMap<u16, u32>>,
    last_id: Cell<u16>,
    /// One permit for each identifier that the broker lets be under way.
    room: Semaphore,
}

impl Shared {
    /// Sends and receives until the connection is lost, then says so to all lanes.
    async fn run(self: Rc<Self>, inbox: Inbox, keep_alive: Duration) {
        tokio::select! {
            () = self.receive(inbox) => {}
            _ = self.pipe.pump() => {}
            () = self.ping(keep_alive) => {}
        }
        self.lose();
    }

    async fn receive(&self, mut inbox: Inbox) {
        while let Ok(frame) = packet::frame(inbox.filled()) {
            if let Some(frame) = frame {
                match packet::parse(self.mqtt.version, frame) {
                    Ok(packet) if self.arrived(&packet) => inbox.consume(frame.length),
                    _ => return,
                }
            } else if !self.pipe.fill(&mut inbox).await.is_ok_and(|length| length > 0) {
                return;
            }
        }
    }

    /// Whether the connection goes on.
    fn arrived(&self, packet: &Packet<'_>) -> bool {
        match packet {
            Packet::PubAck { id, code } => self.acked(*id, *code),
            Packet::Publish(publish) => self.echoed(publish),
            Packet::PingResp | Packet::SubAck { .. } => {}
            _ => return false,
        }
        true
    }

    fn acked(&self, id: u16, code: u8) {
        let now = clock::now();
        let Some(lane) = self.unacked.borrow_mut().remove(&id) else { return };
        self.room.add_permits(1);
        let lanes = self.lanes.borrow();
        let Some(slot) = lanes.get(&lane).filter(|slot| slot.id.get() == id) else { return };
        slot.update(|state| {
            state.times.acked_ns = now;
            state.ack_due = false;
            if code >= 0x80 {
                state.error = Some(ExchangeError::Refused);
            }
        });
    }

    fn echoed(&self, publish: &Publish<'_>) {
        let now = clock::now();
        let number = publish.topic.strip_prefix(&self.prefix).and_then(|number| number.parse().ok());
        let lanes = self.lanes.borrow();
        let Some(slot) = number.and_then(|number: u32| lanes.get(&number)) else { return };
        let equal = *slot.expected.borrow() == publish.payload;
        slot.update(|state| {
            state.echo_due = false;
            if equal {
                state.times.done_ns = now;
            } else {
                state.error = Some(ExchangeError::Corrupt);
            }
        });
    }

    /// Keeps an otherwise silent connection. Loads of 0.1/s and more never are silent for so long.
    async fn ping(&self, keep_alive: Duration) {
        if keep_alive.is_zero() {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(keep_alive / 3);
        loop {
            ticks.tick().await;
            if self.busy.replace(false) {
                continue;
            }
            self.pipe.append(packet::ping_request);
            if self.pipe.send().is_err() {
                return;
            }
        }
    }

    fn lose(&self) {
        self.lost.set(true);
        self.room.close();
        for slot in self.lanes.borrow().values() {
            slot.update(State::lose);
        }
    }

    /// An identifier that is not under way. There is one, since `room` has let the caller in.
    fn next_id(&self) -> u16 {
        let unacked = self.unacked.borrow();
        loop {
            let id = self.last_id.get() % u16::MAX + 1;
            self.last_id.set(id);
            if !unacked.contains_key(&id) {
                return id;
            }
        }
    }
}

/// What a lane waits for.
#[derive(Default)]
struct Slot {
    /// The payload; it keeps its memory from one exchange to the next.
    expected: RefCell<Vec<u8>>,
    id: Cell<u16>,
    state: Cell<State>,
    changed: Notify,
}

#[derive(Clone, Copy, Default)]
struct State {
    times: Times,
    ack_due: bool,
    echo_due: bool,
    error: Option<ExchangeError>,
}

impl State {
    fn is_under_way(&self) -> bool {
        self.ack_due || self.echo_due
    }

    fn lose(&mut self) {
        if self.is_under_way() {
            self.error = Some(ExchangeError::Closed);
        }
    }
}

impl Slot {
    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.get();
        change(&mut state);
        self.state.set(state);
        self.changed.notify_one();
    }
}

/// A topic, and a place for one message on it at a time.
pub struct MqttLane {
    session: Rc<Session>,
    number: u32,
    topic: String,
    slot: Rc<Slot>,
}

impl Lane for MqttLane {
    fn connection(&self) -> u16 {
        self.session.connection
    }

    async fn exchange(&mut self, payload: &[u8], times: &mut Times) -> Result<(), ExchangeError> {
        self.publish(payload, times).await?;
        loop {
            let state = self.slot.state.get();
            times.acked_ns = state.times.acked_ns;
            times.done_ns = state.times.done_ns;
            if let Some(error) = state.error {
                return Err(error);
            }
            if !state.is_under_way() {
                return Ok(());
            }
            self.slot.changed.notified().await;
        }
    }
}

impl MqttLane {
    async fn publish(&self, payload: &[u8], times: &mut Times) -> Result<(), ExchangeError> {
        let shared = &self.session.shared;
        let Mqtt { version, qos } = shared.mqtt;
        if qos > 0 {
            // The permit comes back with the PUBACK.
            shared.room.acquire().await.map_err(|_| ExchangeError::Closed)?.forget();
        }
        if shared.lost.get() {
            return Err(ExchangeError::Closed);
        }
        let id = if qos > 0 { shared.next_id() } else { 0 };
        let publish =
            Publish { topic: &self.topic, qos, retain: false, id, properties: Properties::default(), payload };
        if packet::publish_bytes(version, &publish) > shared.largest_bytes {
            shared.room.add_permits(usize::from(qos));
            return Err(ExchangeError::Refused);
        }
        if qos > 0 {
            shared.unacked.borrow_mut().insert(id, self.number);
        }
        self.slot.begin(id, payload);
        times.sent_ns = clock::now();
        shared.pipe.append(|out| packet::write_publish(out, version, &publish));
        shared.busy.set(true);
        if shared.pipe.send().is_err() {
            shared.lose();
        }
        Ok(())
    }
}

impl Slot {
    fn begin(&self, id: u16, payload: &[u8]) {
        let mut expected = self.expected.borrow_mut();
        expected.clear();
        expected.extend_from_slice(payload);
        self.id.set(id);
        self.state.set(State { ack_due: id > 0, echo_due: true, ..State::default() });
    }
}

impl Drop for MqttLane {
    fn drop(&mut self) {
        self.session.shared.lanes.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_version_is_a_mismatch_in_the_words_of_both_versions() {
        for (version, code) in [(MqttVersion::V311, 1), (MqttVersion::V5, 1), (MqttVersion::V5, 0x84)] {
            assert_eq!(refusal(version, code).outcome(), Outcome::Mismatch);
        }
        let error = refusal(MqttVersion::V311, 5);
        assert_eq!(error.outcome(), Outcome::Garbage);
        assert_eq!(
            error.to_string(),
            "the broker refuses the connection: it does not let this client in (CONNACK 0x05)"
        );
    }
}
