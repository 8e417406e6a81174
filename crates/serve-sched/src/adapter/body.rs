//! The body of an answer, which holds the request's permit until it ends.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{header, response};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::BoxError;
use super::permit::Permit;

/// How many tokens an answer has come to so far. Among the extensions of a response it is read by the
/// layer, which reports them as the body goes on; a handler keeps a clone and counts.
#[derive(Clone, Debug, Default)]
pub struct OutputTokens(Arc<AtomicU32>);

impl OutputTokens {
    /// Of an answer that is whole.
    pub fn new(tokens: u32) -> Self {
        Self(Arc::new(AtomicU32::new(tokens)))
    }

    /// Counts more tokens.
    pub fn add(&self, tokens: u32) {
        self.0.fetch_add(tokens, Ordering::Relaxed);
    }

    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A body that holds its request's permit until it ends or is dropped, or the text of a refusal.
///
/// Its fields are dropped in this order: the body first, then the slot that it held.
#[pin_project]
pub struct PermitBody<B> {
    #[pin]
    inner: Option<B>,
    held: Option<Held>,
    text: Option<Bytes>,
}

struct Held {
    permit: Permit,
    tokens: Option<(OutputTokens, u32)>,
    /// Bytes still to come, where the head says how many there are: who has them all asks for no more.
    left: Option<u64>,
}

impl<B> PermitBody<B> {
    /// Holds nothing any more.
    pub(super) fn free(inner: B) -> Self {
        Self {
            inner: Some(inner),
            held: None,
            text: None,
        }
    }

    pub(super) fn text(text: String) -> Self {
        Self {
            inner: None,
            held: None,
            text: Some(text.into()),
        }
    }
}

impl<B: Body<Data = Bytes>> PermitBody<B> {
    pub(super) fn holding(permit: Permit, head: &response::Parts, inner: B) -> Self {
        let tokens = head.extensions.get::<OutputTokens>();
        let left = head.headers.get(header::CONTENT_LENGTH);
        let mut held = Held {
            permit,
            tokens: tokens.map(|tokens| (tokens.clone(), 0)),
            left: left.and_then(|bytes| bytes.to_str().ok()?.parse().ok()),
        };
        held.report();
        let ended = inner.is_end_stream() || held.left == Some(0);
        let held = match ended {
            true => {
                held.permit.finish();
                None
            }
            false => Some(held),
        };
        Self {
            inner: Some(inner),
            held,
            text: None,
        }
    }
}

impl Held {
    /// Reports what has been counted since the last time.
    fn report(&mut self) {
        if let Some((tokens, reported)) = &mut self.tokens {
            let counted = tokens.get();
            if counted > *reported {
                self.permit.served(counted - *reported);
                *reported = counted;
            }
        }
    }

    /// Whether the body ends with this frame, of whose `inner` it came.
    fn saw(&mut self, frame: &Frame<Bytes>, inner: &impl Body) -> bool {
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        self.left = self.left.map(|left| left.saturating_sub(bytes));
        inner.is_end_stream() || self.left == Some(0)
    }
}

impl<B> Body for PermitBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        if let Some(held) = this.held
            && let Poll::Ready(rejection) = held.permit.poll_ended(context)
        {
            this.inner.set(None);
            this.held.take();
            return Poll::Ready(Some(Err(rejection.into())));
        }
        let Some(mut inner) = this.inner.as_mut().as_pin_mut() else {
            return Poll::Ready(this.text.take().map(|text| Ok(Frame::data(text))));
        };
        let frame = ready!(inner.as_mut().poll_frame(context));
        if let Some(mut held) = this.held.take() {
            held.report();
            match &frame {
                Some(Ok(frame)) if !held.saw(frame, &*inner) => *this.held = Some(held),
                Some(Ok(_)) | None => held.permit.finish(),
                Some(Err(_)) => held.permit.ignore("the body failed"),
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Some(inner) => inner.is_end_stream(),
            None => self.text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.inner, &self.text) {
            (Some(inner), _) => inner.size_hint(),
            (None, text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

impl<B> fmt::Debug for PermitBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permit = self.held.as_ref().map(|held| &held.permit);
        let mut debug = f.debug_struct("PermitBody");
        debug.field("permit", &permit).finish_non_exhaustive()
    }
}
