//! A request's way through a [`DispatchLayer`](super::DispatchLayer): it waits, is worked at, and hands
//! its permit on to the body of its answer.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use pin_project::pin_project;
use tower_service::Service;

use super::admission::Admission;
use super::body::PermitBody;
use super::permit::Permit;
use super::rejection::Rejection;
use super::verdict::Verdict;

/// The response to a request behind a [`DispatchLayer`](super::DispatchLayer).
///
/// Its fields are dropped in this order: the work first, then the slot that it held.
#[pin_project]
pub struct ResponseFuture<S: Service<Request<B>>, B> {
    #[pin]
    call: Option<S::Future>,
    /// What is called when the request has its slot.
    idle: Option<(S, Request<B>)>,
    permit: Option<Permit>,
    #[pin]
    admission: Admission,
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(super) fn new(admission: Admission, inner: S, request: Request<B>) -> Self {
        Self {
            call: None,
            idle: Some((inner, request)),
            permit: None,
            admission,
        }
    }
}

impl<S, B, R> ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    /// The service's answer, to a request that has its slot.
    fn poll_call(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<R>, S::Error>> {
        let mut this = self.project();
        if let Some((inner, _)) = this.idle {
            ready!(inner.poll_ready(context))?;
        }
        if let Some((mut inner, request)) = this.idle.take() {
            this.call.set(Some(inner.call(request)));
        }
        match this.call.as_mut().as_pin_mut() {
            Some(call) => call.poll(context),
            None => Poll::Pending,
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<PermitBody<R>>, S::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.as_mut().project();
        if this.permit.is_none() {
            match ready!(this.admission.poll(context)) {
                Ok(permit) => *this.permit = Some(permit),
                Err(rejection) => return Poll::Ready(Ok(refused(rejection))),
            }
        }
        if let Some(permit) = this.permit
            && let Poll::Ready(rejection) = permit.poll_ended(context)
        {
            self.as_mut().give_up();
            return Poll::Ready(Ok(refused(rejection)));
        }
        let answer = ready!(self.as_mut().poll_call(context));
        let Some(permit) = self.as_mut().project().permit.take() else {
            return Poll::Pending;
        };
        // The service's future may still hold what it worked with.
        self.give_up();
        Poll::Ready(match answer {
            Ok(response) => Ok(answered(response, permit)),
            Err(error) => {
                permit.ignore("the service failed");
                Err(error)
            }
        })
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    /// Drops the work, then the slot.
    fn give_up(self: Pin<&mut Self>) {
        let mut this = self.project();
        this.call.set(None);
        this.idle.take();
        this.permit.take();
    }
}

fn answered<R: Body<Data = Bytes>>(
    response: Response<R>,
    permit: Permit,
) -> Response<PermitBody<R>> {
    let (head, body) = response.into_parts();
    let body = match Verdict::of(head.status, &head.headers) {
        Verdict::Answered => PermitBody::holding(permit, &head, body),
        Verdict::Ignored => {
            permit.ignore(head.status.as_str());
            PermitBody::free(body)
        }
        Verdict::Overloaded(retry_after) => {
            permit.overloaded(head.status.as_str(), retry_after);
            PermitBody::free(body)
        }
    };
    Response::from_parts(head, body)
}

fn refused<R>(rejection: Rejection) -> Response<PermitBody<R>> {
    let mut response = Response::new(PermitBody::text(rejection.to_string()));
    let status = StatusCode::from_u16(rejection.code().status);
    *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, text);
    if let Some(seconds) = rejection.retry_after_s() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response.extensions_mut().insert(rejection);
    response
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ResponseFuture");
        debug.field("permit", &self.permit);
        debug.field("admission", &self.admission);
        debug.finish_non_exhaustive()
    }
}
