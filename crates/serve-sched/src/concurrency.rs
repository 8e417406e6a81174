//! How many requests an engine is given side by side: a fixed number, or one that follows the
//! measured latency.
//!
//! An engine behind a wire does not say when it is full; requests that it cannot serve yet wait in a
//! queue of its own, where no policy orders, refuses or expires them. [`Gradient`] finds the number
//! of requests beyond which more of them only make all of them slower, and keeps the rest in the
//! gate.

use serve_core::Span;
use thiserror::Error;

/// How many requests an engine is given side by side.
#[derive(Clone, Debug, PartialEq)]
pub enum Concurrency {
    /// Always so many; 0 counts as 1.
    Fixed(u32),
    /// As many as do not make each other wait.
    Adaptive(Gradient),
}

impl Concurrency {
    /// Requests in flight at most; at least 1.
    pub fn limit(&self) -> u32 {
        match self {
            Self::Fixed(limit) => (*limit).max(1),
            Self::Adaptive(gradient) => gradient.limit(),
        }
    }

    pub(crate) fn ended(&mut self, took: Span, work: u32, in_flight: u32) {
        if let Self::Adaptive(gradient) = self {
            gradient.ended(took, work, in_flight);
        }
    }

    pub(crate) fn failed(&mut self) {
        if let Self::Adaptive(gradient) = self {
            gradient.failed();
        }
    }
}

/// A concurrency limit by the gradient of the latency, after Netflix's *concurrency-limits*
/// (Gradient2) and TCP Vegas (Brakmo and Peterson, 1995).
///
/// Once in a window of `limit` requests, and at least four,
///
/// ```text
/// gradient = clamp(tolerance x baseline / latency, 1/2, 1)
/// limit    = (1 - smoothing) x limit + smoothing x (limit x gradient + sqrt(limit))
/// ```
///
/// where *latency* is the window's mean time for each output token, so that long answers are not
/// taken for slow ones, and *baseline* is what it is without a queue: the lowest seen since the last
/// probe. The square root is the queue that the engine may hold to stay busy. Without it the limit
/// could never grow; with it the limit settles where `gradient = 1 - 1/sqrt(limit)`: on an engine
/// that serves `n` side by side, somewhat above `tolerance x n`.
///
/// Every `probe_every` windows the limit is cut to a quarter for a round and the baseline taken anew
/// (as BBR probes the round-trip time); half would not do, as a queue as long as the engine has
/// slots would still be there to be taken for the baseline. Without probes an engine that has become
/// slower for good would be throttled for ever. A failed request takes a tenth off the limit. While
/// less than half of the limit is in use it does not grow, as nothing is learned.
///
/// Plain arithmetic on what is passed in: no clock, and the same samples give the same limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    settings: GradientSettings,
    limit: f64,
    baseline: Option<f64>,
    window: Window,
    windows: u32,
    phase: Phase,
}

/// Parameters of a [`Gradient`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientSettings {
    /// The lowest limit, at least 1.
    pub limit_min: u32,
    /// The highest limit.
    pub limit_max: u32,
    /// The limit before anything was measured.
    pub limit_initial: u32,
    /// How many times the baseline a latency may be before the limit falls; at least 1.
    pub tolerance: f64,
    /// How much of a change is made at once, above 0 and at most 1.
    pub smoothing: f64,
    /// Windows between two probes, at least 1.
    pub probe_every: u32,
}

/// Parameters that make no sense.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum InvalidGradient {
    /// The limits are not in order.
    #[error(
        "gradient: limit_min {min}, limit_initial {initial} and limit_max {max} must be in this order, from 1 up"
    )]
    Limits {
        /// The lowest.
        min: u32,
        /// The first.
        initial: u32,
        /// The highest.
        max: u32,
    },
    /// A number is out of range.
    #[error("gradient: {name} is {value}; it must be {accepted}")]
    Range {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What is accepted.
        accepted: &'static str,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Window {
    secs: f64,
    work: f64,
    requests: u32,
    in_flight_max: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Steady,
    /// So many requests were sent before the limit was cut; they say nothing of the new one.
    Draining(u32),
    Probing,
}

