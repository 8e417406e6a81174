//! Every pair of events at every await point: a request behind the layer is brought to a point by hand,
//! two things happen in either order, with any polls between, and then everything goes to its end, where
//! a task is polled only if it has been woken.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use serve_core::{CancelReason, Class, Span};
use serve_sched::Dispatcher;
use serve_sched::adapter::{Ask, AsyncDispatcher, DispatchLayer, Rejection};
use serve_sched::admit::QueueCap;
use serve_sched::limit::Fixed;
use serve_sched::order::StrictTiers;
use tower::{Layer, Service, ServiceExt};

use crate::hand::{Hand, Task};
use crate::{assert_all_ended, assert_conserved};

/// How far the service may go with a request, and how it answers.
#[derive(Clone, Default)]
struct Work {
    control: Arc<Mutex<Control>>,
    inside: Arc<AtomicU32>,
}

#[derive(Default)]
struct Control {
    stage: u32,
    status: Option<u16>,
    waiting: Vec<Waker>,
}

const READY: u32 = 1;
const ANSWERED: u32 = 2;
const FRAME: u32 = 3;
const END: u32 = 4;

impl Work {
    fn go_to(&self, stage: u32) {
        let mut control = self.control.lock().unwrap();
        control.stage = control.stage.max(stage);
        let waiting = std::mem::take(&mut control.waiting);
        drop(control);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn go_on(&self) {
        let stage = self.control.lock().unwrap().stage;
        self.go_to(stage + 1);
    }

    fn end_with(&self, status: u16) {
        self.control.lock().unwrap().status = Some(status);
        self.go_to(END);
    }

    fn poll(&self, stage: u32, context: &Context<'_>) -> Poll<()> {
        let mut control = self.control.lock().unwrap();
        if control.stage >= stage {
            return Poll::Ready(());
        }
        control.waiting.push(context.waker().clone());
        Poll::Pending
    }
}

/// The service has a request in its hands.
struct Inside(Work);

impl Inside {
    fn enter(work: &Work) -> Self {
        work.inside.fetch_add(1, Ordering::Relaxed);
        Self(work.clone())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

type Call = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

impl Service<Request<()>> for Work {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Call;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Work::poll(self, READY, context).map(Ok)
    }

    fn call(&mut self, _: Request<()>) -> Call {
        let inside = Inside::enter(self);
        Box::pin(async move {
            std::future::poll_fn(|context| inside.0.poll(ANSWERED, context)).await;
            let status = inside.0.control.lock().unwrap().status.unwrap_or(200);
            let response = Response::builder().status(status);
            let response = response.header("retry-after", "1");
            Ok(response.body(Answer(inside, FRAME)).unwrap())
        })
    }
}

/// One frame, then the end. It holds what the service works with until it is dropped.
struct Answer(Inside, u32);

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let polled = self.0.0.poll(self.1, context);
        polled.map(|()| {
            self.1 += 1;
            (self.1 == END).then(|| Ok(Frame::data(Bytes::from_static(b"frame"))))
        })
    }
}

/// One slot, one place in the queue; paid requests go before free ones.
struct World {
    clock: Hand,
    front: AsyncDispatcher,
    driver: Task<()>,
    work: [Work; 3],
    requests: [Option<Task<&'static str>>; 3],
    inside: Arc<AtomicU32>,
}

/// The request that is watched, in the middle class, and with a deadline.
const SUBJECT: usize = 0;
/// One that has the slot.
const BLOCKER: usize = 1;
/// One that comes later, of the highest class: it displaces the subject where both would wait.
const NEXT: usize = 2;

impl World {
    fn new() -> Self {
        let clock = Hand::default();
        let admit = vec![Box::new(QueueCap::new(1)) as _];
        let order = Box::new(StrictTiers);
        let dispatcher = Dispatcher::new(admit, order, Box::new(Fixed::new(1)));
        let (front, driver) = AsyncDispatcher::new(dispatcher, Arc::new(clock.clone()));
        let inside = Arc::<AtomicU32>::default();
        let work = std::array::from_fn(|_| Work {
            inside: Arc::clone(&inside),
            ..Work::default()
        });
        Self {
            clock,
            front,
            driver: Task::new(driver),
            work,
            requests: [None, None, None],
            inside,
        }
    }

