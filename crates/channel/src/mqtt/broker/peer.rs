//! A client as the broker sees it.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    time::Duration,
};

use ciphertoll_wire::MqttVersion::{self, V5};
use tokio::sync::Notify;

use crate::{
    mqtt::{
        packet::{self, Connect, Fault, Filter, Properties, Publish, reason},
        pipe::Pipe,
        topic,
    },
    tls::ServerStream,
};

/// What may wait for a client that reads too slowly. Beyond that it gets no more with quality of service 0,
/// and is sent away when there is something with quality of service 1.
const WAITING_BYTES: usize = 32 << 20;

pub(super) struct Peer {
    pub(super) pipe: Pipe<ServerStream>,
    pub(super) version: MqttVersion,
    pub(super) client_id: String,
    /// Zero if it may be silent for ever.
    pub(super) keep_alive: Duration,
    largest_bytes: usize,
    subscriptions: RefCell<Vec<Subscription>>,
    flight: RefCell<Flight>,
    end: Cell<Option<u8>>,
    ends: Notify,
}

struct Subscription {
    topics: String,
    qos: u8,
    no_local: bool,
}

/// Deliveries with quality of service 1.
struct Flight {
    last_id: u16,
    unacked: u16,
    /// What the client takes at once.
    most: u16,
    /// Packets beyond that, and their bytes.
    held: VecDeque<Vec<u8>>,
    held_bytes: usize,
}

impl Peer {
    pub(super) fn new(pipe: Pipe<ServerStream>, connect: &Connect<'_>, client_id: String) -> Self {
        let Connect { version, keep_alive_s, properties, .. } = connect;
        let most = properties.receive_maximum.unwrap_or(u16::MAX);
        let largest_bytes = properties.largest_bytes.and_then(|most| usize::try_from(most).ok());
        Self {
            pipe,
            version: *version,
            client_id,
            keep_alive: Duration::from_secs(u64::from(*keep_alive_s)),
            largest_bytes: largest_bytes.unwrap_or(usize::MAX),
            subscriptions: RefCell::default(),
            flight: RefCell::new(Flight { last_id: 0, unacked: 0, most, held: VecDeque::new(), held_bytes: 0 }),
            end: Cell::new(None),
            ends: Notify::new(),
        }
    }

    /// Says which quality of service is granted. A second subscription to a filter replaces the first.
    pub(super) fn subscribe(&self, filter: &Filter<'_>) -> u8 {
        self.unsubscribe(filter.topics);
        let qos = filter.qos.min(1);
        let subscription = Subscription { topics: filter.topics.to_owned(), qos, no_local: filter.no_local };
        self.subscriptions.borrow_mut().push(subscription);
        qos
    }

    /// Whether there was such a subscription.
    pub(super) fn unsubscribe(&self, filter: &str) -> bool {
        let mut subscriptions = self.subscriptions.borrow_mut();
        let before = subscriptions.len();
        subscriptions.retain(|s| s.topics != filter);
        subscriptions.len() < before
    }

    /// The best quality of service among its subscriptions to `topic`; `own` is what it published itself.
    pub(super) fn wants(&self, topic: &str, own: bool) -> Option<u8> {
        let subscriptions = self.subscriptions.borrow();
        let matching = subscriptions.iter().filter(|s| !(own && s.no_local) && topic::matches(&s.topics, topic));
        matching.map(|s| s.qos).max()
    }

    /// Puts a message into its outbox, or holds it back until the client has acknowledged enough.
    pub(super) fn deliver(&self, publish: &Publish<'_>, qos: u8) {
        let properties = if self.version == V5 { publish.properties } else { Properties::default() };
        let mut delivery = Publish { qos, retain: false, id: 0, properties, ..*publish };
        let size = packet::publish_bytes(self.version, &delivery);
        // 5.0, 3.1.2.11.4: what the client cannot take is dropped as if it were delivered.
        if size > self.largest_bytes {
            return;
        }
        let mut flight = self.flight.borrow_mut();
        if self.pipe.queued() + flight.held_bytes + size > WAITING_BYTES {
            if qos > 0 {
                self.send_away(reason::QUOTA_EXCEEDED);
            }
            return;
        }
        if qos == 0 {
            self.pipe.append(|out| packet::write_publish(out, self.version, &delivery));
            return;
        }
        // Clients acknowledge in order (4.6), so an identifier is free again before its turn comes.
        flight.last_id = flight.last_id % u16::MAX + 1;
        delivery.id = flight.last_id;
        if flight.unacked < flight.most {
            flight.unacked += 1;
            self.pipe.append(|out| packet::write_publish(out, self.version, &delivery));
            return;
        }
        let mut bytes = Vec::with_capacity(size);
        packet::write_publish(&mut bytes, self.version, &delivery);
        flight.held_bytes += size;
        flight.held.push_back(bytes);
    }

    /// The client acknowledged a delivery: the next one may go.
    pub(super) fn acked(&self) {
        let mut flight = self.flight.borrow_mut();
        if let Some(held) = flight.held.pop_front() {
            flight.held_bytes -= held.len();
            self.pipe.append(|out| out.extend_from_slice(&held));
        } else {
            flight.unacked = flight.unacked.saturating_sub(1);
        }
    }

    /// Ends its connection soon.
    pub(super) fn send_away(&self, reason: u8) {
        self.end.set(Some(reason));
        self.ends.notify_one();
    }

    /// Waits for [`Peer::send_away`].
    pub(super) async fn sent_away(&self) -> Fault {
        loop {
            if let Some(reason) = self.end.get() {
                return Fault(reason);
            }
            self.ends.notified().await;
        }
    }

    /// The last word. In 3.1.1 a broker has none.
    pub(super) fn part(&self, reason: u8) {
        if self.version == V5 {
            self.pipe.append(|out| packet::disconnect(out, V5, reason));
        }
    }
}
