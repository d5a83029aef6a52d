//! The tool's own floor: what pacing costs and how late it is when nothing is sent.

use std::process::ExitCode;

use ciphertoll_channel::clock;
use ciphertoll_wire::Nanos;
use serde_json::json;
use tokio::runtime::{Builder, LocalOptions};

use crate::{
    output,
    pacer::{Paced, Waiter},
};

/// Paces `seconds` at `rate_hz` without any traffic and prints lag and processor time.
pub fn run(rate_hz: &str, seconds: &str) -> ExitCode {
    let (Ok(rate_hz), Ok(seconds)) = (rate_hz.parse::<f64>(), seconds.parse::<u64>()) else {
        eprintln!("error: `floor RATE SECONDS` takes two numbers");
        return ExitCode::from(2);
    };
    if !(0.1..=10_000.0).contains(&rate_hz) || !(1..=600).contains(&seconds) {
        eprintln!("error: out of range\n  accepted: rate 0.1 to 10000, seconds 1 to 600");
        return ExitCode::from(2);
    }
    match pace(rate_hz, Nanos(seconds * 1_000_000_000)) {
        Ok((cpu, lags)) => output::line(&report(rate_hz, cpu, &lags)),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(3)
        }
    }
}

fn pace(rate_hz: f64, span: Nanos) -> std::io::Result<(Nanos, Vec<u64>)> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    // In a task, as the load does it.
    let paced = runtime.spawn_local(async move {
        let waiter = Waiter::new()?;
        let paced = Paced::new(clock::now() + Nanos(2_000_000), rate_hz);
        let mut lags = Vec::with_capacity(paced.count(span));
        let cpu = clock::thread_cpu();
        for index in 0..paced.count(span) {
            let due = paced.due(index);
            waiter.until(due).await?;
            lags.push(clock::now().since(due).0);
        }
        Ok((clock::thread_cpu().since(cpu), lags))
    });
    runtime.block_on(paced)?
}

fn report(rate_hz: f64, cpu: Nanos, lags: &[u64]) -> serde_json::Value {
    let mut lags = lags.to_vec();
    lags.sort_unstable();
    let n = lags.len();
    json!({
        "rate_hz": rate_hz,
        "n": n,
        "cpu_ns_per_exchange": cpu.0 / n.max(1) as u64,
        "lag_p50_ns": lags[n / 2],
        "lag_p99_ns": lags[n * 99 / 100],
    })
}
