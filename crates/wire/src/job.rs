//! What the engine is asked to do.

use serde::{Deserialize, Serialize};

use crate::Nanos;

/// The one line that an engine reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// [`crate::VERSION`] of the sender.
    pub version: u32,
    /// Processors that the engine may run on; empty leaves the choice to the kernel.
    pub pin_cpus: Vec<usize>,
    /// End when the parent process ends, so that a killed run leaves no server behind.
    pub die_with_parent: bool,
    /// What to do.
    pub task: Task,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Be the servers of some channels, until told to stop.
    Serve(ServeJob),
    /// Be the client of one channel and send it a load.
    Load(Box<LoadJob>),
}

/// Servers to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeJob {
    /// Address to bind, for example `127.0.0.1`.
    pub bind: String,
    /// DNS names and IP addresses that the certificates are valid for.
    pub names: Vec<String>,
    /// One listening socket each.
    pub listeners: Vec<Listener>,
}

/// One listening socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// What it speaks: this and nothing else.
    pub channel: Channel,
    /// Port; 0 takes a free one.
    pub port: u16,
}

/// A client to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadJob {
    /// What to speak: this and nothing else.
    pub channel: Channel,
    /// Whom to speak to.
    pub peer: Peer,
    /// What to send.
    pub load: Load,
    /// File for the raw samples; see [`crate::Record`].
    pub samples: String,
    /// Longest time to connect, handshake included.
    pub connect_timeout_ns: Nanos,
    /// Longest time from due to done of one exchange.
    pub exchange_timeout_ns: Nanos,
}

/// A server to speak to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Host name or IP address to connect to.
    pub host: String,
    /// Port to connect to.
    pub port: u16,
    /// Name that the certificate must carry.
    pub name: String,
    /// PEM of the authority that must have signed it; `null` only for unprotected channels.
    pub ca_pem: Option<String>,
}

/// The traffic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Load {
    /// Open loop: an exchange is due every `1 / rate_hz` seconds, whether or not the last is done.
    Paced {
        /// Exchanges per second, 0.1 to 10,000.
        rate_hz: f64,
        /// Payload of each direction in bytes, 1 to 1,048,576.
        size_bytes: usize,
        /// Sent before the measured time; recorded, but due before `measure_from_ns`.
        warm_up_ns: Nanos,
        /// The measured time.
        duration_ns: Nanos,
        /// Exchanges that may be under way at once; a due exchange beyond that waits and is marked.
        in_flight: usize,
    },
    /// Connect and stay silent.
    Idle {
        /// Silence before the measured time.
        warm_up_ns: Nanos,
        /// The measured time.
        duration_ns: Nanos,
    },
}

/// How bytes are protected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "protocol", rename_all = "snake_case", deny_unknown_fields)]
pub enum Channel {
    /// HTTP over TCP, unprotected.
    Http {
        /// HTTP/1.1 or HTTP/2.
        http: HttpVersion,
    },
    /// HTTP over TLS.
    Https {
        /// HTTP/1.1 or HTTP/2.
        http: HttpVersion,
        /// The protection.
        security: Security,
    },
    /// HTTP/3 over QUIC.
    H3 {
        /// The protection.
        security: Security,
    },
    /// MQTT over TCP, unprotected.
    Mqtt {
        /// Version and quality of service.
        mqtt: Mqtt,
    },
    /// MQTT over TLS.
    Mqtts {
        /// Version and quality of service.
        mqtt: Mqtt,
        /// The protection.
        security: Security,
    },
    /// CoAP over UDP, unprotected.
    Coap {
        /// Message type and sizes.
        coap: Coap,
    },
    /// CoAP over DTLS.
    Coaps {
        /// Message type and sizes.
        coap: Coap,
        /// The protection.
        security: Security,
    },
}

/// The name of a protocol, without its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each name is its own description")]
pub enum Protocol {
    Http,
    Https,
    H3,
    Mqtt,
    Mqtts,
    Coap,
    Coaps,
}

impl Channel {
    /// The name of the protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::Http { .. } => Protocol::Http,
            Self::Https { .. } => Protocol::Https,
            Self::H3 { .. } => Protocol::H3,
            Self::Mqtt { .. } => Protocol::Mqtt,
            Self::Mqtts { .. } => Protocol::Mqtts,
            Self::Coap { .. } => Protocol::Coap,
            Self::Coaps { .. } => Protocol::Coaps,
        }
    }

    /// The protection, if there is one.
    #[must_use]
    pub fn security(&self) -> Option<&Security> {
        match self {
            Self::Http { .. } | Self::Mqtt { .. } | Self::Coap { .. } => None,
            Self::Https { security, .. }
            | Self::H3 { security }
            | Self::Mqtts { security, .. }
            | Self::Coaps { security, .. } => Some(security),
        }
    }
}

/// HTTP over a byte stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HttpVersion {
    /// HTTP/1.1: one exchange at a time on a connection.
    #[serde(rename = "1.1")]
    Http1,
    /// HTTP/2: multiplexed.
    #[serde(rename = "2")]
    Http2,
}

/// MQTT settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mqtt {
    /// Protocol version.
    pub version: MqttVersion,
    /// Quality of service of what the client publishes: 0 or 1.
    pub qos: u8,
}

/// MQTT versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MqttVersion {
    /// MQTT 3.1.1.
    #[serde(rename = "3.1.1")]
    V311,
    /// MQTT 5.0.
    #[serde(rename = "5.0")]
    V5,
}

/// CoAP settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coap {
    /// Confirmable (CON) or non-confirmable (NON) messages.
    pub confirmable: bool,
    /// Exchanges outstanding at once (RFC 7252, 4.7); 0 lets the load decide.
    pub nstart: usize,
    /// Largest datagram to send, DTLS included; what does not fit goes block-wise (RFC 7959).
    pub datagram_bytes: usize,
}

/// What protects a channel. Exactly one of each, so that nothing else can be negotiated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Security {
    /// TLS or DTLS version.
    pub version: TlsVersion,
    /// Cipher suite, IANA name.
    pub suite: String,
    /// Key-exchange group.
    pub group: String,
    /// Certificate algorithm of leaf and authority.
    pub certificate: String,
    /// Library that implements it: `rustls`, `wolfssl`, `dimpl`.
    pub library: String,
}

/// TLS and DTLS versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each name is its own description")]
pub enum TlsVersion {
    #[serde(rename = "TLS 1.3")]
    Tls13,
    #[serde(rename = "DTLS 1.3")]
    Dtls13,
    #[serde(rename = "DTLS 1.2")]
    Dtls12,
}
