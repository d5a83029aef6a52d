//! `ciphertoll-engine`: serves and loads the secure channels that ciphertoll measures.
//!
//! One job line in, event lines out (crate `ciphertoll-wire`). This is the only crate that touches the world.

mod floor;
mod load;
mod output;
mod pacer;
mod record;
mod serve;
mod speed;
mod stop;
mod usage;

use std::{fs, io::BufRead, process::ExitCode};

use ciphertoll_channel::Refusal;
use ciphertoll_wire::{Event, Job, Outcome, Task, VERSION};
use rustix::process::Signal;

const HELP: &str = "\
ciphertoll-engine: serves and loads the secure channels that ciphertoll measures

usage: ciphertoll-engine COMMAND [--job FILE]

commands:
  serve     be the servers of a serve job, until SIGTERM or SIGINT
  load      be the client of a load job
  channels  print what this build can do, as one JSON line
  speed     print how fast this machine seals with each suite, as one JSON line
  floor RATE SECONDS
            pace without any traffic and print the tool's own lag and processor time, as one JSON line

A job is one JSON line, read from FILE or from standard input. What happens is printed as one JSON line per
event. `ciphertoll` writes the jobs and reads the events; see schema/golden/ for an example of each.

exit codes: 0 done, 2 the job is wrong, 3 the machine or the peer is not fit, 4 a bug
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve" | "load"] => run(words[0], None),
        ["serve" | "load", "--job", file] => run(words[0], Some(file)),
        ["channels"] => output::line(&serve::channels()),
        ["speed"] => output::line(&speed::speeds()),
        ["floor", rate, seconds] => floor::run(rate, seconds),
        ["--version"] => output::text(&version()),
        ["--help" | "-h" | "help"] => output::text(HELP),
        _ => {
            eprint!("error: no such command\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn version() -> String {
    let licence = if cfg!(feature = "wolfssl") {
        "licence of this build: GPL-3.0-or-later, because it contains wolfSSL (the sources of ciphertoll: Apache-2.0)"
    } else {
        "licence of this build: Apache-2.0"
    };
    format!("ciphertoll-engine {}\nwire {VERSION}\n{licence}\n", env!("CARGO_PKG_VERSION"))
}

fn run(command: &str, file: Option<&str>) -> ExitCode {
    output::event(&Event::Hello {
        version: VERSION,
        engine: env!("CARGO_PKG_VERSION").into(),
        features: features(),
        pid: std::process::id(),
    });
    let job = match read_job(file).and_then(|line| parse(command, &line)) {
        Ok(job) => job,
        Err(refusal) => return output::refuse(refusal),
    };
    if let Err(refusal) = settle(&job) {
        return output::refuse(refusal);
    }
    match job.task {
        Task::Serve(serve) => serve::run(&serve),
        Task::Load(load) => load::run(&load),
    }
}

fn features() -> Vec<String> {
    if cfg!(feature = "wolfssl") { vec!["wolfssl".into()] } else { Vec::new() }
}

fn read_job(file: Option<&str>) -> Result<String, Refusal> {
    let unreadable = |e: std::io::Error| Refusal { what: format!("cannot read the job: {e}"), ..at(file) };
    if let Some(path) = file {
        return fs::read_to_string(path).map_err(unreadable);
    }
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(unreadable)?;
    Ok(line)
}

fn at(file: Option<&str>) -> Refusal {
    Refusal { at: file.unwrap_or("standard input").into(), ..Refusal::default() }
}

fn parse(command: &str, line: &str) -> Result<Job, Refusal> {
    let job: Job = serde_json::from_str(line).map_err(|e| Refusal {
        what: format!("the job is not understood: {e}"),
        at: "job".into(),
        hint: Some("schema/golden/jobs.jsonl has an example of each kind".into()),
        ..Refusal::default()
    })?;
    let fits = matches!((command, &job.task), ("serve", Task::Serve(_)) | ("load", Task::Load(_)));
    if job.version == VERSION && fits {
        return Ok(job);
    }
    Err(Refusal {
        what: format!("this is no `{command}` job of version {VERSION}"),
        at: "version, task".into(),
        accepted: vec![format!("version {VERSION}, task {command}")],
        hint: Some("use the `ciphertoll` and `ciphertoll-engine` of one release".into()),
        ..Refusal::default()
    })
}

/// Settles this process where the job wants it.
fn settle(job: &Job) -> Result<(), Refusal> {
    if job.die_with_parent {
        // Refused only by a kernel that does not know it; then a killed parent leaves the end to its own clean-up.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    }
    if job.pin_cpus.is_empty() {
        return Ok(());
    }
    let mut set = rustix::thread::CpuSet::new();
    for cpu in job.pin_cpus.iter().filter(|cpu| **cpu < rustix::thread::CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| Refusal {
        what: format!("cannot run on processors {:?}: {e}", job.pin_cpus),
        at: "pin_cpus".into(),
        accepted: vec!["processors that this machine has and this process may use".into()],
        ..Refusal::default()
    })
}

/// The exit code that an outcome stands for.
fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Ok | Outcome::Interrupted => ExitCode::SUCCESS,
        Outcome::Panic => ExitCode::from(4),
        _ => ExitCode::from(3),
    }
}