    fn start(&mut self, who: usize) {
        let (class, patience) = match who {
            SUBJECT => (1, Some(Span::from_millis(100))),
            BLOCKER => (1, None),
            _ => (0, None),
        };
        let ask = Ask::new(4, 2).with_class(Class::new(class));
        let ask = ask.with_patience(patience);
        let layer: DispatchLayer<_> = self.front.layer(move |_: &Request<()>| ask.clone());
        let service = layer.layer(self.work[who].clone());
        let task = Task::new(async move {
            let Ok(response) = service.oneshot(Request::new(())).await;
            if response.extensions().get::<Rejection>().is_some() {
                return "rejected";
            }
            match response.into_body().collect().await {
                Ok(_) => "answered",
                Err(_) => "broke off",
            }
        });
        self.requests[who].get_or_insert(task);
    }

    fn poll(&mut self, who: usize) {
        if let Some(request) = &mut self.requests[who] {
            request.poll();
        }
        self.check();
    }

    fn begin(&mut self, who: usize) {
        if self.requests[who].is_none() {
            self.start(who);
            self.poll(who);
        }
    }

    /// Polls what has been woken, until nothing has.
    fn settle(&mut self) {
        for _ in 0..100 {
            let mut woken = self.driver.poll_if_woken();
            for request in self.requests.iter_mut().flatten() {
                woken |= request.poll_if_woken();
            }
            self.check();
            if !woken {
                return;
            }
        }
        panic!("tasks wake each other for ever");
    }

    fn check(&self) {
        let stats = self.front.stats();
        assert_conserved(stats);
        let (inside, sent) = (
            self.inside.load(Ordering::Relaxed),
            stats.running + stats.aborting,
        );
        assert!(inside <= sent && sent <= 1, "{inside} inside: {stats:?}");
    }
}

/// Where the subject is.
#[derive(Clone, Copy, Debug)]
enum Point {
    NotPolled,
    Waiting,
    GrantedAndNotPolled,
    ServiceNotReady,
    Called,
    BodyBegun,
    FrameOut,
}

const POINTS: [Point; 7] = [
    Point::NotPolled,
    Point::Waiting,
    Point::GrantedAndNotPolled,
    Point::ServiceNotReady,
    Point::Called,
    Point::BodyBegun,
    Point::FrameOut,
];

#[derive(Clone, Copy, Debug)]
enum Occurrence {
    SubjectDropped,
    SubjectGoesOn,
    SubjectFinishes,
    SubjectTurnsOutTooMuch,
    SubjectTurnsOutMistaken,
    BlockerFinishes,
    BlockerDropped,
    NextArrives,
    NextDropped,
    TimeOut,
    Drain,
    AllCancelled,
}

const EVENTS: [Occurrence; 12] = [
    Occurrence::SubjectDropped,
    Occurrence::SubjectGoesOn,
    Occurrence::SubjectFinishes,
    Occurrence::SubjectTurnsOutTooMuch,
    Occurrence::SubjectTurnsOutMistaken,
    Occurrence::BlockerFinishes,
    Occurrence::BlockerDropped,
    Occurrence::NextArrives,
    Occurrence::NextDropped,
    Occurrence::TimeOut,
    Occurrence::Drain,
    Occurrence::AllCancelled,
];

/// Who is polled after an event.
#[derive(Clone, Copy, Debug)]
enum Polls {
    Nobody,
    Driver,
    Subject,
    WhatIsWoken,
}

const POLLS: [Polls; 4] = [
    Polls::Nobody,
    Polls::Driver,
    Polls::Subject,
    Polls::WhatIsWoken,
];

impl World {
    fn reach(point: Point) -> Self {
        let mut world = Self::new();
        world.driver.poll();
        if let Point::Waiting | Point::GrantedAndNotPolled = point {
            world.begin(BLOCKER);
        }
        world.start(SUBJECT);
        let stage = match point {
            Point::NotPolled => return world,
            Point::Called => READY,
            Point::BodyBegun => ANSWERED,
            Point::FrameOut => FRAME,
            _ => 0,
        };
        world.work[SUBJECT].go_to(stage);
        world.poll(SUBJECT);
        if let Point::GrantedAndNotPolled = point {
            world.drop_request(BLOCKER);
        }
        world
    }

    fn drop_request(&mut self, who: usize) {
        if let Some(request) = &mut self.requests[who] {
            request.cancel();
        }
    }

