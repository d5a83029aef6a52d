//! The echo server: one socket, an association for each peer.

use std::{
    collections::HashMap,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use ciphertoll_wire::Coap;
use coap_lite::{CoapOption, ContentFormat, MessageClass, MessageType, Packet, RequestType, ResponseType};
use tokio::{net::UdpSocket, time::MissedTickBehavior};

use super::{
    LARGEST_DATAGRAM_BYTES, REQUEST_TAG, Sizes,
    block::Block,
    bodies::{Bodies, Key, Put},
    message,
    outlet::Outlet,
};
use crate::{
    Error,
    dtls::{self, Acceptor, Association, State},
    identity::Identity,
    names::Pinned,
};

/// How often handshakes that wait for a flight are looked at.
const TICK: Duration = Duration::from_millis(250);
/// A peer that is silent for this long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// More peers than this are not kept.
const PEERS_LIMIT: usize = 4096;
/// A `ClientHello` this soon after another datagram of an association is a late one of that association. Clients repeat
/// theirs after 0.75 s or more.
const LATE: Duration = Duration::from_millis(500);

/// A server that has no socket yet.
pub struct Server {
    acceptor: Acceptor,
    sizes: Sizes,
}

impl Server {
    /// Makes a server that accepts `secrets` and nothing else; without protection if `None`.
    ///
    /// # Errors
    /// The library cannot do it.
    pub fn new(secrets: Option<&(Pinned, Identity)>, settings: Coap) -> Result<Self, Error> {
        let acceptor = Acceptor::new(secrets, settings.datagram_bytes)?;
        // Some of what a library cannot do shows only here.
        acceptor.accept()?;
        Ok(Self { acceptor, sizes: Sizes::new(settings) })
    }

    /// Echoes what is posted to `/echo`, until dropped.
    pub async fn run(self, socket: UdpSocket) {
        let outlet = Outlet::new(socket);
        let bodies = Bodies::default();
        let mut listening = Listening { server: self, outlet: outlet.clone(), peers: HashMap::new(), bodies };
        let mut buffer = vec![0; LARGEST_DATAGRAM_BYTES];
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = tick.tick() => listening.tick(),
                // An error here is an ICMP message about a peer that went away.
                received = outlet.socket.recv_from(&mut buffer) => if let Ok((length, from)) = received {
                    listening.receive(from, &buffer[..length]);
                },
            }
        }
    }
}

struct Listening {
    server: Server,
    outlet: Rc<Outlet>,
    peers: HashMap<SocketAddr, Peer>,
    bodies: Bodies,
}

struct Peer {
    association: Box<dyn Association>,
    heard: Instant,
    repeated: Instant,
}

impl Listening {
    fn receive(&mut self, from: SocketAddr, datagram: &[u8]) {
        self.meet(from, datagram);
        let Self { server, outlet, peers, bodies } = self;
        let Some(peer) = peers.get_mut(&from) else { return };
        peer.heard = Instant::now();
        peer.repeated = peer.heard;
        let mut answers = Vec::new();
        let received = peer.association.receive(datagram, &mut |plaintext| {
            answers.extend(answer(plaintext, from, bodies, server.sizes));
        });
        for answer in answers {
            // What cannot be sent now is asked for again.
            let _ = peer.association.send(&answer);
        }
        if received.is_err() {
            // wolfSSL sends no alert for a ClientHello of DTLS 1.2 that it cannot accept.
            peer.association.close();
        }
        peer.flush(from, outlet);
        if received.is_err() {
            peers.remove(&from);
        }
    }

