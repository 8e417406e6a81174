//! One connection: what it may cost its server in time, from its first byte to its last.
//!
//! A client that sends nothing, sends its headers a byte at a time, or does not take in its answer
//! holds a connection and its buffers, and nothing else would ever end it. (How long a *body* may take
//! is the business of who reads it, because that can still be answered.)

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::rt::{Sleep, Timer};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_io_timeout::TimeoutStream;
use tokio_util::io::InspectReader;
use tower::Service;
use tracing::debug;

use crate::settings::ConnectionSettings;

/// Bytes of headers at most, and of an answer that lie between this program and the socket.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// Waiting for what has no limit.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Serves the requests of one connection until either side closes it, which `hung_up` may know first, a
/// limit ends it, or the server shuts down, which lets the request that runs finish.
pub(crate) async fn serve<S, A>(
    socket: S,
    hung_up: impl Future<Output = ()>,
    app: A,
    settings: ConnectionSettings,
    server: Watcher,
) where
    S: AsyncRead + AsyncWrite + Send + 'static,
    A: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    A::Future: Send,
{
    let mut socket = TimeoutStream::new(socket);
    socket.set_write_timeout(settings.write_timeout);
    let heads = Arc::new(Heads::default());
    let seen = Arc::clone(&heads);
    let socket = InspectReader::new(Box::pin(socket), move |_: &[u8]| seen.byte());
    let timer = HeadTimer {
        heads,
        header: settings.header_timeout.unwrap_or(FOR_EVER),
        idle: settings.keep_alive_timeout.unwrap_or(FOR_EVER),
    };
    let connection = http1::Builder::new()
        .timer(timer)
        // How long is the timer's business.
        .header_read_timeout(FOR_EVER)
        .max_buf_size(BUFFER_BYTES_MAX)
        // Events are small: to copy one into its frame costs less than a list of three buffers.
        .writev(false)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(app));
    tokio::select! {
        biased;
        ended = server.watch(connection) => {
            if let Err(error) = ended {
                debug!(%error, "a connection ended early");
            }
        }
        () = hung_up => debug!("a client has hung up"),
    }
}

/// What is known of the request that a connection waits for.
#[derive(Debug, Default)]
struct Heads {
    /// Whether there has been one before.
    any: AtomicBool,
    /// Whether a byte has come since the connection has been waiting for the next.
    begun: AtomicBool,
}

impl Heads {
    fn byte(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// The connection waits for a request. A new one owes it at once.
    fn wait(&self) {
        let fresh = !self.any.swap(true, Ordering::Relaxed);
        self.begun.store(fresh, Ordering::Relaxed);
    }
}

/// hyper has one time limit from the end of an answer to the end of the next request's headers, and
/// asks this timer for it. This one ends early: at the limit for idle connections while no byte has
/// come, and at the limit for headers after the first one.
#[derive(Clone, Debug)]
struct HeadTimer {
    heads: Arc<Heads>,
    header: Duration,
    idle: Duration,
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        TokioTimer::new().sleep(duration)
    }

    fn sleep_until(&self, _: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        self.heads.wait();
        Box::pin(HeadSleep {
            sleep: Box::pin(tokio::time::sleep(self.idle)),
            heads: Arc::clone(&self.heads),
            header: Some(self.header),
        })
    }
}

/// The wait for the headers of one request.
struct HeadSleep {
    sleep: Pin<Box<tokio::time::Sleep>>,
    heads: Arc<Heads>,
    /// How long they may take from their first byte on; gone once it has come.
    header: Option<Duration>,
}

impl Sleep for HeadSleep {}

