//! As many requests as do not make each other wait: a limit that follows the measured latency.

use serve_core::Time;
use serve_core::rng::Rng;

use super::parts::{InvalidLimit, Round, Shape, check_bounds, check_range};
use super::{Concurrency, Departure, Signal};

/// A limit by the gradient of the latency, after Netflix's *concurrency-limits* (Gradient2) and TCP
/// Vegas (Brakmo and Peterson, 1995).
///
/// Once in a round of `limit` requests,
///
/// ```text
/// gradient = clamp(tolerance x baseline / latency, 1/2, 1)
/// limit    = (1 - smoothing) x limit + smoothing x (limit x gradient + sqrt(limit))
/// limit    = limit x (1 - max(0, overloaded - 1/10) / 2)
/// ```
///
/// - *latency* is how much longer the round's requests took than requests of their sizes usually do;
///   neither long answers nor short ones nor long prompts are taken for a slow engine.
/// - *baseline* is what it is without a queue. The square root is the queue that the engine may hold
///   to stay busy; the limit settles where `gradient = 1 - 1/sqrt(limit)`: on an engine that serves
///   `n` side by side at the same speed, somewhat above `tolerance x n`.
/// - *overloaded* is the part of the round that the engine refused or that ran out of time there (a cut
///   in proportion, as in DCTCP, Alizadeh et al., 2010). What was sent before a cut adds nothing to it.
///
/// It **starts** by doubling, after each half round, until latency or overload says stop, and does so
/// again when it has been cut to its least or when the baseline turns out to be another. It
/// **probes** about every `probe_every` rounds, drawn from `seed` between 3/4 and 5/4 of it, and when it
/// has lost half of itself since the last probe: it is cut to a quarter for a round and the baseline
/// taken anew (as BBR probes the round-trip time); half would not do, as a queue as long as the engine
/// has slots would still be there to be taken for the baseline. A round that used a quarter of the
/// limit or less, or ran at the lowest limit, is as good as a probe. While less than half of the limit
/// is in use it does not grow, as nothing is learned.
///
/// Plain arithmetic on what is passed in: no clock, and the same departures give the same limits.
#[derive(Clone, Debug)]
pub struct Gradient {
    settings: GradientSettings,
    limit: f64,
    /// The highest limit since the baseline was taken.
    peak: f64,
    baseline: Option<f64>,
    shape: Shape,
    round: Round,
    phase: Phase,
    /// Rounds until the next probe.
    rounds_left: u32,
    rng: Rng,
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
    /// Rounds between two probes in the mean, at least 1.
    pub probe_every: u32,
    /// Draws the times of the probes. Dispatchers in front of one engine should each have another.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Looking for the engine's capacity from below.
    Doubling,
    Steady,
    /// At a quarter of the limit.
    Probing,
}

/// Fewer requests than this say too little of a latency.
const REQUESTS_MIN: u32 = 4;
/// Rounds with no larger a part refused are not cut: some fail on any engine.
const OVERLOADED_FEW: f64 = 0.1;
/// How fast the baseline follows a latency below it. Not at once: a lucky round is no baseline.
const BASELINE_FALL: f64 = 0.25;
/// A baseline that has risen by so much is of another engine than before.
const BASELINE_OTHER: f64 = 1.25;

impl Gradient {
    /// A limit that has measured nothing yet.
    ///
    /// # Errors
    ///
    /// [`InvalidLimit`], naming the parameter and what is accepted.
    pub fn new(settings: GradientSettings) -> Result<Self, InvalidLimit> {
        settings.validate()?;
        Ok(Self::checked(settings))
    }

    fn checked(settings: GradientSettings) -> Self {
        let limit = f64::from(settings.limit_initial);
        let mut new = Self {
            settings,
            limit,
            peak: limit,
            baseline: None,
            shape: Shape::default(),
            round: Round::default(),
            phase: Phase::Doubling,
            rounds_left: 0,
            rng: Rng::new(settings.seed),
        };
        new.draw_probe();
        new
    }

    /// How many requests make a round. Doubling needs fewer to be sure of: a wrong step is taken back
    /// soon.
    fn round_requests(&self) -> u32 {
        match self.phase {
            Phase::Doubling => (self.limit() / 2).max(REQUESTS_MIN),
            Phase::Steady => self.limit().max(REQUESTS_MIN),
            Phase::Probing => self.limit().max(2 * REQUESTS_MIN),
        }
    }

