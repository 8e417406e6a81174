//! A tower layer that gives each HTTP request a permit before the service behind it sees the request.

use std::fmt;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::ask::Ask;
use super::body::PermitBody;
use super::handle::AsyncDispatcher;
use super::response::ResponseFuture;

/// Puts a dispatcher in front of an HTTP service; made by [`AsyncDispatcher::layer`].
///
/// - **Ready at once.** Nothing is reserved in `poll_ready`, which is always ready: a request arrives
///   at the dispatcher when its response future is first polled, and the service behind is asked
///   whether it is ready when the request has its slot.
/// - **A refusal is a response**: status and `Retry-After` of the [`Rejection`](super::Rejection), its
///   sentence as text, and the rejection itself among the response's extensions, for a service that
///   wants to say it in its own form.
/// - **A slot is held until the body ends.** Dropping the response future, or the body before its end,
///   cancels the request and frees the slot, after the service's own future or body has been dropped.
/// - **The end is read from the response**: below 400 finished; 408, 429, 503, 504 and 529 overloaded,
///   with what `Retry-After` says; any other says nothing of the load. What has failed ends with its head.
///   An `Err` of the service says nothing of the load either, and is passed on.
/// - **A request that the dispatcher ends**, by its deadline or in a drain, is dropped; its client gets
///   the rejection, or sees the body break off.
///
/// A handler that knows the number of its tokens puts [`OutputTokens`](super::OutputTokens) among its response's extensions.
/// One that must read the body to know what a request asks for calls [`AsyncDispatcher::admit`] itself.
#[derive(Clone)]
pub struct DispatchLayer<F> {
    handle: AsyncDispatcher,
    ask: F,
}

impl AsyncDispatcher {
    /// A layer that takes class, tenant and size of each request from `ask`.
    pub fn layer<F>(&self, ask: F) -> DispatchLayer<F> {
        DispatchLayer {
            handle: self.clone(),
            ask,
        }
    }
}

impl<S, F: Clone> Layer<S> for DispatchLayer<F> {
    type Service = DispatchService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        DispatchService {
            layer: self.clone(),
            inner,
        }
    }
}

/// A service behind a [`DispatchLayer`].
#[derive(Clone)]
pub struct DispatchService<S, F> {
    layer: DispatchLayer<F>,
    inner: S,
}

impl<S, F, B, R> Service<Request<B>> for DispatchService<S, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    F: Fn(&Request<B>) -> Ask,
    R: Body<Data = Bytes>,
    R::Error: Into<super::BoxError>,
{
    type Response = Response<PermitBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let ask = (self.layer.ask)(&request);
        let admission = self.layer.handle.admit(ask);
        ResponseFuture::new(admission, self.inner.clone(), request)
    }
}

impl<F> fmt::Debug for DispatchLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DispatchLayer").field(&self.handle).finish()
    }
}

impl<S: fmt::Debug, F> fmt::Debug for DispatchService<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("DispatchService");
        debug
            .field("layer", &self.layer)
            .field("inner", &self.inner);
        debug.finish()
    }
}
