//! HTTP/3 (RFC 9114) over [`quic`]: a client whose lanes share one connection, and an echo server.

use std::{
    cell::Cell,
    net::{Ipv6Addr, UdpSocket},
    rc::Rc,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ciphertoll_wire::Outcome;
use h3::{
    client::SendRequest,
    error::{Code, StreamError},
    server::RequestResolver,
};
use h3_quinn::OpenStreams;
use http::{Method, Request, Response, StatusCode, Uri};
use tokio::task::JoinSet;

use crate::{Client, Error, ExchangeError, Lane, Target, Times, clock, identity::Identity, names::Pinned, quic};

const ALPN: &[u8] = b"h3";
/// The largest payload of a load.
const LARGEST_BODY_BYTES: usize = 1 << 20;

/// One connection, and a stream of its own for each exchange.
pub struct H3Client(Rc<Shared>);

struct Shared {
    requests: SendRequest<OpenStreams, Bytes>,
    connection: quinn::Connection,
    /// The connection takes no more requests, although QUIC may not have ended it.
    lost: Cell<bool>,
    id: u16,
    uri: Uri,
    /// Reads the control streams, among others, as long as there is a client or a lane.
    _upkeep: JoinSet<()>,
}

impl Client for H3Client {
    type Lane = H3Lane;

    async fn connect(target: Target) -> Result<Self, Error> {
        let uri = uri(&target.name)?;
        let quic::Established { connection, opened_ns, negotiated, mut upkeep } = quic::connect(&target, ALPN).await?;
        let built = h3::client::builder().send_grease(false).build(h3_quinn::Connection::new(connection.clone())).await;
        let (mut control, requests) =
            built.map_err(|e| Error::failed(Outcome::Garbage, format!("HTTP/3 cannot begin: {e}")))?;
        upkeep.spawn_local(async move {
            control.wait_idle().await;
        });
        let id = target.log.ready(opened_ns, Some(negotiated));
        Ok(Self(Rc::new(Shared { requests, connection, lost: Cell::new(false), id, uri, _upkeep: upkeep })))
    }

    async fn lane(&self) -> Result<H3Lane, Error> {
        if self.0.lost.get() {
            return Err(Error::failed(Outcome::Vanished, "the server takes no more requests on this connection"));
        }
        if let Some(reason) = self.0.connection.close_reason() {
            return Err(Error::failed(Outcome::Vanished, format!("the connection was lost: {reason}")));
        }
        Ok(H3Lane { requests: self.0.requests.clone(), shared: Rc::clone(&self.0) })
    }
}

fn uri(name: &str) -> Result<Uri, Error> {
    let authority = if name.parse::<Ipv6Addr>().is_ok() { format!("[{name}]") } else { name.to_owned() };
    let uri = Uri::builder().scheme("https").authority(authority).path_and_query("/echo").build();
    uri.map_err(|e| Error::failed(Outcome::Untrusted, format!("`{name}` cannot be part of a URI: {e}")))
}

/// A place for one request at a time.
pub struct H3Lane {
    requests: SendRequest<OpenStreams, Bytes>,
    shared: Rc<Shared>,
}

impl Lane for H3Lane {
    fn connection(&self) -> u16 {
        self.shared.id
    }

    async fn exchange(&mut self, payload: &[u8], times: &mut Times) -> Result<(), ExchangeError> {
        match self.round_trip(payload, times).await {
            Ok(verdict) => verdict,
            Err(StreamError::ConnectionError { .. } | StreamError::RemoteClosing { .. }) => {
                self.shared.lost.set(true);
                Err(ExchangeError::Closed)
            }
            Err(_) if self.shared.connection.close_reason().is_some() => Err(ExchangeError::Closed),
            Err(_) => Err(ExchangeError::Refused),
        }
    }
}

impl H3Lane {
    /// The outer error is one of HTTP/3, the inner one of the answer.
    async fn round_trip(
        &mut self,
        payload: &[u8],
        times: &mut Times,
    ) -> Result<Result<(), ExchangeError>, StreamError> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.shared.uri.clone();
        let body = Bytes::copy_from_slice(payload);
        times.sent_ns = clock::now();
        let mut stream = self.requests.send_request(request).await?;
        stream.send_data(body).await?;
        stream.finish().await?;
        if stream.recv_response().await?.status() != StatusCode::OK {
            return Ok(Err(ExchangeError::Refused));
        }
        let mut rest = payload;
        let mut arrived_ns = clock::now();
        while let Some(mut data) = stream.recv_data().await? {
            arrived_ns = clock::now();
            let Some(left) = strip(rest, &mut data) else { return Ok(Err(ExchangeError::Corrupt)) };
            rest = left;
        }
        if !rest.is_empty() {
            return Ok(Err(ExchangeError::Corrupt));
        }
        times.done_ns = arrived_ns;
        Ok(Ok(()))
    }
}

/// What `rest` goes on with behind `data`, if it begins with it.
fn strip<'a>(mut rest: &'a [u8], data: &mut impl Buf) -> Option<&'a [u8]> {
    while data.has_remaining() {
        rest = rest.strip_prefix(data.chunk())?;
        data.advance(data.chunk().len());
    }
    Some(rest)
}

/// Makes a server that answers each POST with its body and anything else with 405. It runs as long as the
/// future is polled; it must be made inside a Tokio runtime.
///
/// # Errors
/// The library cannot do what `pinned` says, or the machine refuses the socket.
pub fn serve(
    socket: UdpSocket,
    pinned: &Pinned,
    identity: &Identity,
) -> Result<impl Future<Output = ()> + use<>, Error> {
    let endpoint = Closing(quic::listen(socket, pinned, identity, ALPN)?);
    Ok(accept(endpoint))
}

/// Tells the peers when the server goes away.
struct Closing(quinn::Endpoint);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close(quinn::VarInt::from_u32(0), b"");
    }
}

async fn accept(endpoint: Closing) {
    let mut connections = JoinSet::new();
    while let Some(incoming) = endpoint.0.accept().await {
        connections.spawn_local(answer_all(incoming));
        while connections.try_join_next().is_some() {}
    }
}

async fn answer_all(incoming: quinn::Incoming) {
    let Ok(connection) = incoming.await else { return };
    let connection = h3_quinn::Connection::new(connection);
    let Ok(mut connection) = h3::server::builder().send_grease(false).build(connection).await else { return };
    let mut answers = JoinSet::new();
    while let Ok(Some(request)) = connection.accept().await {
        // An error here is the client's, which sees it too.
        answers.spawn_local(async { answer(request).await.is_ok() });
        while answers.try_join_next().is_some() {}
    }
    while answers.join_next().await.is_some() {}
}

async fn answer(request: RequestResolver<h3_quinn::Connection, Bytes>) -> Result<(), StreamError> {
    let (request, mut stream) = request.resolve_request().await?;
    let mut body = BytesMut::new();
    let mut status = if request.method() == Method::POST { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED };
    while status == StatusCode::OK {
        let Some(data) = stream.recv_data().await? else { break };
        body.put(data);
        if body.len() > LARGEST_BODY_BYTES {
            status = StatusCode::PAYLOAD_TOO_LARGE;
        }
    }
    let mut response = Response::new(());
    *response.status_mut() = status;
    stream.send_response(response).await?;
    if status == StatusCode::OK {
        stream.send_data(body.freeze()).await?;
    } else {
        // The rest of the body is not wanted (RFC 9114, 4.1).
        stream.stop_sending(Code::H3_NO_ERROR);
    }
    stream.finish().await
}
