//! Standard output: one JSON line per event.

use std::{io::Write, process::ExitCode};

use ciphertoll_channel::Refusal;
use ciphertoll_wire::Event;

/// Prints an event. A reader that has gone away is no reason to lose a measurement, so errors are ignored.
pub fn event(event: &Event) {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&line).and_then(|()| out.flush());
}

/// Prints one JSON line.
pub fn line(value: &serde_json::Value) -> ExitCode {
    text(&format!("{value}\n"))
}

/// Prints text.
pub fn text(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(3),
    }
}

/// Says why a job is refused.
pub fn refuse(refusal: Refusal) -> ExitCode {
    let Refusal { what, at, accepted, hint, .. } = refusal;
    event(&Event::Refused { what, at, accepted, hint });
    ExitCode::from(2)
}
