//! A byte stream with room for what goes out and what comes in.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};

/// A stream whose sender never waits and cannot be interrupted in the middle of a packet.
///
/// What the socket does not take at once stays in the outbox; whoever runs [`Pipe::pump`] sends it later. So
/// an exchange that is given up leaves no half of a packet behind.
pub(super) struct Pipe<S> {
    stream: RefCell<S>,
    outbox: RefCell<Outbox>,
    /// The socket is full and the pump waits for it.
    full: Cell<bool>,
    more: Notify,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Pipe<S> {
    pub(super) fn new(stream: S) -> Self {
        let (outbox, full) = (RefCell::default(), Cell::new(false));
        Self { stream: RefCell::new(stream), outbox, full, more: Notify::new() }
    }

    /// Puts something into the outbox.
    pub(super) fn append(&self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.outbox.borrow_mut().bytes);
    }

    /// Bytes in the outbox.
    pub(super) fn queued(&self) -> usize {
        let outbox = self.outbox.borrow();
        outbox.bytes.len() - outbox.sent
    }

    /// Sends the outbox as far as the socket takes it now: in one system call if it takes it all.
    pub(super) fn send(&self) -> io::Result<()> {
        if self.full.get() {
            return Ok(());
        }
        // Nobody is woken when the socket has room again; the pump registers itself.
        match self.poll_drain(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(sent) => sent,
            Poll::Pending => {
                self.full.set(true);
                self.more.notify_one();
                Ok(())
            }
        }
    }

    /// Sends what [`Pipe::send`] left, for as long as it is polled; ends when the connection is lost.
    pub(super) async fn pump(&self) -> io::Error {
        loop {
            self.more.notified().await;
            if let Err(error) = self.drain().await {
                return error;
            }
        }
    }

    /// Sends the whole outbox.
    pub(super) async fn drain(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_drain(cx)).await?;
        self.full.set(false);
        Ok(())
    }

    fn poll_drain(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outbox.borrow_mut().poll_drain(&mut *self.stream.borrow_mut(), cx)
    }

    /// Reads what is there, at least one byte; says 0 at the end of the stream.
    pub(super) async fn fill(&self, inbox: &mut Inbox) -> io::Result<usize> {
        poll_fn(|cx| {
            let mut space = ReadBuf::new(inbox.space());
            ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_read(cx, &mut space))?;
            let length = space.filled().len();
            inbox.end += length;
            Poll::Ready(Ok(length))
        })
        .await
    }
}

#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    fn poll_drain<S: AsyncWrite + Unpin>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.bytes.len() {
            let length = ready!(Pin::new(&mut *stream).poll_write(cx, &self.bytes[self.sent..]))?;
            if length == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += length;
        }
        self.bytes.clear();
        self.sent = 0;
        // TLS may hold back what it has encrypted.
        Pin::new(stream).poll_flush(cx)
    }
}

/// What came in and has not been looked at. It keeps its memory.
pub(super) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Four TLS records.
    const FIRST_BYTES: usize = 64 << 10;
    /// A read is never for less than one TLS record.
    const LEAST_BYTES: usize = 16 << 10;

    pub(super) fn new() -> Self {
        Self { bytes: vec![0; Self::FIRST_BYTES], start: 0, end: 0 }
    }

    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Forgets the first `length` bytes.
    pub(super) fn consume(&mut self, length: usize) {
        self.start += length;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Consumes the first `length` bytes, which must be there, and lends them.
    pub(super) fn take(&mut self, length: usize) -> &[u8] {
        self.start += length;
        &self.bytes[self.start - length..self.start]
    }

    fn space(&mut self) -> &mut [u8] {
        if self.bytes.len() - self.end < Self::LEAST_BYTES {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() - self.end < Self::LEAST_BYTES {
            self.bytes.resize(self.bytes.len() * 2, 0);
        }
        &mut self.bytes[self.end..]
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn on_one_thread<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test)
    }

    #[test]
    fn what_the_socket_does_not_take_at_once_is_pumped_later_and_in_order() {
        on_one_thread(async {
            let (near, mut far) = tokio::io::duplex(10);
            let pipe = Pipe::new(near);
            let sent: Vec<u8> = (0..100).collect();
            for part in sent.chunks(30) {
                pipe.append(|out| out.extend_from_slice(part));
                pipe.send().unwrap();
            }
            assert_eq!(pipe.queued(), 90);
            let mut received = [0; 100];
            tokio::select! {
                _ = pipe.pump() => panic!("the pump ended"),
                done = far.read_exact(&mut received) => { done.unwrap(); }
            }
            assert_eq!(received, *sent);
        });
    }

    #[test]
    fn an_inbox_grows_to_hold_what_is_not_consumed_and_keeps_its_order() {
        on_one_thread(async {
            let (near, mut far) = tokio::io::duplex(1 << 20);
            let pipe = Pipe::new(near);
            let mut inbox = Inbox::new();
            let sent: Vec<u8> = (0..300_000_u32).map(|i| i.to_le_bytes()[0]).collect();
            far.write_all(&sent).await.unwrap();
            drop(far);
            assert!(pipe.fill(&mut inbox).await.unwrap() > 0);
            inbox.consume(7);
            while pipe.fill(&mut inbox).await.unwrap() > 0 {}
            assert!(inbox.filled() == &sent[7..]);
        });
    }
}
