//! Task `serve`: the servers of some channels.

use std::{collections::HashMap, process::ExitCode};

use ciphertoll_channel::{
    Error, coap, h3, https,
    identity::Identity,
    mqtt,
    names::{self, Pinned},
    tls::Acceptor,
};
use ciphertoll_wire::{Channel, Event, Listener, Listening, Nanos, Outcome, Protocol, ServeJob, TlsVersion};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, UdpSocket},
    runtime::{Builder, LocalOptions},
    task::spawn_local,
};

use crate::{exit_code, output, stop::Stop, usage};

/// Serves until told to stop.
pub fn run(job: &ServeJob) -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        // A server that lost one of its tasks would look like a silent peer; an end is honest.
        let reason = Some(format!("the engine panicked: {info}"));
        finish(Outcome::Panic, reason);
        std::process::exit(4);
    }));
    let (outcome, reason) = match serve(job) {
        Ok(()) => (Outcome::Ok, None),
        Err(Error::Refused(refusal)) => return output::refuse(refusal),
        Err(error) => (error.outcome(), Some(error.to_string())),
    };
    finish(outcome, reason);
    exit_code(outcome)
}

fn finish(outcome: Outcome, reason: Option<String>) {
    let (counts, usage) = (ciphertoll_wire::Counts::default(), usage::read(Nanos(0)));
    output::event(&Event::Finished { outcome, reason, counts, records: 0, usage });
}

fn serve(job: &ServeJob) -> Result<(), Error> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).map_err(machine)?;
    runtime.block_on(async {
        let mut stop = Stop::new().map_err(machine)?;
        let mut identities = HashMap::new();
        let mut listeners = Vec::new();
        for listener in &job.listeners {
            listeners.push(listen(job, listener, &mut identities).await?);
        }
        output::event(&Event::Ready { listeners });
        stop.requested().await;
        Ok(())
    })
}

fn machine(error: std::io::Error) -> Error {
    Error::failed(Outcome::Machine, error)
}

/// Starts one server; certificates of one algorithm are made once.
async fn listen(
    job: &ServeJob,
    listener: &Listener,
    identities: &mut HashMap<&'static str, Identity>,
) -> Result<Listening, Error> {
    let mut secrets = None;
    if let Some(pinned) = names::pin(&listener.channel)? {
        let name = pinned.certificate.name;
        if !identities.contains_key(name) {
            identities.insert(name, Identity::new(pinned.certificate, &job.names)?);
        }
        secrets = Some((pinned, identities[name].copy()));
    }
    let ca_pem = secrets.as_ref().map(|(_, identity)| identity.ca_pem.clone());
    let port = start(&job.bind, listener, secrets).await?;
    Ok(Listening { channel: listener.channel.clone(), port, ca_pem })
}

async fn start(bind: &str, listener: &Listener, secrets: Option<(Pinned, Identity)>) -> Result<u16, Error> {
    let address = (bind, listener.port);
    match &listener.channel {
        Channel::Http { http } | Channel::Https { http, .. } => {
            let (socket, port) = listen_tcp(address).await?;
            spawn_local(https::serve(socket, acceptor(secrets.as_ref(), https::alpn(*http))?, *http));
            Ok(port)
        }
        Channel::Mqtt { .. } | Channel::Mqtts { .. } => {
            let (socket, port) = listen_tcp(address).await?;
            spawn_local(mqtt::serve(socket, acceptor(secrets.as_ref(), mqtt::ALPN)?));
            Ok(port)
        }
        Channel::H3 { .. } => {
            let (socket, port) = listen_udp(address).await?;
            let (pinned, identity) = secrets.ok_or_else(|| Error::failed(Outcome::Unsupported, "h3 is never bare"))?;
            spawn_local(h3::serve(socket.into_std().map_err(machine)?, &pinned, &identity)?);
            Ok(port)
        }
        Channel::Coap { coap } | Channel::Coaps { coap, .. } => {
            let (socket, port) = listen_udp(address).await?;
            spawn_local(coap::Server::new(secrets.as_ref(), *coap)?.run(socket));
            Ok(port)
        }
    }
}

fn acceptor(secrets: Option<&(Pinned, Identity)>, alpn: &[u8]) -> Result<Acceptor, Error> {
    Acceptor::new(secrets.map(|(pinned, identity)| (pinned, identity)), alpn)
}

async fn listen_tcp(address: (&str, u16)) -> Result<(TcpListener, u16), Error> {
    let socket = TcpListener::bind(address).await.map_err(|e| cannot_bind(address, &e))?;
    let port = socket.local_addr().map_err(machine)?.port();
    Ok((socket, port))
}

async fn listen_udp(address: (&str, u16)) -> Result<(UdpSocket, u16), Error> {
    let socket = UdpSocket::bind(address).await.map_err(|e| cannot_bind(address, &e))?;
    let port = socket.local_addr().map_err(machine)?.port();
    Ok((socket, port))
}

fn cannot_bind((host, port): (&str, u16), error: &std::io::Error) -> Error {
    Error::failed(Outcome::Machine, format!("cannot listen on {host} port {port}: {error}"))
}

/// Every combination of names that this build can do.
pub fn channels() -> Value {
    let mut rows = Vec::new();
    for protocol in [Protocol::Http, Protocol::Https, Protocol::H3, Protocol::Mqtt, Protocol::Mqtts, Protocol::Coap] {
        if names::libraries(protocol).is_empty() {
            rows.push(json!({ "protocol": protocol }));
        }
    }
    for protocol in [Protocol::Https, Protocol::H3, Protocol::Mqtts, Protocol::Coaps] {
        for version in [TlsVersion::Tls13, TlsVersion::Dtls13, TlsVersion::Dtls12] {
            rows.extend(names::combinations(protocol, version).map(|pinned| row(protocol, &pinned)));
        }
    }
    json!({ "channels": rows, "features": crate::features() })
}

fn row(protocol: Protocol, pinned: &Pinned) -> Value {
    json!({
        "protocol": protocol,
        "version": pinned.version,
        "suite": pinned.suite.name,
        "group": pinned.group.name,
        "certificate": pinned.certificate.name,
        "library": pinned.library.name(),
    })
}
