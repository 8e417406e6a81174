//! Policies of one's own beside ours: what they refuse with is carried everywhere as they said it.

use serve_core::mock::{Mock, MockConfig};
use serve_core::{Backend, Blame, Limit, Reason, Refusal, Request, RequestId, Span, Time, TokenId};
use serve_sched::admit::{Admit, Load, QueueCap};
use serve_sched::journal::Lines;
use serve_sched::limit::Fixed;
use serve_sched::order::Fifo;
use serve_sched::{Dispatcher, Policies, Scheduler};

static LONG_PROMPT: Reason = Reason::new("prompt_too_long", Blame::Client, "prompt tokens");
static BUSY_SHELF: Reason = Reason::new("shelf_full", Blame::Capacity, "books");

/// No prompt of more than ten tokens, and none of five for now.
struct House;

impl Admit for House {
    fn name(&self) -> &'static str {
        "house"
    }

    fn admit(&mut self, request: &Request, _load: &Load<'_>) -> Result<(), Refusal> {
        let value = u64::from(request.prompt_tokens());
        match value {
            5 => Err(Refusal::Later {
                limit: shelf(value),
                retry_after: Some(Span::from_secs(2)),
            }),
            11.. => Err(Refusal::Never { limit: long(value) }),
            _ => Ok(()),
        }
    }
}

fn long(value: u64) -> Limit {
    Limit::Policy {
        reason: &LONG_PROMPT,
        value,
        max: 10,
    }
}

fn shelf(value: u64) -> Limit {
    Limit::Policy {
        reason: &BUSY_SHELF,
        value,
        max: 4,
    }
}

const JOURNAL: &str = "\
0s r1 refused: 12 prompt tokens, and at most 10 may be (house: prompt_too_long)
0s r2 refused for now: 5 books, and at most 4 may be (house: shelf_full, again in 2s)
";

fn request(id: u64, prompt: usize) -> Request {
    let tokens = vec![TokenId::new(1); prompt];
    Request::new(RequestId::new(id), Time::ZERO, tokens, 1).unwrap()
}

#[test]
fn a_schedulers_refusal_is_the_policys_own() {
    let policies = Policies {
        admit: vec![Box::new(QueueCap::new(1)), Box::new(House)],
        ..Policies::default()
    };
    let mock = Mock::new(MockConfig::default());
    let mut scheduler = Scheduler::new(mock.limits(), policies).unwrap();
    let lines = Lines::new();
    scheduler.set_journal(Some(Box::new(lines.clone())));
    let refused = scheduler.submit(Time::ZERO, request(1, 12)).unwrap_err();
    assert_eq!(refused.limit(), long(12));
    let refused = scheduler.submit(Time::ZERO, request(2, 5)).unwrap_err();
    assert_eq!(
        (refused.limit(), refused.retry_after_s()),
        (shelf(5), Some(2))
    );
    assert_eq!(lines.text(), JOURNAL);
    let counters = scheduler.stats().counters;
    assert_eq!((counters.arrived, counters.refused), (2, 2));
}

#[test]
fn a_dispatchers_refusal_is_the_policys_own() {
    let mut dispatcher = Dispatcher::new(
        vec![Box::new(House)],
        Box::new(Fifo),
        Box::new(Fixed::new(1)),
    );
    let lines = Lines::new();
    dispatcher.set_journal(Some(Box::new(lines.clone())));
    let refused = dispatcher.submit(Time::ZERO, request(1, 12)).unwrap_err();
    assert_eq!(
        (refused.code().name, refused.code().status),
        ("prompt_too_long", 400)
    );
    let refused = dispatcher.submit(Time::ZERO, request(2, 5)).unwrap_err();
    assert_eq!(
        (refused.code().name, refused.code().status),
        ("shelf_full", 503)
    );
    assert_eq!(lines.text(), JOURNAL);
}
