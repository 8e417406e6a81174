//! An axum service behind the layer, over sockets, with clients that hang up at every stage.

#![expect(
    clippy::disallowed_methods,
    reason = "sockets and their clients are in real time"
)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::get;
use serve_sched::Dispatcher;
use serve_sched::adapter::{Ask, AsyncDispatcher};
use serve_sched::admit::QueueCap;
use serve_sched::limit::Fixed;
use serve_sched::order::Fifo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::assert_all_ended;

/// A head at once, then a frame every so often.
async fn stream() -> Body {
    let frames = futures::stream::unfold(0, async |frame| {
        sleep(Duration::from_millis(3)).await;
        (frame < 10).then_some((Ok::<_, Infallible>("frame"), frame + 1))
    });
    Body::from_stream(frames)
}

async fn slow() -> &'static str {
    sleep(Duration::from_millis(20)).await;
    "slow"
}

async fn serve(front: &AsyncDispatcher) -> SocketAddr {
    let app = Router::new()
        .route("/stream", get(stream))
        .route("/slow", get(slow))
        .layer(front.layer(|_: &Request| Ask::new(1, 1)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Sends a request, reads up to `bytes` of the answer, and hangs up.
async fn ask(address: SocketAddr, path: &str, bytes: usize) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    let mut answer = socket.take(bytes as u64);
    answer.read_to_end(&mut read).await.unwrap();
    read
}

#[tokio::test]
async fn clients_that_hang_up_leave_nothing_behind() {
    let admit = vec![Box::new(QueueCap::new(60)) as _];
    let slots = Box::new(Fixed::new(4));
    let front = AsyncDispatcher::spawn(Dispatcher::new(admit, Box::new(Fifo), slots));
    let address = serve(&front).await;
    let mut clients = JoinSet::new();
    for n in 0..200_usize {
        let path = ["/stream", "/slow"][n % 2];
        // Nothing, part of the head, part of the body, or all.
        let bytes = [0, 20, 150, usize::MAX][n / 2 % 4];
        clients.spawn(async move { ask(address, path, bytes).await.len() });
    }
    let read: Vec<usize> = clients.join_all().await;
    assert!(read.contains(&0) && read.iter().any(|bytes| *bytes > 150));

    // Those that are gone are noticed; a drain waits for the last.
    front.drain();
    let drained = tokio::time::timeout(Duration::from_secs(60), front.drained());
    assert!(drained.await.is_ok(), "{front:?}");
    let stats = front.stats();
    assert_all_ended(stats);
    let counters = stats.counters;
    assert!(
        counters.finished > 0 && counters.cancelled > 0,
        "{counters:?}"
    );

    let refused = ask(address, "/slow", usize::MAX).await;
    let refused = String::from_utf8(refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(
        refused.ends_with("refused for now: the server is shutting down"),
        "{refused}"
    );
}
