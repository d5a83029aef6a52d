//! Packets on their way out.

use ciphertoll_wire::MqttVersion::{self, V5};

use super::{Filter, LARGEST_BYTES, Publish};

/// Asks for a session that begins and ends with the connection.
pub(in super::super) fn write_connect(out: &mut Vec<u8>, version: MqttVersion, client_id: &str, keep_alive_s: u16) {
    const CLEAN: u8 = 2;
    let mut body = Vec::new();
    text(&mut body, "MQTT");
    body.extend([if version == V5 { 5 } else { 4 }, CLEAN]);
    body.extend(keep_alive_s.to_be_bytes());
    no_properties(&mut body, version);
    text(&mut body, client_id);
    control(out, 0x10, &body);
}

/// `properties` are left out in 3.1.1.
pub(in super::super) fn write_conn_ack(out: &mut Vec<u8>, version: MqttVersion, code: u8, properties: &[u8]) {
    let mut body = vec![0, code];
    if version == V5 {
        varint(&mut body, properties.len());
        body.extend_from_slice(properties);
    }
    control(out, 0x20, &body);
}

pub(in super::super) fn write_publish(out: &mut Vec<u8>, version: MqttVersion, publish: &Publish<'_>) {
    out.push(0x30 | publish.qos << 1 | u8::from(publish.retain));
    varint(out, body_bytes(version, publish));
    text(out, publish.topic);
    if publish.qos > 0 {
        out.extend(publish.id.to_be_bytes());
    }
    if version == V5 {
        varint(out, publish.properties.raw.len());
        out.extend_from_slice(publish.properties.raw);
    }
    out.extend_from_slice(publish.payload);
}

/// The size of the packet that [`write_publish`] writes.
pub(in super::super) fn publish_bytes(version: MqttVersion, publish: &Publish<'_>) -> usize {
    let body = body_bytes(version, publish);
    1 + varint_bytes(body) + body
}

fn body_bytes(version: MqttVersion, publish: &Publish<'_>) -> usize {
    let id = if publish.qos > 0 { 2 } else { 0 };
    let raw = publish.properties.raw.len();
    let properties = if version == V5 { varint_bytes(raw) + raw } else { 0 };
    2 + publish.topic.len() + id + properties + publish.payload.len()
}

/// Acknowledges with success, which 5.0 need not say.
pub(in super::super) fn write_pub_ack(out: &mut Vec<u8>, id: u16) {
    control(out, 0x40, &id.to_be_bytes());
}

pub(in super::super) fn write_subscribe(out: &mut Vec<u8>, version: MqttVersion, id: u16, filter: &Filter<'_>) {
    let mut body = id.to_be_bytes().to_vec();
    no_properties(&mut body, version);
    text(&mut body, filter.topics);
    body.push(filter.qos | u8::from(filter.no_local) << 2);
    control(out, 0x82, &body);
}

pub(in super::super) fn write_sub_ack(out: &mut Vec<u8>, version: MqttVersion, id: u16, codes: &[u8]) {
    let mut body = id.to_be_bytes().to_vec();
    no_properties(&mut body, version);
    body.extend_from_slice(codes);
    control(out, 0x90, &body);
}

/// `codes` are left out in 3.1.1.
pub(in super::super) fn write_unsub_ack(out: &mut Vec<u8>, version: MqttVersion, id: u16, codes: &[u8]) {
    let mut body = id.to_be_bytes().to_vec();
    no_properties(&mut body, version);
    if version == V5 {
        body.extend_from_slice(codes);
    }
    control(out, 0xB0, &body);
}

pub(in super::super) fn ping_request(out: &mut Vec<u8>) {
    out.extend([0xC0, 0]);
}

pub(in super::super) fn ping_response(out: &mut Vec<u8>) {
    out.extend([0xD0, 0]);
}

/// Ends the connection; in 3.1.1 only clients say so, and without a reason.
pub(in super::super) fn disconnect(out: &mut Vec<u8>, version: MqttVersion, reason: u8) {
    // 5.0 may leave out the length of no properties, but not every client knows that.
    if version == V5 { control(out, 0xE0, &[reason, 0]) } else { control(out, 0xE0, &[]) }
}

fn control(out: &mut Vec<u8>, first: u8, body: &[u8]) {
    out.push(first);
    varint(out, body.len());
    out.extend_from_slice(body);
}

/// Texts here are topics, filters and client ids: shorter than 64 KiB, since they arrived or were made so.
fn text(out: &mut Vec<u8>, text: &str) {
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend(length.to_be_bytes());
    out.extend_from_slice(&text.as_bytes()[..usize::from(length)]);
}

fn no_properties(out: &mut Vec<u8>, version: MqttVersion) {
    if version == V5 {
        out.push(0);
    }
}

fn varint(out: &mut Vec<u8>, mut value: usize) {
    debug_assert!(value <= 2 * LARGEST_BYTES);
    while value > 0x7F {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

fn varint_bytes(value: usize) -> usize {
    match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        _ => 4,
    }
}
