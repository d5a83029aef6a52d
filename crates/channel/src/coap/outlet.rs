//! A UDP socket that keeps what the kernel has no room for, as a socket that blocks would.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io::{self, ErrorKind},
    net::SocketAddr,
    rc::Rc,
};

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use tokio::{net::UdpSocket, task::spawn_local};

/// Kernel buffers: a burst of large exchanges fits.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Datagrams that wait at once; more are lost, as in any queue that is full.
const WAITING_LIMIT: usize = 4096;

/// A socket and the datagrams that wait for it.
pub struct Outlet {
    /// The socket.
    pub socket: UdpSocket,
    waiting: RefCell<VecDeque<(Option<SocketAddr>, Vec<u8>)>>,
}

impl Outlet {
    /// Takes a socket and asks for large buffers; a kernel that gives less loses datagrams earlier, nothing else.
    pub fn new(socket: UdpSocket) -> Rc<Self> {
        let _ = set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let _ = set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        Rc::new(Self { socket, waiting: RefCell::default() })
    }

    /// Sends a datagram, now or as soon as there is room; `to` is given where the socket is not connected.
    ///
    /// # Errors
    /// The peer refused an earlier datagram. Everything else that goes wrong is a lost datagram.
    pub fn send(self: &Rc<Self>, datagram: &[u8], to: Option<SocketAddr>) -> io::Result<()> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            match self.try_send(datagram, to) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => drop(spawn_local(drain(self.clone()))),
                done => return done,
            }
        }
        if waiting.len() < WAITING_LIMIT {
            waiting.push_back((to, datagram.to_vec()));
        }
        Ok(())
    }

    /// Sends a datagram now or never.
    ///
    /// # Errors
    /// As [`Outlet::send`]; also if there is no room.
    pub fn try_send(&self, datagram: &[u8], to: Option<SocketAddr>) -> io::Result<()> {
        let sent = match to {
            Some(to) => self.socket.try_send_to(datagram, to),
            None => self.socket.try_send(datagram),
        };
        match sent {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Sends what waits, in order.
async fn drain(outlet: Rc<Outlet>) {
    while outlet.socket.writable().await.is_ok() {
        let mut waiting = outlet.waiting.borrow_mut();
        let Some((to, datagram)) = waiting.front() else { return };
        if outlet.try_send(datagram, *to).is_ok() {
            waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::task::LocalSet;

    use super::*;

    #[test]
    fn datagrams_that_the_socket_does_not_take_at_once_arrive_in_order() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let to = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let outlet = Outlet::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
            let address = Some(to.local_addr().unwrap());
            // A socket that the runtime has not polled yet has no room.
            assert_eq!(outlet.try_send(&[0], address).unwrap_err().kind(), ErrorKind::WouldBlock);
            for n in 0..100 {
                outlet.send(&[n], address).unwrap();
            }
            assert_eq!(outlet.waiting.borrow().len(), 100);
            for n in 0..100 {
                let mut byte = [0];
                to.recv(&mut byte).await.unwrap();
                assert_eq!(byte, [n]);
            }
            outlet.send(&[100], address).unwrap();
            assert!(outlet.waiting.borrow().is_empty());
        });
    }
}
