//! A device that fails in every way that a device can: a step, all of it, by panicking, by taking
//! long, and by not coming back at once when it is built anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::rng::mix2;
use serve_core::{Backend, BackendError, Limits, Span, StepOutcome, StepPlan};
use serve_http::text::MockText;
use serve_http::worker::Rebuild;
use serve_sched::Policies;

/// What a panic of this device says, by which its message is kept off the terminal.
const PANIC: &str = "a panic of the campaign";

/// Steps between two panics at least, so that a request finishes in between: a server gives up a
/// device that never gets that far.
const STEPS_BETWEEN_PANICS: u64 = 100;

/// How many of a million steps go wrong in each way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    pub(super) panics: u64,
    pub(super) losses: u64,
    pub(super) errors: u64,
    pub(super) stalls: u64,
}

/// How often each thing has gone wrong.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Off while a server starts: one whose first request fails is rightly never ready.
    pub(super) armed: AtomicBool,
    steps: AtomicU64,
    last_panic: AtomicU64,
    pub(super) panics: AtomicU64,
    pub(super) losses: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) failed_builds: AtomicU64,
}

/// The device.
pub(super) struct Chaos {
    mock: Mock,
    seed: u64,
    rates: Rates,
    faults: Arc<Faults>,
}

/// A small device with steps of about a millisecond, whose KV cache is too small for its batch at
/// times.
pub(super) fn mock(seed: u64) -> MockConfig {
    let cost = CostModel::new(
        vec![(1, Span::from_micros(800)), (16, Span::from_micros(1_000))],
        Span::from_micros(2),
        Span::ZERO,
    );
    MockConfig {
        limits: Limits {
            sequences_max: 16,
            step_tokens_max: 256,
            context_max: 256,
            block_size: 16,
            blocks: 81,
        },
        // The table above is one; a wrong one would be seen in the first run.
        cost: cost.unwrap_or_default(),
        seed,
        vocabulary: MockText::WORDS,
        ..MockConfig::default()
    }
}

impl Chaos {
    pub(super) fn new(seed: u64, rates: Rates, faults: Arc<Faults>) -> Self {
        Self {
            mock: Mock::new(mock(seed)),
            seed,
            rates,
            faults,
        }
    }

    /// Builds the device anew; now and then it takes a second attempt, and now and then the builder
    /// itself panics.
    pub(super) fn rebuild(
        seed: u64,
        rates: Rates,
        faults: Arc<Faults>,
        policies: fn() -> Policies,
    ) -> Rebuild {
        let mut builds = 0;
        Box::new(move || {
            builds += 1;
            if builds % 4 == 2 {
                count(&faults.failed_builds);
                return Err("the campaign's device is not there yet".to_owned());
            }
            if builds % 8 == 5 {
                count(&faults.failed_builds);
                panic!("{PANIC}");
            }
            let chaos = Self::new(seed, rates, Arc::clone(&faults));
            Ok((Box::new(chaos) as Box<_>, policies()))
        })
    }
}

impl Backend for Chaos {
    fn limits(&self) -> Limits {
        self.mock.limits()
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        if plan.segments().is_empty() || !self.faults.armed.load(Ordering::Relaxed) {
            return self.mock.execute(plan, outcome);
        }
        // Counted over rebuilds: the scheduler's own numbers start again.
        let step = self.faults.steps.fetch_add(1, Ordering::Relaxed);
        let draw = mix2(self.seed, step) % 1_000_000;
        let Rates {
            panics,
            losses,
            errors,
            stalls,
        } = self.rates;
        if draw < panics {
            let last = self.faults.last_panic.load(Ordering::Relaxed);
            if step > last + STEPS_BETWEEN_PANICS {
                self.faults.last_panic.store(step, Ordering::Relaxed);
                count(&self.faults.panics);
                panic!("{PANIC}");
            }
        } else if draw < panics + losses {
            count(&self.faults.losses);
            let cause = "the campaign took the device away".to_owned();
            return Err(BackendError::Lost { cause });
        } else if draw < panics + losses + errors {
            count(&self.faults.errors);
            let cause = "the campaign failed the step".to_owned();
            return Err(BackendError::Step { cause });
        }
        self.mock.execute(plan, outcome)?;
        if draw >= 1_000_000 - stalls {
            outcome.elapsed += Span::from_millis(20);
        }
        Ok(())
    }
}

/// Keeps the panics of this device, which are meant, off the terminal. All others are shown.
pub fn quiet_panics() {
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let meant = info.payload_as_str().is_some_and(|says| says == PANIC);
        if !meant {
            shown(info);
        }
    }));
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