    fn close_round(&mut self, now: Time) {
        let round = self.round;
        self.round = round.next();
        let level = self.shape.close_round();
        if self.phase == Phase::Probing {
            self.probed(now, level);
            return;
        }
        let at_min = self.limit() == self.settings.limit_min;
        let quiet = at_min || !round.used(self.limit, 4) || self.baseline.is_none();
        if let Some(level) = level {
            self.follow(level, quiet);
        }
        let refused = (round.overloaded_share() - OVERLOADED_FEW).max(0.0);
        let kept = 1.0 - refused / 2.0;
        let gradient = level.map(|level| self.gradient(level));
        let used = round.used(self.limit, 2);
        match self.phase {
            Phase::Doubling => self.double(now, gradient, kept, used),
            _ => self.adjust(now, gradient, kept, used),
        }
    }

    /// What the limit may keep at a latency of `level`.
    fn gradient(&self, level: f64) -> f64 {
        match self.baseline {
            Some(baseline) if level > 0.0 => {
                (self.settings.tolerance * baseline / level).clamp(0.5, 1.0)
            }
            _ => 1.0,
        }
    }

    /// The baseline is what a round without a queue says, or falls towards a lower latency.
    fn follow(&mut self, level: f64, quiet: bool) {
        self.baseline = Some(match self.baseline {
            Some(baseline) if !quiet => baseline + BASELINE_FALL * (level - baseline).min(0.0),
            _ => level,
        });
    }

    fn double(&mut self, now: Time, gradient: Option<f64>, kept: f64, used: bool) {
        let stop = kept < 1.0 || gradient.is_some_and(|gradient| gradient < 1.0);
        if stop {
            self.phase = Phase::Steady;
            self.set_limit(self.limit * gradient.unwrap_or(1.0) * kept);
            self.lowered(now);
        } else if used && gradient.is_some() {
            self.set_limit(self.limit * 2.0);
            self.round = Round::raised(now);
        }
    }

    fn adjust(&mut self, now: Time, gradient: Option<f64>, kept: f64, used: bool) {
        if let Some(gradient) = gradient.filter(|&gradient| used || gradient < 1.0) {
            let target = self.limit * gradient + self.limit.sqrt();
            let smoothing = self.settings.smoothing;
            self.set_limit((1.0 - smoothing) * self.limit + smoothing * target);
        }
        if kept < 1.0 {
            self.set_limit(self.limit * kept);
            self.lowered(now);
        }
        self.rounds_left = self.rounds_left.saturating_sub(u32::from(used));
        let halved = self.limit * 2.0 <= self.peak;
        if self.phase == Phase::Steady && (self.rounds_left == 0 || halved) {
            self.phase = Phase::Probing;
            self.round = Round::lowered(now);
        }
    }

    /// The limit has been cut. At its lowest it looks for the engine's capacity as at the start.
    fn lowered(&mut self, now: Time) {
        self.round = Round::lowered(now);
        if self.limit() == self.settings.limit_min {
            self.phase = Phase::Doubling;
            self.peak = self.limit;
        }
    }

    fn probed(&mut self, now: Time, level: Option<f64>) {
        let before = self.baseline;
        self.baseline = level.or(before);
        let other = before.zip(level);
        let other = other.is_some_and(|(before, level)| level > BASELINE_OTHER * before);
        self.phase = if other {
            Phase::Doubling
        } else {
            Phase::Steady
        };
        self.peak = self.limit;
        self.round = Round::raised(now);
        self.draw_probe();
    }

    fn draw_probe(&mut self) {
        let every = u64::from(self.settings.probe_every);
        let rounds = every - every / 4 + self.rng.below(every / 2 + 1);
        self.rounds_left = u32::try_from(rounds).unwrap_or(u32::MAX);
    }

    fn set_limit(&mut self, limit: f64) {
        let (min, max) = (self.settings.limit_min, self.settings.limit_max);
        self.limit = limit.clamp(f64::from(min), f64::from(max));
        self.peak = self.peak.max(self.limit);
    }
}

