//! Jumping over steps that decide nothing changes nothing: rows, counters, times and journal are
//! those of a run that takes every step.

use std::cell::Cell;
use std::rc::Rc;

use proptest::prelude::*;
use serve_core::mock::{CostModel, Faults, Mock, MockConfig};
use serve_core::{
    Backend, BackendError, CancelReason, Class, Limits, Refusal, Request, RequestId, Span, StepId,
    StepLoad, StepOutcome, StepPlan, TenantId, Time, TokenId,
};
use serve_sched::admit::{Admit, Load, Watch};
use serve_sched::batch::{Batch, Continuous, OneAtATime, Static};
use serve_sched::budget::{Budget, ClassFirst, FirstCome, InterTokenTarget};
use serve_sched::journal::Lines;
use serve_sched::kv::KvSettings;
use serve_sched::order::ORDERS;
use serve_sched::sim::{Input, Report, Script, Simulation};
use serve_sched::victim::Preemption;
use serve_sched::{Policies, Scheduler};

/// Counts the steps that are really run.
struct Counting {
    mock: Mock,
    foresees: bool,
    steps: Rc<Cell<u64>>,
}

impl Backend for Counting {
    fn limits(&self) -> Limits {
        self.mock.limits()
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        self.steps.set(self.steps.get() + 1);
        self.mock.execute(plan, outcome)
    }

    fn price(&self, step: StepId, load: &StepLoad) -> Option<Span> {
        self.mock.price(step, load)
    }

    fn foresee(&self, request: RequestId, position: u32) -> Option<TokenId> {
        self.foresees.then(|| self.mock.token(request, position))
    }
}

/// Gives up what has little time left when it is asked.
struct GivesUpLate;

impl Admit for GivesUpLate {
    fn name(&self) -> &'static str {
        "gives-up-late"
    }

    fn admit(&mut self, _: &Request, _: &Load<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn watches(&self) -> Watch {
        Watch::Running
    }

    fn gives_up(&mut self, request: &Request, _: u32, load: &Load<'_>) -> bool {
        let deadline = request.deadline();
        deadline.is_some_and(|at| at.since(load.now) < Span::from_millis(60))
    }
}

#[derive(Clone, Debug)]
struct Scene {
    blocks: u32,
    sequences_max: u32,
    order: usize,
    batch: u8,
    budget: u8,
    by_class: bool,
    /// Whether a policy is asked about those that run.
    watched: bool,
    /// With none everybody holds the blocks for its whole life from the start.
    times_max: u32,
    block_size: u32,
    reuse_prefixes: bool,
    foresees: bool,
    /// Of one token all answers are the same; of two or three some begin alike.
    vocabulary: u32,
    faults: Faults,
    requests: Vec<Arrival>,
}

#[derive(Clone, Debug)]
struct Arrival {
    gap_us: u64,
    prompt: u32,
    output: u32,
    class: u8,
    tenant: u32,
    deadline_ms: Option<u64>,
    cancel_after_us: Option<u64>,
    /// Goes on where the request so many before it ends, or ends so far: with its prompt and answer.
    follows: Option<usize>,
}

fn scenes() -> impl Strategy<Value = Scene> {
    let arrival = (
        (0_u64..400_000, 1_u32..80, 1_u32..120, 0_u8..3, 0_u32..3),
        proptest::option::weighted(0.2, 1_u64..2_000),
        proptest::option::weighted(0.2, 0_u64..900_000),
        proptest::option::weighted(0.3, 1_usize..5),
    );
    let arrival = arrival.prop_map(
        |((gap_us, prompt, output, class, tenant), deadline_ms, cancel_after_us, follows)| {
            Arrival {
                gap_us,
                prompt,
                output,
                class,
                tenant,
                deadline_ms,
                cancel_after_us,
                follows,
            }
        },
    );
    let faults = (0_u32..20_000, 0_u32..20_000).prop_map(|(errors, stalls)| Faults {
        errors_per_million: errors,
        stalls_per_million: stalls,
        stall: Span::from_millis(70),
    });
    let requests = proptest::collection::vec(arrival, 1..60);
    let faults = prop_oneof![Just(Faults::NONE), faults];
    let choices = (
        15_u32..60,
        1_u32..9,
        0..ORDERS.len(),
        0_u8..4,
        0_u8..3,
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(0_u32), Just(3)],
    );
    let kv = (
        prop_oneof![Just(1_u32), Just(5), Just(16)],
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.8),
        prop_oneof![Just(1_u32), Just(2), Just(32_000)],
    );
    (choices, kv, faults, requests).prop_map(
        |(choices, (block_size, reuse_prefixes, foresees, vocabulary), faults, requests)| {
            let (blocks, sequences_max, order, batch, budget, by_class, watched, times_max) =
                choices;
            Scene {
                // Room for the longest request, and little more.
                blocks: blocks * 16 / block_size,
                sequences_max,
                order,
                batch,
                budget,
                by_class,
                watched,
                times_max,
                block_size,
                reuse_prefixes,
                foresees,
                vocabulary,
                faults,
                requests,
            }
        },
    )
}

