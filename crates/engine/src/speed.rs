//! How fast this machine seals with each suite: what `doctor` shows of the processor's cryptography.

use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use serde_json::{Value, json};

/// The payload of the heavier published load.
const SIZE_BYTES: u32 = 2048;
const TIME: Duration = Duration::from_millis(100);

/// Bytes sealed per second, one core, AWS-LC.
pub fn speeds() -> Value {
    let suites: [(&str, &'static Algorithm); 3] = [
        ("TLS_AES_128_GCM_SHA256", &AES_128_GCM),
        ("TLS_AES_256_GCM_SHA384", &AES_256_GCM),
        ("TLS_CHACHA20_POLY1305_SHA256", &CHACHA20_POLY1305),
    ];
    let rows: Vec<Value> =
        suites.iter().filter_map(|(name, algorithm)| Some(row(name, seal_rate(algorithm)?))).collect();
    json!({ "speeds": rows })
}

fn row(suite: &str, bytes_per_second: f64) -> Value {
    json!({ "suite": suite, "library": "aws-lc", "size_bytes": SIZE_BYTES, "bytes_per_second": bytes_per_second.round() })
}

fn seal_rate(algorithm: &'static Algorithm) -> Option<f64> {
    let key = LessSafeKey::new(UnboundKey::new(algorithm, &vec![7; algorithm.key_len()]).ok()?);
    let mut buffer = vec![0u8; SIZE_BYTES as usize];
    let start = Instant::now();
    let mut sealed = 0u32;
    while start.elapsed() < TIME {
        for _ in 0..64 {
            // A nonce is used again here: nothing sealed with this key is ever sent.
            let nonce = Nonce::assume_unique_for_key([0; 12]);
            let _tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut buffer).ok()?;
            sealed += 1;
        }
    }
    Some(f64::from(sealed) * f64::from(SIZE_BYTES) / start.elapsed().as_secs_f64())
}
