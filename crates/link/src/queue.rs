//! The queue: when each packet comes out, if it does.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, VecDeque},
};

use crate::{
    Direction, Invalid,
    jitter::JitterDraw,
    loss::LossDraw,
    random::{SplitMix64, Stream},
};

/// One direction of a link, with the packets that are on it.
///
/// All times are nanoseconds since any moment, and must not go back. `P` is what the caller calls a packet;
/// it is cloned only to be duplicated. Once the queue has grown to what the load needs, it does not allocate.
#[derive(Debug)]
pub struct Queue<P> {
    direction: Direction,
    seed: u64,
    draws: Draws,
    line: Line,
    /// The latest due time of the packets that keep their order.
    last_due_ns: u64,
    on_the_way: BinaryHeap<Reverse<Waiting<P>>>,
    entered: u64,
    /// One more than the highest number delivered.
    expected: u64,
    counters: Counters,
}

/// What became of an offered packet. One that will not arrive comes back, for its memory to be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate<P> {
    /// It will arrive.
    OnTheWay,
    /// It was lost on the way.
    Lost(P),
    /// The queue was full.
    Overflowed(P),
}

/// Packets so far. `offered + duplicated = delivered + lost + overflowed +` [`Queue::len`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Handed to [`Queue::offer`].
    pub offered: u64,
    /// Lost on the way.
    pub lost: u64,
    /// Found the queue full.
    pub overflowed: u64,
    /// Second copies made.
    pub duplicated: u64,
    /// Delivered after one that was offered later (RFC 4737, section 3.3).
    pub reordered: u64,
    /// Returned by [`Queue::poll`].
    pub delivered: u64,
}

impl<P: Clone> Queue<P> {
    /// An empty queue. Same direction, seed, packets and times: same fates.
    ///
    /// # Errors
    /// The direction makes no sense: see [`Direction::validate`].
    pub fn new(direction: Direction, seed: u64) -> Result<Self, Invalid> {
        direction.validate()?;
        Ok(Self {
            draws: Draws::new(&direction, seed, 0),
            line: Line::default(),
            direction,
            seed,
            last_due_ns: 0,
            on_the_way: BinaryHeap::new(),
            entered: 0,
            expected: 0,
            counters: Counters::default(),
        })
    }

    /// Starts all random streams again, for connection number `connection`.
    ///
    /// Connections of the same number then meet the same losses, whatever was sent before: that is how
    /// different channels are compared over the same bad luck. Packets that are on the way stay there.
    pub fn reseed(&mut self, connection: u64) {
        self.draws = Draws::new(&self.direction, self.seed, connection);
    }

    /// A packet of `size_bytes` arrives at `now_ns`.
    pub fn offer(&mut self, now_ns: u64, size_bytes: usize, packet: P) -> Fate<P> {
        let number = self.counters.offered;
        self.counters.offered += 1;
        // First of all draws, so that no fate depends on whether an earlier packet found room.
        let drawn = self.draws.next(&self.direction, now_ns);
        let Some(sent_ns) = self.line.send(&self.direction, now_ns, size_bytes) else {
            self.counters.overflowed += 1;
            return Fate::Overflowed(packet);
        };
        if drawn.lost {
            self.counters.lost += 1;
            return Fate::Lost(packet);
        }
        let due_ns = self.due(sent_ns.saturating_add(drawn.delay_ns), drawn.late_ns);
        if drawn.twice {
            self.counters.duplicated += 1;
            self.enter(due_ns, number, packet.clone());
        }
        self.enter(due_ns, number, packet);
        Fate::OnTheWay
    }

    fn due(&mut self, due_ns: u64, late_ns: Option<u64>) -> u64 {
        if let Some(late_ns) = late_ns {
            return due_ns.saturating_add(late_ns);
        }
        if !self.direction.jitter.keeps_order() {
            return due_ns;
        }
        self.last_due_ns = self.last_due_ns.max(due_ns);
        self.last_due_ns
    }

    fn enter(&mut self, due_ns: u64, number: u64, packet: P) {
        self.on_the_way.push(Reverse(Waiting { due_ns, entered: self.entered, number, packet }));
        self.entered += 1;
    }
}

