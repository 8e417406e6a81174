//! One more for each round that went well, a part less when the engine says that it was too much:
//! for engines that refuse honestly.

use serve_core::Time;

use super::parts::{InvalidLimit, Round, check_bounds, check_range};
use super::{Concurrency, Departure, Signal};

/// Additive increase, multiplicative decrease (Chiu and Jain, *Analysis of the increase and decrease
/// algorithms for congestion avoidance in computer networks*, 1989).
///
/// The limit doubles in each round until the engine is overloaded for the first time. Then
///
/// ```text
/// limit = limit + 1                           after a round of `limit` requests, half of it in use
/// limit = decrease x min(limit, in flight)    when one is refused or runs out of time
/// ```
///
/// with at most one decrease for all that were sent before it. Latency is not looked at: in front of
/// an engine that queues what it cannot serve, and never refuses, the limit rises to its highest.
#[derive(Clone, Debug, PartialEq)]
pub struct Aimd {
    settings: AimdSettings,
    limit: f64,
    doubling: bool,
    round: Round,
}

/// Parameters of an [`Aimd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AimdSettings {
    /// The lowest limit, at least 1.
    pub limit_min: u32,
    /// The highest limit.
    pub limit_max: u32,
    /// The limit before anything was heard.
    pub limit_initial: u32,
    /// What is left of the limit after a decrease, above 0 and below 1.
    pub decrease: f64,
}

impl Aimd {
    /// A limit that has heard nothing yet.
    ///
    /// # Errors
    ///
    /// [`InvalidLimit`], naming the parameter and what is accepted.
    pub fn new(settings: AimdSettings) -> Result<Self, InvalidLimit> {
        let (min, initial, max) = (
            settings.limit_min,
            settings.limit_initial,
            settings.limit_max,
        );
        check_bounds("aimd", [min, initial, max])?;
        let decrease = settings.decrease;
        let ok = decrease > 0.0 && decrease < 1.0;
        check_range("aimd", ("decrease", decrease), "above 0 and below 1", ok)?;
        Ok(Self::checked(settings))
    }

    fn checked(settings: AimdSettings) -> Self {
        Self {
            settings,
            limit: f64::from(settings.limit_initial),
            doubling: true,
            round: Round::default(),
        }
    }

    fn set_limit(&mut self, limit: f64) {
        let (min, max) = (self.settings.limit_min, self.settings.limit_max);
        self.limit = limit.clamp(f64::from(min), f64::from(max));
    }

    fn round_went_well(&mut self, now: Time) {
        let used = self.round.used(self.limit, 2);
        match (used, self.doubling) {
            (false, _) => self.round = self.round.next(),
            (true, true) => {
                self.set_limit(self.limit * 2.0);
                self.round = Round::raised(now);
            }
            (true, false) => {
                self.set_limit(self.limit + 1.0);
                self.round = self.round.next();
            }
        }
    }
}

impl Default for Aimd {
    fn default() -> Self {
        Self::checked(AimdSettings::default())
    }
}

impl Default for AimdSettings {
    /// Between 1 and 256, from 8; a tenth less when it was too much.
    fn default() -> Self {
        Self {
            limit_min: 1,
            limit_max: 256,
            limit_initial: 8,
            decrease: 0.9,
        }
    }
}

impl Concurrency for Aimd {
    fn name(&self) -> &'static str {
        "aimd"
    }

    fn limit(&self) -> u32 {
        self.limit as u32
    }

    fn left(&mut self, now: Time, departure: &Departure) {
        if !self.round.hear(now, departure) {
            return;
        }
        if departure.signal == Signal::Overloaded {
            let in_use = self.limit.min(f64::from(departure.in_flight));
            self.set_limit(in_use * self.settings.decrease);
            // From its lowest it may look for the engine's capacity as at the start.
            self.doubling = self.limit() == self.settings.limit_min;
            self.round = Round::lowered(now);
            return;
        }
        // Doubling needs half as much to be sure of: a wrong step is taken back soon.
        let enough = if self.doubling {
            self.limit() / 2
        } else {
            self.limit()
        };
        if self.round.requests() >= enough.max(1) {
            self.round_went_well(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use serve_core::Span;

    use super::*;

    fn left(aimd: &mut Aimd, at_ms: u64, signal: Signal) {
        let departure = Departure {
            took: Span::from_millis(10),
            first_token: None,
            prompt_tokens: 4,
            output_tokens: 4,
            in_flight: aimd.limit(),
            signal,
        };
        aimd.left(Time::from_millis(at_ms), &departure);
    }

    #[test]
    fn what_fails_together_is_one_decrease() {
        let mut aimd = Aimd::default();
        (0..8).for_each(|_| left(&mut aimd, 20, Signal::Overloaded));
        assert_eq!(aimd.limit(), 7);
        // Sent at 15, before the decrease.
        left(&mut aimd, 25, Signal::Overloaded);
        assert_eq!(aimd.limit(), 7);
        left(&mut aimd, 31, Signal::Overloaded);
        assert_eq!(aimd.limit(), 6);
    }

    #[test]
    fn it_doubles_until_it_was_too_much_and_then_adds_one() {
        let mut aimd = Aimd::default();
        let mut at = 0;
        let mut answered = |aimd: &mut Aimd, requests: u32| {
            for _ in 0..requests {
                at += 20;
                left(aimd, at, Signal::Answered);
            }
        };
        answered(&mut aimd, 4 + 8);
        assert_eq!(aimd.limit(), 32);
        left(&mut aimd, 10_000, Signal::Overloaded);
        assert_eq!(aimd.limit(), 28);
        for n in 0..2 * 28 + 1 {
            left(&mut aimd, 20_000 + n, Signal::Answered);
        }
        assert_eq!(aimd.limit(), 30);
    }

    #[test]
    fn what_is_nobodys_load_changes_nothing() {
        let mut aimd = Aimd::default();
        (0..1_000).for_each(|n| left(&mut aimd, 20 * n, Signal::Ignored));
        assert_eq!(aimd, Aimd::default());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let settings = AimdSettings {
            decrease: 1.0,
            ..AimdSettings::default()
        };
        let message = Aimd::new(settings).unwrap_err().to_string();
        assert_eq!(
            message,
            "aimd: decrease is 1; it must be above 0 and below 1"
        );
        let settings = AimdSettings {
            limit_min: 9,
            ..AimdSettings::default()
        };
        let message = Aimd::new(settings).unwrap_err().to_string();
        assert_eq!(
            message,
            "aimd: limit_min 9, limit_initial 8 and limit_max 256 must be in this order, from 1 up"
        );
    }
}
