//! Connections to one server: kept when they are free, opened when none is, as many as are needed.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::chain;

/// The body of a request.
pub(super) type Body = Full<Bytes>;

/// Bytes to and from a server.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// A way to a server: opens a stream each time it is called. TCP, or what a test puts in its place.
#[derive(Clone)]
pub(crate) struct Dial(Arc<DialFn>);

type DialFn = dyn Fn() -> BoxFuture<'static, io::Result<Box<dyn Stream>>> + Send + Sync;

impl Dial {
    /// The way that a function finds.
    pub(crate) fn new(
        dial: impl Fn() -> BoxFuture<'static, io::Result<Box<dyn Stream>>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(dial))
    }

    /// TCP, without waiting to fill a packet.
    pub(crate) fn tcp(host: String, port: u16) -> Self {
        let host: Arc<str> = host.into();
        Self::new(move || {
            let host = Arc::clone(&host);
            async move {
                let stream = TcpStream::connect((&*host, port)).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }
            .boxed()
        })
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dial")
    }
}

/// All connections to one server.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    dial: Dial,
    kept: Arc<Mutex<Vec<(Instant, Connection)>>>,
}

/// A connection is not used again after it was idle for so long: servers close idle ones, many after five
/// seconds, and a request that is written at that moment is lost without anybody's fault.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// One connection. Dropping it closes it, which tells the server that nobody waits.
#[derive(Debug)]
pub(super) struct Connection {
    sender: SendRequest<Body>,
    driver: AbortHandle,
}

/// A request that got no answer.
#[derive(Debug)]
pub(super) struct SendError {
    /// The request, if nothing of it was written: the server has not seen it, and it may be sent again.
    pub unsent: Option<Box<Request<Body>>>,
    /// What happened.
    pub cause: String,
}

impl Connections {
    pub(super) fn new(dial: Dial) -> Self {
        Self {
            dial,
            kept: Arc::default(),
        }
    }

    /// A connection that is open and free.
    pub(super) fn kept(&self) -> Option<Connection> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut latest_first = std::iter::from_fn(|| kept.pop());
        let usable = |(since, connection): &(Instant, Connection)| {
            since.elapsed() < IDLE_MAX && connection.sender.is_ready()
        };
        latest_first.find(usable).map(|(_, connection)| connection)
    }

    /// Keeps a connection whose answer was read to the end, if it can serve again.
    pub(super) async fn keep(&self, mut connection: Connection) {
        if connection.sender.ready().await.is_ok() {
            self.kept
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((Instant::now(), connection));
        }
    }

    /// A new connection.
    pub(super) async fn open(&self) -> Result<Connection, String> {
        let stream = (self.dial.0)()
            .await
            .map_err(|error| format!("cannot connect: {error}"))?;
        let (sender, driver) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| chain(&error))?;
        let driver = tokio::spawn(async move {
            // Its errors also come out where the answer is read.
            let _ = driver.await;
        });
        Ok(Connection {
            sender,
            driver: driver.abort_handle(),
        })
    }
}

impl Connection {
    /// Sends a request and waits for the head of its answer.
    ///
    /// # Errors
    ///
    /// [`SendError`] when there is none, with the request if nothing of it was written.
    pub(super) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, SendError> {
        let sent = self.sender.try_send_request(request).await;
        sent.map_err(|mut error| {
            let unsent = error.take_message().map(Box::new);
            let error = error.into_error();
            let closed = error.is_canceled() || error.is_closed() || error.is_incomplete_message();
            let cause = match closed {
                true => "the server closed the connection without an answer".to_owned(),
                false => chain(&error),
            };
            SendError { unsent, cause }
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
