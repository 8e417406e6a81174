//! An id comes back once the device has forgotten the request that had it, and not before.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{
    Backend, CancelReason, EventKind, Limit, Limits, Refusal, Request, RequestId, Span,
    StepOutcome, StepPlan, Time, TokenId,
};
use serve_sched::kv::KvSettings;
use serve_sched::{Policies, Scheduler};

use crate::support::request;

const LIMITS: Limits = Limits {
    sequences_max: 4,
    step_tokens_max: 32,
    context_max: 64,
    block_size: 4,
    blocks: 9,
};

fn mock(limits: Limits) -> Mock {
    Mock::new(MockConfig {
        limits,
        cost: CostModel::new(vec![(1, Span::from_millis(10))], Span::ZERO, Span::ZERO).unwrap(),
        ..MockConfig::default()
    })
}

const DUPLICATE: Result<(), Refusal> = Err(Refusal::Never {
    limit: Limit::DuplicateId,
});

/// A driver that checks what the contract says of ids.
struct Driver {
    scheduler: Scheduler,
    mock: Mock,
    plan: StepPlan,
    outcome: StepOutcome,
    now: Time,
    in_flight: bool,
    /// Requests of which the device keeps tokens.
    held: BTreeSet<RequestId>,
    /// Tokens of the present life of each id, and how many of them came without log-probabilities.
    told: BTreeMap<RequestId, (u32, u32)>,
}

impl Driver {
    fn new() -> Self {
        Self {
            scheduler: Scheduler::new(LIMITS, Policies::default()).unwrap(),
            mock: mock(LIMITS),
            plan: StepPlan::new(),
            outcome: StepOutcome::new(),
            now: Time::ZERO,
            in_flight: false,
            held: BTreeSet::new(),
            told: BTreeMap::new(),
        }
    }

    fn submit(&mut self, id: u64, prompt: u32, output: u32) -> Result<(), Refusal> {
        let request = request(id, prompt, output).with_logprobs(Some(2)).unwrap();
        self.told.insert(RequestId::new(id), (0, 0));
        self.scheduler.submit(self.now, request)
    }

    fn cancel(&mut self, id: u64) -> bool {
        let id = RequestId::new(id);
        self.scheduler.cancel(self.now, id, CancelReason::Client)
    }

    fn plan(&mut self) -> bool {
        if self.in_flight || !self.scheduler.plan_into(self.now, &mut self.plan) {
            return false;
        }
        self.in_flight = true;
        for start in self.plan.starts() {
            let id = start.id();
            assert!(self.held.insert(id), "{id} starts and is known");
            assert!(!self.plan.releases().contains(&id), "{id} starts and goes");
        }
        true
    }

    fn complete(&mut self) {
        if !std::mem::take(&mut self.in_flight) {
            return;
        }
        self.mock.execute(&self.plan, &mut self.outcome).unwrap();
        for id in self.plan.releases() {
            self.held.remove(id);
        }
        self.now += Span::from_millis(10);
        self.scheduler.complete(self.now, &self.outcome);
        self.events();
    }

