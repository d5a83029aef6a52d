//! CoAP (RFC 7252) with block-wise transfer (RFC 7959), over DTLS or not.

mod client;
mod server;

use ciphertoll_wire::Coap;
pub use client::{CoapClient, CoapLane};
use coap_lite::{CoapOption, MessageClass, MessageType, Packet, RequestType, block_handler::BlockValue};
pub use server::serve;

use crate::dtls::{LONGEST_PLAINTEXT_BYTES, OVERHEAD_BYTES};

/// The most that a message here has besides its payload: header 4, token 8, Uri-Path 5, Content-Format 2,
/// Block1 4, Block2 4, Request-Tag 11, payload marker 1.
const ENVELOPE_BYTES: usize = 39;
/// The largest block of RFC 7959 over UDP.
const LARGEST_BLOCK_BYTES: usize = 1024;
/// Largest body that is put together.
const BODY_LIMIT_BYTES: usize = 1 << 20;
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
        let mut block = LARGEST_BLOCK_BYTES;
        while block > 16 && block > whole {
            block /= 2;
        }
        Self { whole, block }
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

/// A POST to `/echo`.
fn post(kind: MessageType, id: u16, token: &[u8]) -> Packet {
    let mut packet = message(kind, MessageClass::Request(RequestType::Post), id, token);
    packet.add_option(CoapOption::UriPath, b"echo".to_vec());
    packet
}

/// The block option of a message; `None` if it has none or one that cannot be.
fn block(packet: &Packet, option: CoapOption) -> Option<BlockValue> {
    packet.get_first_option_as::<BlockValue>(option)?.ok().filter(|b| b.size_exponent < 7)
}

/// Block `number` of `body` in blocks of `size`, and whether more follow; `None` behind the end.
fn cut(body: &[u8], number: usize, size: usize) -> Option<(&[u8], bool)> {
    let from = number.checked_mul(size)?;
    if from >= body.len().max(1) {
        return None;
    }
    let to = body.len().min(from + size);
    Some((&body[from..to], to < body.len()))
}

fn add_block(packet: &mut Packet, option: CoapOption, number: usize, more: bool, size: usize) {
    if let Ok(value) = BlockValue::new(number, more, size) {
        packet.add_option_as(option, value);
    }
}

#[cfg(test)]
mod tests {
    use coap_lite::ContentFormat;
    use proptest::prelude::*;

    use super::*;

    /// The largest message with `payload` bytes: every option that any message here has.
    fn largest(payload: usize, block: Option<usize>) -> usize {
        let mut packet = post(MessageType::Confirmable, u16::MAX, &[0xFF; 8]);
        packet.set_content_format(ContentFormat::ApplicationOctetStream);
        if let Some(size) = block {
            packet.add_option(REQUEST_TAG, u32::MAX.to_be_bytes().to_vec());
            add_block(&mut packet, CoapOption::Block1, 4095, true, size);
            add_block(&mut packet, CoapOption::Block2, 4095, true, size);
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
