//! The codec against itself, against arbitrary bytes, and against the codec of an independent library.

use bytes::{Bytes, BytesMut};
use ciphertoll_wire::MqttVersion::{self, V5, V311};
use proptest::prelude::*;
use rumqttc::{mqttbytes as v311, v5::mqttbytes as v5};

use super::*;

const VERSIONS: [MqttVersion; 2] = [V311, V5];

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

fn read(version: MqttVersion, bytes: &[u8]) -> Result<Packet<'_>, Fault> {
    let frame = frame(bytes)?.unwrap();
    assert_eq!(frame.length, bytes.len());
    parse(version, frame)
}

fn message<'a>(topic: &'a str, qos: u8, payload: &'a [u8]) -> Publish<'a> {
    Publish { topic, qos, retain: false, id: 7 * u16::from(qos), properties: Properties::default(), payload }
}

/// What the independent library reads in 3.1.1.
fn read_v311(bytes: &[u8]) -> v311::v4::Packet {
    v311::v4::Packet::read(&mut BytesMut::from(bytes), LARGEST_BYTES).unwrap()
}

/// What the independent library reads in 5.0.
fn read_v5(bytes: &[u8]) -> v5::v5::Packet {
    v5::v5::Packet::read(&mut BytesMut::from(bytes), None).unwrap()
}

#[test]
fn an_independent_library_reads_the_publish_that_is_written() {
    for size in [0, 1, 120, 2048, 1 << 20] {
        let payload = vec![0xA5; size];
        let publish = message("ciphertoll/ct0/3", 1, &payload);
        for version in VERSIONS {
            let bytes = written(|out| write_publish(out, version, &publish));
            assert_eq!(bytes.len(), publish_bytes(version, &publish));
            let (topic, id, body) = match version {
                V311 => match read_v311(&bytes) {
                    v311::v4::Packet::Publish(p) => (p.topic.into_bytes().into(), p.pkid, p.payload),
                    other => panic!("{other:?}"),
                },
                V5 => match read_v5(&bytes) {
                    v5::v5::Packet::Publish(p) => (p.topic, p.pkid, p.payload),
                    other => panic!("{other:?}"),
                },
            };
            assert_eq!((topic, id, body), (Bytes::from("ciphertoll/ct0/3"), 7, Bytes::from(payload.clone())));
        }
    }
}

#[test]
fn an_independent_library_reads_the_connect_that_is_written() {
    let connect = |version| written(|out| write_connect(out, version, "ct12", 60));
    let v311::v4::Packet::Connect(read) = read_v311(&connect(V311)) else { panic!() };
    assert_eq!((read.client_id.as_str(), read.keep_alive, read.clean_session), ("ct12", 60, true));
    let v5::v5::Packet::Connect(read, ..) = read_v5(&connect(V5)) else { panic!() };
    assert_eq!((read.client_id.as_str(), read.keep_alive, read.clean_start), ("ct12", 60, true));
}

#[test]
fn an_independent_library_reads_the_acknowledgements_that_are_written() {
    let sub_ack = written(|out| write_sub_ack(out, V5, 9, &[1, 0x8F]));
    let v5::v5::Packet::SubAck(read) = read_v5(&sub_ack) else { panic!() };
    assert_eq!((read.pkid, read.return_codes.len()), (9, 2));
    let pub_ack = written(|out| write_pub_ack(out, 9));
    assert!(matches!(read_v311(&pub_ack), v311::v4::Packet::PubAck(ack) if ack.pkid == 9));
    assert!(matches!(read_v5(&pub_ack), v5::v5::Packet::PubAck(ack) if ack.pkid == 9));
    let subscribe = written(|out| {
        write_subscribe(out, V5, 3, &Filter { topics: "a/+", qos: 1, no_local: true });
    });
    let v5::v5::Packet::Subscribe(read) = read_v5(&subscribe) else { panic!() };
    assert!(read.filters[0].path == "a/+" && read.filters[0].nolocal);
    let farewell = written(|out| disconnect(out, V5, reason::NO_SUCH_QOS));
    let v5::v5::Packet::Disconnect(read) = read_v5(&farewell) else { panic!() };
    assert_eq!(read.reason_code, v5::v5::DisconnectReasonCode::QoSNotSupported);
}

