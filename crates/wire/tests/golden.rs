//! The lines that the tests of both languages read.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use ciphertoll_wire::{Event, ExchangeOutcome, Job, Nanos, RECORD_BYTES, Record, SAMPLES_HEADER_BYTES, samples_header};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

fn lines(name: &str) -> Vec<String> {
    let path = format!("{}/../../schema/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    let lines: Vec<String> = fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
    assert!(lines.len() > 5, "{name} has a line of each kind");
    lines
}

fn check<T: Serialize + DeserializeOwned>(name: &str) {
    for line in lines(name) {
        let read: T = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let original: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), original, "nothing is lost or added");
        refuses_another_field::<T>(&original, &original, &mut Vec::new());
    }
}

/// Adds an unknown field to every object of the line in turn.
fn refuses_another_field<T: DeserializeOwned>(whole: &Value, here: &Value, path: &mut Vec<String>) {
    if let Value::Object(fields) = here {
        let mut changed = whole.clone();
        let mut inner = &mut changed;
        for step in path.iter() {
            inner = &mut inner[step.as_str()];
        }
        inner["surprise"] = Value::from(1);
        assert!(serde_json::from_value::<T>(changed.clone()).is_err(), "{changed}");
        for (name, value) in fields {
            path.push(name.clone());
            refuses_another_field::<T>(whole, value, path);
            path.pop();
        }
    }
}

#[test]
fn golden_jobs_are_read_and_written_alike_and_nothing_unknown_is_accepted() {
    check::<Job>("jobs.jsonl");
}

#[test]
fn golden_events_are_read_and_written_alike_and_nothing_unknown_is_accepted() {
    check::<Event>("events.jsonl");
}

#[test]
fn a_record_has_the_documented_bytes() {
    let record = Record {
        due_ns: Nanos(1),
        sent_ns: Nanos(0x0203),
        acked_ns: Nanos(0),
        done_ns: Nanos(u64::MAX),
        outcome: ExchangeOutcome::Corrupt,
        held: true,
        connection: 0x0102,
    };
    let bytes = record.to_bytes();
    assert_eq!(bytes[..17], [1, 0, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[24..], [255, 255, 255, 255, 255, 255, 255, 255, 5, 1, 2, 1, 0, 0, 0, 0]);
    let header = samples_header();
    assert_eq!((&header[..8], header[8], usize::from(header[12])), (b"ctsample".as_slice(), 1, RECORD_BYTES));
    assert_eq!(header.len(), SAMPLES_HEADER_BYTES);
}