fn inputs(scene: &Scene) -> Vec<(Time, Input)> {
    let mut inputs = Vec::new();
    let mut now = Time::ZERO;
    let mock = mock(scene);
    let mut prompts: Vec<Vec<TokenId>> = Vec::new();
    for (number, arrival) in scene.requests.iter().enumerate() {
        let id = RequestId::new(number as u64);
        now += Span::from_micros(arrival.gap_us);
        let mut prompt = Vec::new();
        if let Some(before) = arrival
            .follows
            .and_then(|follows| number.checked_sub(follows))
        {
            prompt.clone_from(&prompts[before]);
            let answer = (prompt.len() as u32..).take(scene.requests[before].output as usize);
            let before = RequestId::new(before as u64);
            prompt.extend(answer.map(|position| mock.token(before, position)));
            prompt.truncate(79);
        }
        prompt.resize(prompt.len().max(arrival.prompt as usize), TokenId::new(0));
        prompts.push(prompt.clone());
        let deadline = arrival.deadline_ms.map(|ms| now + Span::from_millis(ms));
        let request = Request::new(id, now, prompt, arrival.output)
            .unwrap()
            .with_class(Class::new(arrival.class))
            .with_tenant(TenantId::new(arrival.tenant))
            .with_deadline(deadline);
        inputs.push((now, Input::Submit(request)));
        if let Some(after) = arrival.cancel_after_us {
            let (request, reason) = (id, CancelReason::Client);
            let at = now + Span::from_micros(after);
            inputs.push((at, Input::Cancel { request, reason }));
        }
    }
    inputs.sort_by_key(|&(at, _)| at);
    inputs
}

fn mock(scene: &Scene) -> Mock {
    let limits = Limits {
        sequences_max: scene.sequences_max,
        step_tokens_max: 64,
        context_max: 200,
        block_size: scene.block_size,
        blocks: scene.blocks,
    };
    let decode = vec![(1, Span::from_micros(900)), (8, Span::from_micros(1_307))];
    let cost = CostModel::new(decode, Span::from_micros(11), Span::from_nanos(17));
    Mock::new(MockConfig {
        limits,
        cost: cost.unwrap(),
        faults: scene.faults,
        vocabulary: scene.vocabulary,
        ..MockConfig::default()
    })
}

fn run(scene: &Scene, jumping: bool, journal: bool) -> (Report, String, u64) {
    let mock = mock(scene);
    let limits = mock.limits();
    let batch: Box<dyn Batch> = match scene.batch {
        0 => Box::new(OneAtATime),
        1 => Box::new(Static::default()),
        _ => Box::new(Continuous::default()),
    };
    let budget: Box<dyn Budget> = match scene.budget {
        0 => Box::new(FirstCome),
        1 => Box::new(ClassFirst::new(Some(20))),
        // Less than most steps take: what is measured of every step matters.
        _ => Box::new(InterTokenTarget::new(Span::from_micros(1_300), 4)),
    };
    let admit: Vec<Box<dyn Admit>> = match scene.watched {
        true => vec![Box::new(GivesUpLate)],
        false => Vec::new(),
    };
    let policies = Policies {
        admit,
        order: ORDERS[scene.order].by_default(),
        batch,
        budget,
        preemption: Preemption {
            by_class: scene.by_class,
            times_max: scene.times_max,
        },
        kv: KvSettings {
            reuse_prefixes: scene.reuse_prefixes,
            ..KvSettings::default()
        },
        ..Policies::default()
    };
    let mut scheduler = Scheduler::new(limits, policies).unwrap();
    let lines = Lines::new();
    if journal {
        scheduler.set_journal(Some(Box::new(lines.clone())));
    }
    let steps = Rc::new(Cell::new(0));
    let backend = Counting {
        mock,
        foresees: scene.foresees,
        steps: Rc::clone(&steps),
    };
    let simulation = Simulation::new(scheduler, backend);
    let simulation = match jumping {
        true => simulation,
        false => simulation.without_jumping(),
    };
    let report = simulation.run(&mut Script::new(inputs(scene)));
    (report, lines.text(), steps.get())
}

