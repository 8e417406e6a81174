//! The rest of a body that nobody has read.
//!
//! An early answer, such as 401, 404 or 413, comes while its client still sends. To close then resets the
//! connection, and the reset can overtake the answer. So the rest of the body is read and thrown away, for a
//! while, as nginx does (`lingering_close`).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long it goes on in all.
const LINGER_MAX: Duration = Duration::from_secs(30);

/// How long it waits for the next part.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Bytes thrown away at most.
const BYTES_MAX: usize = 256 << 20;

/// A body whose rest is read when it is dropped.
pub(crate) struct Lingering<B: Rest> {
    body: Option<B>,
}

/// A body of which the rest can be read.
pub(crate) trait Rest: HttpBody<Data = Bytes> + Send + Unpin + 'static {}

impl<B: HttpBody<Data = Bytes> + Send + Unpin + 'static> Rest for B {}

impl<B: Rest> Lingering<B>
where
    B::Error: Into<BoxError>,
{
    /// A client that waits for `100 Continue` has not begun to send, and reading would ask it to.
    pub(crate) fn over(body: B, awaits_continue: bool) -> Body {
        match awaits_continue || body.is_end_stream() {
            true => Body::new(body),
            false => Body::new(Self { body: Some(body) }),
        }
    }
}

impl<B: Rest> HttpBody for Lingering<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = frame {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl<B: Rest> Drop for Lingering<B> {
    fn drop(&mut self) {
        let unread = self.body.take().filter(|body| !body.is_end_stream());
        if let (Some(body), Ok(runtime)) = (unread, Handle::try_current()) {
            drop(runtime.spawn(timeout(LINGER_MAX, rest(body))));
        }
    }
}

async fn rest(mut body: impl Rest) {
    let mut bytes = 0;
    while let Ok(Some(Ok(frame))) = timeout(SILENCE_MAX, body.frame()).await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > BYTES_MAX {
            return;
        }
    }
}
