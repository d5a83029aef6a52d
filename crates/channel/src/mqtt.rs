//! MQTT 3.1.1 and 5.0 over TCP or TLS: a client that publishes to itself, and a small broker.
//!
//! One codec serves both versions and both ends. It borrows from the buffer into which the socket was read,
//! so that an exchange allocates nothing.

mod broker;
mod client;
mod packet;
mod pipe;
mod topic;

pub use broker::serve;
pub use client::{MqttClient, MqttLane};

/// What the application-layer protocol negotiation of TLS calls MQTT.
pub const ALPN: &[u8] = b"mqtt";

/// Letters and digits, and no more than every broker accepts (3.1.1, 3.1.3.1).
fn random_id() -> Option<String> {
    let mut bytes = [0; 8];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    Some(format!("ct{:016x}", u64::from_be_bytes(bytes)))
}
