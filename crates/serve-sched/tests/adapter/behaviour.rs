//! What the layer promises to a service and to its clients.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use axum::body::Body;
use futures::FutureExt;
use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use serve_core::{CancelReason, Data, Span, Time, Usage};
use serve_sched::adapter::{Ask, AsyncDispatcher, Clock, OutputTokens, Permit, Rejection};
use serve_sched::admit::ConcurrencyLimit;
use serve_sched::journal::{Decision, Entry};
use serve_sched::limit::Fixed;
use serve_sched::order::Fifo;
use serve_sched::{Dispatcher, DispatcherStats};
use tower::{Layer, ServiceExt, service_fn};

use crate::assert_all_ended;
use crate::hand::{Hand, Task};

fn dispatcher(slots: u32) -> Dispatcher {
    Dispatcher::new(Vec::new(), Box::new(Fifo), Box::new(Fixed::new(slots)))
}

/// One that turns everybody away for whom there is no slot.
fn busy(slots: u32) -> Dispatcher {
    let admit = vec![Box::new(ConcurrencyLimit) as _];
    Dispatcher::new(admit, Box::new(Fifo), Box::new(Fixed::new(slots)))
}

fn on(clock: &Hand, dispatcher: Dispatcher) -> (AsyncDispatcher, Task<()>) {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let (front, driver) = AsyncDispatcher::new(dispatcher, clock);
    (front, Task::new(driver))
}

fn ask(_: &Request<Body>) -> Ask {
    Ask::new(10, 20)
}

fn get() -> Request<Body> {
    Request::new(Body::empty())
}

/// Sends a request through a layer to a service that answers at once.
fn answer(front: &AsyncDispatcher, response: fn() -> Response<Body>) -> Response<axum::body::Body> {
    let service = service_fn(move |_: Request<Body>| ready(Ok::<_, Infallible>(response())));
    let sent = front
        .layer(ask)
        .layer(service)
        .oneshot(get())
        .now_or_never();
    sent.unwrap().unwrap().map(Body::new)
}

fn status(status: u16) -> Response<Body> {
    let response = Response::builder().status(status);
    response
        .header(header::RETRY_AFTER, "3")
        .body(Body::empty())
        .unwrap()
}

#[test]
fn handles_and_permits_go_where_tasks_go() {
    fn everywhere<T: Send + Sync + std::fmt::Debug + 'static>() {}
    everywhere::<AsyncDispatcher>();
    everywhere::<Permit>();
    everywhere::<Rejection>();
}

#[test]
fn each_end_of_a_permit_is_counted_as_what_it_is() {
    type End = fn(Permit);
    let ends: [(End, &str); 5] = [
        (Permit::finish, "finished"),
        (|permit| permit.finish_with(Usage::default()), "finished"),
        (|permit| permit.ignore("404"), "failed"),
        (|permit| permit.overloaded("503", None), "failed"),
        (drop, "cancelled"),
    ];
    for (end, expected) in ends {
        let (front, _driver) = on(&Hand::default(), dispatcher(1));
        let permit = front.admit(Ask::new(1, 1)).now_or_never().unwrap();
        end(permit.unwrap());
        let stats = front.stats();
        assert_all_ended(stats);
        assert_eq!(ended_as(stats), [expected]);
    }
}

/// Wherever it is: in the queue, with its slot granted and not yet seen, at work; and once only.
#[test]
fn one_request_is_cancelled_by_its_id_and_the_next_has_its_slot() {
    let (front, _driver) = on(&Hand::default(), dispatcher(1));
    let mut first = front.admit(Ask::new(1, 1));
    let mut second = front.admit(Ask::new(1, 1));
    let mut third = front.admit(Ask::new(1, 1));
    let ids = [&mut first, &mut second, &mut third].map(|ask| ask.arrive().unwrap());
    assert_eq!(first.arrive(), Ok(ids[0]), "a request arrives once");
    let cancelled = Rejection::Cancelled(CancelReason::Client);
    assert!(front.cancel(ids[1], CancelReason::Client));
    assert_eq!(second.now_or_never().unwrap().unwrap_err(), cancelled);
    // Granted, and its future has not seen it.
    assert!(front.cancel(ids[0], CancelReason::Client));
    assert_eq!(first.now_or_never().unwrap().unwrap_err(), cancelled);
    let mut permit = third.now_or_never().unwrap().unwrap();
    assert_eq!(permit.id(), ids[2]);
    assert!(front.cancel(ids[2], CancelReason::Client));
    assert_eq!(permit.ended().now_or_never(), Some(cancelled));
    drop(permit);
    for id in ids {
        assert!(!front.cancel(id, CancelReason::Client));
    }
    assert_all_ended(front.stats());
    assert_eq!(front.stats().counters.cancelled, 3);
}

