//! The engine as a process: jobs in, events out, real sockets on loopback.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use ciphertoll_wire::{
    Channel, Coap, Event, HttpVersion, Job, Listener, Listening, Load, LoadJob, Mqtt, MqttVersion, Nanos, Outcome,
    Peer, RECORD_BYTES, SAMPLES_HEADER_BYTES, Security, ServeJob, Task, TlsVersion, VERSION,
};

const MS: u64 = 1_000_000;

struct Engine {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Engine {
    fn start(command: &str, task: Task) -> Self {
        let job = Job { version: VERSION, pin_cpus: vec![], die_with_parent: true, task };
        Self::start_line(command, &serde_json::to_string(&job).unwrap())
    }

    fn start_line(command: &str, line: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ciphertoll-engine"))
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        writeln!(child.stdin.take().unwrap(), "{line}").unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn event(&mut self) -> Option<Event> {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        if line.is_empty() { None } else { Some(serde_json::from_str(&line).unwrap()) }
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.event()).collect()
    }

    fn until_started(&mut self) {
        while !matches!(self.event().expect("the load starts"), Event::Started { .. }) {}
    }

    fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    fn code(&mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn security(version: TlsVersion, suite: &str, library: &str) -> Security {
    Security {
        version,
        suite: suite.into(),
        group: "X25519".into(),
        certificate: "ECDSA-P256".into(),
        library: library.into(),
    }
}

fn tls(suite: &str) -> Security {
    security(TlsVersion::Tls13, suite, "rustls")
}

fn https(suite: &str) -> Channel {
    Channel::Https { http: HttpVersion::Http1, security: tls(suite) }
}

const SUITES: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// Every protocol, the secured ones with every suite; DTLS by the library that every build has.
fn all_channels() -> Vec<Channel> {
    let mqtt = Mqtt { version: MqttVersion::V311, qos: 1 };
    let coap = Coap { confirmable: true, nstart: 0, datagram_bytes: 1400 };
    let mut channels = vec![
        Channel::Http { http: HttpVersion::Http1 },
        Channel::Http { http: HttpVersion::Http2 },
        Channel::Mqtt { mqtt },
        Channel::Coap { coap },
    ];
    for suite in SUITES {
        channels.push(https(suite));
        channels.push(Channel::Https { http: HttpVersion::Http2, security: tls(suite) });
        channels.push(Channel::H3 { security: tls(suite) });
        channels.push(Channel::Mqtts { mqtt, security: tls(suite) });
        channels.push(Channel::Coaps { coap, security: security(TlsVersion::Dtls13, suite, "dimpl") });
        if cfg!(feature = "wolfssl") {
            channels.push(Channel::Coaps { coap, security: security(TlsVersion::Dtls13, suite, "wolfssl") });
        }
    }
    channels
}

fn serve(channels: Vec<Channel>) -> (Engine, Vec<Listening>) {
    let listeners = channels.into_iter().map(|channel| Listener { channel, port: 0 }).collect();
    let task = ServeJob { bind: "127.0.0.1".into(), names: vec!["localhost".into()], listeners };
    let mut engine = Engine::start("serve", Task::Serve(task));
    assert!(matches!(engine.event(), Some(Event::Hello { version: VERSION, .. })));
    match engine.event() {
        Some(Event::Ready { listeners }) => (engine, listeners),
        other => panic!("the server is not ready but says {other:?}"),
    }
}

fn samples(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(&folder).unwrap();
    folder.join(format!("{name}-{}.bin", std::process::id()))
}

fn load(peer: &Listening, name: &str) -> LoadJob {
    LoadJob {
        channel: peer.channel.clone(),
        peer: Peer { host: "127.0.0.1".into(), port: peer.port, name: "localhost".into(), ca_pem: peer.ca_pem.clone() },
        load: Load::Paced {
            rate_hz: 200.0,
            size_bytes: 2048,
            warm_up_ns: Nanos(50 * MS),
            duration_ns: Nanos(200 * MS),
            in_flight: 64,
        },
        samples: samples(name).to_str().unwrap().into(),
        connect_timeout_ns: Nanos(3_000 * MS),
        exchange_timeout_ns: Nanos(1_000 * MS),
    }
}

fn run(job: LoadJob) -> (Vec<Event>, i32) {
    let mut engine = Engine::start("load", Task::Load(Box::new(job)));
    let events = engine.events();
    (events, engine.code())
}

/// The outcome, the counts and the number of records of a finished load.
fn finished(events: &[Event]) -> (Outcome, ciphertoll_wire::Counts, u64) {
    match events.last() {
        Some(Event::Finished { outcome, counts, records, .. }) => (*outcome, *counts, *records),
        other => panic!("the load did not finish: {other:?}"),
    }
}

fn outcome(job: LoadJob) -> Outcome {
    finished(&run(job).0).0
}

/// A peer that does `answer` with each connection.
fn peer(channel: Channel, ca_pem: Option<String>, answer: impl Fn(TcpStream) + Send + 'static) -> Listening {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
    Listening { channel, port, ca_pem }
}

fn some_ca() -> Option<String> {
    let (_engine, listening) = serve(vec![https(SUITES[0])]);
    listening[0].ca_pem.clone()
}

#[test]
fn every_channel_carries_the_load_and_proves_what_it_negotiated() {
    let (_server, listeners) = serve(all_channels());
    for (index, listening) in listeners.iter().enumerate() {
        let job = load(listening, &format!("every-{index}"));
        let path = job.samples.clone();
        let (events, code) = run(job);
        let (outcome, counts, records) = finished(&events);
        let what = format!("{:?}: {:?}", listening.channel, events.last());
        assert_eq!((outcome, code, counts.due, counts.done, records), (Outcome::Ok, 0, 50, 50, 50), "{what}");
        let connection = events.iter().find_map(|e| match e {
            Event::Connected(connection) => Some(connection),
            _ => None,
        });
        let negotiated = connection.expect("a connection is reported").negotiated.as_ref();
        let asked = listening.channel.security();
        assert_eq!(negotiated.map(|n| &n.suite), asked.map(|s| &s.suite), "{what}");
        assert_eq!(negotiated.map(|n| n.version), asked.map(|s| s.version), "{what}");
        assert_eq!(negotiated.map(|n| &n.group), asked.map(|s| &s.group), "{what}");
        assert_eq!(negotiated.map(|n| &n.certificate), asked.map(|s| &s.certificate), "{what}");
        assert_eq!(fs::read(&path).unwrap().len(), SAMPLES_HEADER_BYTES + 50 * RECORD_BYTES);
        check_times(
            &fs::read(&path).unwrap(),
            matches!(listening.channel.protocol(), ciphertoll_wire::Protocol::Mqtt | ciphertoll_wire::Protocol::Mqtts),
        );
    }
}

fn check_times(file: &[u8], acknowledged: bool) {
    for record in file[SAMPLES_HEADER_BYTES..].chunks_exact(RECORD_BYTES) {
        let time = |n: usize| u64::from_le_bytes(record[n * 8..n * 8 + 8].try_into().unwrap());
        let (due, sent, acked, done) = (time(0), time(1), time(2), time(3));
        assert!(due <= sent && sent <= done, "{due} {sent} {done}");
        assert_eq!(acked > 0, acknowledged);
        assert_eq!(record[32], 1);
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let listeners = vec![Listener { channel: Channel::Http { http: HttpVersion::Http1 }, port }];
    let task = ServeJob { bind: "127.0.0.1".into(), names: vec!["localhost".into()], listeners };
    let mut engine = Engine::start("serve", Task::Serve(task));
    let events = engine.events();
    match events.last() {
        Some(Event::Finished { outcome: Outcome::Machine, reason: Some(reason), .. }) => {
            assert!(reason.contains(&port.to_string()), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.code(), 3);
}

#[test]
fn a_server_that_vanishes_leaves_what_was_measured() {
    for (index, channel) in [https(SUITES[0]), Channel::H3 { security: tls(SUITES[0]) }].into_iter().enumerate() {
        let (mut server, listeners) = serve(vec![channel]);
        let mut job = load(&listeners[0], &format!("vanish-{index}"));
        job.load = Load::Paced {
            rate_hz: 100.0,
            size_bytes: 100,
            warm_up_ns: Nanos(0),
            duration_ns: Nanos(20_000 * MS),
            in_flight: 64,
        };
        let path = job.samples.clone();
        let mut engine = Engine::start("load", Task::Load(Box::new(job)));
        engine.until_started();
        while !matches!(engine.event(), Some(Event::Progress { .. })) {}
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        let events = engine.events();
        let (outcome, counts, records) = finished(&events);
        // QUIC learns of a dead peer by ICMP or by silence; then every later exchange times out.
        assert!(outcome == Outcome::Vanished || counts.timed_out > 0, "{:?}", events.last());
        assert!(counts.done >= 50 && records == counts.due, "{counts:?} {records}");
        assert_eq!(fs::metadata(path).unwrap().len(), (SAMPLES_HEADER_BYTES as u64) + records * RECORD_BYTES as u64);
    }
}

#[test]
fn a_peer_that_accepts_and_stays_silent_is_a_timeout() {
    let held = std::sync::Mutex::new(Vec::new());
    let silent = peer(https(SUITES[0]), some_ca(), move |stream| held.lock().unwrap().push(stream));
    let mut job = load(&silent, "silent");
    job.connect_timeout_ns = Nanos(300 * MS);
    assert_eq!(outcome(job), Outcome::TimedOut);
}

#[test]
fn a_peer_that_answers_garbage_is_named() {
    let answer = |mut stream: TcpStream| {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\nand more that is neither HTTP nor TLS nor MQTT\r\n");
        let _ = stream.read(&mut [0; 1024]);
    };
    let mqtt = Mqtt { version: MqttVersion::V5, qos: 0 };
    for channel in [https(SUITES[0]), Channel::Http { http: HttpVersion::Http1 }, Channel::Mqtt { mqtt }] {
        let ca = if channel.security().is_some() { some_ca() } else { None };
        let what = format!("{channel:?}");
        assert_eq!(outcome(load(&peer(channel, ca, answer), "garbage")), Outcome::Garbage, "{what}");
    }
}

#[test]
fn plain_http_where_tls_is_expected_is_named() {
    let (_server, listeners) = serve(vec![Channel::Http { http: HttpVersion::Http1 }]);
    let wrong = Listening { channel: https(SUITES[0]), port: listeners[0].port, ca_pem: some_ca() };
    assert_eq!(outcome(load(&wrong, "plain")), Outcome::Garbage);
}

#[test]
fn a_certificate_of_another_authority_is_not_trusted() {
    let (_server, listeners) = serve(vec![https(SUITES[0])]);
    let wrong = Listening { ca_pem: some_ca(), ..listeners[0].clone() };
    assert_eq!(outcome(load(&wrong, "other-ca")), Outcome::Untrusted);
}

#[test]
fn a_certificate_for_another_name_is_not_trusted() {
    let (_server, listeners) = serve(vec![https(SUITES[0])]);
    let mut job = load(&listeners[0], "other-name");
    job.peer.name = "example.org".into();
    assert_eq!(outcome(job), Outcome::Untrusted);
}

#[test]
fn a_server_with_another_suite_is_a_mismatch_not_a_result() {
    let (_server, listeners) = serve(vec![https(SUITES[0])]);
    let wrong = Listening { channel: https(SUITES[2]), ..listeners[0].clone() };
    assert_eq!(outcome(load(&wrong, "other-suite")), Outcome::Mismatch);
}

#[test]
fn nobody_listening_is_unreachable() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let nobody = Listening { channel: Channel::Http { http: HttpVersion::Http1 }, port: free, ca_pem: None };
    let (events, code) = run(load(&nobody, "nobody"));
    assert_eq!((finished(&events).0, code), (Outcome::Unreachable, 3));
}

#[test]
fn a_signal_ends_the_load_with_everything_saved() {
    let (_server, listeners) = serve(vec![https(SUITES[0])]);
    let mut job = load(&listeners[0], "signal");
    job.load = Load::Paced {
        rate_hz: 100.0,
        size_bytes: 100,
        warm_up_ns: Nanos(0),
        duration_ns: Nanos(60_000 * MS),
        in_flight: 8,
    };
    let mut engine = Engine::start("load", Task::Load(Box::new(job)));
    engine.until_started();
    while !matches!(engine.event(), Some(Event::Progress { .. })) {}
    engine.terminate();
    let (outcome, counts, records) = finished(&engine.events());
    assert_eq!((outcome, records), (Outcome::Interrupted, counts.due));
    assert!(counts.done >= 50);
}

#[test]
fn a_full_disk_is_named_and_says_how_much_was_saved() {
    let (_server, listeners) = serve(vec![Channel::Http { http: HttpVersion::Http1 }]);
    let mut job = load(&listeners[0], "full");
    job.samples = "/dev/full".into();
    let (events, code) = run(job);
    let (outcome, counts, records) = finished(&events);
    assert_eq!((outcome, counts.done, records, code), (Outcome::DiskFull, 50, 0, 3));
}

#[test]
fn exchanges_beyond_in_flight_wait_and_are_marked() {
    let answer = |mut stream: TcpStream| {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            std::thread::sleep(Duration::from_millis(20));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n");
            let _ = stream.write_all(&buffer[length - 1..length]);
        }
    };
    let slow = peer(Channel::Http { http: HttpVersion::Http1 }, None, answer);
    let mut job = load(&slow, "held");
    job.load =
        Load::Paced { rate_hz: 200.0, size_bytes: 1, warm_up_ns: Nanos(0), duration_ns: Nanos(200 * MS), in_flight: 1 };
    let (events, _) = run(job);
    let (_, counts, _) = finished(&events);
    assert!(counts.held >= 30, "{events:?}");
}

#[test]
fn a_job_with_an_unknown_field_or_value_is_refused() {
    let (_server, listeners) = serve(vec![https(SUITES[0])]);
    let job = Job {
        version: VERSION,
        pin_cpus: vec![],
        die_with_parent: true,
        task: Task::Load(Box::new(load(&listeners[0], "refused"))),
    };
    let line = serde_json::to_string(&job).unwrap();
    for (from, to) in [
        ("\"pin_cpus\"", "\"pin_gpus\""),
        ("\"version\":1", "\"version\":2"),
        ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_CCM_SHA256"),
        ("X25519", "X448"),
        ("ECDSA-P256", "ECDSA-P521"),
        ("\"rate_hz\":200.0", "\"rate_hz\":-1.0"),
        ("\"rate_hz\":200.0", "\"rate_hz\":20000.0"),
        ("\"size_bytes\":2048", "\"size_bytes\":0"),
        ("\"in_flight\":64", "\"in_flight\":0"),
        ("\"library\":\"rustls\"", "\"library\":\"dimpl\""),
        ("\"pin_cpus\":[]", "\"pin_cpus\":[4000]"),
        (&line, "not json"),
    ] {
        assert!(line.contains(from), "{from}");
        let mut engine = Engine::start_line("load", &line.replacen(from, to, 1));
        assert!(matches!(engine.events().last(), Some(Event::Refused { .. })), "{from} -> {to}");
        assert_eq!(engine.code(), 2, "{from} -> {to}");
    }
}

#[test]
fn the_licence_of_the_build_is_stated() {
    let out = Command::new(env!("CARGO_BIN_EXE_ciphertoll-engine")).arg("--version").output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(text.contains("GPL-3.0"), cfg!(feature = "wolfssl"), "{text}");
}
