//! The client: one socket and one association, shared by all lanes; answers find their lane by the token.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use ciphertoll_wire::{Channel, Coap, Nanos, Outcome};
use coap_lite::{CoapOption, ContentFormat, MessageClass, MessageType, Packet, RequestType, ResponseType};
use tokio::{
    io::Interest,
    net::UdpSocket,
    sync::{Notify, Semaphore},
    task::{JoinHandle, spawn_local},
    time::timeout,
};

use super::{
    LARGEST_DATAGRAM_BYTES, REQUEST_TAG, Sizes,
    block::{Block, cut},
    message,
    outlet::Outlet,
};
use crate::{
    Client, Error, ExchangeError, Lane, Target, Times, clock,
    dtls::{self, Association, State},
    names,
};

/// Transmission parameters of RFC 7252, 4.8.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);
const ACK_RANDOM_FACTOR: f64 = 1.5;
const MAX_RETRANSMIT: u32 = 4;

/// A client of `coap` and `coaps`.
pub struct CoapClient {
    shared: Rc<Shared>,
    reader: JoinHandle<()>,
    connection: u16,
}

impl Drop for CoapClient {
    fn drop(&mut self) {
        self.reader.abort();
        let shared = &self.shared;
        shared.association.borrow_mut().close();
        // There may be no runtime any more that could wait for room.
        shared.association.borrow_mut().transmit(&mut |datagram| drop(shared.outlet.try_send(datagram, None)));
        shared.lose(Error::failed(Outcome::Vanished, "the client was dropped"));
    }
}

struct Shared {
    outlet: Rc<Outlet>,
    association: RefCell<Box<dyn Association>>,
    settings: Coap,
    sizes: Sizes,
    /// One for each lane there ever was at once; the index is in the token.
    boxes: RefCell<Vec<Rc<Mailbox>>>,
    /// The indices of those that no lane has.
    free: RefCell<Vec<usize>>,
    next_id: Cell<u16>,
    nstart: Semaphore,
    lost: RefCell<Option<Error>>,
}

/// Where the answer to a lane's request is put.
#[derive(Default)]
struct Mailbox {
    /// The request that is waited for; 0 for none.
    token: Cell<u64>,
    /// Counts the requests, those of earlier lanes too, so that no late answer looks like one that is waited for.
    serial: Cell<u32>,
    id: Cell<u16>,
    acknowledged: Cell<bool>,
    refused: Cell<bool>,
    answer: RefCell<Option<Packet>>,
    /// When the answer had been decrypted.
    answered_ns: Cell<Nanos>,
    wake: Notify,
}

impl Client for CoapClient {
    type Lane = CoapLane;

    async fn connect(target: Target) -> Result<Self, Error> {
        let (Channel::Coap { coap: settings } | Channel::Coaps { coap: settings, .. }) = target.channel else {
            return Err(Error::failed(Outcome::Unsupported, "not a CoAP channel"));
        };
        let pinned = names::pin(&target.channel)?;
        let outlet = Outlet::new(open(&target).await?);
        let mut association =
            dtls::connect(pinned.as_ref(), target.ca_pem.as_deref(), &target.name, settings.datagram_bytes)?;
        let opened = clock::now();
        association.start()?;
        shake_hands(&outlet, association.as_mut()).await?;
        let State::Established(negotiated) = association.state() else {
            return Err(Error::failed(Outcome::Garbage, "the DTLS handshake did not end"));
        };
        let connection = target.log.ready(opened, negotiated);
        let permits = if settings.nstart == 0 { Semaphore::MAX_PERMITS } else { settings.nstart };
        let shared = Rc::new(Shared {
            outlet,
            association: RefCell::new(association),
            settings,
            sizes: Sizes::new(settings),
            boxes: RefCell::default(),
            free: RefCell::default(),
            next_id: Cell::new(clock::now().0.to_le_bytes()[0].into()),
            nstart: Semaphore::new(permits),
            lost: RefCell::default(),
        });
        let reader = spawn_local(read(shared.clone()));
        Ok(Self { shared, reader, connection })
    }

    async fn lane(&self) -> Result<CoapLane, Error> {
        if let Some(error) = self.shared.lost.borrow().clone() {
            return Err(Error::failed(Outcome::Vanished, error));
        }
        let mut boxes = self.shared.boxes.borrow_mut();
        let index = self.shared.free.borrow_mut().pop().unwrap_or(boxes.len());
        if index == boxes.len() {
            boxes.push(Rc::default());
        }
        let mailbox = boxes[index].clone();
        Ok(CoapLane { shared: self.shared.clone(), mailbox, index, connection: self.connection })
    }
}

