//! HTTP/1.1 and HTTP/2, over TLS or not.

use std::{convert::Infallible, future::Future, time::Duration};

use bytes::Bytes;
use ciphertoll_wire::{Channel, HttpVersion, Outcome};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::{Body, Incoming},
    client::conn::{http1, http2},
    header::{CONTENT_TYPE, HOST},
    rt::Executor,
    server::conn as server,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, task::spawn_local};

use crate::{Client, Error, ExchangeError, Lane, Target, Times, clock, tls};

/// Largest body that a server reads: the largest payload of a load.
pub const BODY_LIMIT_BYTES: usize = 1 << 20;
/// Longest time that a server waits for a handshake.
const PATIENCE: Duration = Duration::from_secs(30);
/// Flow-control window: a body of the largest size needs no window update.
const WINDOW_BYTES: u32 = 4 << 20;

/// The name of an HTTP version in ALPN (RFC 7301).
#[must_use]
pub fn alpn(version: HttpVersion) -> &'static [u8] {
    match version {
        HttpVersion::Http1 => b"http/1.1",
        HttpVersion::Http2 => b"h2",
    }
}

/// A client of `http` and `https`.
pub struct HttpClient {
    target: Target,
    uri: Uri,
    /// HTTP/2 shares one connection; HTTP/1.1 opens one for each lane.
    shared: Option<(http2::SendRequest<Full<Bytes>>, u16)>,
}

impl Client for HttpClient {
    type Lane = HttpLane;

    async fn connect(target: Target) -> Result<Self, Error> {
        let uri = match version(&target.channel)? {
            HttpVersion::Http1 => "/echo".to_owned(),
            HttpVersion::Http2 => format!("{}://{}/echo", scheme(&target.channel), target.name),
        };
        let uri = uri.parse().map_err(|e| Error::failed(Outcome::Unreachable, e))?;
        let shared = match version(&target.channel)? {
            HttpVersion::Http1 => None,
            HttpVersion::Http2 => Some(open_http2(&target).await?),
        };
        Ok(Self { target, uri, shared })
    }

    async fn lane(&self) -> Result<HttpLane, Error> {
        let (sender, connection) = match &self.shared {
            Some((sender, _)) if sender.is_closed() => {
                return Err(Error::failed(Outcome::Vanished, "the peer closed the HTTP/2 connection"));
            }
            Some((sender, connection)) => (Sender::Http2(sender.clone()), *connection),
            None => open_http1(&self.target).await?,
        };
        let host = self.target.name.clone();
        Ok(HttpLane { sender, connection, uri: self.uri.clone(), host })
    }
}

fn version(channel: &Channel) -> Result<HttpVersion, Error> {
    match channel {
        Channel::Http { http } | Channel::Https { http, .. } => Ok(*http),
        _ => Err(Error::failed(Outcome::Unsupported, "not an HTTP channel")),
    }
}

fn scheme(channel: &Channel) -> &'static str {
    if channel.security().is_some() { "https" } else { "http" }
}

async fn open_http1(target: &Target) -> Result<(Sender, u16), Error> {
    let (stream, id) = tls::connect(target, alpn(HttpVersion::Http1)).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| handshake_failed(&e))?;
    spawn_local(connection);
    Ok((Sender::Http1(sender), id))
}

async fn open_http2(target: &Target) -> Result<(http2::SendRequest<Full<Bytes>>, u16), Error> {
    let (stream, id) = tls::connect(target, alpn(HttpVersion::Http2)).await?;
    let (sender, connection) = http2::Builder::new(LocalExecutor)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|e| handshake_failed(&e))?;
    spawn_local(connection);
    Ok((sender, id))
}

