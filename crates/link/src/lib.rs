//! Link emulation as a pure queue: no I/O, no clock.
//!
//! A [`Queue`] is one direction of a link. The caller says what time it is, offers packets as they arrive, asks
//! when the next one is due, and polls it then:
//!
//! ```
//! use ciphertoll_link::{Direction, Queue};
//!
//! let direction = Direction { delay_ns: 20_000_000, rate_bps: Some(1_000_000), ..Direction::default() };
//! let mut queue = Queue::new(direction, 1)?;
//! queue.offer(0, 1_250, "a packet");
//! // 1,250 bytes take 10 ms at 1 Mbit/s, and then travel for 20 ms.
//! assert_eq!(queue.next_due(), Some(30_000_000));
//! assert_eq!(queue.poll(29_999_999), None);
//! assert_eq!(queue.poll(30_000_000), Some("a packet"));
//! # Ok::<(), ciphertoll_link::Invalid>(())
//! ```
//!
//! What happens to a packet depends on the seed, on its number since the last [`Queue::reseed`] and, for its delay,
//! on when it arrives. Each impairment has a random stream of its own, and takes from it for every packet
//! whether it is on or not: switching one on never changes what another does.

mod direction;
mod jitter;
mod loss;
mod queue;
mod random;

pub use direction::{Direction, Invalid, Reorder};
pub use jitter::Jitter;
pub use loss::Loss;
pub use queue::{Counters, Fate, Queue};
