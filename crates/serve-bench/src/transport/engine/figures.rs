//! What a run samples of its engine.

use std::sync::{Arc, Mutex, PoisonError};

use serve_core::{BackendError, Span, StepOutcome, StepPlan};
use serve_sched::Stats;
use serve_sched::driver::Hooks;

use crate::store::timeline::Sample;

/// For how long steps have run, and sequences in them.
#[derive(Clone, Default)]
pub(super) struct Stepped(Arc<Mutex<(Span, u64)>>);

impl<B> Hooks<B> for Stepped {
    fn stepped(&mut self, plan: &StepPlan, ended: Result<&StepOutcome, &BackendError>, _: Span) {
        if let Ok(outcome) = ended {
            let mut stepped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            stepped.0 += outcome.elapsed;
            stepped.1 += plan.segments().len() as u64;
        }
    }
}

impl Stepped {
    /// The engine's figures; `at_ns` is when that was asked.
    pub(super) fn sample(&self, stats: &Stats, at_ns: u64) -> Sample {
        let (span, sequences) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (counters, blocks) = (stats.counters, stats.blocks);
        let number = |number: u32| Some(f64::from(number));
        let total = |total: u64| Some(total as f64);
        Sample {
            at_ns,
            waiting: number(stats.waiting),
            running: number(stats.running),
            in_flight: number(stats.waiting + stats.running),
            kv_free: number(blocks.free),
            kv_held: number(blocks.held),
            kv_cached: number(blocks.cached),
            preemptions: total(counters.preempted),
            refused: total(counters.refused),
            steps: total(counters.steps),
            step_seconds: Some(span.as_secs_f64()),
            step_sequences: total(sequences),
            prompt_tokens: total(counters.prefill_tokens),
            output_tokens: total(counters.output_tokens),
        }
    }
}
