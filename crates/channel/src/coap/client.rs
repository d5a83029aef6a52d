//! The client: one socket and one association, shared by all lanes; answers find their lane by the token.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use ciphertoll_wire::{Channel, Coap, Nanos, Outcome};
use coap_lite::{CoapOption, ContentFormat, MessageClass, MessageType, Packet};
use tokio::{
    io::Interest,
    net::UdpSocket,
    sync::{Notify, Semaphore},
    task::{JoinHandle, spawn_local},
    time::timeout,
};

use super::{LARGEST_DATAGRAM_BYTES, REQUEST_TAG, Sizes, add_block, block, cut, message, post};
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
        self.shared.association.borrow_mut().close();
        self.shared.flush();
        self.shared.lose(Error::failed(Outcome::Vanished, "the client was dropped"));
    }
}

struct Shared {
    socket: UdpSocket,
    association: RefCell<Box<dyn Association>>,
    settings: Coap,
    sizes: Sizes,
    /// One for each lane; the index is in the token.
    boxes: RefCell<Vec<Rc<Mailbox>>>,
    next_id: Cell<u16>,
    nstart: Semaphore,
    lost: RefCell<Option<Error>>,
}

/// Where the answer to a lane's request is put.
#[derive(Default)]
struct Mailbox {
    /// The request that is waited for; 0 for none.
    token: Cell<u64>,
    id: Cell<u16>,
    acknowledged: Cell<bool>,
    refused: Cell<bool>,
    answer: RefCell<Option<Packet>>,
    wake: Notify,
}

impl Client for CoapClient {
    type Lane = CoapLane;

