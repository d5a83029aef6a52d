//! The Block1 and Block2 options (RFC 7959, 2.2). `coap-lite` has them too, but loses block numbers above 4095.

use coap_lite::{CoapOption, Packet};

/// The largest block over UDP.
pub const LARGEST_BLOCK_BYTES: usize = 1024;
/// The smallest block.
const SMALLEST_BLOCK_BYTES: usize = 16;
/// A block number has 20 bits.
const NUMBER_LIMIT: usize = 1 << 20;

/// Where a block stands in its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// How many blocks of this size are before it.
    pub number: usize,
    /// Whether more follow.
    pub more: bool,
    /// A power of two from 16 to 1024.
    pub size: usize,
}

impl Block {
    /// The option of a message; `None` if it has none, or one that cannot be.
    pub fn of(packet: &Packet, option: CoapOption) -> Option<Self> {
        Self::decode(packet.get_first_option(option)?)
    }

    /// Adds the option to a message.
    pub fn add_to(self, packet: &mut Packet, option: CoapOption) {
        packet.add_option(option, self.encode());
    }

    /// How many bytes of the body are before it.
    pub fn at(self) -> usize {
        self.number * self.size
    }

    fn decode(value: &[u8]) -> Option<Self> {
        if value.len() > 3 {
            return None;
        }
        let scalar = value.iter().fold(0, |scalar, byte| scalar << 8 | usize::from(*byte));
        // Exponent 7 is reserved (RFC 7959) and means something else over TCP (RFC 8323).
        let size = SMALLEST_BLOCK_BYTES << (scalar & 7);
        (size <= LARGEST_BLOCK_BYTES).then_some(Self { number: scalar >> 4, more: scalar & 8 != 0, size })
    }

    fn encode(self) -> Vec<u8> {
        debug_assert!(self.number < NUMBER_LIMIT && self.size.is_power_of_two());
        let exponent = self.size.trailing_zeros() - SMALLEST_BLOCK_BYTES.trailing_zeros();
        let scalar = self.number << 4 | usize::from(self.more) << 3 | exponent as usize;
        let bytes = scalar.to_be_bytes();
        // A number is written without leading zeros (RFC 7252, 3.2).
        bytes.into_iter().skip_while(|byte| *byte == 0).collect()
    }
}

/// The largest size of a block that is not above `limit`, and the smallest there is if none fits.
pub fn largest_size(limit: usize) -> usize {
    let mut size = LARGEST_BLOCK_BYTES;
    while size > SMALLEST_BLOCK_BYTES && size > limit {
        size /= 2;
    }
    size
}

/// The block of `body` that begins `at` and has at most `size` bytes, and whether more follow; `None` behind the end.
pub fn cut(body: &[u8], at: usize, size: usize) -> Option<(&[u8], bool)> {
    if at >= body.len().max(1) {
        return None;
    }
    let to = body.len().min(at + size);
    Some((&body[at..to], to < body.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_values_of_rfc_7959_are_written_as_printed_there() {
        // Section 2.2: the NUM, M and SZX of a value; section 3.3 writes them 1:0/1/128.
        assert_eq!(Block { number: 0, more: false, size: 16 }.encode(), [0u8; 0]);
        assert_eq!(Block { number: 0, more: true, size: 128 }.encode(), [0x0B]);
        assert_eq!(Block { number: 4096, more: false, size: 1024 }.encode(), [0x01, 0x00, 0x06]);
    }

    #[test]
    fn a_reserved_size_is_not_a_block() {
        assert_eq!(Block::decode(&[0x07]), None);
        assert_eq!(Block::decode(&[0, 0, 0, 0]), None);
    }

    proptest! {
        #[test]
        fn a_block_is_read_as_it_was_written(number in 0..NUMBER_LIMIT, more: bool, exponent in 4u32..=10) {
            let block = Block { number, more, size: 1 << exponent };
            prop_assert_eq!(Block::decode(&block.encode()), Some(block));
        }

        #[test]
        fn the_blocks_of_a_body_are_the_body(body: Vec<u8>, exponent in 4u32..=10) {
            let (size, mut at, mut joined) = (1 << exponent, 0, Vec::new());
            while let Some((part, more)) = cut(&body, at, size) {
                joined.extend_from_slice(part);
                at += size;
                prop_assert_eq!(more, joined.len() < body.len());
            }
            prop_assert_eq!(joined, body);
        }
    }
}