impl<P> Queue<P> {
    /// When the next packet is due; `None` while none is on the way.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.on_the_way.peek().map(|Reverse(next)| next.due_ns)
    }

    /// A packet that is due at `now_ns`, the earliest first; to be called until it gives none.
    pub fn poll(&mut self, now_ns: u64) -> Option<P> {
        if self.next_due()? > now_ns {
            return None;
        }
        let Reverse(next) = self.on_the_way.pop()?;
        self.counters.delivered += 1;
        if next.number + 1 < self.expected {
            self.counters.reordered += 1;
        }
        self.expected = self.expected.max(next.number + 1);
        Some(next.packet)
    }

    /// Packets on the way: those that wait to be sent and those that travel.
    #[must_use]
    pub fn len(&self) -> usize {
        self.on_the_way.len()
    }

    /// Whether no packet is on the way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.on_the_way.is_empty()
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// What chance has in store for one packet.
struct Drawn {
    lost: bool,
    delay_ns: u64,
    late_ns: Option<u64>,
    twice: bool,
}

#[derive(Debug)]
struct Draws {
    loss: LossDraw,
    jitter: JitterDraw,
    reorder: SplitMix64,
    duplicate: SplitMix64,
}

impl Draws {
    fn new(direction: &Direction, seed: u64, connection: u64) -> Self {
        Self {
            loss: LossDraw::new(direction.loss, seed, connection),
            jitter: JitterDraw::new(direction.jitter, seed, connection),
            reorder: SplitMix64::new(seed, connection, Stream::Reorder),
            duplicate: SplitMix64::new(seed, connection, Stream::Duplicate),
        }
    }

    fn next(&mut self, direction: &Direction, now_ns: u64) -> Drawn {
        let (reorder, duplicate) = (self.reorder.unit(), self.duplicate.unit());
        Drawn {
            lost: self.loss.next(),
            delay_ns: self.jitter.vary(direction.delay_ns, now_ns),
            late_ns: direction.reorder.filter(|picked| reorder < picked.probability).map(|picked| picked.late_ns),
            twice: duplicate < direction.duplicate,
        }
    }
}

/// The sender's side: one packet after another, at the rate.
#[derive(Debug, Default)]
struct Line {
    /// When the last bit of the last packet is sent.
    free_ns: u64,
    /// What rounding `free_ns` down left out, in nanoseconds / `rate_bps`: the rate is exact in the long run.
    left_over: u64,
    /// When each packet that still waits will have been sent.
    waiting: VecDeque<u64>,
}

impl Line {
    /// When the last bit is sent; `None` if the queue is full. A packet that gets lost later takes its time too.
    fn send(&mut self, direction: &Direction, now_ns: u64, size_bytes: usize) -> Option<u64> {
        let Some(rate_bps) = direction.rate_bps else { return Some(now_ns) };
        while self.waiting.front().is_some_and(|sent_ns| *sent_ns <= now_ns) {
            self.waiting.pop_front();
        }
        if direction.queue_packets.is_some_and(|limit| self.waiting.len() >= limit) {
            return None;
        }
        if self.free_ns < now_ns {
            (self.free_ns, self.left_over) = (now_ns, 0);
        }
        let scaled_ns = size_bytes as u128 * 8 * 1_000_000_000 + u128::from(self.left_over);
        let (whole_ns, left_over) = (scaled_ns / u128::from(rate_bps), scaled_ns % u128::from(rate_bps));
        self.free_ns = self.free_ns.saturating_add(u64::try_from(whole_ns).unwrap_or(u64::MAX));
        self.left_over = u64::try_from(left_over).unwrap_or(0);
        self.waiting.push_back(self.free_ns);
        Some(self.free_ns)
    }
}

#[derive(Debug)]
struct Waiting<P> {
    due_ns: u64,
    /// Decides between packets that are due at the same time.
    entered: u64,
    /// Counts offered packets; a copy has the number of its original.
    number: u64,
    packet: P,
}

impl<P> Waiting<P> {
    fn key(&self) -> (u64, u64) {
        (self.due_ns, self.entered)
    }
}

impl<P> Ord for Waiting<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<P> PartialOrd for Waiting<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> PartialEq for Waiting<P> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<P> Eq for Waiting<P> {}