    /// Makes a peer of a sender, if it is none yet and the datagram can be the first one of a peer.
    fn meet(&mut self, from: SocketAddr, datagram: &[u8]) {
        if !self.server.acceptor.welcomes(datagram) {
            return;
        }
        let now = Instant::now();
        if let Some(peer) = self.peers.get(&from) {
            // A client that went away without a word, and another one on the same port (RFC 6347, 4.2.8).
            let anew = dtls::client_hello_number(datagram) == Some(0) && now.duration_since(peer.heard) > LATE;
            if !anew || !matches!(peer.association.state(), State::Established(Some(_))) {
                return;
            }
        }
        if let Ok(association) = self.server.acceptor.accept() {
            self.make_room(&from);
            self.peers.insert(from, Peer { association, heard: now, repeated: now });
        }
    }

    /// Forgets the peer that was silent for longest if there are too many: without DTLS nobody says goodbye.
    fn make_room(&mut self, newcomer: &SocketAddr) {
        if self.peers.len() < PEERS_LIMIT || self.peers.contains_key(newcomer) {
            return;
        }
        let silent = self.peers.iter().min_by_key(|(_, peer)| peer.heard).map(|(address, _)| *address);
        silent.map(|address| self.peers.remove(&address));
    }

    /// Repeats handshake flights that were not answered, and forgets peers that went away.
    fn tick(&mut self) {
        let (outlet, now) = (&self.outlet, Instant::now());
        self.bodies.forget(now);
        self.peers.retain(|address, peer| {
            let due = peer.association.timeout().is_some_and(|patience| now.duration_since(peer.repeated) >= patience);
            let alive = !due || peer.association.on_timeout().is_ok();
            if due {
                peer.repeated = now;
                peer.flush(*address, outlet);
            }
            alive && now.duration_since(peer.heard) < FORGET_AFTER
        });
    }
}

impl Peer {
    fn flush(&mut self, address: SocketAddr, outlet: &Rc<Outlet>) {
        // An unconnected socket hears of no refusal; what else goes wrong is a lost datagram.
        self.association.transmit(&mut |datagram| drop(outlet.send(datagram, Some(address))));
    }
}

/// The answer to one message; repeated requests get the same answer again, since an echo changes nothing.
fn answer(plaintext: &[u8], from: SocketAddr, bodies: &mut Bodies, sizes: Sizes) -> Option<Vec<u8>> {
    let request = Packet::from_bytes(plaintext).ok().filter(|request| request.header.get_version() == 1)?;
    let MessageClass::Request(method) = request.header.code else { return ping(&request) };
    let mut reply = reply_to(&request)?;
    let path = request.get_option(CoapOption::UriPath).is_some_and(|path| path.iter().eq([b"echo"]));
    reply.header.code = MessageClass::Response(match (path, method) {
        _ if request.options().any(|(number, _)| is_unknown_critical(*number)) => ResponseType::BadOption,
        (false, _) => ResponseType::NotFound,
        (true, RequestType::Post) => echo(&request, &mut reply, from, bodies, sizes),
        (true, _) => ResponseType::MethodNotAllowed,
    });
    reply.to_bytes_unlimited().ok()
}

/// Whether an option must be understood (RFC 7252, 5.4.1) and is none of Uri-Host, Uri-Port, Uri-Path, Uri-Query,
/// Accept, Block2, Block1.
fn is_unknown_critical(number: u16) -> bool {
    number % 2 == 1 && ![3, 7, 11, 15, 17, 23, 27].contains(&number)
}

/// An empty confirmable message is answered by a reset (RFC 7252, 4.3).
fn ping(request: &Packet) -> Option<Vec<u8>> {
    let ping = request.header.code == MessageClass::Empty && request.header.get_type() == MessageType::Confirmable;
    let reset = message(MessageType::Reset, MessageClass::Empty, request.header.message_id, &[]);
    ping.then(|| reset.to_bytes_unlimited().ok()).flatten()
}

fn reply_to(request: &Packet) -> Option<Packet> {
    let kind = match request.header.get_type() {
        MessageType::Confirmable => MessageType::Acknowledgement,
        MessageType::NonConfirmable => MessageType::NonConfirmable,
        _ => return None,
    };
    let code = MessageClass::Response(ResponseType::Changed);
    Some(message(kind, code, request.header.message_id, request.get_token()))
}

