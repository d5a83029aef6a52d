//! Reads suite and group from a server's unencrypted handshake messages.

/// What the server chose, as far as it has been seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// From `ServerHello`.
    pub suite: Option<u16>,
    /// From the `key_share` extension of `ServerHello` (DTLS 1.3) or from `ServerKeyExchange` (DTLS 1.2).
    pub group: Option<u16>,
}

/// Content type and handshake types (RFC 8446, appendix B; RFC 5246, 7.4).
const HANDSHAKE: u8 = 22;
const SERVER_HELLO: u8 = 2;
const SERVER_KEY_EXCHANGE: u8 = 12;
const NAMED_CURVE: u8 = 3;
const KEY_SHARE: u16 = 51;

impl Hello {
    /// Looks at a datagram; anything but a whole, unencrypted message of interest changes nothing.
    pub fn look(&mut self, datagram: &[u8]) {
        let mut rest = datagram;
        // A DTLSPlaintext: type, version, epoch, sequence number, length (RFC 9147, 4).
        while let Some((head, after)) = rest.split_at_checked(13) {
            let length = usize::from(u16::from_be_bytes([head[11], head[12]]));
            let Some((record, next)) = after.split_at_checked(length) else { return };
            let epoch_0 = head[3..5] == [0, 0];
            if head[0] == HANDSHAKE && epoch_0 {
                self.messages(record);
            }
            rest = next;
        }
    }

    fn messages(&mut self, record: &[u8]) {
        let mut rest = record;
        // Type, length, message number, fragment offset, fragment length (RFC 9147, 5.2).
        while let Some((head, after)) = rest.split_at_checked(12) {
            let length = usize::from(head[9]) << 16 | usize::from(head[10]) << 8 | usize::from(head[11]);
            let Some((body, next)) = after.split_at_checked(length) else { return };
            let whole = head[1..4] == head[9..12];
            match head[0] {
                SERVER_HELLO if whole => drop(self.server_hello(body)),
                SERVER_KEY_EXCHANGE => drop(self.server_key_exchange(body)),
                _ => {}
            }
            rest = next;
        }
    }

    fn server_hello(&mut self, body: &[u8]) -> Option<()> {
        let session = usize::from(*body.get(34)?);
        let rest = body.get(35 + session..)?;
        self.suite = Some(u16::from_be_bytes([*rest.first()?, *rest.get(1)?]));
        let mut extensions = rest.get(5..)?;
        while let [kind_0, kind_1, length_0, length_1, after @ ..] = extensions {
            let (value, next) = after.split_at_checked(u16::from_be_bytes([*length_0, *length_1]).into())?;
            if u16::from_be_bytes([*kind_0, *kind_1]) == KEY_SHARE {
                self.group = Some(u16::from_be_bytes([*value.first()?, *value.get(1)?]));
            }
            extensions = next;
        }
        Some(())
    }

    fn server_key_exchange(&mut self, body: &[u8]) -> Option<()> {
        if *body.first()? == NAMED_CURVE {
            self.group = Some(u16::from_be_bytes([*body.get(1)?, *body.get(2)?]));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A datagram with one handshake message.
    fn datagram(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        let mut message = vec![kind, 0, length[0], length[1], 0, 0, 0, 0, 0, 0, length[0], length[1]];
        message.extend_from_slice(body);
        let record = u16::try_from(message.len()).unwrap().to_be_bytes();
        let mut datagram = vec![HANDSHAKE, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 0, record[0], record[1]];
        datagram.extend(message);
        datagram
    }

    #[test]
    fn suite_and_group_of_a_dtls_1_3_server_hello_are_read() {
        let mut body = vec![0xFE, 0xFD];
        body.extend([9; 32]);
        body.extend([0, 0x13, 0x03, 0, 0, 12, 0, 43, 0, 2, 0xFE, 0xFC, 0, 51, 0, 2, 0, 0x1D]);
        let mut hello = Hello::default();
        hello.look(&datagram(SERVER_HELLO, &body));
        assert_eq!(hello, Hello { suite: Some(0x1303), group: Some(0x1D) });
    }

    #[test]
    fn the_group_of_a_dtls_1_2_server_key_exchange_is_read() {
        let mut hello = Hello::default();
        hello.look(&datagram(SERVER_KEY_EXCHANGE, &[3, 0, 0x17, 1, 4]));
        assert_eq!(hello.group, Some(0x17));
    }

    proptest! {
        #[test]
        fn arbitrary_datagrams_are_looked_at_without_harm(datagram: Vec<u8>) {
            Hello::default().look(&datagram);
        }
    }
}
