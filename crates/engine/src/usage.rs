//! What the engine itself takes: processor time per thread and peak memory, from /proc.

use std::fs;

use ciphertoll_wire::{Nanos, ThreadCpu, Usage};

/// Reads the usage of this process so far. `measured` is the part of the main thread within the measured time.
pub fn read(measured: Nanos) -> Usage {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mut threads: Vec<ThreadCpu> = tasks.filter_map(|task| thread(&task.path())).collect();
    if let Some(main) = threads.iter_mut().find(|t| t.thread == "ciphertoll-engi") {
        main.thread = "main".into();
        main.measured_ns = measured;
    }
    Usage { threads, peak_rss_bytes: peak_rss().unwrap_or(0) }
}

fn thread(task: &std::path::Path) -> Option<ThreadCpu> {
    // The first field of schedstat is the time on a processor, in nanoseconds (proc(5)).
    let total = fs::read_to_string(task.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()?;
    let name = fs::read_to_string(task.join("comm")).ok()?.trim().to_owned();
    Some(ThreadCpu { thread: name, total_ns: Nanos(total), measured_ns: Nanos(0) })
}

fn peak_rss() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}
