//! A batch forms, runs to the end of its longest request, and only then the next one forms.
//!
//! Rule: a batch starts when `size` requests wait, or when the window has passed since the first of
//! them began to wait, whichever is sooner. Nobody joins until every request of the batch has ended.
//!
//! Bound: with the engine idle, nobody waits for a batch to fill longer than the window.

use serve_core::{Span, Time};

use super::{Batch, BatchView, Join};
use crate::ConfigError;
use crate::settings::{MAX_BATCH, Named, Setting, Settings};

/// As its family lists it.
pub(super) const POLICY: Named<dyn Batch> = Named {
    name: "static",
    settings: &[&BATCH_WINDOW.row, &BATCH_WINDOW_MAX.row],
    build: |settings| Box::new(Static::of(settings)),
};

const BATCH_WINDOW: Setting<Span> = Setting::seconds(
    "batch_window",
    "Seconds that the first request of a batch waits for others",
    Span::from_millis(10),
);

const BATCH_WINDOW_MAX: Setting<Option<Span>> = Setting::seconds_if_given(
    "batch_window_max",
    "Lets the window follow the arrivals, from --batch-window up to this many seconds",
)
.checked(check_window_max);

/// Batches of a fixed size that nobody joins once they run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Static {
    size: u32,
    window: Window,
    spread: Spread,
}

/// How long the first request of a batch waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Always so long.
    Fixed(Span),
    /// As long as arrivals have lately needed to fill a batch, `size x mean gap`, within bounds. A
    /// fixed window shorter than the jitter of the network cuts bursts into pieces; one much longer
    /// makes everybody wait when traffic is thin.
    Observed {
        /// The shortest window, also before anything was observed.
        min: Span,
        /// The longest window: the promised bound.
        max: Span,
    },
}

/// The mean gap between arrivals, over about the last 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spread {
    last: Option<Time>,
    gap_mean_nanos: u64,
    gaps: u32,
}

impl Static {
    /// Batches of `size`, or fewer once the window has passed.
    pub const fn new(size: u32, window: Window) -> Self {
        Self {
            size,
            window,
            spread: Spread {
                last: None,
                gap_mean_nanos: 0,
                gaps: 0,
            },
        }
    }

    /// Batches of `max_batch`, within the window of the settings.
    fn of(settings: &Settings) -> Self {
        Self::new(settings.get(&MAX_BATCH).get(), Window::of(settings))
    }

    /// The window as it is now.
    pub fn window(&self) -> Span {
        match self.window {
            Window::Fixed(window) => window,
            Window::Observed { min, max } => {
                let gap = Span::from_nanos(self.spread.gap_mean_nanos);
                (gap * u64::from(self.size)).clamp(min, max.max(min))
            }
        }
    }
}

impl Default for Static {
    /// As the settings have it by default: batches of 16 within 10 ms.
    fn default() -> Self {
        Self::of(&Settings::default())
    }
}

impl Window {
    /// The window of the settings.
    fn of(settings: &Settings) -> Self {
        let min = settings.get(&BATCH_WINDOW);
        let max = settings.get(&BATCH_WINDOW_MAX);
        max.map_or(Self::Fixed(min), |max| Self::Observed { min, max })
    }
}

impl Batch for Static {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn join(&mut self, view: &BatchView) -> Join {
        let size = self.size.min(view.sequences_max);
        let until = view.oldest_since + self.window();
        if view.running > 0 {
            Join::UpTo(0)
        } else if view.waiting >= size || view.now >= until {
            Join::Batch(size)
        } else {
            Join::Hold { until }
        }
    }

    fn joins_running(&self) -> bool {
        false
    }

    fn sequences_max(&self) -> Option<u32> {
        Some(self.size)
    }

    fn arrived(&mut self, now: Time) {
        self.spread.arrived(now);
    }

    fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::refuse_zero("static: size", Some(self.size))
    }
}

fn check_window_max(settings: &Settings) -> Result<(), String> {
    let max = settings.get(&BATCH_WINDOW_MAX);
    if max.is_some_and(|max| max < settings.get(&BATCH_WINDOW)) {
        return Err("it must not be below --batch-window".to_owned());
    }
    Ok(())
}

impl Spread {
    fn arrived(&mut self, now: Time) {
        if let Some(last) = self.last {
            let gap = now.since(last).as_nanos();
            self.gaps = (self.gaps + 1).min(16);
            let weight = u64::from(self.gaps);
            let mean = self.gap_mean_nanos;
            self.gap_mean_nanos = mean - mean / weight + gap / weight;
        }
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn view(now_ms: u64, running: u32, waiting: u32) -> BatchView {
        BatchView {
            now: Time::from_millis(now_ms),
            running,
            waiting,
            oldest_since: Time::from_millis(100),
            sequences_max: 64,
        }
    }

    #[test]
    fn it_starts_when_full_or_when_the_window_has_passed() {
        let mut batch = Static::new(4, Window::Fixed(Span::from_millis(10)));
        let until = Time::from_millis(110);
        assert_eq!(batch.join(&view(109, 0, 3)), Join::Hold { until });
        assert_eq!(batch.join(&view(101, 0, 4)), Join::Batch(4));
        assert_eq!(batch.join(&view(110, 0, 1)), Join::Batch(4));
        assert_eq!(batch.join(&view(150, 1, 9)), Join::UpTo(0));
    }

    #[test]
    fn size_and_window_are_those_of_the_settings() {
        let (min, max) = (Span::from_millis(20), Span::from_millis(90));
        let size = NonZeroU32::MIN.saturating_add(6);
        let settings = Settings::default().with(&MAX_BATCH, size);
        let settings = settings.with(&BATCH_WINDOW, min);
        let fixed = Static::new(7, Window::Fixed(min));
        assert_eq!(Static::of(&settings), fixed);
        let observed = Static::new(7, Window::Observed { min, max });
        assert_eq!(
            Static::of(&settings.with(&BATCH_WINDOW_MAX, Some(max))),
            observed
        );
    }

    #[test]
    fn an_observed_window_is_as_long_as_a_batch_needs_to_fill() {
        let (min, max) = (Span::from_millis(5), Span::from_millis(200));
        let mut batch = Static::new(8, Window::Observed { min, max });
        assert_eq!(batch.window(), min);
        (0..100).for_each(|n| batch.arrived(Time::from_millis(n * 12)));
        let window = batch.window().as_millis_f64();
        assert!((window - 96.0).abs() < 1.0, "{window}");
        (0..100).for_each(|n| batch.arrived(Time::from_secs(10 + n)));
        assert_eq!(batch.window(), max);
    }
}
