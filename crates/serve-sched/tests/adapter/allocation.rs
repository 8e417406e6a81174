//! The adapter allocates nothing of its own for a request that a dispatcher would not allocate.

use std::convert::Infallible;

use allocation_counter::measure;
use axum::body::Body;
use futures::FutureExt;
use http::{Request, Response};
use serve_core::{FinishReason, Request as Ours, RequestId, Time, Usage};
use serve_sched::adapter::{Ask, AsyncDispatcher};
use serve_sched::limit::Fixed;
use serve_sched::order::Fifo;
use serve_sched::{Dispatcher, Outcome};
use tower::{Layer, Service, service_fn};

use crate::hand::Hand;

fn dispatcher() -> Dispatcher {
    Dispatcher::new(Vec::new(), Box::new(Fifo), Box::new(Fixed::new(4)))
}

const REQUESTS: u64 = 1_000;

/// What a dispatcher alone allocates for some requests, one after the other.
fn bare() -> u64 {
    let mut dispatcher = dispatcher();
    let mut serve = |n: u64| {
        let id = RequestId::new(n);
        let request = Ours::of_lengths(id, Time::ZERO, 1, 1).unwrap();
        dispatcher.submit(Time::ZERO, request).unwrap();
        dispatcher.next(Time::ZERO).unwrap();
        let usage = Usage::default();
        let reason = FinishReason::Length;
        dispatcher.done(Time::ZERO, id, Outcome::Answered { reason, usage });
        while dispatcher.poll_event().is_some() {}
    };
    (0..100).for_each(&mut serve);
    measure(|| (100..100 + REQUESTS).for_each(&mut serve)).count_total
}

#[test]
fn the_layer_adds_at_most_one_allocation_to_those_of_the_dispatcher() {
    let (front, _driver) = AsyncDispatcher::new(dispatcher(), std::sync::Arc::new(Hand::default()));
    let service = service_fn(|_: Request<Body>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::default())))
    });
    let ask = |_: &Request<Body>| Ask::new(1, 1);
    let mut layered = front.layer(ask).layer(service);
    let mut plain = service;
    // Requests and bodies of axum's allocate by themselves.
    let mut behind = |_| drop(layered.call(Request::new(Body::empty())).now_or_never());
    let mut alone = |_| drop(plain.call(Request::new(Body::empty())).now_or_never());
    (0..100).for_each(&mut behind);
    let with = measure(|| (0..REQUESTS).for_each(&mut behind)).count_total;
    let without = measure(|| (0..REQUESTS).for_each(&mut alone)).count_total;
    let (added, bare) = (with - without, bare());
    // The map of those who hold something is empty between two of these requests.
    assert!(added <= bare + REQUESTS, "{added} for {bare}");
    assert_eq!(front.stats().counters.finished, 100 + REQUESTS);
}
