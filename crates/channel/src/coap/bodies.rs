//! The bodies that a server puts together from blocks and gives back in blocks, within fixed bounds.
//!
//! A block that comes again changes nothing and gets the same answer, because a client that lost the answer sends its
//! request again.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::block::{Block, cut};

/// Largest body.
pub const BODY_LIMIT_BYTES: usize = 1 << 20;
/// All bodies together: room for 256 of the largest.
const TOTAL_LIMIT_BYTES: usize = BODY_LIMIT_BYTES << 8;
/// Bodies at once. One that was given back is kept as its last block.
const COUNT_LIMIT: usize = 8192;
/// A body that nobody asked for in this time is forgotten; RFC 7959 leaves it to the server.
const FORGET_AFTER: Duration = Duration::from_secs(120);

/// Who sends a body, and the Request-Tag that tells it from the others of that peer (RFC 9175, 3).
pub type Key = (SocketAddr, Vec<u8>);

/// What became of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is there, more will follow.
    Part,
    /// It was the last one, the body is whole.
    Whole,
    /// One before it is missing.
    Gap,
    /// The body would be too large.
    TooLarge,
}

/// All bodies of a server.
#[derive(Default)]
pub struct Bodies {
    kept: HashMap<Key, Body>,
    /// The keys, the oldest body first.
    order: VecDeque<Key>,
    total_bytes: usize,
}

struct Body {
    bytes: Vec<u8>,
    /// How much of its beginning is no longer kept.
    trimmed: usize,
    touched: Instant,
}

impl Bodies {
    /// Adds a part of a body that begins `at`; `more` says whether it is not the last.
    pub fn put(&mut self, key: &Key, at: usize, part: &[u8], more: bool) -> Put {
        if at + part.len() > BODY_LIMIT_BYTES {
            return Put::TooLarge;
        }
        if !self.kept.contains_key(key) {
            if at > 0 {
                return Put::Gap;
            }
            self.begin(key);
        }
        let Some(body) = self.kept.get_mut(key) else { return Put::Gap };
        let before = body.bytes.len();
        let put = body.put(at, part, more);
        self.total_bytes = self.total_bytes - before + body.bytes.len();
        while self.total_bytes > TOTAL_LIMIT_BYTES {
            self.drop_oldest();
        }
        put
    }

    /// The block of a whole body that begins where `block` does.
    pub fn take(&mut self, key: &Key, block: Block) -> Option<(&[u8], bool)> {
        let body = self.kept.get_mut(key)?;
        body.touched = Instant::now();
        let from = block.at().checked_sub(body.trimmed)?;
        let (_, more) = cut(&body.bytes, from, block.size)?;
        if more || from == 0 {
            return cut(&body.bytes, from, block.size);
        }
        // The last block: whoever asks for it has the others.
        body.bytes.drain(..from);
        body.bytes.shrink_to_fit();
        body.trimmed = block.at();
        self.total_bytes -= from;
        Some((&body.bytes, false))
    }

    /// Forgets what was not touched for long.
    pub fn forget(&mut self, now: Instant) {
        while let Some(key) = self.order.front() {
            let body = self.kept.get(key);
            if body.is_some_and(|body| now.saturating_duration_since(body.touched) < FORGET_AFTER) {
                return;
            }
            self.drop_oldest();
        }
    }

    fn begin(&mut self, key: &Key) {
        if self.order.len() == COUNT_LIMIT {
            self.drop_oldest();
        }
        self.order.push_back(key.clone());
        self.kept.insert(key.clone(), Body { bytes: Vec::new(), trimmed: 0, touched: Instant::now() });
    }

    fn drop_oldest(&mut self) {
        let oldest = self.order.pop_front().and_then(|key| self.kept.remove(&key));
        self.total_bytes -= oldest.map_or(0, |body| body.bytes.len());
    }
}

