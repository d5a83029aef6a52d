//! The raw samples: taken into memory that is there beforehand, written when the load is over.

use std::{
    fs::File,
    io::{BufWriter, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use ciphertoll_channel::{Error, Times};
use ciphertoll_wire::{
    Counts, ExchangeOutcome, Nanos, Outcome, RECORD_BYTES, Record, SAMPLES_HEADER_BYTES, samples_header,
};
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};

/// What the progress thread may look at while the load runs.
#[derive(Default)]
pub struct Live {
    due: AtomicU64,
    held: AtomicU64,
    outcomes: [AtomicU64; 6],
}

impl Live {
    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let of = |outcome: ExchangeOutcome| self.outcomes[outcome as usize].load(Relaxed);
        let due = self.due.load(Relaxed);
        let ended: u64 = self.outcomes.iter().map(|n| n.load(Relaxed)).sum();
        Counts {
            due,
            done: of(ExchangeOutcome::Done),
            timed_out: of(ExchangeOutcome::TimedOut),
            closed: of(ExchangeOutcome::Closed),
            refused: of(ExchangeOutcome::Refused),
            corrupt: of(ExchangeOutcome::Corrupt),
            unfinished: due.saturating_sub(ended),
            held: self.held.load(Relaxed),
        }
    }
}

/// Takes the record of each exchange of one load.
pub struct Recorder {
    records: Vec<Record>,
    file: File,
    live: Arc<Live>,
}

impl Recorder {
    /// Makes room for `planned` records in memory and on the disk, before anything is measured.
    ///
    /// # Errors
    /// The file cannot be made, or the disk is too full for it.
    pub fn new(path: &str, planned: usize) -> Result<Self, Error> {
        let file = File::create(path).map_err(|e| disk_error(path, &e))?;
        let bytes = (SAMPLES_HEADER_BYTES + planned * RECORD_BYTES) as u64;
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            // Not every file system can reserve space, and a device file never can.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::SPIPE) => {}
            Err(error) => return Err(disk_error(path, &error.into())),
        }
        // Written once now, so that no page fault falls into the measured time.
        let mut records = vec![Record { due_ns: Nanos(1), ..Record::default() }; planned];
        records.clear();
        Ok(Self { records, file, live: Arc::new(Live::default()) })
    }

    /// The counts, for another thread.
    pub fn live(&self) -> Arc<Live> {
        self.live.clone()
    }

    /// Notes that the next exchange fell due and returns its index.
    pub fn due(&mut self, due_ns: Nanos) -> usize {
        self.live.due.fetch_add(1, Relaxed);
        self.records.push(Record { due_ns, ..Record::default() });
        self.records.len() - 1
    }

    /// Notes that an exchange has to wait for another.
    pub fn hold(&mut self, index: usize) {
        self.live.held.fetch_add(1, Relaxed);
        self.records[index].held = true;
    }

    /// When an exchange was due.
    pub fn due_of(&self, index: usize) -> Nanos {
        self.records[index].due_ns
    }

    /// Notes how an exchange ended.
    pub fn end(&mut self, index: usize, outcome: ExchangeOutcome, times: Times, connection: u16) {
        let record = &mut self.records[index];
        record.sent_ns = times.sent_ns;
        record.acked_ns = times.acked_ns;
        record.done_ns = times.done_ns;
        record.outcome = outcome;
        record.connection = connection;
        self.live.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Writes all records and says how many are on the disk.
    pub fn write(&mut self) -> (u64, Result<(), Error>) {
        match self.write_all() {
            Ok(()) => (self.records.len() as u64, Ok(())),
            Err(error) => {
                let bytes = self.file.metadata().map_or(0, |m| m.len());
                let whole = bytes.saturating_sub(SAMPLES_HEADER_BYTES as u64) / RECORD_BYTES as u64;
                (whole.min(self.records.len() as u64), Err(disk_error("the samples file", &error)))
            }
        }
    }

    fn write_all(&mut self) -> std::io::Result<()> {
        let mut out = BufWriter::with_capacity(64 << 10, &self.file);
        out.write_all(&samples_header())?;
        for record in &self.records {
            out.write_all(&record.to_bytes())?;
        }
        out.flush()?;
        drop(out);
        self.file.set_len((SAMPLES_HEADER_BYTES + self.records.len() * RECORD_BYTES) as u64)
    }
}

fn disk_error(path: &str, error: &std::io::Error) -> Error {
    let full = matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
    let outcome = if full { Outcome::DiskFull } else { Outcome::Machine };
    Error::failed(outcome, format!("cannot write {path}: {error}"))
}
