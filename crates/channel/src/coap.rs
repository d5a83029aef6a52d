//! CoAP (RFC 7252) with block-wise transfer (RFC 7959), over DTLS or not.

mod block;
mod bodies;
mod client;
mod outlet;
mod server;

use ciphertoll_wire::Coap;
pub use client::{CoapClient, CoapLane};
use coap_lite::{CoapOption, MessageClass, MessageType, Packet};
pub use server::Server;

use crate::dtls::{LONGEST_PLAINTEXT_BYTES, OVERHEAD_BYTES};

/// The most that a message here has besides its payload: header 4, token 8, Uri-Path 5, Content-Format 2,
/// Block1 4, Block2 4, Request-Tag 11, payload marker 1.
const ENVELOPE_BYTES: usize = 39;
/// Request-Tag (RFC 9175): keeps apart the block-wise transfers that one client has under way.
const REQUEST_TAG: CoapOption = CoapOption::Unknown(292);
/// Largest UDP payload over IPv4.
const LARGEST_DATAGRAM_BYTES: usize = 65_507;

/// How much payload goes into one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    /// In a message that is not part of a block-wise transfer.
    whole: usize,
    /// In a block: a power of two from 16 to 1024.
    block: usize,
}

impl Sizes {
    fn new(settings: Coap) -> Self {
        let whole =
            settings.datagram_bytes.min(LONGEST_PLAINTEXT_BYTES).saturating_sub(OVERHEAD_BYTES + ENVELOPE_BYTES);
        Self { whole, block: block::largest_size(whole) }
    }
}

/// A message with what all messages here have.
fn message(kind: MessageType, code: MessageClass, id: u16, token: &[u8]) -> Packet {
    let mut packet = Packet::new();
    packet.header.set_version(1);
    packet.header.set_type(kind);
    packet.header.code = code;
    packet.header.message_id = id;
    packet.set_token(token.to_vec());
    packet
}

#[cfg(test)]
mod tests {
    use coap_lite::{ContentFormat, RequestType};
    use proptest::prelude::*;

    use super::{block::Block, *};

    /// The largest message with `payload` bytes: every option that any message here has.
    fn largest(payload: usize, block: Option<usize>) -> usize {
        let post = MessageClass::Request(RequestType::Post);
        let mut packet = message(MessageType::Confirmable, post, u16::MAX, &[0xFF; 8]);
        packet.add_option(CoapOption::UriPath, b"echo".to_vec());
        packet.set_content_format(ContentFormat::ApplicationOctetStream);
        if let Some(size) = block {
            packet.add_option(REQUEST_TAG, vec![0xFF; 8]);
            Block { number: (1 << 20) - 1, more: true, size }.add_to(&mut packet, CoapOption::Block1);
            Block { number: (1 << 20) - 1, more: true, size }.add_to(&mut packet, CoapOption::Block2);
        }
        packet.payload = vec![0; payload];
        packet.to_bytes_unlimited().unwrap().len() + OVERHEAD_BYTES
    }

    proptest! {
        #[test]
        fn every_message_fits_the_datagram_and_every_block_is_one_of_rfc_7959(datagram_bytes in 0..70_000usize) {
            let sizes = Sizes::new(Coap { confirmable: true, nstart: 0, datagram_bytes });
            prop_assert!(sizes.block.is_power_of_two() && (16..=1024).contains(&sizes.block));
            // No smaller block is left to fall back to.
            if sizes.whole >= 16 {
                prop_assert!(largest(sizes.whole, None) <= datagram_bytes);
                prop_assert!(largest(sizes.block, Some(sizes.block)) <= datagram_bytes);
            }
        }
    }
}