impl Future for HeadSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // hyper asks after every read that has not completed the headers.
        if self.heads.begun.load(Ordering::Relaxed)
            && let Some(header) = self.header.take()
        {
            self.sleep.as_mut().reset(Instant::now() + header);
        }
        self.sleep.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use hyper_util::server::graceful::GracefulShutdown;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    fn settings() -> ConnectionSettings {
        ConnectionSettings {
            header_timeout: Some(Duration::from_secs(10)),
            keep_alive_timeout: Some(Duration::from_secs(75)),
            write_timeout: Some(Duration::from_secs(30)),
            ..ConnectionSettings::default()
        }
    }

    /// The client's end of a connection whose answers are of so many bytes.
    fn connect(settings: ConnectionSettings, answer_bytes: usize) -> (DuplexStream, Served) {
        let answer = move || async move { "x".repeat(answer_bytes) };
        let app = Router::new().route("/", get(answer));
        let (client, server) = duplex(4 << 10);
        let graceful = GracefulShutdown::new();
        let served = tokio::spawn(serve(
            server,
            std::future::pending(),
            app,
            settings,
            graceful.watcher(),
        ));
        (
            client,
            Served {
                served,
                _graceful: graceful,
            },
        )
    }

    struct Served {
        served: tokio::task::JoinHandle<()>,
        _graceful: GracefulShutdown,
    }

    impl Served {
        /// How long the server has held the connection from now on, in whole seconds.
        async fn ended_after(self) -> u64 {
            let started = Instant::now();
            self.served.await.unwrap();
            started.elapsed().as_secs()
        }
    }

    async fn answer(client: &mut DuplexStream) {
        client.write_all(REQUEST).await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"xxx") {
            let read = client.read_buf(&mut seen).await.unwrap();
            assert_ne!(read, 0, "{}", String::from_utf8_lossy(&seen));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_nothing_or_trickles_its_headers_is_closed() {
        let (_client, served) = connect(settings(), 3);
        assert_eq!(served.ended_after().await, 10);

        let (mut client, served) = connect(settings(), 3);
        tokio::spawn(async move {
            for byte in REQUEST {
                if client.write_all(&[*byte]).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
        });
        assert_eq!(served.ended_after().await, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_kept_for_a_while_and_a_slow_second_request_is_not() {
        let (mut client, served) = connect(settings(), 3);
        for _ in 0..3 {
            answer(&mut client).await;
            tokio::time::sleep(Duration::from_secs(70)).await;
        }
        answer(&mut client).await;
        assert_eq!(served.ended_after().await, 75);

        let (mut client, served) = connect(settings(), 3);
        answer(&mut client).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        client.write_all(b"GET /").await.unwrap();
        assert_eq!(served.ended_after().await, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_in_nothing_of_its_answer_is_closed() {
        let (mut client, served) = connect(settings(), 1 << 20);
        client.write_all(REQUEST).await.unwrap();
        assert_eq!(served.ended_after().await, 30);

        // Slowly is another matter.
        let (mut client, served) = connect(settings(), 64 << 10);
        client.write_all(REQUEST).await.unwrap();
        let reader = tokio::spawn(async move {
            let mut taken = 0;
            while taken < 64 << 10 {
                tokio::time::sleep(Duration::from_secs(20)).await;
                taken += client.read(&mut [0; 4 << 10]).await.unwrap();
            }
        });
        reader.await.unwrap();
        served.ended_after().await;
    }

    #[tokio::test(start_paused = true)]
    async fn each_limit_can_be_turned_off() {
        let unlimited = ConnectionSettings {
            header_timeout: None,
            keep_alive_timeout: None,
            write_timeout: None,
            ..settings()
        };
        let day = Duration::from_secs(86_400);
        let (mut client, _served) = connect(unlimited, 3);
        tokio::time::sleep(day).await;
        answer(&mut client).await;
        tokio::time::sleep(day).await;
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        tokio::time::sleep(day).await;
        client.write_all(b"\r\n").await.unwrap();
        let mut seen = [0; 12];
        client.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"HTTP/1.1 200");
    }

    #[tokio::test(start_paused = true)]
    async fn headers_without_an_end_are_not_kept() {
        let (mut client, served) = connect(settings(), 3);
        let line = b"x-filler: 0123456789012345678901234567890123456789\r\n";
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let mut sent = 0;
        while client.write_all(line).await.is_ok() {
            sent += line.len();
            assert!(sent < 2 * BUFFER_BYTES_MAX, "it reads on");
        }
        assert_eq!(served.ended_after().await, 0);
    }
}