impl Body {
    fn put(&mut self, at: usize, part: &[u8], more: bool) -> Put {
        self.touched = Instant::now();
        let known = at.checked_sub(self.trimmed).and_then(|from| self.bytes.get(from..from + part.len()));
        if known != Some(part) {
            if at == 0 {
                self.bytes.clear();
                self.trimmed = 0;
            }
            if self.trimmed > 0 || at != self.bytes.len() {
                return Put::Gap;
            }
            self.bytes.extend_from_slice(part);
        }
        if more {
            return Put::Part;
        }
        self.bytes.truncate(at - self.trimmed + part.len());
        Put::Whole
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn key(tag: u8) -> Key {
        ((Ipv4Addr::LOCALHOST, 1).into(), vec![tag])
    }

    fn block(number: usize, size: usize) -> Block {
        Block { number, more: false, size }
    }

    /// Gives `body` to `bodies` in blocks of `size`; block `n` is sent `repeats[n]` times more.
    fn send(bodies: &mut Bodies, key: &Key, body: &[u8], size: usize, repeats: &[usize]) -> Put {
        let (mut put, mut at) = (Put::Gap, 0);
        while let Some((part, more)) = cut(body, at, size) {
            for _ in 0..=repeats.get(at / size).copied().unwrap_or(0) {
                put = bodies.put(key, at, part, more);
            }
            at += size;
        }
        put
    }

    fn receive(bodies: &mut Bodies, key: &Key, size: usize) -> Vec<u8> {
        let mut body = Vec::new();
        for number in 0.. {
            // Each block is asked for twice, as if the first answer had been lost.
            let (part, more) = bodies.take(key, block(number, size)).map(|(part, more)| (part.to_vec(), more)).unwrap();
            assert_eq!(bodies.take(key, block(number, size)), Some((part.as_slice(), more)));
            body.extend(part);
            if !more {
                break;
            }
        }
        body
    }

    #[test]
    fn a_body_with_a_gap_is_refused() {
        let mut bodies = Bodies::default();
        assert_eq!(bodies.put(&key(1), 16, &[1; 16], true), Put::Gap);
        assert_eq!(bodies.put(&key(1), 0, &[1; 16], true), Put::Part);
        assert_eq!(bodies.put(&key(1), 32, &[1; 16], false), Put::Gap);
    }

    #[test]
    fn a_body_of_another_exchange_with_the_same_tag_takes_the_place_of_the_first() {
        let mut bodies = Bodies::default();
        assert_eq!(send(&mut bodies, &key(1), &[1; 100], 16, &[]), Put::Whole);
        assert_eq!(send(&mut bodies, &key(1), &[2; 40], 16, &[]), Put::Whole);
        assert_eq!(receive(&mut bodies, &key(1), 16), [2; 40]);
        assert_eq!(send(&mut bodies, &key(1), &[2; 33], 16, &[]), Put::Whole);
        assert_eq!(receive(&mut bodies, &key(1), 16), [2; 33]);
    }

    #[test]
    fn a_body_above_the_limit_is_refused() {
        let mut bodies = Bodies::default();
        assert_eq!(send(&mut bodies, &key(1), &vec![0; BODY_LIMIT_BYTES], 1024, &[]), Put::Whole);
        assert_eq!(bodies.put(&key(1), BODY_LIMIT_BYTES, &[0], false), Put::TooLarge);
    }

    #[test]
    fn only_the_last_block_of_a_body_that_was_given_back_is_kept() {
        let mut bodies = Bodies::default();
        send(&mut bodies, &key(1), &[7; 10_000], 1024, &[]);
        assert_eq!(receive(&mut bodies, &key(1), 1024).len(), 10_000);
        assert_eq!(bodies.total_bytes, 10_000 % 1024);
    }

    #[test]
    fn bodies_that_are_never_finished_take_no_more_than_their_share() {
        let mut bodies = Bodies::default();
        for n in 0..600_u32 {
            let key = (key(0).0, n.to_be_bytes().to_vec());
            bodies.put(&key, 0, &vec![0; BODY_LIMIT_BYTES / 2], true);
            bodies.put(&key, BODY_LIMIT_BYTES / 2, &vec![0; BODY_LIMIT_BYTES / 2], true);
            assert!(bodies.total_bytes <= TOTAL_LIMIT_BYTES);
        }
        for n in 0..20_000_u32 {
            bodies.put(&(key(0).0, n.to_le_bytes().to_vec()), 0, &[0; 16], true);
            assert!(bodies.order.len() <= COUNT_LIMIT);
        }
        bodies.forget(Instant::now());
        assert!(!bodies.kept.is_empty());
        bodies.forget(Instant::now() + FORGET_AFTER);
        assert_eq!((bodies.kept.len(), bodies.order.len(), bodies.total_bytes), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn a_body_comes_back_whatever_blocks_are_repeated(
            body in prop::collection::vec(any::<u8>(), 1..3000),
            exponents in (4u32..=10, 4u32..=10),
            repeats in prop::collection::vec(0usize..3, 0..200),
        ) {
            let mut bodies = Bodies::default();
            let put = send(&mut bodies, &key(1), &body, 1 << exponents.0, &repeats);
            prop_assert_eq!(put, Put::Whole);
            prop_assert_eq!(receive(&mut bodies, &key(1), 1 << exponents.1), body);
        }

        #[test]
        fn arbitrary_blocks_keep_the_books_right(
            blocks in prop::collection::vec((0u8..3, 0usize..5, any::<bool>(), any::<bool>(), 0u8..2), 0..200),
        ) {
            let mut bodies = Bodies::default();
            for (tag, number, more, give, content) in blocks {
                if give {
                    bodies.take(&key(tag), block(number, 16));
                } else {
                    bodies.put(&key(tag), number * 16, &[content; 16], more);
                }
                let held: usize = bodies.kept.values().map(|body| body.bytes.len()).sum();
                prop_assert_eq!(held, bodies.total_bytes);
            }
        }
    }
}