async fn open(target: &Target) -> Result<UdpSocket, Error> {
    let any: std::net::SocketAddr = if target.address.is_ipv4() {
        (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any).await.map_err(|e| Error::failed(Outcome::Machine, e))?;
    socket.connect(target.address).await.map_err(|e| Error::failed(Outcome::Unreachable, e))?;
    // Until the runtime knows that the socket can be written to, `try_send` sends nothing.
    socket.writable().await.map_err(|e| Error::failed(Outcome::Machine, e))?;
    Ok(socket)
}

async fn shake_hands(outlet: &Rc<Outlet>, association: &mut dyn Association) -> Result<(), Error> {
    let unreachable = |e: std::io::Error| Error::failed(Outcome::Unreachable, format!("no DTLS peer: {e}"));
    let mut buffer = vec![0; LARGEST_DATAGRAM_BYTES];
    loop {
        let mut sent = Ok(());
        association.transmit(&mut |datagram| {
            if sent.is_ok() {
                sent = outlet.send(datagram, None);
            }
        });
        sent.map_err(unreachable)?;
        if association.state() != State::Handshaking {
            return Ok(());
        }
        let patience = association.timeout().unwrap_or(ACK_TIMEOUT);
        match timeout(patience, outlet.socket.recv(&mut buffer)).await {
            Ok(length) => association.receive(&buffer[..length.map_err(unreachable)?], &mut |_| {})?,
            Err(_) => association.on_timeout()?,
        }
    }
}

/// Waits for a datagram, or for an ICMP message that nobody listens, which alone makes no socket readable.
async fn readable(socket: &UdpSocket) -> std::io::Result<()> {
    let ready = socket.ready(Interest::READABLE | Interest::ERROR).await?;
    if ready.is_error() {
        let taken = socket.try_io(Interest::ERROR, || match socket.take_error()? {
            Some(error) => Ok(error),
            None => Err(std::io::ErrorKind::WouldBlock.into()),
        });
        return taken.map_or(Ok(()), Err);
    }
    Ok(())
}

/// Reads datagrams until the association is over.
async fn read(shared: Rc<Shared>) {
    let mut buffer = vec![0; LARGEST_DATAGRAM_BYTES];
    let error = loop {
        let length = match shared.outlet.socket.try_recv(&mut buffer) {
            Ok(length) => length,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => match shared.wait().await {
                Ok(()) => continue,
                Err(error) => break error,
            },
            Err(e) => break vanished(&e),
        };
        let mut replies = Vec::new();
        let received = shared.association.borrow_mut().receive(&buffer[..length], &mut |plaintext| {
            replies.extend(shared.sort(plaintext));
        });
        for reply in replies {
            // The peer that wanted it will ask again.
            let _ = shared.send(&reply);
        }
        shared.flush();
        if let Err(error) = received {
            break error;
        }
    };
    shared.lose(error);
}

fn vanished(error: &std::io::Error) -> Error {
    Error::failed(Outcome::Vanished, format!("the peer vanished: {error}"))
}

impl Shared {
    /// Waits for a datagram, and repeats meanwhile what of the handshake the peer has not acknowledged.
    async fn wait(&self) -> Result<(), Error> {
        let patience = self.association.borrow().timeout();
        let Some(patience) = patience else { return readable(&self.outlet.socket).await.map_err(|e| vanished(&e)) };
        if let Ok(ready) = timeout(patience, readable(&self.outlet.socket)).await {
            return ready.map_err(|e| vanished(&e));
        }
        let repeated = self.association.borrow_mut().on_timeout();
        self.flush();
        repeated
    }

    /// Ends all exchanges.
    fn lose(&self, error: Error) {
        self.lost.borrow_mut().get_or_insert(error);
        for mailbox in self.boxes.borrow().iter() {
            mailbox.wake.notify_one();
        }
    }

    fn send(&self, plaintext: &[u8]) -> Result<(), ExchangeError> {
        let sent = self.association.borrow_mut().send(plaintext);
        self.flush();
        sent.map_err(|_| ExchangeError::Closed)
    }

    fn flush(&self) {
        let mut sent = Ok(());
        self.association.borrow_mut().transmit(&mut |datagram| {
            if sent.is_ok() {
                sent = self.outlet.send(datagram, None);
            }
        });
        if let Err(error) = sent {
            self.lose(vanished(&error));
        }
    }

    /// Puts a message into the mailbox that waits for it; gives what must be sent back.
    fn sort(&self, plaintext: &[u8]) -> Option<Vec<u8>> {
        let packet = Packet::from_bytes(plaintext).ok()?;
        let (kind, id) = (packet.header.get_type(), packet.header.message_id);
        let boxes = self.boxes.borrow();
        if packet.header.code == MessageClass::Empty {
            if kind == MessageType::Confirmable {
                // A ping (RFC 7252, 4.3).
                return message(MessageType::Reset, MessageClass::Empty, id, &[]).to_bytes_unlimited().ok();
            }
            let mailbox = boxes.iter().find(|b| b.token.get() != 0 && b.id.get() == id)?;
            mailbox.acknowledged.set(kind == MessageType::Acknowledgement);
            mailbox.refused.set(kind == MessageType::Reset);
            mailbox.wake.notify_one();
            return None;
        }
        if !matches!(packet.header.code, MessageClass::Response(_)) {
            return None;
        }
        let token = u64::from_le_bytes(packet.get_token().try_into().ok()?);
        let index = usize::try_from(token >> 32).ok()?;
        if let Some(mailbox) = boxes.get(index).filter(|b| b.token.get() == token) {
            mailbox.token.set(0);
            mailbox.answered_ns.set(clock::now());
            *mailbox.answer.borrow_mut() = Some(packet);
            mailbox.wake.notify_one();
        }
        // A separate response is acknowledged even if nobody waits any more, so that it is not repeated.
        (kind == MessageType::Confirmable)
            .then(|| message(MessageType::Acknowledgement, MessageClass::Empty, id, &[]).to_bytes_unlimited().ok())
            .flatten()
    }

    fn kind(&self) -> MessageType {
        if self.settings.confirmable { MessageType::Confirmable } else { MessageType::NonConfirmable }
    }
}

/// One exchange at a time.
pub struct CoapLane {
    shared: Rc<Shared>,
    mailbox: Rc<Mailbox>,
    index: usize,
    connection: u16,
}

impl Drop for CoapLane {
    fn drop(&mut self) {
        self.mailbox.token.set(0);
        self.shared.free.borrow_mut().push(self.index);
    }
}

impl Lane for CoapLane {
    fn connection(&self) -> u16 {
        self.connection
    }

    async fn exchange(&mut self, payload: &[u8], times: &mut Times) -> Result<(), ExchangeError> {
        let shared = self.shared.clone();
        let permit = shared.nstart.acquire().await.map_err(|_| ExchangeError::Closed)?;
        times.sent_ns = clock::now();
        let (answer, tag) = if payload.len() <= shared.sizes.whole {
            let mut request = self.request();
            request.set_content_format(ContentFormat::ApplicationOctetStream);
            request.payload = payload.to_vec();
            (self.ask(&request).await?, None)
        } else {
            // The token of the first request tells this exchange from all others.
            let tag = self.next_token().to_be_bytes();
            (self.put_blocks(payload, &tag).await?, Some(tag))
        };
        let same = self.read_echo(answer, payload, tag.as_ref().map(<[u8; 8]>::as_slice)).await?;
        times.done_ns = self.mailbox.answered_ns.get();
        drop(permit);
        if same { Ok(()) } else { Err(ExchangeError::Corrupt) }
    }
}

impl CoapLane {
    fn next_token(&self) -> u64 {
        let serial = self.mailbox.serial.get().wrapping_add(1).max(1);
        (self.index as u64) << 32 | u64::from(serial)
    }

    /// A POST to `/echo`, which is waited for from now on.
    fn request(&mut self) -> Packet {
        let token = self.next_token();
        self.mailbox.serial.set(self.mailbox.serial.get().wrapping_add(1).max(1));
        let id = self.shared.next_id.get();
        self.shared.next_id.set(id.wrapping_add(1));
        self.mailbox.token.set(token);
        self.mailbox.id.set(id);
        let post = MessageClass::Request(RequestType::Post);
        let mut packet = message(self.shared.kind(), post, id, &token.to_le_bytes());
        packet.add_option(CoapOption::UriPath, b"echo".to_vec());
        packet
    }

    async fn put_blocks(&mut self, payload: &[u8], tag: &[u8]) -> Result<Packet, ExchangeError> {
        let (mut at, mut size) = (0, self.shared.sizes.block);
        while let Some((part, more)) = cut(payload, at, size) {
            let mut request = self.request();
            request.set_content_format(ContentFormat::ApplicationOctetStream);
            request.add_option(REQUEST_TAG, tag.to_vec());
            Block { number: at / size, more, size }.add_to(&mut request, CoapOption::Block1);
            request.payload = part.to_vec();
            let answer = self.ask(&request).await?;
            if !more {
                return Ok(answer);
            }
            if answer.header.code != MessageClass::Response(ResponseType::Continue) {
                return Err(ExchangeError::Refused);
            }
            at += part.len();
            // A server may ask for smaller blocks (RFC 7959, 2.3).
            size = Block::of(&answer, CoapOption::Block1).map_or(size, |theirs| theirs.size.min(size));
        }
        Err(ExchangeError::Refused)
    }

    /// Reads the echo, block by block if it comes so, and says whether it equals `payload`.
    async fn read_echo(&mut self, first: Packet, payload: &[u8], tag: Option<&[u8]>) -> Result<bool, ExchangeError> {
        let (mut answer, mut rest) = (first, payload);
        loop {
            if answer.header.code != MessageClass::Response(ResponseType::Changed) {
                return Err(ExchangeError::Refused);
            }
            let Some(after) = rest.strip_prefix(answer.payload.as_slice()) else { return Ok(false) };
            rest = after;
            let Some(part) = Block::of(&answer, CoapOption::Block2).filter(|part| part.more) else {
                return Ok(rest.is_empty());
            };
            let mut request = self.request();
            if let Some(tag) = tag {
                request.add_option(REQUEST_TAG, tag.to_vec());
            }
            Block { number: part.number + 1, more: false, ..part }.add_to(&mut request, CoapOption::Block2);
            answer = self.ask(&request).await?;
        }
    }

    /// Sends a request and waits for its answer; a confirmable one is repeated (RFC 7252, 4.2).
    async fn ask(&self, request: &Packet) -> Result<Packet, ExchangeError> {
        let bytes = request.to_bytes_unlimited().map_err(|_| ExchangeError::Refused)?;
        self.mailbox.acknowledged.set(false);
        self.mailbox.refused.set(false);
        self.mailbox.answer.borrow_mut().take();
        self.shared.send(&bytes)?;
        if !self.shared.settings.confirmable {
            return self.answer().await;
        }
        let mut patience = ACK_TIMEOUT.mul_f64(1.0 + (ACK_RANDOM_FACTOR - 1.0) * fraction(clock::now()));
        for _ in 0..MAX_RETRANSMIT {
            match timeout(patience, self.answer()).await {
                Ok(answer) => return answer,
                Err(_) if self.mailbox.acknowledged.get() => break,
                Err(_) => self.shared.send(&bytes)?,
            }
            patience *= 2;
        }
        // The engine's own limit ends this.
        self.answer().await
    }

    async fn answer(&self) -> Result<Packet, ExchangeError> {
        loop {
            if let Some(answer) = self.mailbox.answer.borrow_mut().take() {
                return Ok(answer);
            }
            if self.mailbox.refused.get() {
                return Err(ExchangeError::Refused);
            }
            if self.shared.lost.borrow().is_some() {
                return Err(ExchangeError::Closed);
            }
            self.mailbox.wake.notified().await;
        }
    }
}

/// Something between 0 and 1 that differs from one exchange to the next.
fn fraction(now: Nanos) -> f64 {
    f64::from(u32::try_from(now.0 % 1009).unwrap_or(0)) / 1009.0
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;
    use crate::ConnectionLog;

    #[test]
    fn lanes_that_were_given_up_make_room_for_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let silent = UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let coap = Coap { confirmable: true, nstart: 0, datagram_bytes: 1400 };
            let target = Target {
                channel: Channel::Coap { coap },
                address: silent.local_addr().unwrap(),
                name: String::new(),
                ca_pem: None,
                log: ConnectionLog::default(),
            };
            let client = CoapClient::connect(target).await.unwrap();
            let mut last = 0;
            for _ in 0..100 {
                let mut lane = client.lane().await.unwrap();
                let (patience, mut times) = (Duration::from_micros(1), Times::default());
                assert!(timeout(patience, lane.exchange(&[1; 3000], &mut times)).await.is_err());
                assert!(lane.mailbox.token.get() > last, "a token came twice");
                last = lane.mailbox.token.get();
            }
            assert_eq!(client.shared.boxes.borrow().len(), 1);
        });
    }
}