fn handshake_failed(error: &hyper::Error) -> Error {
    Error::failed(Outcome::Garbage, format!("HTTP connection failed: {error}"))
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// One request at a time.
pub struct HttpLane {
    sender: Sender,
    connection: u16,
    uri: Uri,
    host: String,
}

impl Lane for HttpLane {
    fn connection(&self) -> u16 {
        self.connection
    }

    async fn exchange(&mut self, payload: &[u8], times: &mut Times) -> Result<(), ExchangeError> {
        let request = self.request(Bytes::copy_from_slice(payload))?;
        times.sent_ns = clock::now();
        let response = match &mut self.sender {
            Sender::Http1(sender) => sender.send_request(request).await,
            Sender::Http2(sender) => sender.send_request(request).await,
        };
        let response = response.map_err(|e| sort(&e))?;
        if response.status() != StatusCode::OK {
            return Err(ExchangeError::Refused);
        }
        let same = read_echo(response.into_body(), payload).await?;
        times.done_ns = clock::now();
        if same { Ok(()) } else { Err(ExchangeError::Corrupt) }
    }
}

impl HttpLane {
    fn request(&self, body: Bytes) -> Result<Request<Full<Bytes>>, ExchangeError> {
        let mut request = Request::post(self.uri.clone()).header(CONTENT_TYPE, "application/octet-stream");
        if matches!(self.sender, Sender::Http1(_)) {
            request = request.header(HOST, self.host.as_str());
        }
        request.body(Full::new(body)).map_err(|_| ExchangeError::Refused)
    }
}

/// Reads a body to its end and says whether it equals `payload`.
async fn read_echo(mut body: Incoming, payload: &[u8]) -> Result<bool, ExchangeError> {
    let mut rest = payload;
    let mut same = true;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| sort(&e))?;
        let Some(data) = frame.data_ref() else { continue };
        match rest.split_at_checked(data.len()) {
            Some((expected, after)) => {
                same &= expected == data;
                rest = after;
            }
            None => return Ok(false),
        }
    }
    Ok(same && rest.is_empty())
}

fn sort(error: &hyper::Error) -> ExchangeError {
    if error.is_parse() { ExchangeError::Corrupt } else { ExchangeError::Closed }
}

/// Runs what hyper wants to run on this thread.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F: Future<Output = ()> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        spawn_local(future);
    }
}

/// Echoes what is posted to `/echo`, until dropped.
pub async fn serve(listener: TcpListener, acceptor: tls::Acceptor, version: HttpVersion) {
    loop {
        // An error here is of one connection that was lost while it waited, or of too many open files.
        let Ok((tcp, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let acceptor = acceptor.clone();
        spawn_local(async move {
            if let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, acceptor.accept(tcp)).await {
                serve_connection(stream, version).await;
            }
        });
    }
}

async fn serve_connection(stream: tls::ServerStream, version: HttpVersion) {
    let io = TokioIo::new(stream);
    // How a client leaves is its own affair, and shows in the client's records.
    let _ = match version {
        HttpVersion::Http1 => {
            let mut builder = server::http1::Builder::new();
            // A client at a low rate is silent for long between two requests.
            builder.timer(TokioTimer::new()).header_read_timeout(None);
            builder.serve_connection(io, service_fn(answer)).await
        }
        HttpVersion::Http2 => {
            let mut builder = server::http2::Builder::new(LocalExecutor);
            builder.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
            builder.max_concurrent_streams(10_000);
            builder.serve_connection(io, service_fn(answer)).await
        }
    };
}

async fn answer<B>(request: Request<B>) -> Result<Response<Full<Bytes>>, Infallible>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if request.uri().path() != "/echo" {
        return Ok(status(StatusCode::NOT_FOUND));
    }
    if request.method() != Method::POST {
        return Ok(status(StatusCode::METHOD_NOT_ALLOWED));
    }
    match Limited::new(request.into_body(), BODY_LIMIT_BYTES).collect().await {
        Ok(body) => Ok(Response::new(Full::new(body.to_bytes()))),
        Err(_) => Ok(status(StatusCode::PAYLOAD_TOO_LARGE)),
    }
}

fn status(code: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = code;
    response
}