/// Fewer requests than this say too little of a latency.
const REQUESTS_MIN: u32 = 4;

impl Gradient {
    /// A limit that has measured nothing yet.
    ///
    /// # Errors
    ///
    /// [`InvalidGradient`], naming the parameter and what is accepted.
    pub fn new(settings: GradientSettings) -> Result<Self, InvalidGradient> {
        settings.validate()?;
        Ok(Self::checked(settings))
    }

    fn checked(settings: GradientSettings) -> Self {
        Self {
            settings,
            limit: f64::from(settings.limit_initial),
            baseline: None,
            window: Window::default(),
            windows: 0,
            phase: Phase::Steady,
        }
    }

    /// Requests in flight at most.
    pub fn limit(&self) -> u32 {
        let limit = match self.phase {
            Phase::Steady => self.limit,
            Phase::Draining(_) | Phase::Probing => self.limit / 4.0,
        };
        (limit as u32).max(self.settings.limit_min)
    }

    /// A request has ended after `took` and gave `work` output tokens; it was one of `in_flight`.
    pub fn ended(&mut self, took: Span, work: u32, in_flight: u32) {
        match self.phase {
            Phase::Draining(0 | 1) => self.phase = Phase::Probing,
            Phase::Draining(before) => self.phase = Phase::Draining(before - 1),
            Phase::Steady | Phase::Probing => {
                self.window.add(took, work, in_flight);
                if self.window.requests >= self.limit().max(REQUESTS_MIN) {
                    self.close_window(in_flight);
                }
            }
        }
    }

    /// A request has failed, or the engine has refused it.
    pub fn failed(&mut self) {
        self.set_limit(self.limit * 0.9);
    }

    fn close_window(&mut self, in_flight: u32) {
        let window = std::mem::take(&mut self.window);
        let latency = window.secs / window.work;
        if self.phase == Phase::Probing {
            self.baseline = Some(latency);
            self.phase = Phase::Steady;
            return;
        }
        let baseline = self.baseline.map_or(latency, |lowest| lowest.min(latency));
        self.baseline = Some(baseline);
        if f64::from(window.in_flight_max) * 2.0 < self.limit {
            return;
        }
        let gradient = match latency > 0.0 {
            true => (self.settings.tolerance * baseline / latency).clamp(0.5, 1.0),
            false => 1.0,
        };
        let target = self.limit * gradient + self.limit.sqrt();
        let smoothing = self.settings.smoothing;
        self.set_limit((1.0 - smoothing) * self.limit + smoothing * target);
        self.windows += 1;
        if self.windows >= self.settings.probe_every {
            self.windows = 0;
            self.phase = Phase::Draining(in_flight);
        }
    }

    fn set_limit(&mut self, limit: f64) {
        let (min, max) = (self.settings.limit_min, self.settings.limit_max);
        self.limit = limit.clamp(f64::from(min), f64::from(max));
    }
}

impl Default for Gradient {
    fn default() -> Self {
        Self::checked(GradientSettings::default())
    }
}

impl Default for GradientSettings {
    /// Between 1 and 256, from 8; half as slow again is tolerated; a probe every 100 windows.
    fn default() -> Self {
        Self {
            limit_min: 1,
            limit_max: 256,
            limit_initial: 8,
            tolerance: 1.5,
            smoothing: 0.2,
            probe_every: 100,
        }
    }
}

impl GradientSettings {
    fn validate(&self) -> Result<(), InvalidGradient> {
        let (min, initial, max) = (self.limit_min, self.limit_initial, self.limit_max);
        if min == 0 || min > initial || initial > max {
            return Err(InvalidGradient::Limits { min, initial, max });
        }
        let range = |name, value, accepted, ok| match ok {
            true => Ok(()),
            false => Err(InvalidGradient::Range {
                name,
                value,
                accepted,
            }),
        };
        let (tolerance, smoothing) = (self.tolerance, self.smoothing);
        let ok = tolerance >= 1.0 && tolerance.is_finite();
        range("tolerance", tolerance, "at least 1", ok)?;
        let ok = smoothing > 0.0 && smoothing <= 1.0;
        range("smoothing", smoothing, "above 0 and at most 1", ok)?;
        let probe_every = f64::from(self.probe_every);
        range("probe_every", probe_every, "at least 1", probe_every >= 1.0)
    }
}