#[test]
fn what_has_arrived_and_is_never_waited_for_leaves_nothing_behind() {
    let (front, _driver) = on(&Hand::default(), busy(1));
    let mut admission = front.admit(Ask::new(1, 1));
    admission.arrive().unwrap();
    let mut refused = front.admit(Ask::new(1, 1));
    assert!(matches!(refused.arrive(), Err(Rejection::Refused(_))));
    drop(refused);
    assert_eq!(front.stats().running, 1);
    drop(admission);
    assert_all_ended(front.stats());
}

fn ended_as(stats: DispatcherStats) -> Vec<&'static str> {
    let counters = stats.counters;
    let all = [
        ("finished", counters.finished),
        ("failed", counters.failed),
        ("cancelled", counters.cancelled),
        ("refused", counters.refused),
    ];
    let counted = all.into_iter().filter(|(_, count)| *count > 0);
    counted.map(|(name, _)| name).collect()
}

#[test]
fn the_status_of_an_answer_says_how_the_request_ended() {
    for code in 100..600_u16 {
        let hand = Hand::default();
        let (front, _driver) = on(&hand, dispatcher(1));
        let service = service_fn(move |_: Request<Body>| ready(Ok::<_, Infallible>(status(code))));
        let layered = front.layer(ask).layer(service);
        drop(layered.clone().oneshot(get()).now_or_never().unwrap());
        let expected = if code < 400 { "finished" } else { "failed" };
        assert_eq!(ended_as(front.stats()), [expected], "{code}");
        // Who has too much to do is left alone for as long as it says.
        let mut next = Task::new(layered.oneshot(get()));
        next.poll();
        let pauses = matches!(code, 408 | 429 | 503 | 504 | 529);
        assert_eq!(next.is_pending(), pauses, "{code}");
        hand.0.advance(Span::from_millis(2_999));
        next.poll();
        assert_eq!(next.is_pending(), pauses, "{code}");
    }
}

#[test]
fn who_waits_for_the_end_of_a_pause_is_woken_by_the_driver() {
    let hand = Hand::default();
    let (front, mut driver) = on(&hand, dispatcher(1));
    driver.poll();
    drop(answer(&front, || status(503)));
    let mut next = Task::new({
        let front = front.clone();
        async move { front.admit(Ask::new(1, 1)).await.map(Permit::finish) }
    });
    next.poll();
    driver.poll_if_woken();
    hand.0.advance(Span::from_secs(3));
    assert!(!next.poll_if_woken());
    while driver.poll_if_woken() {}
    assert!(next.poll_if_woken());
    assert_eq!(next.output, Some(Ok(())));
}

#[test]
fn a_refusal_is_an_answer_with_its_status_its_hint_and_its_reason() {
    let hand = Hand::default();
    let (front, _driver) = on(&hand, busy(1));
    // The pace is known after some requests of one second each.
    for _ in 0..8 {
        let permit = front.admit(Ask::new(1, 1)).now_or_never().unwrap();
        hand.0.advance(Span::from_millis(1_400));
        permit.unwrap().finish();
    }
    let _held = front.admit(Ask::new(1, 1)).now_or_never().unwrap();
    let response = answer(&front, || status(200));
    let Some(Rejection::Refused(refusal)) = response.extensions().get::<Rejection>().copied()
    else {
        panic!("{response:?}");
    };
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.status().as_u16(), refusal.code().status);
    let hint = response.headers().get(header::RETRY_AFTER);
    let seconds = refusal.retry_after_s().unwrap().to_string();
    assert_eq!(hint.unwrap().to_str().unwrap(), seconds);
    let text = response.into_body().collect().now_or_never().unwrap();
    assert_eq!(text.unwrap().to_bytes(), refusal.to_string());
}