    async fn connect(target: Target) -> Result<Self, Error> {
        let (Channel::Coap { coap: settings } | Channel::Coaps { coap: settings, .. }) = target.channel else {
            return Err(Error::failed(Outcome::Unsupported, "not a CoAP channel"));
        };
        let pinned = names::pin(&target.channel)?;
        let socket = open(&target).await?;
        let opened = clock::now();
        let mut association =
            dtls::connect(pinned.as_ref(), target.ca_pem.as_deref(), &target.name, settings.datagram_bytes)?;
        shake_hands(&socket, association.as_mut()).await?;
        let State::Established(negotiated) = association.state() else {
            return Err(Error::failed(Outcome::Garbage, "the DTLS handshake did not end"));
        };
        let connection = target.log.ready(opened, negotiated);
        let permits = if settings.nstart == 0 { Semaphore::MAX_PERMITS } else { settings.nstart };
        let shared = Rc::new(Shared {
            socket,
            association: RefCell::new(association),
            settings,
            sizes: Sizes::new(settings),
            boxes: RefCell::default(),
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
        let mailbox = Rc::<Mailbox>::default();
        let mut boxes = self.shared.boxes.borrow_mut();
        boxes.push(mailbox.clone());
        let number = u32::try_from(boxes.len()).unwrap_or(u32::MAX);
        Ok(CoapLane { shared: self.shared.clone(), mailbox, number, serial: 0, connection: self.connection })
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
    super::server::enlarge_buffers(&socket);
    // Until the runtime knows that the socket can be written to, `try_send` sends nothing.
    socket.writable().await.map_err(|e| Error::failed(Outcome::Machine, e))?;
    Ok(socket)
}

async fn shake_hands(socket: &UdpSocket, association: &mut dyn Association) -> Result<(), Error> {
    let unreachable = |e: std::io::Error| Error::failed(Outcome::Unreachable, format!("no DTLS peer: {e}"));
    let mut buffer = vec![0; LARGEST_DATAGRAM_BYTES];
    loop {
        association.transmit(&mut |datagram| drop(socket.try_send(datagram)));
        if association.state() != State::Handshaking {
            return Ok(());
        }
        let patience = association.timeout().unwrap_or(ACK_TIMEOUT);
        match timeout(patience, socket.recv(&mut buffer)).await {
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
        let length = match shared.socket.try_recv(&mut buffer) {
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
        let Some(patience) = patience else { return readable(&self.socket).await.map_err(|e| vanished(&e)) };
        if let Ok(ready) = timeout(patience, readable(&self.socket)).await {
            return ready.map_err(|e| vanished(&e));
        }
        let repeated = self.association.borrow_mut().on_timeout();
        self.flush();
        repeated
    }

    /// Ends all exchanges.
    fn lose(&self, error: Error) {
        *self.lost.borrow_mut() = Some(error);
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
        // A datagram that the socket does not take is a lost datagram; CoAP repeats it.
        self.association.borrow_mut().transmit(&mut |datagram| drop(self.socket.try_send(datagram)));
    }

    /// Puts a message into the mailbox that waits for it; gives what must be sent back.
    fn sort(&self, plaintext: &[u8]) -> Option<Vec<u8>> {
        let packet = Packet::from_bytes(plaintext).ok()?;
        let (kind, id) = (packet.header.get_type(), packet.header.message_id);
        let boxes = self.boxes.borrow();
        if packet.header.code == MessageClass::Empty {
            let mailbox = boxes.iter().find(|b| b.token.get() != 0 && b.id.get() == id)?;
            mailbox.acknowledged.set(kind == MessageType::Acknowledgement);
            mailbox.refused.set(kind == MessageType::Reset);
            mailbox.wake.notify_one();
            return None;
        }
        let token = u64::from_le_bytes(packet.get_token().try_into().ok()?);
        let number = usize::try_from(token >> 32).ok()?;
        if let Some(mailbox) = number.checked_sub(1).and_then(|n| boxes.get(n)).filter(|b| b.token.get() == token) {
            mailbox.token.set(0);
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
    number: u32,
    serial: u32,
    connection: u16,
}

impl Drop for CoapLane {
    fn drop(&mut self) {
        self.mailbox.token.set(0);
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
        let answer = if payload.len() <= shared.sizes.whole {
            let mut request = self.request();
            request.set_content_format(ContentFormat::ApplicationOctetStream);
            request.payload = payload.to_vec();
            self.ask(&mut request).await?
        } else {
            self.put_blocks(payload).await?
        };
        let same = self.read_echo(answer, payload).await?;
        times.done_ns = clock::now();
        drop(permit);
        if same { Ok(()) } else { Err(ExchangeError::Corrupt) }
    }
}

impl CoapLane {
    fn request(&mut self) -> Packet {
        self.serial = self.serial.wrapping_add(1);
        let token = u64::from(self.number) << 32 | u64::from(self.serial);
        let id = self.shared.next_id.get();
        self.shared.next_id.set(id.wrapping_add(1));
        self.mailbox.token.set(token);
        self.mailbox.id.set(id);
        post(self.shared.kind(), id, &token.to_le_bytes())
    }

    /// A request that belongs to a block-wise transfer of this lane.
    fn tagged(&mut self) -> Packet {
        let mut request = self.request();
        request.add_option(REQUEST_TAG, self.number.to_be_bytes().to_vec());
        request
    }

    async fn put_blocks(&mut self, payload: &[u8]) -> Result<Packet, ExchangeError> {
        let size = self.shared.sizes.block;
        let mut number = 0;
        while let Some((part, more)) = cut(payload, number, size) {
            let mut request = self.tagged();
            request.set_content_format(ContentFormat::ApplicationOctetStream);
            add_block(&mut request, CoapOption::Block1, number, more, size);
            request.payload = part.to_vec();
            let answer = self.ask(&mut request).await?;
            if !more {
                return Ok(answer);
            }
            if answer.header.get_code() != "2.31" {
                return Err(ExchangeError::Refused);
            }
            number += 1;
        }
        Err(ExchangeError::Refused)
    }

    /// Reads the echo, block by block if it comes so, and says whether it equals `payload`.
    async fn read_echo(&mut self, first: Packet, payload: &[u8]) -> Result<bool, ExchangeError> {
        let mut answer = first;
        let mut rest = payload;
        let mut same = true;
        loop {
            if answer.header.get_code() != "2.04" {
                return Err(ExchangeError::Refused);
            }
            match rest.strip_prefix(answer.payload.as_slice()) {
                Some(after) => rest = after,
                None => same = false,
            }
            let Some(part) = block(&answer, CoapOption::Block2).filter(|b| b.more) else {
                return Ok(same && rest.is_empty());
            };
            if !same {
                return Ok(false);
            }
            let mut request = self.tagged();
            add_block(&mut request, CoapOption::Block2, usize::from(part.num) + 1, false, part.size());
            answer = self.ask(&mut request).await?;
        }
    }

    /// Sends a request and waits for its answer; a confirmable one is repeated (RFC 7252, 4.2).
    async fn ask(&mut self, request: &mut Packet) -> Result<Packet, ExchangeError> {
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