#[test]
fn the_packets_of_an_independent_library_are_understood() {
    let mut bytes = BytesMut::new();
    let mut publish = v5::v5::Publish::new("a/b", v5::QoS::AtLeastOnce, "payload", None);
    publish.pkid = 5;
    publish.properties =
        Some(v5::v5::PublishProperties { user_properties: vec![("k".into(), "v".into())], ..Default::default() });
    publish.write(&mut bytes).unwrap();
    let Packet::Publish(read_back) = read(V5, &bytes).unwrap() else { panic!() };
    assert_eq!((read_back.topic, read_back.id, read_back.payload), ("a/b", 5, &b"payload"[..]));
    assert_eq!(read_back.properties.raw.len(), 7);

    let mut bytes = BytesMut::new();
    let mut connect = v311::v4::Connect::new("name");
    connect.last_will = Some(v311::v4::LastWill::new("will", "words", v311::QoS::AtLeastOnce, false));
    connect.set_login("user", "password");
    connect.write(&mut bytes).unwrap();
    let Packet::Connect(read_back) = read(V311, &bytes).unwrap() else { panic!() };
    assert_eq!((read_back.client_id, read_back.version), ("name", V311));
}

#[test]
fn a_packet_is_not_looked_at_before_it_is_complete() {
    let bytes = written(|out| write_publish(out, V311, &message("t", 0, &[1; 200])));
    assert!((0..bytes.len()).all(|length| frame(&bytes[..length]) == Ok(None)));
    assert_eq!(frame(&bytes).unwrap().unwrap().length, bytes.len());
}

#[test]
fn a_packet_that_is_too_long_is_refused_from_its_first_bytes() {
    assert_eq!(frame(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F]), Err(Fault(reason::TOO_LARGE)));
    assert_eq!(frame(&[0x30, 0xFF, 0xFF, 0xFF, 0xFF]), Err(Fault(reason::MALFORMED)));
}

#[test]
fn what_the_standard_forbids_is_malformed() {
    for (version, bytes) in [
        (V311, &[0x36, 5, 0, 1, b't', 0, 1][..]), // quality of service 3
        (V311, &[0x32, 5, 0, 1, b't', 0, 0]),     // identifier 0
        (V311, &[0x30, 3, 0, 1, 0xFF]),           // a topic that is not UTF-8
        (V311, &[0x80, 6, 0, 1, 0, 1, b't', 0]),  // SUBSCRIBE without its flags
        (V311, &[0x82, 6, 0, 1, 0, 1, b't', 4]),  // an option of 5.0
        (V311, &[0x40, 3, 0, 1, 0]),              // something behind the end
        (V311, &[0x00, 0]),                       // packet type 0
        (V5, &[0x30, 5, 0, 1, b't', 1, 0x7F]),    // an unknown property
        (V5, &[0x30, 5, 0, 1, b't', 9, 1]),       // properties longer than the packet
    ] {
        assert_eq!(read(version, bytes), Err(Fault(reason::MALFORMED)), "{bytes:02x?}");
    }
}

#[test]
fn the_limits_of_a_broker_are_read_from_its_acknowledgement() {
    let properties = [0x21, 0, 20, 0x24, 1, 0x27, 0, 0, 1, 0, 0x13, 0, 30];
    let bytes = written(|out| write_conn_ack(out, V5, 0, &properties));
    let Packet::ConnAck { code: 0, properties } = read(V5, &bytes).unwrap() else { panic!() };
    assert_eq!((properties.receive_maximum, properties.maximum_qos), (Some(20), Some(1)));
    assert_eq!((properties.largest_bytes, properties.server_keep_alive_s), (Some(256), Some(30)));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, v5: bool) {
        let version = if v5 { V5 } else { V311 };
        let mut rest = &bytes[..];
        while let Ok(Some(frame)) = frame(rest) {
            let _ = parse(version, frame);
            rest = &rest[frame.length..];
        }
    }

    #[test]
    fn arbitrary_bodies_of_every_packet_never_panic(first: u8, body in prop::collection::vec(any::<u8>(), 0..200), v5: bool) {
        let version = if v5 { V5 } else { V311 };
        let _ = parse(version, Frame { first, body: &body, length: body.len() + 2 });
    }

    #[test]
    fn a_publish_comes_back_as_it_was_written(
        topic in "[a-z/]{1,40}",
        qos in 0..2u8,
        payload in prop::collection::vec(any::<u8>(), 0..600),
        v5: bool,
    ) {
        let version = if v5 { V5 } else { V311 };
        let publish = message(&topic, qos, &payload);
        let bytes = written(|out| write_publish(out, version, &publish));
        prop_assert_eq!(read(version, &bytes), Ok(Packet::Publish(publish)));
    }
}
