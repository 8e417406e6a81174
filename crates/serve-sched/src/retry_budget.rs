//! Whether, and when, a client sends a failed request again. For clients and gateways, not for the
//! scheduler: what it does not send, nobody has to refuse.
//!
//! A retry is load that comes when there is too much of it. If each of `n` attempts fails with
//! probability `p`, a client that tries up to `k` times sends `1 + p + .. + p^(k-1)` attempts for
//! each original; and `p` grows with what is sent. So a retry needs all of these:
//!
//! - the request has attempts left,
//! - the failure may pass: not a refusal that says *never*,
//! - the time at which it would be sent lies before its deadline,
//! - the budget, which all requests share, has a retry left. Each original pays a share of a retry
//!   into it, so retries are never more than that share of the originals plus a small reserve.

use serve_core::rng::Rng;
use serve_core::{Refusal, Span, Time};

/// A budget of retries that all requests of a client share.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    settings: RetrySettings,
    /// In hundredths of a retry.
    balance: u64,
    rng: Rng,
}

/// Parameters of a [`RetryBudget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// Attempts for one request at most, the original included; 1 is no retry.
    pub attempts_max: u32,
    /// Retries for every hundred originals.
    pub retries_percent: u32,
    /// Retries there are to begin with, and as many as can be saved up beyond them.
    pub reserve: u32,
    /// How long to wait before the first retry at most, beyond a hint; doubled for each further one.
    pub backoff: Span,
    /// The longest that this becomes.
    pub backoff_max: Span,
}

/// An attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Which one, the original being 1.
    pub number: u32,
    /// When the answer is of no use any more.
    pub deadline: Option<Time>,
    /// What the server said, if it refused.
    pub refusal: Option<Refusal>,
}

impl RetryBudget {
    /// A budget with its reserve. `seed` fixes the jitter.
    pub const fn new(settings: RetrySettings, seed: u64) -> Self {
        Self {
            settings,
            balance: settings.reserve as u64 * 100,
            rng: Rng::new(seed),
        }
    }

    /// An original request is sent.
    pub fn original(&mut self) {
        // The share of a hundred originals can be saved up, so that failures may come together.
        let (reserve, percent) = (self.settings.reserve, self.settings.retries_percent);
        let most = (u64::from(reserve) + u64::from(percent)) * 100;
        self.balance = (self.balance + u64::from(percent)).min(most);
    }

    /// When to send the request again, if at all; the retry is paid for.
    ///
    /// It waits as long as the server's hint says, if there is one, and then for a part of the
    /// backoff that is drawn at random (full jitter), so that clients who failed together, and were
    /// told the same, do not come back together.
    pub fn retry(&mut self, now: Time, failed: &FailedAttempt) -> Option<Time> {
        let is_final = matches!(failed.refusal, Some(Refusal::Never { .. }));
        if is_final || failed.number >= self.settings.attempts_max || self.balance < 100 {
            return None;
        }
        let hint = failed.refusal.and_then(|refusal| refusal.retry_after());
        let at = now + hint.unwrap_or_default() + self.jitter(failed.number);
        if failed.deadline.is_some_and(|deadline| deadline <= at) {
            return None;
        }
        self.balance -= 100;
        Some(at)
    }

    fn jitter(&mut self, number: u32) -> Span {
        let doublings = number.saturating_sub(1).min(63);
        let backoff = self.settings.backoff * (1 << doublings);
        let longest = backoff.min(self.settings.backoff_max).as_nanos();
        Span::from_nanos(self.rng.below(longest.saturating_add(1)))
    }
}

impl Default for RetrySettings {
    /// One retry for a request, and one for ten originals.
    fn default() -> Self {
        Self {
            attempts_max: 2,
            retries_percent: 10,
            reserve: 3,
            backoff: Span::from_millis(100),
            backoff_max: Span::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use serve_core::Limit;

    use super::*;

    const SETTINGS: RetrySettings = RetrySettings {
        attempts_max: 10,
        retries_percent: 20,
        reserve: 1,
        backoff: Span::from_millis(100),
        backoff_max: Span::from_secs(1),
    };

    const FAILED: FailedAttempt = FailedAttempt {
        number: 1,
        deadline: None,
        refusal: None,
    };

    #[test]
    fn retries_are_a_share_of_the_originals_and_the_reserve() {
        let mut budget = RetryBudget::new(SETTINGS, 1);
        let mut retries = 0;
        for _ in 0..1_000 {
            budget.original();
            retries += u32::from(budget.retry(Time::ZERO, &FAILED).is_some());
        }
        assert_eq!(retries, 1_000 / 5 + 1);
    }

    #[test]
    fn quiet_times_save_up_no_more_than_a_hundred_originals_worth() {
        let mut budget = RetryBudget::new(SETTINGS, 1);
        (0..1_000_000).for_each(|_| budget.original());
        let retries = std::iter::from_fn(|| budget.retry(Time::ZERO, &FAILED));
        assert_eq!(retries.count(), 20 + 1);
    }

    /// When it comes back, in nanoseconds, told a hint in milliseconds.
    fn wait_ns(budget: &mut RetryBudget, number: u32, hint: Option<u64>) -> u64 {
        let refusal = hint.map(|hint| Refusal::Later {
            limit: Limit::GlobalRate,
            retry_after: Some(Span::from_millis(hint)),
        });
        let failed = FailedAttempt {
            number,
            refusal,
            ..FAILED
        };
        budget.retry(Time::ZERO, &failed).unwrap().as_nanos()
    }

    #[test]
    fn waits_are_drawn_from_a_backoff_that_doubles_and_begin_after_the_hint() {
        let settings = RetrySettings {
            reserve: 10_000,
            ..SETTINGS
        };
        let mut budget = RetryBudget::new(settings, 1);
        let ms = |ms: u64| ms * 1_000_000;
        for (number, longest) in [
            (1, 100),
            (2, 200),
            (3, 400),
            (4, 800),
            (5, 1_000),
            (9, 1_000),
        ] {
            for hint in [None, Some(0), Some(700)] {
                let waits = (0..500).map(|_| wait_ns(&mut budget, number, hint));
                let waits: Vec<u64> = waits.collect();
                let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
                let from = ms(hint.unwrap_or(0));
                assert!((from..from + ms(longest) / 50).contains(least), "{least}");
                assert!((from + ms(longest) * 49 / 50..=from + ms(longest)).contains(most));
            }
        }
    }

    #[test]
    fn a_hundred_clients_who_are_told_the_same_come_back_at_a_hundred_times() {
        for hint in [None, Some(49)] {
            let clients = (0..100).map(|seed| RetryBudget::new(SETTINGS, seed));
            let times = clients.map(|mut client| wait_ns(&mut client, 1, hint));
            let times: std::collections::BTreeSet<u64> = times.collect();
            assert_eq!(times.len(), 100);
        }
    }

    #[test]
    fn no_retry_that_cannot_help() {
        let mut budget = RetryBudget::new(SETTINGS, 1);
        let (now, soon) = (Time::from_secs(1), Time::from_millis(1_050));
        let late = FailedAttempt {
            deadline: Some(soon),
            ..FAILED
        };
        assert_eq!(budget.retry(now, &late), None);
        let never = FailedAttempt {
            refusal: Some(Refusal::Never {
                limit: Limit::DuplicateId,
            }),
            ..FAILED
        };
        assert_eq!(budget.retry(now, &never), None);
        assert!(
            budget.retry(now, &FAILED).is_some(),
            "none of these was paid for"
        );
    }
}
