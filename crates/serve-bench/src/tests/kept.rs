//! Connections that are kept for the next request, and servers that close them: every request that a server has
//! seen has a row, and none has a row for what the server never saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::sleep;

use crate::store::record::Outcome;
use crate::tests::dial::rows_over;
use crate::tests::server::{end, text};
use crate::transport::drive::testing::balance;
use crate::transport::http::connection::{Dial, Stream};

/// What a server does with the second request of a connection; it answers the first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Second {
    /// It reads it, works, and closes.
    Works,
    /// It reads a part of it, and closes.
    ReadsAPart,
    /// It begins to answer, and closes.
    Begins,
    /// It has closed before, right after its first answer.
    ClosedBefore,
    /// It has closed before, after being idle for as long as many servers wait.
    ClosedIdle,
}

/// A way to such a server, and how many requests it has seen.
fn dial(second: Second) -> (Dial, Arc<AtomicUsize>) {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let dial = Dial::new(move || {
        // Less than a request, so that it can be read in part.
        let (client, server) = duplex(64);
        tokio::spawn(serve(server, second, Arc::clone(&counted)));
        async move { Ok(Box::new(client) as Box<dyn Stream>) }.boxed()
    });
    (dial, seen)
}

async fn serve(mut stream: DuplexStream, second: Second, seen: Arc<AtomicUsize>) {
    if !read(&mut stream, usize::MAX).await {
        return; // it asks which models there are
    }
    seen.fetch_add(1, Ordering::Relaxed);
    let body = text(0, "a").1 + &end(1).1;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let part = match second {
        Second::ClosedBefore => return,
        Second::ClosedIdle => return sleep(Duration::from_secs(5)).await,
        Second::ReadsAPart => 20,
        Second::Works | Second::Begins => usize::MAX,
    };
    if !read(&mut stream, part).await {
        return;
    }
    seen.fetch_add(1, Ordering::Relaxed);
    if second == Second::Begins {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Le").await;
    }
    sleep(Duration::from_millis(50)).await;
}

/// Reads a request, or its first `most` bytes; whether it is one for an answer.
async fn read(stream: &mut DuplexStream, most: usize) -> bool {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16];
    while bytes.len() < most && !is_whole(&bytes) {
        match stream.read(&mut buffer).await {
            Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
            _ => break,
        }
    }
    bytes.starts_with(b"POST ")
}

fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

const SIX: &str = "requests = 6\n[arrivals.closed]\nclients = 1\nthink_ms = { fixed = 5000 }\n";

#[tokio::test(start_paused = true)]
async fn what_a_server_has_seen_has_a_row_and_nothing_is_sent_again_in_secret() {
    for second in [
        Second::Works,
        Second::ReadsAPart,
        Second::Begins,
        Second::ClosedBefore,
        Second::ClosedIdle,
    ] {
        // Idle connections are left alone after a while, so all but the last ask again at once.
        let spec = match second {
            Second::ClosedIdle => SIX.to_owned(),
            _ => SIX.replace("5000", "1"),
        };
        let retry = "[retry]\nattempts_max = 2\nretries_percent = 100\nreserve = 100\n";
        for spec in [spec.clone(), format!("{spec}{retry}")] {
            let (dial, seen) = dial(second);
            let rows = rows_over(dial, &spec).await;
            balance(&rows, 6).unwrap();
            let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
            let seen = seen.load(Ordering::Relaxed);
            assert_eq!(rows.len(), seen, "{second:?}: {rows:?}");
            let closed_before = matches!(second, Second::ClosedBefore | Second::ClosedIdle);
            let failed = rows.iter().filter(|row| row.outcome == Outcome::Failed);
            assert!(
                failed
                    .clone()
                    .all(|row| row.cause.as_deref() == Some("cut_short")),
                "{rows:?}"
            );
            assert_eq!(failed.count() == 0, closed_before, "{second:?}: {rows:?}");
            let answered_in_the_end = spec.contains("retry") || closed_before;
            assert_eq!(
                count(Outcome::Ok) == 6,
                answered_in_the_end,
                "{second:?}: {rows:?}"
            );
        }
    }
}