fn echo(request: &Packet, reply: &mut Packet, from: SocketAddr, bodies: &mut Bodies, sizes: Sizes) -> ResponseType {
    let (put, asked) = (Block::of(request, CoapOption::Block1), Block::of(request, CoapOption::Block2));
    if put.is_none() && asked.is_none() && request.payload.len() <= sizes.whole {
        reply.set_content_format(ContentFormat::ApplicationOctetStream);
        reply.payload.clone_from(&request.payload);
        return ResponseType::Changed;
    }
    let key = (from, request.get_first_option(REQUEST_TAG).cloned().unwrap_or_default());
    let mut next = asked.unwrap_or(Block { number: 0, more: false, size: sizes.block });
    if put.is_none() && next.number > 0 {
        return give(bodies, &key, next, reply);
    }
    if let Some(put) = put {
        put.add_to(reply, CoapOption::Block1);
    }
    let (at, more) = put.map_or((0, false), |put| (put.at(), put.more));
    match bodies.put(&key, at, &request.payload, more) {
        Put::Part => ResponseType::Continue,
        Put::Gap => ResponseType::RequestEntityIncomplete,
        Put::TooLarge => ResponseType::RequestEntityTooLarge,
        Put::Whole => {
            next = Block { number: 0, size: next.size.min(sizes.block), ..next };
            give(bodies, &key, next, reply)
        }
    }
}

