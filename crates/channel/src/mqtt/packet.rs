//! The packets of MQTT 3.1.1 and 5.0, as far as quality of service 0 and 1 need them.

use ciphertoll_wire::MqttVersion::{self, V5, V311};

/// A payload of 1 MiB, the longest topic, and properties of up to 64 KiB.
pub(super) const LARGEST_BYTES: usize = (1 << 20) + 2 * (1 << 16);

/// Reason codes of 5.0 (its 2.4), which name for both versions why a connection ends.
pub(super) mod reason {
    pub(in super::super) const MALFORMED: u8 = 0x81;
    pub(in super::super) const PROTOCOL_ERROR: u8 = 0x82;
    pub(in super::super) const UNSUPPORTED_VERSION: u8 = 0x84;
    pub(in super::super) const KEEP_ALIVE_TIMEOUT: u8 = 0x8D;
    pub(in super::super) const SESSION_TAKEN_OVER: u8 = 0x8E;
    pub(in super::super) const FILTER_INVALID: u8 = 0x8F;
    pub(in super::super) const TOPIC_INVALID: u8 = 0x90;
    pub(in super::super) const ALIAS_INVALID: u8 = 0x94;
    pub(in super::super) const TOO_LARGE: u8 = 0x95;
    pub(in super::super) const QUOTA_EXCEEDED: u8 = 0x97;
    pub(in super::super) const NO_RETAIN: u8 = 0x9A;
    pub(in super::super) const NO_SUCH_QOS: u8 = 0x9B;
}

/// What is wrong with a packet: a reason code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault(pub(super) u8);

const MALFORMED: Fault = Fault(reason::MALFORMED);

/// A packet that is complete but not yet understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    first: u8,
    body: &'a [u8],
    /// Bytes of the whole packet.
    pub(super) length: usize,
}

/// The first packet in `bytes`, or `None` if it is not complete.
pub(super) fn frame(bytes: &[u8]) -> Result<Option<Frame<'_>>, Fault> {
    let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
    let mut fields = Fields(rest);
    let body_length = match fields.varint() {
        Ok(length) => length,
        // More than four bytes is no length at all.
        Err(_) if rest.len() < 4 => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let length = 1 + rest.len() - fields.0.len() + body_length;
    if length > LARGEST_BYTES {
        return Err(Fault(reason::TOO_LARGE));
    }
    Ok(fields.0.get(..body_length).map(|body| Frame { first, body, length }))
}

