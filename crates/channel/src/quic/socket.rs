//! A UDP socket for one peer that passes on what the kernel says about that peer.
//!
//! quinn's own socket ignores errors, so a port without a listener, or a server that was killed, would look
//! like silence until the connection times out.

use std::{
    io::{self, IoSliceMut},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit, UdpSocketState},
};
use tokio::{io::Interest, net::UdpSocket, sync::Notify};

#[derive(Debug)]
pub(super) struct PeerSocket {
    io: UdpSocket,
    state: UdpSocketState,
    /// The kernel told a sender or receiver that nobody listens.
    refused: Notify,
}

impl PeerSocket {
    /// A connected socket: to others, the kernel reports no errors.
    pub(super) fn connect(peer: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = match peer {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = std::net::UdpSocket::bind(any)?;
        socket.connect(peer)?;
        // This makes it non-blocking too.
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self { io: UdpSocket::from_std(socket)?, state, refused: Notify::new() })
    }

    /// Waits until the peer's host says that nobody listens on its port.
    pub(super) async fn refused(&self) {
        loop {
            tokio::select! {
                () = self.refused.notified() => return,
                _ = self.io.ready(Interest::ERROR) => {
                    let pending = self.io.try_io(Interest::ERROR, || match self.io.take_error()? {
                        Some(error) => Err(error),
                        None => Err(io::ErrorKind::WouldBlock.into()),
                    });
                    self.ignore(pending);
                }
            }
        }
    }

    /// UDP promises nothing, and QUIC sends again what is lost. Only a refusal is news.
    fn ignore(&self, result: io::Result<()>) {
        if result.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            self.refused.notify_one();
        }
    }
}

impl AsyncUdpSocket for PeerSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable(self))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.io.try_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), transmit));
        if sent.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
            return sent;
        }
        self.ignore(sent);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            match self.io.try_io(Interest::READABLE, || self.state.recv((&self.io).into(), bufs, meta)) {
                Ok(received) => return Poll::Ready(Ok(received)),
                Err(e) => self.ignore(Err(e)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

/// The socket has one place for a waker, which is enough: its endpoint has one connection.
#[derive(Debug)]
struct Writable(Arc<PeerSocket>);

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.io.poll_send_ready(cx)
    }
}
