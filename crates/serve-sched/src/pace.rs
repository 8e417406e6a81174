//! How fast the engine has been: moving averages over completed work, for predictions.
//!
//! Each is exponentially weighted by sample. A rate is the ratio of two such averages (work over
//! busy time), so a batch whose requests end together counts as what it is, and idle time does not
//! make the engine look slow. Plain arithmetic only: the same samples give the same bits anywhere.

use serve_core::Span;

/// Measured speed of an engine. Each reading is `None` until there is something to read from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pace {
    step: Mean,
    service: Mean,
    drain: Ratio,
    prefill: Ratio,
    decode: Ratio,
}

impl Pace {
    /// How long a step takes.
    pub fn step_time(&self) -> Option<Span> {
        self.step.read().map(Span::from_secs_f64)
    }

    /// How long a request takes from its start to its end: the time of a batch.
    pub fn service_time(&self) -> Option<Span> {
        self.service.read().map(Span::from_secs_f64)
    }

    /// Requests that end in a second of work.
    pub fn drain_rate(&self) -> Option<f64> {
        self.drain.read()
    }

    /// Prompt tokens run in a second of those steps that run any.
    pub fn prefill_rate(&self) -> Option<f64> {
        self.prefill.read()
    }

    /// Tokens sampled in a second of work.
    pub fn decode_rate(&self) -> Option<f64> {
        self.decode.read()
    }

    /// A step ran `prefill_tokens` prompt tokens and sampled `output_tokens` in `elapsed`.
    pub fn stepped(&mut self, prefill_tokens: u32, output_tokens: u32, elapsed: Span) {
        let secs = elapsed.as_secs_f64();
        self.step.add(secs, 1.0 / 16.0);
        self.decode.add(f64::from(output_tokens), secs, 1.0 / 64.0);
        if prefill_tokens > 0 {
            self.prefill
                .add(f64::from(prefill_tokens), secs, 1.0 / 16.0);
        }
    }

    /// `requests` ended in `elapsed` of work; none is a sample too.
    pub fn finished(&mut self, requests: u32, elapsed: Span) {
        let secs = elapsed.as_secs_f64();
        self.drain.add(f64::from(requests), secs, 1.0 / 256.0);
    }

    /// A request ended by itself, `took` after its start.
    pub fn served(&mut self, took: Span) {
        self.service.add(took.as_secs_f64(), 1.0 / 16.0);
    }
}

/// A moving average that starts at its first sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mean(Option<f64>);

impl Mean {
    fn add(&mut self, sample: f64, weight: f64) {
        self.0 = Some(match self.0 {
            Some(mean) => mean + weight * (sample - mean),
            None => sample,
        });
    }

    fn read(&self) -> Option<f64> {
        self.0
    }
}

/// Two sums that forget alike, and their ratio.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ratio {
    work: f64,
    secs: f64,
}

impl Ratio {
    fn add(&mut self, work: f64, secs: f64, weight: f64) {
        self.work = self.work * (1.0 - weight) + work;
        self.secs = self.secs * (1.0 - weight) + secs;
    }

    fn read(&self) -> Option<f64> {
        (self.work > 0.0 && self.secs > 0.0).then(|| self.work / self.secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_measured_is_nothing_known() {
        let pace = Pace::default();
        assert_eq!(pace.step_time(), None);
        assert_eq!(pace.drain_rate(), None);
        assert_eq!(pace.prefill_rate(), None);
    }

    #[test]
    fn a_batch_that_ends_together_drains_as_fast_as_one_that_ends_one_by_one() {
        let (mut together, mut spread) = (Pace::default(), Pace::default());
        for step in 0..10_000 {
            together.finished(if step % 16 == 0 { 16 } else { 0 }, Span::from_millis(10));
            spread.finished(1, Span::from_millis(10));
        }
        let (together, spread) = (together.drain_rate().unwrap(), spread.drain_rate().unwrap());
        assert!((spread - 100.0).abs() < 1e-6, "{spread}");
        assert!((together / spread - 1.0).abs() < 0.05, "{together}");
    }

    #[test]
    fn a_change_of_speed_is_followed() {
        let mut pace = Pace::default();
        (0..100).for_each(|_| pace.stepped(0, 4, Span::from_millis(10)));
        (0..100).for_each(|_| pace.stepped(0, 4, Span::from_millis(20)));
        let step = pace.step_time().unwrap().as_millis_f64();
        assert!((step - 20.0).abs() < 0.1, "{step}");
    }
}
