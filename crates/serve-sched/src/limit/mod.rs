//! How many requests may be with an engine?
//!
//! An engine behind a wire does not say when it is full; requests that it cannot serve yet wait in a
//! queue of its own, where no policy orders, refuses or expires them. A limit keeps the rest in the
//! gate of the [`Dispatcher`](crate::Dispatcher). It is told of each request that leaves the engine,
//! and what it says holds from then on. It reads no clock and draws nothing that is not seeded.

mod aimd;
mod fixed;
mod gradient;
mod parts;

pub use aimd::{Aimd, AimdSettings};
pub use fixed::Fixed;
pub use gradient::{Gradient, GradientSettings};
pub use parts::InvalidLimit;

use serve_core::{Span, Time};

use crate::settings::{Change, Named, Row};

/// Every limit with its default parameters, by its name.
pub const LIMITS: &[Named<dyn Concurrency>] = &[
    Named {
        name: "fixed",
        settings: &[],
        build: |_| Box::new(Fixed::default()),
    },
    Named {
        name: "gradient",
        settings: &[],
        build: |_| Box::new(Gradient::default()),
    },
    Named {
        name: "aimd",
        settings: &[],
        build: |_| Box::new(Aimd::default()),
    },
];

/// A rule for how many requests are with an engine side by side. The one method that matters is
/// [`limit`](Self::limit).
///
/// ```
/// use serve_core::Time;
/// use serve_sched::limit::{Concurrency, Departure, Signal};
///
/// /// One less after each request that was too much.
/// struct Cautious(u32);
///
/// impl Concurrency for Cautious {
///     fn name(&self) -> &'static str {
///         "cautious"
///     }
///
///     fn limit(&self) -> u32 {
///         self.0
///     }
///
///     fn left(&mut self, _now: Time, departure: &Departure) {
///         if departure.signal == Signal::Overloaded {
///             self.0 = self.0.saturating_sub(1);
///         }
///     }
/// }
/// ```
pub trait Concurrency: Send {
    /// The name in settings.
    fn name(&self) -> &'static str;

    /// Requests with the engine at most; 0 counts as 1.
    fn limit(&self) -> u32;

    /// A request has left the engine, or ran out of time there: said once each time that one was
    /// sent.
    fn left(&mut self, now: Time, departure: &Departure) {
        let _ = (now, departure);
    }

    /// Whether it can take another value of this setting while requests are with the engine.
    fn takes(&self, row: &Row) -> bool {
        let _ = row;
        false
    }

    /// Some of the settings that it [takes](Self::takes) are to be others.
    fn change(&mut self, change: &Change) {
        let _ = change;
    }
}

/// A request that has left the engine, or ran out of time there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// How long it was with the engine.
    pub took: Span,
    /// How long after it was sent its first token came, where that is known.
    pub first_token: Option<Span>,
    /// Tokens in its prompt.
    pub prompt_tokens: u32,
    /// Tokens that came back.
    pub output_tokens: u32,
    /// Requests that were with the engine, this one included.
    pub in_flight: u32,
    /// What it says of the engine's load.
    pub signal: Signal,
}

/// What the end of a request says of an engine's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It was answered: how long it took is a measure of the load.
    Answered,
    /// Nothing: a client's mistake, or a client that went away.
    Ignored,
    /// The engine has too much to do: it refused the request, or time ran out there.
    Overloaded,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What hears of overload at least stays within its bounds, whatever it hears.
    #[test]
    fn every_limit_is_at_least_one_whatever_it_hears() {
        let signals = [Signal::Answered, Signal::Ignored, Signal::Overloaded];
        for policy in LIMITS {
            let mut limit = policy.by_default();
            let mut rng = serve_core::rng::Rng::new(1);
            let mut now = Time::ZERO;
            for _ in 0..20_000 {
                now += Span::from_nanos(rng.below(1 << 30));
                let departure = Departure {
                    took: Span::from_nanos(rng.below(1 << 34)),
                    first_token: None,
                    prompt_tokens: rng.below(1 << 17) as u32,
                    output_tokens: rng.below(1 << 12) as u32,
                    in_flight: 1 + rng.below(300) as u32,
                    signal: signals[rng.below(3) as usize],
                };
                limit.left(now, &departure);
                let at_most = limit.limit();
                assert!((1..=256).contains(&at_most), "{}: {at_most}", policy.name);
            }
        }
    }
}
