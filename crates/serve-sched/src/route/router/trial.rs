//! A share of the requests for an upstream on trial, and the evidence that it is worse than the others.
//!
//! Two tests run over its requests in order: does it fail, and is it slow, more often than the others?
//!
//! ```text
//! doubt = max(1, doubt x P(outcome | worse) / P(outcome | like the others))
//! worse = at 5 times the others' rate p, but no nearer to 1 than half-way: p1 = min(5 p, (1 + p) / 2)
//! p     = what the others' requests fail, 1 in 100 at least; 1 in 10 are slow, by definition
//! ```
//!
//! At a doubt of 10,000 the trial is over. This is a cumulative sum of likelihood ratios (Page, *Continuous inspection schemes*,
//! 1954): looked at after each request, it accuses one that is like the others once in 10,000 requests at the most in the
//! mean (Lorden, 1971).

use super::told::Doubt;

/// A share of the requests and what came of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trial {
    percent: u32,
    credit: u32,
    failures: f64,
    slow: f64,
    worse: Option<Doubt>,
}

/// How sure one has to be.
const DOUBT_MAX: f64 = 10_000.0;

/// Worse is so many times as often.
const WORSE: f64 = 5.0;

/// The part of the others' requests that are called slow.
pub(super) const SLOW: f64 = 0.1;

/// The least that the others are taken to fail.
const FAILURES_MIN: f64 = 0.01;

impl Trial {
    pub(super) fn new(percent: u32) -> Self {
        Self {
            percent: percent.min(50),
            credit: 0,
            failures: 1.0,
            slow: 1.0,
            worse: None,
        }
    }

    pub(super) fn worse(&self) -> Option<Doubt> {
        self.worse
    }

    /// A request comes: whether it is its turn.
    pub(super) fn is_due(&mut self) -> bool {
        self.credit = (self.credit + self.percent).min(200);
        self.credit >= 100
    }

    /// It was given a request in its turn.
    pub(super) fn given(&mut self) {
        self.credit = self.credit.saturating_sub(100);
    }

    /// A request of it failed or did not, where `of_others` is the part of the others' that fail.
    pub(super) fn ended(&mut self, failed: bool, of_others: f64) {
        let rate = of_others.max(FAILURES_MIN);
        self.failures = doubt(self.failures, failed, rate);
        self.look();
    }

    /// A request of it was slow or was not.
    pub(super) fn answered(&mut self, slow: bool) {
        self.slow = doubt(self.slow, slow, SLOW);
        self.look();
    }

    fn look(&mut self) {
        if self.failures >= DOUBT_MAX {
            self.worse = self.worse.or(Some(Doubt::Failures));
        } else if self.slow >= DOUBT_MAX {
            self.worse = self.worse.or(Some(Doubt::Latency));
        }
    }
}

fn doubt(before: f64, bad: bool, rate: f64) -> f64 {
    let worse = (WORSE * rate).min(f64::midpoint(1.0, rate));
    let ratio = match bad {
        true => worse / rate,
        false if rate < 1.0 => (1.0 - worse) / (1.0 - rate),
        false => 1.0,
    };
    (before * ratio).max(1.0)
}

/// How the requests of the upstreams that are not on trial have gone lately.
#[derive(Debug, Default)]
pub(super) struct Others {
    failed: f64,
    ended: f64,
    ratios: Vec<f64>,
    next: usize,
    slow: Option<f64>,
}

/// Of the last so many answers one knows which are slow.
const KEPT: usize = 256;

impl Others {
    pub(super) fn ended(&mut self, failed: bool) {
        let keep = 1.0 - 1.0 / 1024.0;
        self.failed = self.failed * keep + f64::from(u8::from(failed));
        self.ended = self.ended * keep + 1.0;
    }

    /// An answer took so many times as long as expected.
    pub(super) fn answered(&mut self, ratio: f64) {
        match self.ratios.len() < KEPT {
            true => self.ratios.push(ratio),
            false => self.ratios[self.next] = ratio,
        }
        self.next = (self.next + 1) % KEPT;
        if self.next.is_multiple_of(16) {
            let mut sorted = self.ratios.clone();
            let index = ((sorted.len() as f64) * (1.0 - SLOW)) as usize;
            let index = index.min(sorted.len() - 1);
            let (_, &mut ratio, _) = sorted.select_nth_unstable_by(index, f64::total_cmp);
            self.slow = Some(ratio);
        }
    }

    /// The part of their requests that fail.
    pub(super) fn failure_rate(&self) -> f64 {
        match self.ended > 0.0 {
            true => self.failed / self.ended,
            false => 0.0,
        }
    }

    /// An answer is slow that took more times as long as expected than this; `None` until sixteen have come.
    pub(super) fn slow_ratio(&self) -> Option<f64> {
        self.slow
    }
}

#[cfg(test)]
mod tests {
    use serve_core::rng::Rng;

    use super::*;

    /// Requests until it is accused, in the mean over 200 trials; each ends after `most`.
    fn requests(most: u32, mut one: impl FnMut(&mut Trial, &mut Rng)) -> (f64, u32) {
        let (mut sum, mut accused) = (0, 0);
        for seed in 0..200 {
            let (mut trial, mut rng) = (Trial::new(5), Rng::new(seed));
            let mut n = 0;
            while n < most && trial.worse().is_none() {
                one(&mut trial, &mut rng);
                n += 1;
            }
            sum += n;
            accused += u32::from(trial.worse().is_some());
        }
        (f64::from(sum) / 200.0, accused)
    }

    #[test]
    fn what_always_fails_is_accused_after_six_requests_and_what_is_alike_hardly_ever() {
        let failing = |rate: f64, others: f64| {
            move |trial: &mut Trial, rng: &mut Rng| trial.ended(rng.next_f64() < rate, others)
        };
        assert_eq!(requests(1_000, failing(1.0, 0.0)), (6.0, 200));
        let (mean, accused) = requests(10_000, failing(0.2, 0.01));
        assert!(accused == 200 && mean < 50.0, "{mean}");
        let (mean, accused) = requests(10_000, failing(0.05, 0.01));
        assert!(accused == 200 && mean < 400.0, "{mean}");
        let (_, accused) = requests(2_000, failing(0.01, 0.01));
        assert!(accused <= 4, "{accused} of 200 trials of 2,000 requests");
        let (_, accused) = requests(2_000, failing(0.3, 0.3));
        assert!(accused <= 4, "{accused} where all fail alike");
    }

    #[test]
    fn what_is_slow_is_accused_too() {
        let slow = |rate: f64| {
            move |trial: &mut Trial, rng: &mut Rng| trial.answered(rng.next_f64() < rate)
        };
        assert_eq!(requests(1_000, slow(1.0)), (6.0, 200));
        let (mean, accused) = requests(10_000, slow(0.5));
        assert!(accused == 200 && mean < 30.0, "{mean}");
        let (_, accused) = requests(2_000, slow(SLOW));
        assert!(accused <= 10, "{accused} of 200, where the law allows 40");
    }

    #[test]
    fn a_share_is_met_to_the_request() {
        let mut trial = Trial::new(5);
        let mut given = 0;
        for _ in 0..1_000 {
            if trial.is_due() {
                trial.given();
                given += 1;
            }
        }
        assert_eq!(given, 50);
    }

    #[test]
    fn the_ninth_tenth_of_the_others_is_where_slow_begins() {
        let mut others = Others::default();
        assert_eq!(others.slow_ratio(), None);
        (0..1_000).for_each(|n| others.answered(f64::from(n % 10)));
        assert_eq!(others.slow_ratio(), Some(9.0));
    }
}
