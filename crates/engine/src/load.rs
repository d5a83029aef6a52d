//! Task `load`: the client of one channel, sending a load.
//!
//! `drive` runs on one thread: it hands each exchange at its due time to a free lane, or to a new one, and
//! never waits for an answer. A lane that fails is not used again.

mod drive;

use std::{
    cell::RefCell,
    net::{SocketAddr, ToSocketAddrs},
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    rc::Rc,
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use ciphertoll_channel::{
    Client, ConnectionLog, Error, Lane, Refusal, Target, Times, clock, coap::CoapClient, h3::H3Client,
    https::HttpClient, mqtt::MqttClient, names,
};
use ciphertoll_wire::{Channel, Event, Load, LoadJob, Nanos, Outcome, Peer};
use drive::{Drive, Plan};
use tokio::runtime::{Builder, LocalOptions};

use crate::{exit_code, output, pacer::Paced, record::Recorder, stop::Stop, usage};

const RATE_HZ: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;
const SIZE_BYTES: std::ops::RangeInclusive<usize> = 1..=1 << 20;
/// From the end of the connection set-up to the first exchange.
const HEAD_START: Nanos = Nanos(2_000_000);

static PANICKED: AtomicBool = AtomicBool::new(false);

/// Sends the load and says how it went.
pub fn run(job: &LoadJob) -> ExitCode {
    if let Err(refusal) = check(job) {
        return output::refuse(refusal);
    }
    let recorder = match Recorder::new(&job.samples, planned(&job.load)) {
        Ok(recorder) => Rc::new(RefCell::new(recorder)),
        Err(error) => return finish_early(&error),
    };
    std::panic::set_hook(Box::new(|info| {
        PANICKED.store(true, Relaxed);
        eprintln!("{info}");
    }));
    let log = ConnectionLog::default();
    let result = catch_unwind(AssertUnwindSafe(|| runtime(job, &log, &recorder)));
    let (ended, measured) = match result {
        Ok(Ok(measured)) => (Ok(()), measured),
        Ok(Err(error)) => (Err(error), Nanos(0)),
        Err(_) => (Err(Error::failed(Outcome::Panic, "the engine panicked; see standard error")), Nanos(0)),
    };
    for connection in log.snapshot() {
        output::event(&Event::Connected(connection));
    }
    finish(ended, &mut recorder.borrow_mut(), measured)
}

fn finish_early(error: &Error) -> ExitCode {
    let (outcome, reason) = (error.outcome(), Some(error.to_string()));
    let (counts, usage) = (ciphertoll_wire::Counts::default(), usage::read(Nanos(0)));
    output::event(&Event::Finished { outcome, reason, counts, records: 0, usage });
    exit_code(outcome)
}

fn finish(ended: Result<(), Error>, recorder: &mut Recorder, measured: Nanos) -> ExitCode {
    let usage = usage::read(measured);
    let (records, written) = recorder.write();
    let panicked = if PANICKED.load(Relaxed) {
        Err(Error::failed(Outcome::Panic, "the engine panicked; see standard error"))
    } else {
        Ok(())
    };
    let (outcome, reason) = match written.and(panicked).and(ended) {
        Ok(()) => (Outcome::Ok, None),
        Err(Error::Refused(refusal)) => return output::refuse(refusal),
        Err(error) => (error.outcome(), Some(error.to_string())),
    };
    let counts = recorder.live().counts();
    output::event(&Event::Finished { outcome, reason, counts, records, usage });
    exit_code(outcome)
}

fn check(job: &LoadJob) -> Result<(), Refusal> {
    names::pin(&job.channel)?;
    if let Load::Paced { rate_hz, size_bytes, in_flight, duration_ns, .. } = job.load {
        in_range("load.rate_hz", &rate_hz, &RATE_HZ)?;
        in_range("load.size_bytes", &size_bytes, &SIZE_BYTES)?;
        in_range("load.in_flight", &in_flight, &(1..=1 << 20))?;
        in_range("load.duration_ns", &duration_ns.0, &(1..=u64::MAX / 4))?;
    }
    Ok(())
}

fn in_range<T: PartialOrd + std::fmt::Display>(
    at: &str,
    value: &T,
    range: &std::ops::RangeInclusive<T>,
) -> Result<(), Refusal> {
    if range.contains(value) {
        return Ok(());
    }
    Err(Refusal {
        what: format!("{at} `{value}` is out of range"),
        at: at.into(),
        accepted: vec![format!("{} to {}", range.start(), range.end())],
        ..Refusal::default()
    })
}

fn planned(load: &Load) -> usize {
    match load {
        Load::Paced { rate_hz, warm_up_ns, duration_ns, .. } => {
            Paced::new(Nanos(0), *rate_hz).count(*warm_up_ns + *duration_ns)
        }
        Load::Idle { .. } => 0,
    }
}

fn runtime(job: &LoadJob, log: &ConnectionLog, recorder: &Rc<RefCell<Recorder>>) -> Result<Nanos, Error> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).map_err(machine)?;
    let target = Target {
        channel: job.channel.clone(),
        address: resolve(&job.peer)?,
        name: job.peer.name.clone(),
        ca_pem: job.peer.ca_pem.clone(),
        log: log.clone(),
    };
    runtime.block_on(async {
        match job.channel {
            Channel::Http { .. } | Channel::Https { .. } => {
                connect_and_drive::<HttpClient>(job, target, recorder).await
            }
            Channel::H3 { .. } => connect_and_drive::<H3Client>(job, target, recorder).await,
            Channel::Mqtt { .. } | Channel::Mqtts { .. } => {
                connect_and_drive::<MqttClient>(job, target, recorder).await
            }
            Channel::Coap { .. } | Channel::Coaps { .. } => {
                connect_and_drive::<CoapClient>(job, target, recorder).await
            }
        }
    })
}