    fn fail(&mut self) {
        if std::mem::take(&mut self.in_flight) {
            let step = self.plan.step();
            // Nothing was announced and nothing forgotten, as the device sees it.
            for start in self.plan.starts() {
                self.held.remove(&start.id());
            }
            self.scheduler.fail(self.now, step, "fault");
            self.events();
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.scheduler.poll_event() {
            if let EventKind::Token { logprobs, .. } = event.kind {
                let told = self.told.get_mut(&event.request).unwrap();
                *told = (told.0 + 1, told.1 + u32::from(logprobs.is_none()));
                assert_eq!(told.1, 0, "{} lost its state", event.request);
            }
        }
    }

    fn run_out(&mut self) {
        for _ in 0..10_000 {
            self.complete();
            if !self.plan() {
                return;
            }
        }
        panic!("still busy: {:?}", self.scheduler.stats());
    }
}

#[test]
fn the_second_life_of_a_preempted_request_keeps_its_tokens() {
    let mut driver = Driver::new();
    for id in 0..2 {
        driver.submit(id, 4, 29).unwrap();
    }
    while driver.scheduler.stats().counters.preempted == 0 {
        driver.plan();
        driver.complete();
    }
    assert!(driver.cancel(1));
    assert_eq!(
        driver.submit(1, 4, 4),
        DUPLICATE,
        "the device has its tokens"
    );
    driver.plan();
    assert!(driver.plan.releases().contains(&RequestId::new(1)));
    driver.complete();
    driver.submit(1, 4, 4).unwrap();
    driver.run_out();
    assert_eq!(driver.told[&RequestId::new(1)], (4, 0));
}

#[test]
fn the_id_of_a_request_that_never_ran_is_free_at_once() {
    let mut driver = Driver::new();
    driver.submit(1, 4, 4).unwrap();
    assert_eq!(driver.submit(1, 4, 4), DUPLICATE);
    assert!(driver.cancel(1));
    driver.submit(1, 4, 4).unwrap();
    driver.run_out();
    assert_eq!(driver.told[&RequestId::new(1)], (4, 0));
}

#[test]
fn at_every_stage_of_a_life_the_next_one_is_whole() {
    // A life has steps 0 (prompt) to 3; it is cancelled before, in and after each of them.
    for steps in 0..5 {
        for in_flight in [false, true] {
            let mut driver = Driver::new();
            driver.submit(1, 8, 4).unwrap();
            for _ in 0..steps {
                driver.plan();
                driver.complete();
            }
            if in_flight {
                driver.plan();
            }
            driver.cancel(1);
            while driver.submit(1, 8, 4) == DUPLICATE {
                assert!(driver.in_flight || driver.plan(), "nothing frees the id");
                driver.complete();
            }
            driver.run_out();
            assert_eq!(
                driver.told[&RequestId::new(1)],
                (4, 0),
                "after {steps} steps"
            );
        }
    }
}

#[test]
fn a_failed_step_has_forgotten_nobody() {
    let mut driver = Driver::new();
    driver.submit(1, 8, 4).unwrap();
    driver.plan();
    driver.complete();
    driver.cancel(1);
    driver.plan();
    driver.fail();
    assert_eq!(driver.submit(1, 8, 4), DUPLICATE);
    driver.plan();
    driver.complete();
    driver.submit(1, 8, 4).unwrap();
    driver.run_out();
    assert_eq!(driver.told[&RequestId::new(1)], (4, 0));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Submit(u64, u32, u32),
    Cancel(u64),
    Plan,
    Complete,
    Fail,
}

proptest! {
    #[test]
    fn lives_of_one_id_do_not_touch(
        steps in prop::collection::vec(
            prop_oneof![
                4 => (0_u64..4, 1_u32..20, 1_u32..12).prop_map(|(id, p, o)| Step::Submit(id, p, o)),
                2 => (0_u64..4).prop_map(Step::Cancel),
                5 => Just(Step::Plan),
                5 => Just(Step::Complete),
                1 => Just(Step::Fail),
            ],
            1..200,
        ),
    ) {
        let mut driver = Driver::new();
        for step in steps {
            match step {
                Step::Submit(id, prompt, output) => {
                    let before = driver.told.get(&RequestId::new(id)).copied();
                    if driver.submit(id, prompt, output).is_err() {
                        driver.told.extend(before.map(|told| (RequestId::new(id), told)));
                    }
                }
                Step::Cancel(id) => { driver.cancel(id); }
                Step::Plan => { driver.plan(); }
                Step::Complete => driver.complete(),
                Step::Fail => driver.fail(),
            }
            driver.events();
        }
        driver.run_out();
        prop_assert!(driver.scheduler.is_idle());
        // Nothing is kept of any: each id is free.
        prop_assert!(driver.held.is_empty());
        for id in 0..4 {
            driver.submit(id, 4, 2).unwrap();
        }
        driver.run_out();
    }
}

#[test]
fn a_prefix_is_of_the_prompt_and_not_of_the_id() {
    let limits = Limits {
        sequences_max: 4,
        step_tokens_max: 512,
        context_max: 512,
        block_size: 4,
        blocks: 12,
    };
    let policies = Policies {
        kv: KvSettings {
            watermark_blocks: Some(0),
            ..KvSettings::default()
        },
        ..Policies::default()
    };
    let mut scheduler = Scheduler::new(limits, policies).unwrap();
    let (mut mock, mut outcome, mut now) = (mock(limits), StepOutcome::new(), Time::ZERO);
    let make = |id: u64, tokens: std::ops::Range<u32>, output| {
        let prompt: Vec<_> = tokens.map(TokenId::new).collect();
        Request::new(RequestId::new(id), Time::ZERO, prompt, output).unwrap()
    };
    let mut step = |scheduler: &mut Scheduler, now: &mut Time| {
        let plan = scheduler.plan(*now).unwrap();
        mock.execute(&plan, &mut outcome).unwrap();
        *now += outcome.elapsed;
        scheduler.complete(*now, &outcome);
    };
    scheduler.submit(now, make(1, 0..17, 20)).unwrap();
    (0..3).for_each(|_| step(&mut scheduler, &mut now));
    // The head begins with the same tokens and does not fit; it is cancelled, and its id comes back
    // with another prompt.
    scheduler.submit(now, make(2, 0..44, 1)).unwrap();
    step(&mut scheduler, &mut now);
    assert!(scheduler.cancel(now, RequestId::new(2), CancelReason::Client));
    scheduler.submit(now, make(2, 100..117, 1)).unwrap();
    let plan = scheduler.plan(now).unwrap();
    let segment = plan.segments().iter().find(|s| s.request.get() == 2);
    let positions = segment.expect("it fits").positions.clone();
    assert_eq!(positions.start, 0, "nothing of its prompt is cached");
}
