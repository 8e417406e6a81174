//! A service with its own order policy, its own backend and its own loop, on `serve-sched` alone.

use serve_sched::order::{Order, Place, Waiting};
use serve_sched::serve_core::{
    Backend, BackendError, EventKind, Limits, Request, RequestId, Sampled, Span, StepOutcome,
    StepPlan, Time, TokenId,
};
use serve_sched::{Policies, Scheduler};

/// The last to arrive goes first.
struct LastInFirstOut;

impl Order for LastInFirstOut {
    fn name(&self) -> &'static str {
        "last-in-first-out"
    }

    fn place(&mut self, waiting: &Waiting<'_>, _now: Time) -> Place {
        Place::by_key(u64::MAX - waiting.sequence)
    }
}

/// Counts positions and answers with them.
struct Echo;

impl Backend for Echo {
    fn limits(&self) -> Limits {
        Limits {
            sequences_max: 1,
            step_tokens_max: 16,
            context_max: 64,
            block_size: 8,
            blocks: 9,
        }
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        outcome.reset(plan.step());
        outcome.elapsed = Span::from_millis(u64::from(plan.tokens()));
        let sampling = plan.segments().iter().filter(|segment| segment.sample);
        outcome.sampled.extend(sampling.map(|segment| Sampled {
            request: segment.request,
            token: TokenId::new(segment.positions.end),
        }));
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut device = Echo;
    let policies = Policies {
        order: Box::new(LastInFirstOut),
        ..Policies::default()
    };
    let mut scheduler = Scheduler::new(device.limits(), policies)?;
    let mut now = Time::ZERO;
    for id in 1..=3 {
        let prompt = vec![TokenId::new(id as u32); 20];
        scheduler.submit(now, Request::new(RequestId::new(id), now, prompt, 2)?)?;
    }
    let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
    while scheduler.plan_into(now, &mut plan) {
        device.execute(&plan, &mut outcome)?;
        now += outcome.elapsed;
        scheduler.complete(now, &outcome);
        while let Some(event) = scheduler.poll_event() {
            if let EventKind::Finished { usage, .. } = event.kind {
                println!("{} {} {}", event.at, event.request, usage.output_tokens);
            }
        }
    }
    Ok(())
}