fn machine(error: std::io::Error) -> Error {
    Error::failed(Outcome::Machine, error)
}

fn resolve(peer: &Peer) -> Result<SocketAddr, Error> {
    let unreachable =
        |e: &dyn std::fmt::Display| Error::failed(Outcome::Unreachable, format!("cannot resolve `{}`: {e}", peer.host));
    let mut addresses = (peer.host.as_str(), peer.port).to_socket_addrs().map_err(|e| unreachable(&e))?;
    addresses.next().ok_or_else(|| unreachable(&"it has no address"))
}

async fn connect_and_drive<C: Client>(
    job: &LoadJob,
    target: Target,
    recorder: &Rc<RefCell<Recorder>>,
) -> Result<Nanos, Error> {
    let mut stop = Stop::new().map_err(machine)?;
    let payload = payload(&job.load);
    let opened = open::<C>(job, target, &payload);
    let (client, lane) = tokio::select! {
        opened = tokio::time::timeout(job.connect_timeout_ns.duration(), opened) => opened.map_err(|_| {
            Error::failed(Outcome::TimedOut, format!("no connection within {:?}", job.connect_timeout_ns.duration()))
        })??,
        () = stop.requested() => return Err(Error::failed(Outcome::Interrupted, "ended by a signal while connecting")),
    };
    let plan = Plan::new(&job.load, clock::now() + HEAD_START);
    output::event(&Event::Started {
        from_ns: plan.from,
        measure_from_ns: plan.measure_from,
        measure_to_ns: plan.measure_to,
    });
    let (over, until_over) = channel::<()>();
    let live = recorder.borrow().live();
    let progress = thread::Builder::new().name("progress".into()).spawn(move || {
        while until_over.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
            output::event(&Event::Progress { at_ns: clock::now(), counts: live.counts() });
        }
    });
    let result = Drive::new(job, client, payload, recorder.clone()).run(&plan, lane, &mut stop).await;
    drop(over);
    // The thread's own time is part of the usage, and it ends at once.
    drop(progress.map(thread::JoinHandle::join));
    result
}

/// Connects, and proves by one exchange that the peer is an echo server of this protocol.
async fn open<C: Client>(job: &LoadJob, target: Target, payload: &[u8]) -> Result<(C, C::Lane), Error> {
    let client = C::connect(target).await?;
    let mut lane = client.lane().await?;
    if matches!(job.load, Load::Paced { .. }) {
        let echoed = lane.exchange(payload, &mut Times::default()).await;
        echoed.map_err(|e| {
            let port = job.peer.port;
            Error::failed(Outcome::Garbage, format!("{} port {port} does not echo: {e:?}", job.peer.host))
        })?;
    }
    Ok((client, lane))
}

/// Bytes that do not compress and never change.
fn payload(load: &Load) -> Vec<u8> {
    let size = match load {
        Load::Paced { size_bytes, .. } => *size_bytes,
        Load::Idle { .. } => 1,
    };
    // SplitMix64 (Steele, Lea and Flood 2014).
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)).to_le_bytes()[0]
    };
    (0..size).map(|_| next()).collect()
}