impl Window {
    fn add(&mut self, took: Span, work: u32, in_flight: u32) {
        self.secs += took.as_secs_f64();
        self.work += f64::from(work.max(1));
        self.requests += 1;
        self.in_flight_max = self.in_flight_max.max(in_flight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine that serves `slots` side by side and makes the others wait: `requests` go through
    /// it with the limit always used up. Returns the limit at the end.
    fn load(gradient: &mut Gradient, slots: u32, token_ms: u64, requests: u32) -> u32 {
        for n in 0..requests {
            let in_flight = gradient.limit();
            let tokens = 10 + n % 7;
            let alone = Span::from_millis(token_ms) * u64::from(tokens);
            let took = alone.mul_div(u64::from(in_flight.max(slots)), u64::from(slots));
            gradient.ended(took, tokens, in_flight);
        }
        gradient.limit()
    }

    /// The limit outside of a probe.
    fn settled(gradient: &Gradient) -> f64 {
        gradient.limit
    }

    #[test]
    fn it_settles_somewhat_above_what_the_engine_serves_side_by_side() {
        for slots in [1, 4, 16, 64] {
            let mut gradient = Gradient::default();
            load(&mut gradient, slots, 10, 50_000);
            let ratio = settled(&gradient) / f64::from(slots);
            let most = if slots == 1 { 4.5 } else { 2.5 };
            assert!((1.0..=most).contains(&ratio), "{ratio} x {slots} slots");
        }
    }

    #[test]
    fn it_follows_an_engine_that_loses_capacity_or_becomes_slower() {
        let mut gradient = Gradient::default();
        load(&mut gradient, 32, 10, 50_000);
        load(&mut gradient, 8, 10, 50_000);
        let less = settled(&gradient);
        assert!((8.0..=20.0).contains(&less), "{less} on 8 slots");
        load(&mut gradient, 8, 100, 50_000);
        let slower = settled(&gradient);
        assert!(
            (8.0..=20.0).contains(&slower),
            "{slower} on 8 slots, slower"
        );
    }

    #[test]
    fn an_engine_that_is_never_full_is_given_all_that_is_allowed() {
        let mut gradient = Gradient::default();
        load(&mut gradient, 1_000, 10, 200_000);
        assert_eq!(settled(&gradient), 256.0);
    }

    #[test]
    fn long_answers_are_not_slow_ones() {
        let mut gradient = Gradient::default();
        load(&mut gradient, 16, 10, 50_000);
        let before = settled(&gradient);
        // Answers of ten times as many tokens, each token as fast as ever.
        let mut lowest = before;
        for _ in 0..1_000 {
            let in_flight = gradient.limit();
            let took = Span::from_millis(1_000).mul_div(u64::from(in_flight.max(16)), 16);
            gradient.ended(took, 100, in_flight);
            lowest = lowest.min(settled(&gradient));
        }
        assert!(lowest > 0.8 * before, "{before} before, {lowest} after");
    }

    #[test]
    fn a_limit_that_is_not_used_does_not_grow() {
        let mut gradient = Gradient::default();
        for _ in 0..10_000 {
            gradient.ended(Span::from_millis(100), 10, 2);
        }
        assert_eq!(gradient.limit(), 8);
    }

    #[test]
    fn failures_bring_it_down_to_its_least() {
        let mut gradient = Gradient::default();
        (0..100).for_each(|_| gradient.failed());
        assert_eq!(gradient.limit(), 1);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let settings = GradientSettings {
            smoothing: 0.0,
            ..GradientSettings::default()
        };
        assert_eq!(
            Gradient::new(settings).unwrap_err().to_string(),
            "gradient: smoothing is 0; it must be above 0 and at most 1"
        );
        let settings = GradientSettings {
            limit_min: 9,
            ..GradientSettings::default()
        };
        assert!(matches!(
            Gradient::new(settings),
            Err(InvalidGradient::Limits { .. })
        ));
    }
}