    fn happen(&mut self, event: Occurrence) {
        match event {
            Occurrence::SubjectDropped => self.drop_request(SUBJECT),
            Occurrence::SubjectGoesOn => self.work[SUBJECT].go_on(),
            Occurrence::SubjectFinishes => self.work[SUBJECT].go_to(END),
            Occurrence::SubjectTurnsOutTooMuch => self.work[SUBJECT].end_with(503),
            Occurrence::SubjectTurnsOutMistaken => self.work[SUBJECT].end_with(404),
            Occurrence::BlockerFinishes => {
                self.work[BLOCKER].go_to(END);
                self.poll(BLOCKER);
            }
            Occurrence::BlockerDropped => self.drop_request(BLOCKER),
            Occurrence::NextArrives => self.begin(NEXT),
            Occurrence::NextDropped => self.drop_request(NEXT),
            Occurrence::TimeOut => self.clock.0.advance(Span::from_millis(150)),
            Occurrence::Drain => self.front.drain(),
            Occurrence::AllCancelled => self.front.cancel_all(CancelReason::Drain),
        }
        self.check();
    }

    fn polled(&mut self, polls: Polls) {
        match polls {
            Polls::Nobody => {}
            Polls::Driver => self.driver.poll(),
            Polls::Subject => self.poll(SUBJECT),
            Polls::WhatIsWoken => self.settle(),
        }
        self.check();
    }

    /// Everything goes to its end by itself, and the slot is there for the next.
    fn end(mut self) {
        for work in &self.work {
            work.go_to(END);
        }
        self.settle();
        // For those who wait for the end of a pause.
        self.clock.0.advance(Span::from_secs(2));
        self.settle();
        for (who, request) in self.requests.iter().enumerate() {
            let pending = request.as_ref().is_some_and(Task::is_pending);
            assert!(!pending, "request {who} was not woken");
        }
        assert_all_ended(self.front.stats());
        assert_eq!(self.inside.load(Ordering::Relaxed), 0);

        let front = self.front.clone();
        let mut probe = Task::new(async move { front.admit(Ask::new(1, 1)).await });
        probe.poll();
        match probe.output.take() {
            Some(Ok(permit)) => permit.finish(),
            Some(Err(rejection)) => assert_eq!(rejection.code().name, "shutting_down"),
            None => panic!("the slot has not come back"),
        }
        assert_all_ended(self.front.stats());

        let front = self.front.clone();
        front.drain();
        let mut drained = Task::new(async move { front.drained().await });
        drained.poll();
        assert!(drained.output.is_some());

        let Self {
            front,
            mut driver,
            requests,
            ..
        } = self;
        drop((front, requests, probe, drained));
        assert!(driver.poll_if_woken());
        assert!(
            driver.output.is_some(),
            "somebody still holds the dispatcher"
        );
    }
}

#[test]
fn two_events_at_any_point_leave_nothing_behind() {
    let mut runs = 0;
    for point in POINTS {
        for first in EVENTS {
            for second in EVENTS {
                for (after_first, after_second) in pairs() {
                    let name =
                        format!("{point:?}: {first:?} {after_first:?} {second:?} {after_second:?}");
                    let run = std::panic::catch_unwind(|| {
                        let mut world = World::reach(point);
                        world.happen(first);
                        world.polled(after_first);
                        world.happen(second);
                        world.polled(after_second);
                        world.end();
                    });
                    assert!(run.is_ok(), "{name}");
                    runs += 1;
                }
            }
        }
    }
    assert_eq!(runs, 7 * 12 * 12 * 16);
}

fn pairs() -> impl Iterator<Item = (Polls, Polls)> {
    POLLS
        .into_iter()
        .flat_map(|first| POLLS.into_iter().map(move |second| (first, second)))
}

#[test]
fn a_drain_wakes_those_who_wait_for_its_end_when_the_last_permit_goes() {
    for point in POINTS {
        let mut world = World::reach(point);
        let arrived = world.front.stats().counters.arrived > 0;
        let front = world.front.clone();
        let mut drained = Task::new(async move { front.drained().await });
        drained.poll();
        world.front.drain();
        drained.poll_if_woken();
        assert_eq!(drained.is_pending(), arrived, "{point:?}");
        world.work[SUBJECT].go_to(END);
        world.settle();
        world.drop_request(BLOCKER);
        world.settle();
        drained.poll_if_woken();
        assert!(drained.output.is_some(), "{point:?}");
    }
}

#[test]
fn a_request_learns_of_its_deadline_wherever_it_is() {
    for point in POINTS.into_iter().skip(1) {
        let mut world = World::reach(point);
        world.happen(Occurrence::TimeOut);
        world.settle();
        let output = world.requests[SUBJECT].as_ref().unwrap().output;
        let expected = match point {
            Point::BodyBegun | Point::FrameOut => "broke off",
            _ => "rejected",
        };
        assert_eq!(output, Some(expected), "{point:?}");
        world.end();
    }
}