#[test]
fn a_request_that_asks_for_nothing_is_its_clients_mistake() {
    let (front, _driver) = on(&Hand::default(), dispatcher(1));
    for nothing in [Ask::new(0, 1), Ask::new(1, 0), Ask::new(u32::MAX, 1)] {
        let rejected = front.admit(nothing).now_or_never().unwrap().unwrap_err();
        assert!(matches!(rejected, Rejection::Invalid(_)));
        assert_eq!(
            (rejected.code().status, rejected.retry_after_s()),
            (400, None)
        );
    }
    assert_eq!(front.stats().counters.arrived, 0);
}

/// Reads the dispatcher when it is dropped, which must not be locked then.
struct ReadsAtItsEnd(AsyncDispatcher, Arc<AtomicU32>);

impl Drop for ReadsAtItsEnd {
    fn drop(&mut self) {
        self.0.stats();
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn what_is_attached_to_a_request_is_dropped_once_and_not_under_the_lock() {
    let dropped = Arc::new(AtomicU32::new(0));
    let (front, _driver) = on(&Hand::default(), busy(1));
    let ask = || {
        let data = ReadsAtItsEnd(front.clone(), Arc::clone(&dropped));
        Ask::new(1, 1).with_data(Data::new(data))
    };
    let held = front.admit(ask()).now_or_never().unwrap().unwrap();
    // One waits and is cancelled, of others the queue may be full, one has lengths that cannot be.
    for _ in 0..3 {
        assert!(!matches!(front.admit(ask()).now_or_never(), Some(Ok(_))));
    }
    let nothing =
        Ask::new(0, 1).with_data(Data::new(ReadsAtItsEnd(front.clone(), dropped.clone())));
    assert!(front.admit(nothing).now_or_never().unwrap().is_err());
    drop(front.admit(ask()));
    assert_eq!(dropped.load(Ordering::Relaxed), 5);
    held.finish();
    assert_eq!(dropped.load(Ordering::Relaxed), 6);
    drop(front.admit(ask()).now_or_never().unwrap().unwrap());
    assert_eq!(dropped.load(Ordering::Relaxed), 7);
}

#[test]
fn a_request_reserves_nothing_before_its_response_is_polled() {
    let (front, _driver) = on(&Hand::default(), dispatcher(1));
    let service = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(status(200)));
    let mut layered = front.layer(ask).layer(service);
    let mut responses = Vec::new();
    for _ in 0..3 {
        let polled = tower::Service::<Request<Body>>::poll_ready(
            &mut layered,
            &mut std::task::Context::from_waker(std::task::Waker::noop()),
        );
        assert!(matches!(polled, Poll::Ready(Ok(()))));
        responses.push(tower::Service::call(&mut layered, get()));
    }
    assert_eq!(front.stats().counters.arrived, 0);
    drop(responses);
    assert_eq!(front.stats().counters.arrived, 0);
}

/// What the journal says that answers have come to, each the output tokens of one request.
fn output_tokens(respond: fn() -> Response<Body>) -> Vec<u32> {
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    let mut dispatcher = dispatcher(1);
    dispatcher.set_journal(Some(Box::new(move |entry: &Entry| {
        if let Decision::Finished { output_tokens, .. } = entry.decision {
            sink.lock().unwrap().push(output_tokens);
        }
    })));
    let (front, _driver) = on(&Hand::default(), dispatcher);
    let body = answer(&front, respond).into_body();
    body.collect().now_or_never().unwrap().unwrap();
    assert_all_ended(front.stats());
    let told = told.lock().unwrap();
    told.clone()
}

#[test]
fn an_answer_that_counts_its_tokens_is_accounted_for_them_and_any_other_for_what_was_asked() {
    assert_eq!(output_tokens(|| status(200)), [20]);
    let whole = || {
        let mut response = Response::new(Body::from("an answer"));
        response.extensions_mut().insert(OutputTokens::new(7));
        response
    };
    assert_eq!(output_tokens(whole), [7]);
    let streamed = || {
        let tokens = OutputTokens::default();
        let counting = tokens.clone();
        let frames = futures::stream::iter(0..5).map_counting(counting);
        let mut response = Response::new(Body::from_stream(frames));
        response.extensions_mut().insert(tokens);
        response
    };
    assert_eq!(output_tokens(streamed), [15]);
}

trait MapCounting: futures::Stream<Item = u32> + Sized + Send + 'static {
    /// Frames of three tokens each.
    fn map_counting(
        self,
        tokens: OutputTokens,
    ) -> impl futures::Stream<Item = Result<String, Infallible>> + Send + 'static {
        futures::StreamExt::map(self, move |frame| {
            tokens.add(3);
            Ok(frame.to_string())
        })
    }
}