/// Puts a block of a body into an answer.
fn give(bodies: &mut Bodies, key: &Key, next: Block, reply: &mut Packet) -> ResponseType {
    let Some((part, more)) = bodies.take(key, next) else { return ResponseType::RequestEntityIncomplete };
    reply.set_content_format(ContentFormat::ApplicationOctetStream);
    if more || next.number > 0 {
        Block { more, ..next }.add_to(reply, CoapOption::Block2);
    }
    reply.payload = part.to_vec();
    ResponseType::Changed
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const SIZES: Sizes = Sizes { whole: 100, block: 64 };

    fn confirmable(method: RequestType, path: &str, payload: &[u8]) -> Packet {
        let mut request = message(MessageType::Confirmable, MessageClass::Request(method), 7, &[1; 8]);
        request.add_option(CoapOption::UriPath, path.into());
        request.payload = payload.to_vec();
        request
    }

    fn post(payload: &[u8]) -> Packet {
        confirmable(RequestType::Post, "echo", payload)
    }

    fn part(number: usize, more: bool, content: u8) -> Packet {
        let mut request = post(&[content; 64]);
        Block { number, more, size: 64 }.add_to(&mut request, CoapOption::Block1);
        request
    }

    fn next(number: usize) -> Packet {
        let mut request = post(&[]);
        Block { number, more: false, size: 64 }.add_to(&mut request, CoapOption::Block2);
        request
    }

    fn answered(request: &Packet, bodies: &mut Bodies) -> Packet {
        let from = (Ipv4Addr::LOCALHOST, 1).into();
        Packet::from_bytes(&answer(&request.to_bytes_unlimited().unwrap(), from, bodies, SIZES).unwrap()).unwrap()
    }

    fn code_of(request: &Packet) -> String {
        answered(request, &mut Bodies::default()).header.get_code()
    }

    #[test]
    fn what_is_no_post_to_echo_is_refused_with_the_code_that_says_why() {
        assert_eq!(code_of(&post(b"x")), "2.04");
        assert_eq!(code_of(&confirmable(RequestType::Post, "other", b"x")), "4.04");
        assert_eq!(code_of(&confirmable(RequestType::Get, "echo", b"")), "4.05");
        let mut request = post(b"x");
        request.add_option(CoapOption::Unknown(2049), vec![1]);
        assert_eq!(code_of(&request), "4.02");
    }

    #[test]
    fn a_block_out_of_order_is_refused_and_a_repeated_one_is_not() {
        let mut bodies = Bodies::default();
        for (number, code) in
            [(1, "4.08"), (0, "2.31"), (0, "2.31"), (1, "2.31"), (1, "2.31"), (0, "2.31"), (3, "4.08")]
        {
            assert_eq!(answered(&part(number, true, 9), &mut bodies).header.get_code(), code, "{number}");
        }
        assert_eq!(answered(&part(2, false, 8), &mut bodies).header.get_code(), "2.04");
        assert_eq!(answered(&part(2, false, 8), &mut bodies).payload, [9; 64]);
        for _ in 0..2 {
            let last = answered(&next(2), &mut bodies);
            assert_eq!((last.header.get_code().as_str(), last.payload.as_slice()), ("2.04", &[8; 64][..]));
            assert!(!Block::of(&last, CoapOption::Block2).unwrap().more);
        }
        assert_eq!(answered(&next(3), &mut bodies).header.get_code(), "4.08");
    }

    #[test]
    fn only_the_first_message_of_a_handshake_makes_a_peer_of_a_sender() {
        let certificate = &crate::names::CERTIFICATES[0];
        let identity = Identity::new(certificate, &["localhost".into()]).unwrap();
        let pinned = Pinned {
            version: ciphertoll_wire::TlsVersion::Dtls13,
            suite: &crate::names::SUITES[0],
            group: &crate::names::GROUPS[0],
            certificate,
            library: crate::names::Library::Dimpl,
        };
        let settings = Coap { confirmable: true, nstart: 0, datagram_bytes: 1400 };
        let server = Server::new(Some(&(pinned, identity)), settings).unwrap();
        let mut hello = vec![22, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(server.acceptor.welcomes(&hello));
        for (at, other) in [(0, 23), (0, 0x2F), (4, 1), (13, 2)] {
            let was = std::mem::replace(&mut hello[at], other);
            assert!(!server.acceptor.welcomes(&hello));
            hello[at] = was;
        }
        assert!(!server.acceptor.welcomes(&hello[..18]));
        assert!(!server.acceptor.welcomes(&[]));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_new_peer_makes_the_server_forget_the_one_that_was_silent_for_longest() {
        let outlet = Outlet::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
        let server = Server { acceptor: Acceptor::new(None, 1400).unwrap(), sizes: SIZES };
        let mut listening = Listening { server, outlet, peers: HashMap::new(), bodies: Bodies::default() };
        let address = |number: usize| SocketAddr::from(([127, 1, 0, 1], 1000 + u16::try_from(number).unwrap()));
        for number in 0..=PEERS_LIMIT {
            listening.receive(address(number), b"nothing to answer");
        }
        let peers = &listening.peers;
        assert_eq!(peers.len(), PEERS_LIMIT);
        assert!(!peers.contains_key(&address(0)) && peers.contains_key(&address(PEERS_LIMIT)));
    }

    proptest! {
        #[test]
        fn arbitrary_datagrams_are_answered_without_harm(datagrams: Vec<Vec<u8>>) {
            let (from, mut bodies) = ((Ipv4Addr::LOCALHOST, 1).into(), Bodies::default());
            for datagram in datagrams {
                let _ = dtls::client_hello_number(&datagram);
                answer(&datagram, from, &mut bodies, SIZES);
            }
        }

        #[test]
        fn arbitrary_requests_are_answered_without_harm(
            requests in prop::collection::vec((any::<[u8; 3]>(), 0..4usize, any::<Vec<u8>>()), 1..20)
        ) {
            let mut bodies = Bodies::default();
            for (value, option, payload) in requests {
                let mut request = post(&payload);
                request.add_option([23, 27, 292, 11][option].into(), value.to_vec());
                answered(&request, &mut bodies);
            }
        }
    }
}
