//! The echo server: one socket, an association for each peer.

use std::{
    collections::HashMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use ciphertoll_wire::Coap;
use coap_lite::{CoapOption, ContentFormat, MessageClass, MessageType, Packet, RequestType, ResponseType};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use tokio::net::UdpSocket;

use super::{BODY_LIMIT_BYTES, LARGEST_DATAGRAM_BYTES, REQUEST_TAG, Sizes, add_block, block, cut, message};
use crate::{
    Error,
    dtls::{Acceptor, Association},
    identity::Identity,
    names::Pinned,
};

/// A peer that is silent for this long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(120);
/// More peers than this, and more bodies than this of one peer, are not kept.
const PEERS_LIMIT: usize = 4096;
const BODIES_LIMIT: usize = 256;
/// Kernel buffers: a burst of large exchanges fits.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Asks for large socket buffers; a kernel that gives less loses datagrams earlier, nothing else.
pub(super) fn enlarge_buffers(socket: &UdpSocket) {
    let _ = set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
    let _ = set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
}

/// Makes a server that echoes what is posted to `/echo`, until dropped.
///
/// # Errors
/// The library cannot do what `secrets` says.
pub fn serve(
    socket: UdpSocket,
    secrets: Option<&(Pinned, Identity)>,
    settings: Coap,
) -> Result<impl Future<Output = ()> + use<>, Error> {
    let acceptor = Acceptor::new(secrets, settings.datagram_bytes)?;
    enlarge_buffers(&socket);
    Ok(run(Server { socket, acceptor, sizes: Sizes::new(settings), peers: HashMap::new() }))
}

async fn run(mut server: Server) {
    let mut buffer = vec![0; LARGEST_DATAGRAM_BYTES];
    let mut tick = tokio::time::interval(Duration::from_millis(250));
    loop {
        tokio::select! {
            biased;
            received = server.socket.recv_from(&mut buffer) => {
                // An error here is an ICMP message about a peer that went away.
                if let Ok((length, from)) = received {
                    server.receive(from, &buffer[..length]);
                }
            }
            _ = tick.tick() => server.tick(),
        }
    }
}

struct Server {
    socket: UdpSocket,
    acceptor: Acceptor,
    sizes: Sizes,
    peers: HashMap<SocketAddr, Peer>,
}

struct Peer {
    association: Box<dyn Association>,
    heard: Instant,
    repeated: Instant,
    bodies: Bodies,
}

/// What is put together from blocks, by Request-Tag.
type Bodies = HashMap<Vec<u8>, Body>;

struct Body {
    bytes: Vec<u8>,
    touched: Instant,
}

impl Server {
    fn receive(&mut self, from: SocketAddr, datagram: &[u8]) {
        if !self.peers.contains_key(&from) {
            let Ok(association) = self.acceptor.accept() else { return };
            self.make_room();
            let now = Instant::now();
            self.peers.insert(from, Peer { association, heard: now, repeated: now, bodies: HashMap::new() });
        }
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.heard = Instant::now();
        peer.repeated = peer.heard;
        let mut answers = Vec::new();
        let Peer { association, bodies, .. } = peer;
        let received = association.receive(datagram, &mut |plaintext| {
            answers.extend(answer(plaintext, bodies, self.sizes));
        });
        for answer in answers {
            // What cannot be sent now is asked for again.
            let _ = peer.association.send(&answer);
        }
        if received.is_err() {
            // wolfSSL sends no alert for a ClientHello of DTLS 1.2 that it cannot accept.
            peer.association.close();
        }
        peer.association.transmit(&mut |datagram| drop(self.socket.try_send_to(datagram, from)));
        if received.is_err() {
            self.peers.remove(&from);
        }
    }

    /// Forgets the peer that was silent for longest if there are too many: without DTLS nobody says goodbye.
    fn make_room(&mut self) {
        if self.peers.len() < PEERS_LIMIT {
            return;
        }
        let silent = self.peers.iter().min_by_key(|(_, peer)| peer.heard).map(|(address, _)| *address);
        silent.map(|address| self.peers.remove(&address));
    }

    /// Repeats handshake flights that were not answered, and forgets peers that went away.
    fn tick(&mut self) {
        let socket = &self.socket;
        self.peers.retain(|address, peer| {
            let due = peer.association.timeout().is_some_and(|patience| peer.repeated.elapsed() >= patience);
            let alive = !due || peer.association.on_timeout().is_ok();
            if due {
                peer.repeated = Instant::now();
                peer.association.transmit(&mut |datagram| drop(socket.try_send_to(datagram, *address)));
            }
            alive && peer.heard.elapsed() < FORGET_AFTER
        });
    }
}

/// The answer to one message; repeated requests get the same answer again, since an echo changes nothing.
fn answer(plaintext: &[u8], bodies: &mut Bodies, sizes: Sizes) -> Option<Vec<u8>> {
    let request = Packet::from_bytes(plaintext).ok()?;
    let MessageClass::Request(method) = request.header.code else { return ping(&request) };
    let mut reply = reply_to(&request)?;
    let path = request.get_option(CoapOption::UriPath).is_some_and(|path| path.iter().eq([b"echo"]));
    reply.header.code = MessageClass::Response(match (path, method) {
        (false, _) => ResponseType::NotFound,
        (true, RequestType::Post) => echo(&request, &mut reply, bodies, sizes),
        (true, _) => ResponseType::MethodNotAllowed,
    });
    reply.to_bytes_unlimited().ok()
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

fn echo(request: &Packet, reply: &mut Packet, bodies: &mut Bodies, sizes: Sizes) -> ResponseType {
    let tag = request.get_first_option(REQUEST_TAG).cloned().unwrap_or_default();
    let asked = block(request, CoapOption::Block2);
    let Some(put) = block(request, CoapOption::Block1) else {
        let Some(part) = asked.filter(|b| b.num > 0) else {
            return give(&request.payload, 0, sizes, reply);
        };
        let Some(body) = bodies.get_mut(&tag) else { return ResponseType::RequestEntityIncomplete };
        body.touched = Instant::now();
        let sizes = Sizes { whole: 0, block: sizes.block.min(part.size()) };
        return give(&body.bytes, usize::from(part.num), sizes, reply);
    };
    if put.num == 0 {
        begin(bodies, &tag);
    }
    let Some(body) = bodies.get_mut(&tag) else { return ResponseType::RequestEntityIncomplete };
    body.touched = Instant::now();
    add_block(reply, CoapOption::Block1, put.num.into(), put.more, put.size());
    match append(&mut body.bytes, usize::from(put.num) * put.size(), &request.payload) {
        ResponseType::Continue if put.more => ResponseType::Continue,
        ResponseType::Continue => give(&body.bytes, 0, sizes, reply),
        refused => refused,
    }
}

/// Makes room for a body by forgetting the one that was used least recently.
fn begin(bodies: &mut Bodies, tag: &[u8]) {
    if bodies.contains_key(tag) {
        return;
    }
    if bodies.len() >= BODIES_LIMIT {
        let oldest = bodies.iter().min_by_key(|(_, body)| body.touched).map(|(tag, _)| tag.clone());
        oldest.map(|tag| bodies.remove(&tag));
    }
    bodies.insert(tag.to_vec(), Body { bytes: Vec::new(), touched: Instant::now() });
}

/// Puts a block where it belongs; one that comes again changes nothing.
fn append(body: &mut Vec<u8>, at: usize, part: &[u8]) -> ResponseType {
    if at == 0 {
        body.clear();
    }
    if at + part.len() > BODY_LIMIT_BYTES {
        return ResponseType::RequestEntityTooLarge;
    }
    if at + part.len() == body.len() && body[at..] == *part {
        return ResponseType::Continue;
    }
    if at != body.len() {
        return ResponseType::RequestEntityIncomplete;
    }
    body.extend_from_slice(part);
    ResponseType::Continue
}

/// Puts a body, or one block of it, into an answer.
fn give(body: &[u8], number: usize, sizes: Sizes, reply: &mut Packet) -> ResponseType {
    let Some((part, more)) = cut(body, number, sizes.block) else { return ResponseType::BadOption };
    reply.set_content_format(ContentFormat::ApplicationOctetStream);
    if body.len() <= sizes.whole {
        reply.payload = body.to_vec();
        return ResponseType::Changed;
    }
    add_block(reply, CoapOption::Block2, number, more, sizes.block);
    reply.payload = part.to_vec();
    ResponseType::Changed
}

#[cfg(test)]
mod tests {
    use coap_lite::block_handler::BlockValue;
    use proptest::prelude::*;

    use super::*;

    const SIZES: Sizes = Sizes { whole: 100, block: 64 };

    fn confirmable(payload: &[u8], options: &[(CoapOption, BlockValue)]) -> Packet {
        let mut request = crate::coap::post(MessageType::Confirmable, 7, &[1; 8]);
        request.payload = payload.to_vec();
        for (option, value) in options {
            request.add_option_as(*option, value.clone());
        }
        request
    }

    fn answered(request: &Packet, bodies: &mut Bodies) -> Packet {
        Packet::from_bytes(&answer(&request.to_bytes_unlimited().unwrap(), bodies, SIZES).unwrap()).unwrap()
    }

    #[test]
    fn a_block_out_of_order_is_refused_and_a_repeated_one_is_not() {
        let (mut bodies, option) = (HashMap::new(), CoapOption::Block1);
        for (number, code) in [(1, "4.08"), (0, "2.31"), (0, "2.31"), (1, "2.31"), (1, "2.31"), (3, "4.08")] {
            let block = BlockValue::new(number, true, 64).unwrap();
            let answer = answered(&confirmable(&[9; 64], &[(option, block)]), &mut bodies);
            assert_eq!(answer.header.get_code(), code, "{number}");
        }
    }

    #[test]
    fn one_peer_cannot_make_the_server_keep_more_than_its_bodies_limit() {
        let (mut bodies, block) = (HashMap::new(), BlockValue::new(0, true, 1024).unwrap());
        for tag in 0..2 * BODIES_LIMIT {
            for number in [0, 1] {
                let block = BlockValue { num: number, ..block.clone() };
                let mut request = confirmable(&[9; 1024], &[(CoapOption::Block1, block)]);
                request.add_option(REQUEST_TAG, tag.to_be_bytes().to_vec());
                answered(&request, &mut bodies);
            }
        }
        // A transfer that begins in the middle keeps nothing either.
        for tag in 0..2 * BODIES_LIMIT {
            let block = BlockValue { num: 5, ..block.clone() };
            let mut request = confirmable(&[9; 1024], &[(CoapOption::Block1, block)]);
            request.add_option(REQUEST_TAG, [&[7][..], &tag.to_be_bytes()].concat());
            answered(&request, &mut bodies);
        }
        assert!(bodies.len() <= BODIES_LIMIT);
        assert!(bodies.values().map(|body| body.bytes.capacity()).sum::<usize>() <= BODY_LIMIT_BYTES);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_new_peer_makes_the_server_forget_the_one_that_was_silent_for_longest() {
        let socket = UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let acceptor = Acceptor::new(None, 1400).unwrap();
        let mut server = Server { socket, acceptor, sizes: SIZES, peers: HashMap::new() };
        let address = |number: usize| SocketAddr::from(([127, 1, 0, 1], 1000 + u16::try_from(number).unwrap()));
        for number in 0..=PEERS_LIMIT {
            server.receive(address(number), b"nothing to answer");
        }
        assert_eq!(server.peers.len(), PEERS_LIMIT);
        assert!(!server.peers.contains_key(&address(0)) && server.peers.contains_key(&address(PEERS_LIMIT)));
    }

    #[test]
    fn a_new_body_makes_the_server_forget_only_the_oldest() {
        let (mut bodies, block) = (HashMap::new(), BlockValue::new(0, true, 64).unwrap());
        for tag in 0..=BODIES_LIMIT {
            let mut request = confirmable(&[9; 64], &[(CoapOption::Block1, block.clone())]);
            request.add_option(REQUEST_TAG, tag.to_be_bytes().to_vec());
            answered(&request, &mut bodies);
        }
        let kept = |tag: usize| bodies.contains_key(&tag.to_be_bytes()[..]);
        assert!(!kept(0) && (1..=BODIES_LIMIT).all(kept));
    }

    proptest! {
        #[test]
        fn arbitrary_datagrams_are_answered_without_harm(datagrams: Vec<Vec<u8>>) {
            let mut bodies = HashMap::new();
            for datagram in datagrams {
                answer(&datagram, &mut bodies, SIZES);
            }
        }

        #[test]
        fn arbitrary_requests_are_answered_without_harm(
            requests in prop::collection::vec((any::<u8>(), any::<[u8; 2]>(), 0..4u16, any::<Vec<u8>>()), 1..20)
        ) {
            let mut bodies = HashMap::new();
            for (first, value, option, payload) in requests {
                let mut request = confirmable(&payload, &[]);
                let number = [23, 27, 292, 11][usize::from(option)];
                request.add_option(number.into(), [&[first][..], &value].concat());
                answer(&request.to_bytes_unlimited().unwrap(), &mut bodies, SIZES);
            }
        }

        #[test]
        fn a_body_cut_into_blocks_is_put_together_again(
            body in prop::collection::vec(any::<u8>(), 0..5000), exponent in 4..11u32
        ) {
            let (size, mut arrived, mut number) = (1 << exponent, vec![1, 2, 3], 0);
            while let Some((part, more)) = cut(&body, number, size) {
                prop_assert_eq!(append(&mut arrived, number * size, part), ResponseType::Continue);
                prop_assert_eq!(more, (number + 1) * size < body.len());
                number += 1;
            }
            prop_assert_eq!(arrived, body);
        }

        #[test]
        fn a_body_given_in_blocks_is_put_together_again(
            body in prop::collection::vec(any::<u8>(), 0..5000), exponent in 4..11u32, whole in 0..200usize
        ) {
            let sizes = Sizes { whole, block: 1 << exponent };
            let (mut arrived, mut number, mut more) = (Vec::new(), 0, true);
            while more {
                let mut reply = message(MessageType::Acknowledgement, MessageClass::Empty, 0, &[]);
                prop_assert_eq!(give(&body, number, sizes, &mut reply), ResponseType::Changed);
                more = block(&reply, CoapOption::Block2).is_some_and(|block| block.more);
                arrived.extend(reply.payload);
                number += 1;
            }
            prop_assert_eq!(arrived, body);
        }
    }
}