proptest! {
    #[test]
    fn jumping_changes_nothing(scene in scenes(), journal in any::<bool>()) {
        let (jumped, jumped_journal, _) = run(&scene, true, journal);
        let (stepped, stepped_journal, _) = run(&scene, false, journal);
        prop_assert_eq!(jumped.rows, stepped.rows);
        prop_assert_eq!(jumped.end, stepped.end);
        prop_assert_eq!(jumped.busy, stepped.busy);
        prop_assert_eq!(jumped.stats, stepped.stats);
        prop_assert_eq!(jumped_journal, stepped_journal);
    }
}

fn quiet(reuse_prefixes: bool, foresees: bool) -> Scene {
    let arrival = Arrival {
        gap_us: 0,
        prompt: 10,
        output: 100,
        class: 0,
        tenant: 0,
        deadline_ms: None,
        cancel_after_us: None,
        follows: None,
    };
    Scene {
        blocks: 60,
        sequences_max: 8,
        order: 0,
        batch: 2,
        budget: 0,
        by_class: false,
        watched: false,
        times_max: 3,
        block_size: 16,
        reuse_prefixes,
        foresees,
        vocabulary: 32_000,
        faults: Faults::NONE,
        requests: vec![arrival; 4],
    }
}

#[test]
fn a_quiet_decode_is_jumped_over_if_its_tokens_are_known_or_do_not_matter() {
    for (reuse_prefixes, foresees) in [(false, false), (true, true)] {
        let (report, _, steps_run) = run(&quiet(reuse_prefixes, foresees), true, false);
        assert_eq!(report.stats.counters.steps, 100);
        assert!(steps_run <= 5, "{steps_run} steps were run");
    }
    let (_, _, steps_run) = run(&quiet(true, false), true, false);
    assert_eq!(steps_run, 101, "and one that releases");
}

/// It is asked at the counts of tokens at which something new is known, four of which make a doubling.
#[test]
fn a_policy_that_watches_those_that_run_is_asked_between_jumps() {
    let mut scene = quiet(true, true);
    scene.watched = true;
    for arrival in &mut scene.requests {
        arrival.deadline_ms = Some(10_000);
    }
    let (report, _, steps_run) = run(&scene, true, false);
    assert_eq!(report.stats.counters.steps, 100);
    assert!(steps_run <= 50, "{steps_run} steps were run");
    // Time is up for it at some token between the 40th and the last.
    scene.requests[0].deadline_ms = Some(120);
    let (jumped, _, _) = run(&scene, true, false);
    let (stepped, _, _) = run(&scene, false, false);
    assert_eq!(jumped.rows, stepped.rows);
    let given_up = jumped.rows.iter().map(|row| row.usage.output_tokens).min();
    assert!(
        given_up.is_some_and(|tokens| (40..100).contains(&tokens)),
        "{given_up:?}"
    );
}

/// Otherwise the property above would not see what becomes of names.
#[test]
fn prefixes_that_were_jumped_over_are_found() {
    let mut scene = quiet(true, true);
    let follows = Arrival {
        gap_us: 900_000,
        output: 5,
        follows: Some(4),
        ..scene.requests[0].clone()
    };
    scene.requests.push(follows);
    let (report, _, _) = run(&scene, true, false);
    let cached = report.rows.iter().map(|row| row.usage.cached_tokens).max();
    assert_eq!(cached, Some(64), "of a prompt of 79 tokens");
}

/// The head of the queue lacks a block, until one that it shares gets its name.
#[test]
fn a_request_that_waits_for_a_name_joins_when_there_is_one() {
    let mut scene = quiet(true, true);
    // The first has eight blocks for its whole life; of the second's six, five are missing at first
    // and four are free.
    (scene.times_max, scene.blocks) = (0, 13);
    scene.requests.truncate(1);
    scene.requests[0].prompt = 16;
    let follows = Arrival {
        gap_us: 5_000,
        output: 10,
        follows: Some(1),
        ..scene.requests[0].clone()
    };
    scene.requests.push(follows);
    let (jumped, _, _) = run(&scene, true, false);
    let (stepped, _, _) = run(&scene, false, false);
    assert_eq!(jumped.rows, stepped.rows);
    let second = jumped.rows.iter().find(|row| row.request.get() == 1);
    assert_eq!(second.unwrap().usage.cached_tokens, 32);
}