impl Concurrency for Gradient {
    fn name(&self) -> &'static str {
        "gradient"
    }

    fn limit(&self) -> u32 {
        let limit = match self.phase {
            Phase::Doubling | Phase::Steady => self.limit,
            Phase::Probing => self.limit / 4.0,
        };
        (limit as u32).max(self.settings.limit_min)
    }

    fn left(&mut self, now: Time, departure: &Departure) {
        if !self.round.hear(now, departure) {
            return;
        }
        if departure.signal == Signal::Answered {
            let (prompt, output) = (departure.prompt_tokens, departure.output_tokens);
            self.shape.add(prompt, output, departure.took);
        }
        let all_refused = self.round.overloaded() >= self.limit();
        if all_refused || self.round.requests() >= self.round_requests() {
            self.close_round(now);
        }
    }
}

impl Default for Gradient {
    fn default() -> Self {
        Self::checked(GradientSettings::default())
    }
}

impl Default for GradientSettings {
    /// Between 1 and 256, from 8; half as slow again is tolerated; a probe about every 100 rounds.
    fn default() -> Self {
        Self {
            limit_min: 1,
            limit_max: 256,
            limit_initial: 8,
            tolerance: 1.5,
            smoothing: 0.2,
            probe_every: 100,
            seed: 0,
        }
    }
}

impl GradientSettings {
    fn validate(&self) -> Result<(), InvalidLimit> {
        let bounds = [self.limit_min, self.limit_initial, self.limit_max];
        check_bounds("gradient", bounds)?;
        let range =
            |name, value, accepted, ok| check_range("gradient", (name, value), accepted, ok);
        let (tolerance, smoothing) = (self.tolerance, self.smoothing);
        let ok = tolerance >= 1.0 && tolerance.is_finite();
        range("tolerance", tolerance, "at least 1", ok)?;
        let ok = smoothing > 0.0 && smoothing <= 1.0;
        range("smoothing", smoothing, "above 0 and at most 1", ok)?;
        let probe_every = f64::from(self.probe_every);
        range("probe_every", probe_every, "at least 1", probe_every >= 1.0)
    }
}

#[cfg(test)]
mod tests {
    use serve_core::Span;

    use super::*;

    fn departure(signal: Signal, in_flight: u32) -> Departure {
        Departure {
            took: Span::from_millis(100),
            first_token: None,
            prompt_tokens: 4,
            output_tokens: 10,
            in_flight,
            signal,
        }
    }

    #[test]
    fn a_few_refusals_are_no_cut_and_many_are_one_in_proportion() {
        let after = |refused: u32| {
            let settings = GradientSettings {
                limit_initial: 100,
                ..GradientSettings::default()
            };
            let mut gradient = Gradient::new(settings).unwrap();
            for n in 0..50 {
                let signal = match n < refused {
                    true => Signal::Overloaded,
                    false => Signal::Answered,
                };
                gradient.left(Time::from_secs(1), &departure(signal, 100));
            }
            gradient.limit()
        };
        assert_eq!(after(0), 200);
        assert_eq!(after(5), 200);
        assert_eq!(after(15), 90);
        assert_eq!(after(50), 55);
    }

    #[test]
    fn who_was_sent_before_the_limit_was_raised_says_nothing_of_it() {
        let mut gradient = Gradient::default();
        let mut hear = |at_ms, requests: u32| {
            for _ in 0..requests {
                gradient.left(Time::from_millis(at_ms), &departure(Signal::Answered, 16));
            }
            gradient.limit()
        };
        assert_eq!(hear(100, 4), 16);
        assert_eq!(hear(199, 100), 16, "sent at 99");
        assert_eq!(hear(200, 8), 32);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let settings = |change: fn(&mut GradientSettings)| {
            let mut settings = GradientSettings::default();
            change(&mut settings);
            Gradient::new(settings).unwrap_err().to_string()
        };
        let expected = [
            (
                settings(|it| it.limit_min = 0),
                "gradient: limit_min 0, limit_initial 8 and limit_max 256 must be in this order, \
                 from 1 up",
            ),
            (
                settings(|it| it.tolerance = 0.5),
                "gradient: tolerance is 0.5; it must be at least 1",
            ),
            (
                settings(|it| it.smoothing = f64::NAN),
                "gradient: smoothing is NaN; it must be above 0 and at most 1",
            ),
            (
                settings(|it| it.probe_every = 0),
                "gradient: probe_every is 0; it must be at least 1",
            ),
        ];
        for (message, expected) in expected {
            assert_eq!(message, expected);
        }
    }
}
