//! A client's retry budget at work on requests of which some attempts fail.

use serve_core::rng::Rng;
use serve_core::{Span, Time};
use serve_sched::{FailedAttempt, RetryBudget, RetrySettings};

/// Attempts that were sent for `originals` requests, up to four for each, and requests that were answered in the end,
/// where each attempt fails with the probability `fails`.
pub fn attempts(originals: u32, retries_percent: u32, fails: f64, seed: u64) -> (u32, u32) {
    let settings = RetrySettings {
        attempts_max: 4,
        retries_percent,
        reserve: 10,
        backoff: Span::from_millis(100),
        backoff_max: Span::from_secs(1),
    };
    let mut budget = RetryBudget::new(settings, seed + 1);
    let mut rng = Rng::new(seed + 2);
    let (mut sent, mut answered) = (0, 0);
    for _ in 0..originals {
        budget.original();
        for number in 1.. {
            sent += 1;
            if rng.next_f64() >= fails {
                answered += 1;
                break;
            }
            let attempt = FailedAttempt {
                number,
                deadline: None,
                refusal: None,
            };
            if budget.retry(Time::ZERO, &attempt).is_none() {
                break;
            }
        }
    }
    (sent, answered)
}