/// A packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    Connect(Connect<'a>),
    ConnAck { code: u8, properties: Properties<'a> },
    Publish(Publish<'a>),
    PubAck { id: u16, code: u8 },
    Subscribe { id: u16, filters: Vec<Filter<'a>> },
    SubAck { id: u16, codes: &'a [u8] },
    Unsubscribe { id: u16, filters: Vec<&'a str> },
    UnsubAck,
    PingReq,
    PingResp,
    Disconnect,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Connect<'a> {
    pub(super) version: MqttVersion,
    pub(super) clean: bool,
    pub(super) keep_alive_s: u16,
    pub(super) client_id: &'a str,
    pub(super) properties: Properties<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Publish<'a> {
    pub(super) topic: &'a str,
    pub(super) qos: u8,
    pub(super) retain: bool,
    /// 0 without quality of service.
    pub(super) id: u16,
    pub(super) properties: Properties<'a>,
    pub(super) payload: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Filter<'a> {
    pub(super) topics: &'a str,
    pub(super) qos: u8,
    pub(super) no_local: bool,
}

/// The properties of a packet of 5.0; empty in 3.1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Properties<'a> {
    pub(super) raw: &'a [u8],
    pub(super) receive_maximum: Option<u16>,
    pub(super) largest_bytes: Option<u32>,
    pub(super) maximum_qos: Option<u8>,
    pub(super) server_keep_alive_s: Option<u16>,
    pub(super) alias: bool,
    pub(super) subscription: bool,
}

/// What the packet in `frame` says. A CONNECT says its version itself.
pub(super) fn parse(version: MqttVersion, frame: Frame<'_>) -> Result<Packet<'_>, Fault> {
    let mut fields = Fields(frame.body);
    let packet = match (frame.first >> 4, frame.first & 0x0F) {
        (1, 0) => Packet::Connect(connect(&mut fields)?),
        (2, 0) => conn_ack(version, &mut fields)?,
        (3, flags) => Packet::Publish(publish(version, flags, &mut fields)?),
        (4, 0) => {
            let id = fields.id()?;
            // 5.0 leaves out a reason of 0 and properties that are empty.
            let code = if version == V5 && !fields.0.is_empty() { fields.u8()? } else { 0 };
            fields.optional_properties(version)?;
            Packet::PubAck { id, code }
        }
        (8, 2) => subscribe(version, &mut fields)?,
        (9, 0) => {
            let id = fields.id()?;
            fields.properties(version)?;
            Packet::SubAck { id, codes: fields.rest() }
        }
        (10, 2) => unsubscribe(version, &mut fields)?,
        (11, 0) => {
            fields.rest();
            Packet::UnsubAck
        }
        (12, 0) => Packet::PingReq,
        (13, 0) => Packet::PingResp,
        (14, 0) => {
            fields.rest();
            Packet::Disconnect
        }
        // The second half of quality of service 2, and authentication, which no CONNECT here asks for.
        (5..=7 | 15, _) => return Err(Fault(reason::PROTOCOL_ERROR)),
        _ => return Err(MALFORMED),
    };
    if fields.0.is_empty() { Ok(packet) } else { Err(MALFORMED) }
}

fn connect<'a>(fields: &mut Fields<'a>) -> Result<Connect<'a>, Fault> {
    let name = fields.text()?;
    let version = match (name, fields.u8()?) {
        ("MQTT", 4) => V311,
        ("MQTT", 5) => V5,
        ("MQTT" | "MQIsdp", _) => return Err(Fault(reason::UNSUPPORTED_VERSION)),
        _ => return Err(MALFORMED),
    };
    let flags = fields.u8()?;
    let keep_alive_s = fields.u16()?;
    let properties = fields.properties(version)?;
    let client_id = fields.text()?;
    let (will, will_flags) = (flags & 0b100 != 0, flags & 0b11_1000);
    if flags & 1 != 0 || will_flags >> 3 & 3 == 3 || !will && will_flags != 0 {
        return Err(MALFORMED);
    }
    if will {
        fields.properties(version)?;
        fields.text()?;
        fields.bytes()?;
    }
    if flags & 0x80 != 0 {
        fields.text()?;
    }
    if flags & 0x40 != 0 {
        fields.bytes()?;
    }
    Ok(Connect { version, clean: flags & 2 != 0, keep_alive_s, client_id, properties })
}

fn conn_ack<'a>(version: MqttVersion, fields: &mut Fields<'a>) -> Result<Packet<'a>, Fault> {
    fields.u8()?;
    let code = fields.u8()?;
    // A broker that does not know 5.0 refuses it in the words of 3.1.1, without properties.
    Ok(Packet::ConnAck { code, properties: fields.optional_properties(version)? })
}

fn publish<'a>(version: MqttVersion, flags: u8, fields: &mut Fields<'a>) -> Result<Publish<'a>, Fault> {
    let qos = flags >> 1 & 3;
    if qos == 3 {
        return Err(MALFORMED);
    }
    let topic = fields.text()?;
    let id = if qos > 0 { fields.id()? } else { 0 };
    let properties = fields.properties(version)?;
    Ok(Publish { topic, qos, retain: flags & 1 != 0, id, properties, payload: fields.rest() })
}