impl<S: futures::Stream<Item = u32> + Send + 'static> MapCounting for S {}

#[test]
fn a_body_of_known_length_ends_with_its_last_byte_though_nobody_asks_for_more() {
    let (front, _driver) = on(&Hand::default(), dispatcher(1));
    let mut body = answer(&front, || {
        let bytes = futures::stream::iter(["ab", "cd"].map(Ok::<_, Infallible>));
        let response = Response::builder().header(header::CONTENT_LENGTH, 4);
        response.body(Body::from_stream(bytes)).unwrap()
    });
    let frame = |body: &mut Response<Body>| body.body_mut().frame().now_or_never().unwrap();
    assert!(frame(&mut body).is_some());
    assert_eq!(front.stats().running, 1);
    assert!(frame(&mut body).is_some());
    drop(body);
    assert_eq!(ended_as(front.stats()), ["finished"]);
}

#[test]
fn a_body_that_fails_or_is_dropped_did_not_finish() {
    let (front, _driver) = on(&Hand::default(), dispatcher(1));
    let failing = answer(&front, || {
        let frames = [Ok("ab"), Err(std::io::Error::other("the disk"))];
        Response::new(Body::from_stream(futures::stream::iter(frames)))
    });
    let failed = failing.into_body().collect().now_or_never().unwrap();
    assert!(failed.is_err());
    assert_eq!(ended_as(front.stats()), ["failed"]);
    drop(answer(&front, || Response::new(Body::from("unread"))));
    assert_eq!(ended_as(front.stats()), ["failed", "cancelled"]);
    assert_all_ended(front.stats());
}

#[test]
fn a_panic_anywhere_in_the_service_gives_the_slot_back() {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    let (front, _driver) = on(&Hand::default(), dispatcher(1));
    let panic = || resume_unwind(Box::new("on purpose"));
    let in_call = front.layer(ask).layer(service_fn(move |_: Request<Body>| {
        if true {
            panic();
        }
        ready(Ok::<_, Infallible>(status(200)))
    }));
    let in_poll = front
        .layer(ask)
        .layer(service_fn(move |_: Request<Body>| async move {
            if true {
                panic();
            }
            Ok::<_, Infallible>(status(200))
        }));
    let call = catch_unwind(AssertUnwindSafe(|| {
        drop(in_call.oneshot(get()).now_or_never())
    }));
    let poll = catch_unwind(AssertUnwindSafe(|| {
        drop(in_poll.oneshot(get()).now_or_never())
    }));
    assert!(call.is_err() && poll.is_err());
    assert_eq!(front.stats().counters.cancelled, 2);
    assert_all_ended(front.stats());
}

#[test]
fn tokios_clock_begins_at_zero_and_keeps_to_paused_time() {
    let paused = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    paused.unwrap().block_on(async {
        let clock = serve_sched::adapter::TokioClock::start();
        assert_eq!(clock.now(), Time::ZERO);
        clock.sleep_until(Time::from_secs(7)).await;
        assert!(clock.now() >= Time::from_secs(7));
        assert!(clock.now() <= Time::from_millis(7_001));
    });
}
