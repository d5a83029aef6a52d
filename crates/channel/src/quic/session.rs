//! The client's end of the TLS handshake inside QUIC, as quinn wants it. It differs from quinn's own in that
//! its [`Handshake`] says everything that rustls knows.

use std::{any::Any, sync::Arc};

use aws_lc_rs::aead;
use quinn::{
    ConnectError, ConnectionId, Side, TransportErrorCode,
    crypto::{self, ExportKeyingMaterialError, HeaderKey, KeyPair, PacketKey},
};
use quinn_proto::{TransportError, transport_parameters::TransportParameters};
use rustls::{
    HandshakeKind,
    quic::{ClientConnection, Connection, KeyChange, Keys, Secrets, Suite, Version},
};

use super::{Failure, VERSION};

/// What rustls says about a finished handshake.
pub(super) struct Handshake {
    pub(super) suite: Option<u16>,
    pub(super) group: Option<u16>,
    pub(super) kind: Option<HandshakeKind>,
}

/// Configuration of one connection.
pub(super) struct ProvingConfig {
    pub(super) tls: Arc<rustls::ClientConfig>,
    /// Protects the Initial packets.
    pub(super) initial: Suite,
    /// Receives the reason if rustls ends the handshake.
    pub(super) failure: Failure,
}

impl crypto::ClientConfig for ProvingConfig {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        if version != VERSION {
            return Err(ConnectError::UnsupportedVersion);
        }
        let name = server_name.to_owned().try_into();
        let name = name.map_err(|_| ConnectError::InvalidServerName(server_name.into()))?;
        let mut encoded = Vec::new();
        params.write(&mut encoded);
        let tls = ClientConnection::new(self.tls.clone(), Version::V1, name, encoded).map_err(|e| {
            self.failure.keep(e);
            ConnectError::UnsupportedVersion
        })?;
        Ok(Box::new(Session { tls: tls.into(), config: self, announced: false, next: None }))
    }
}

struct Session {
    tls: Connection,
    config: Arc<ProvingConfig>,
    /// Whether quinn was told that the handshake data is there.
    announced: bool,
    /// Secrets of the next key update.
    next: Option<Secrets>,
}

impl crypto::Session for Session {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> crypto::Keys {
        let side = match side {
            Side::Client => rustls::Side::Client,
            Side::Server => rustls::Side::Server,
        };
        boxed(self.config.initial.keys(dst_cid, side, Version::V1))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        (!self.tls.is_handshaking()).then(|| -> Box<dyn Any> {
            Box::new(Handshake {
                suite: self.tls.negotiated_cipher_suite().map(|s| u16::from(s.suite())),
                group: self.tls.negotiated_key_exchange_group().map(|g| u16::from(g.name())),
                kind: self.tls.handshake_kind(),
            })
        })
    }

    /// The chain, as quinn's own sessions give it: a `Vec<CertificateDer<'static>>`.
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        let chain = self.tls.peer_certificates()?;
        Some(Box::new(chain.iter().map(|c| c.clone().into_owned()).collect::<Vec<_>>()))
    }

    /// Never: nothing is resumed.
    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        Some(false)
    }

    fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        if let Err(error) = self.tls.read_hs(buf) {
            let alert = self.tls.alert().map(|alert| TransportErrorCode::crypto(alert.into()));
            let code = alert.unwrap_or(TransportErrorCode::PROTOCOL_VIOLATION);
            let reason = error.to_string();
            self.config.failure.keep(error);
            return Err(TransportError { code, frame: None, reason });
        }
        let news = !self.announced && !self.tls.is_handshaking();
        self.announced |= news;
        Ok(news)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(mut encoded) = self.tls.quic_transport_parameters() else { return Ok(None) };
        Ok(Some(TransportParameters::read(quinn_proto::Side::Client, &mut encoded)?))
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<crypto::Keys> {
        match self.tls.write_hs(buf)? {
            KeyChange::Handshake { keys } => Some(boxed(keys)),
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                Some(boxed(keys))
            }
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) })
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        let done = self.tls.export_keying_material(output, label, Some(context));
        done.map(|_| ()).map_err(|_| ExportKeyingMaterialError)
    }
}

fn boxed(keys: Keys) -> crypto::Keys {
    crypto::Keys {
        header: KeyPair { local: Box::new(keys.local.header), remote: Box::new(keys.remote.header) },
        packet: KeyPair { local: Box::new(keys.local.packet), remote: Box::new(keys.remote.packet) },
    }
}

/// The tag of a Retry packet covers the packet and the connection id that it answers (RFC 9001, 5.8).
fn is_valid_retry(orig_dst_cid: &[u8], header: &[u8], payload: &[u8]) -> bool {
    const KEY: [u8; 16] = 0xbe0c_690b_9f66_575a_1d76_6b54_e368_c84e_u128.to_be_bytes();
    const NONCE: [u8; 12] = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
    let Some(tag_start) = payload.len().checked_sub(aead::AES_128_GCM.tag_len()) else { return false };
    let (token, tag) = payload.split_at(tag_start);
    let (Ok(length), Ok(key)) = (u8::try_from(orig_dst_cid.len()), aead::UnboundKey::new(&aead::AES_128_GCM, &KEY))
    else {
        return false;
    };
    let covered = [&[length], orig_dst_cid, header, token].concat();
    let nonce = aead::Nonce::assume_unique_for_key(NONCE);
    let mut tag = tag.to_vec();
    aead::LessSafeKey::new(key).open_in_place(nonce, aead::Aad::from(covered), &mut tag).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 9001, A.4.
    #[test]
    fn a_retry_packet_is_valid_only_with_its_tag_and_its_connection_id() {
        let cid = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];
        let header = [0xff, 0, 0, 0, 1, 0, 8, 0xf0, 0x67, 0xa5, 0x50, 0x2a, 0x42, 0x62, 0xb5];
        let mut payload = b"token".to_vec();
        payload.extend(0x04a2_65ba_2eff_4d82_9058_fb3f_0f24_96ba_u128.to_be_bytes());
        assert!(is_valid_retry(&cid, &header, &payload));
        assert!(!is_valid_retry(&cid[1..], &header, &payload));
        payload[0] ^= 1;
        assert!(!is_valid_retry(&cid, &header, &payload));
        assert!(!is_valid_retry(&cid, &header, &payload[..15]));
    }
}