fn subscribe<'a>(version: MqttVersion, fields: &mut Fields<'a>) -> Result<Packet<'a>, Fault> {
    let id = fields.id()?;
    fields.properties(version)?;
    let mut filters = Vec::new();
    while !fields.0.is_empty() {
        let (topics, options) = (fields.text()?, fields.u8()?);
        let known = if version == V5 { 0b11_1111 } else { 0b11 };
        if options & 3 == 3 || options & !known != 0 {
            return Err(MALFORMED);
        }
        filters.push(Filter { topics, qos: options & 3, no_local: options & 0b100 != 0 });
    }
    if filters.is_empty() { Err(Fault(reason::PROTOCOL_ERROR)) } else { Ok(Packet::Subscribe { id, filters }) }
}

fn unsubscribe<'a>(version: MqttVersion, fields: &mut Fields<'a>) -> Result<Packet<'a>, Fault> {
    let id = fields.id()?;
    fields.properties(version)?;
    let mut filters = Vec::new();
    while !fields.0.is_empty() {
        filters.push(fields.text()?);
    }
    if filters.is_empty() { Err(Fault(reason::PROTOCOL_ERROR)) } else { Ok(Packet::Unsubscribe { id, filters }) }
}

/// What is left of a packet's body.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(MALFORMED)?;
        self.0 = rest;
        Ok(head)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn u8(&mut self) -> Result<u8, Fault> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, Fault> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from(self.u16()?) << 16 | u32::from(self.u16()?))
    }

    /// A packet identifier, which is never 0.
    fn id(&mut self) -> Result<u16, Fault> {
        match self.u16()? {
            0 => Err(MALFORMED),
            id => Ok(id),
        }
    }

    /// A number of one to four bytes of seven bits, the lowest first.
    fn varint(&mut self) -> Result<usize, Fault> {
        let mut value = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.u8()?;
            value |= usize::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(MALFORMED)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Fault> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }

    fn text(&mut self) -> Result<&'a str, Fault> {
        std::str::from_utf8(self.bytes()?).map_err(|_| MALFORMED)
    }

    fn optional_properties(&mut self, version: MqttVersion) -> Result<Properties<'a>, Fault> {
        if self.0.is_empty() { Ok(Properties::default()) } else { self.properties(version) }
    }

    fn properties(&mut self, version: MqttVersion) -> Result<Properties<'a>, Fault> {
        let mut found = Properties::default();
        if version == V311 {
            return Ok(found);
        }
        let length = self.varint()?;
        found.raw = self.take(length)?;
        let mut fields = Fields(found.raw);
        while !fields.0.is_empty() {
            fields.property(&mut found)?;
        }
        Ok(found)
    }

    /// One property (5.0, 2.2.2.2); what it means is kept only where it matters here.
    fn property(&mut self, found: &mut Properties<'a>) -> Result<(), Fault> {
        match self.u8()? {
            0x13 => found.server_keep_alive_s = Some(self.u16()?),
            0x21 => found.receive_maximum = Some(self.id()?),
            0x23 => {
                self.u16()?;
                found.alias = true;
            }
            0x0B => {
                self.varint()?;
                found.subscription = true;
            }
            0x24 => found.maximum_qos = Some(self.u8()?),
            0x27 => found.largest_bytes = Some(self.u32()?),
            0x01 | 0x17 | 0x19 | 0x25 | 0x28 | 0x29 | 0x2A => drop(self.u8()?),
            0x22 => drop(self.u16()?),
            0x02 | 0x11 | 0x18 => drop(self.u32()?),
            0x03 | 0x08 | 0x09 | 0x12 | 0x15 | 0x16 | 0x1A | 0x1C | 0x1F => drop(self.bytes()?),
            0x26 => drop((self.bytes()?, self.bytes()?)),
            _ => return Err(MALFORMED),
        }
        Ok(())
    }
}

mod write;

pub(super) use write::{
    disconnect, ping_request, ping_response, publish_bytes, write_conn_ack, write_connect, write_pub_ack,
    write_publish, write_sub_ack, write_subscribe, write_unsub_ack,
};

#[cfg(test)]
mod tests;
