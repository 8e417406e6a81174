//! Random lives against a small reference: every combination of policies, cancels at any point,
//! faults, lost devices, deadlines, drain.
//!
//! The reference keeps no queue and no pool. It knows what each client may observe, what the device
//! holds at every position of every block, and what must be true at every instant. Each case plays
//! its inputs twice and compares the journals.
//!
//! `PROPTEST_CASES=100000 cargo test --release -p serve-sched --test it model` is the long mode.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::rng::mix2;
use serve_core::{
    Backend, BlockId, CancelReason, Class, Event, EventKind, FinishReason, Limit, Limits, Refusal,
    Request, RequestId, Span, StepOutcome, StepPlan, TenantId, Time, TokenId,
};
use serve_sched::admit::{ADMISSIONS, Admit, Bound, InFlightLimits, QueueCap};
use serve_sched::batch::{Batch, Continuous, OneAtATime, Static, Window};
use serve_sched::budget::{BUDGETS, Budget, ClassFirst, InterTokenTarget};
use serve_sched::journal::{Decision, Entry};
use serve_sched::kv::KvSettings;
use serve_sched::lengths::SeenLengths;
use serve_sched::order::{ORDERS, OrderSettings};
use serve_sched::victim::{Preemption, VICTIMS};
use serve_sched::{Policies, Scheduler};

/// How many inputs each case gives; 512 cases make over 100,000 transitions.
const INPUTS: std::ops::Range<usize> = 200..300;
const CASES: u32 = 512;

/// The class whose requests in flight are limited.
const BOUNDED: Class = Class::new(1);

#[derive(Clone, Debug)]
enum Input {
    Submit {
        prompt: u32,
        output: u32,
        class: u8,
        tenant: u32,
        /// Requests of one family begin with the same tokens.
        family: u32,
        deadline_ms: Option<u64>,
        stops: bool,
    },
    Cancel(prop::sample::Index),
    Plan,
    Complete,
    Fail,
    Lose,
    Wait(u64),
    Timeout,
    Drain,
    CancelAll,
}

#[derive(Clone, Debug)]
struct Setup {
    limits: Limits,
    order: usize,
    batch: u8,
    budget: usize,
    victim: usize,
    preemption: Preemption,
    reuse_prefixes: bool,
    isolate_tenants: bool,
    watermark: Option<u32>,
    queue_cap: u32,
    /// What may be in flight of each tenant, and of class 1.
    bounds: [Bound; 2],
    admission: Option<usize>,
}

impl Setup {
    fn policies(&self) -> Policies {
        let batch: Box<dyn Batch> = match self.batch {
            0 => Box::new(Continuous::default()),
            1 => Box::new(Continuous {
                step_tokens_max: Some(3),
                sequences_max: Some(2),
            }),
            2 => Box::new(OneAtATime),
            3 => Box::new(Static::new(3, Window::Fixed(Span::from_millis(7)))),
            _ => Box::new(Static::new(
                4,
                Window::Observed {
                    min: Span::from_millis(1),
                    max: Span::from_millis(9),
                },
            )),
        };
        let [of_tenant, of_class] = self.bounds;
        let in_flight = InFlightLimits::new(of_tenant).with_class(BOUNDED, of_class);
        let mut admit: Vec<Box<dyn Admit>> =
            vec![Box::new(QueueCap::new(self.queue_cap)), Box::new(in_flight)];
        admit.extend(self.admission.map(|index| (ADMISSIONS[index].by_default)()));
        Policies {
            admit,
            order: OrderSettings::default()
                .order(order_names()[self.order])
                .unwrap(),
            batch,
            budget: self.budget(),
            victim: VICTIMS[self.victim].by_default(),
            preemption: self.preemption,
            kv: KvSettings {
                reuse_prefixes: self.reuse_prefixes,
                isolate_tenants: self.isolate_tenants,
                watermark_blocks: self.watermark,
                hash_key: 0,
            },
            lengths: Box::new(SeenLengths::new()),
        }
    }

    /// The defaults, and some that bind in steps of few tokens.
    fn budget(&self) -> Box<dyn Budget> {
        match self.budget.checked_sub(BUDGETS.len()) {
            None => BUDGETS[self.budget].by_default(),
            Some(0) => Box::new(ClassFirst::new(Some(3))),
            _ => Box::new(InterTokenTarget::new(Span::from_nanos(1), 2)),
        }
    }

    fn is_static(&self) -> bool {
        self.batch >= 3
    }
}

/// Every order, and orders made of several.
fn order_names() -> Vec<&'static str> {
    let composed = [
        "strict-tiers/fair-tenants",
        "aging-tiers/fair-tenants",
        "aging/fair-groups/strict-tiers/earliest-deadline",
    ];
    ORDERS
        .iter()
        .map(|order| order.name)
        .chain(composed)
        .collect()
}

fn setups() -> impl Strategy<Value = Setup> {
    let limits = (1_u32..7, 1_u32..40, 8_u32..64, 1_u32..9, 4_u32..40).prop_map(
        |(sequences_max, step_tokens_max, context_max, block_size, blocks)| Limits {
            sequences_max,
            // Fewer are refused.
            step_tokens_max: match sequences_max {
                1 => step_tokens_max,
                many => step_tokens_max.max(many + 1),
            },
            context_max,
            block_size,
            blocks,
        },
    );
    let choices = (
        0..order_names().len(),
        0_u8..5,
        0..BUDGETS.len() + 2,
        0..VICTIMS.len(),
    );
    let preemption = (0_u32..4, any::<bool>()).prop_map(|(times_max, by_class)| Preemption {
        times_max,
        by_class,
    });
    let kv = (any::<bool>(), any::<bool>(), proptest::option::of(0_u32..4));
    let bound = (0_u32..12, 0_u64..200).prop_map(|(requests, positions)| Bound {
        requests,
        // Half of all have no limit, and few a limit that nothing keeps within.
        positions: positions.saturating_sub(100) * 2,
    });
    let bounds = [bound.clone(), bound];
    let admission = (2_u32..40, bounds, proptest::option::of(0..ADMISSIONS.len()));
    (limits, choices, preemption, kv, admission).prop_map(
        |(
            limits,
            (order, batch, budget, victim),
            preemption,
            kv,
            (queue_cap, bounds, admission),
        )| Setup {
            limits,
            order,
            batch,
            budget,
            victim,
            preemption,
            reuse_prefixes: kv.0,
            isolate_tenants: kv.1,
            // As many as there are would be refused.
            watermark: kv.2.map(|blocks| blocks.min(limits.usable_blocks() - 1)),
            queue_cap,
            bounds,
            admission,
        },
    )
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let submit = (
        (1_u32..30, 1_u32..12, 0_u8..3, 0_u32..3),
        (
            0_u32..4,
            proptest::option::weighted(0.2, 1_u64..200),
            any::<bool>(),
        ),
    );
    let submit = submit.prop_map(
        |((prompt, output, class, tenant), (family, deadline_ms, stops))| Input::Submit {
            prompt,
            output,
            class,
            tenant,
            family,
            deadline_ms,
            stops,
        },
    );
    let input = prop_oneof![
        12 => submit,
        3 => any::<prop::sample::Index>().prop_map(Input::Cancel),
        24 => Just(Input::Plan),
        24 => Just(Input::Complete),
        1 => Just(Input::Fail),
        6 => (0_u64..20).prop_map(Input::Wait),
        2 => Just(Input::Timeout),
    ];
    // Rare enough that most of a case runs on a device that holds something.
    let rare = prop_oneof![
        3 => Just(Input::Lose),
        1 => Just(Input::CancelAll),
        1 => Just(Input::Drain),
    ];
    let input = prop_oneof![199 => input, 1 => rare];
    proptest::collection::vec(input, INPUTS)
}

/// What is known of one request.
#[derive(Clone, Debug)]
struct Known {
    request: Arc<Request>,
    submitted: usize,
    started: bool,
    outputs: Vec<TokenId>,
    terminal: Option<EventKind>,
    /// Whether the device was told of it, and told to forget it.
    announced: bool,
    released: bool,
    preemptions: u32,
    /// Its block table as the device has it, and how often it had been preempted when it had that.
    table: Vec<BlockId>,
    tabled_at: u32,
}

struct World {
    scheduler: Scheduler,
    setup: Setup,
    mock: Mock,
    now: Time,
    known: BTreeMap<RequestId, Known>,
    refused: u64,
    plan: StepPlan,
    outcome: StepOutcome,
    in_flight: bool,
    draining: bool,
    /// The prefix that each position of each block was computed from.
    device: BTreeMap<(BlockId, u32), u64>,
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl World {
    fn new(setup: &Setup) -> Self {
        let mock = Mock::new(MockConfig {
            limits: setup.limits,
            cost: CostModel::free(),
            vocabulary: 40,
            ..MockConfig::default()
        });
        let mut scheduler = Scheduler::new(setup.limits, setup.policies()).unwrap();
        let entries = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&entries);
        scheduler.set_journal(Some(Box::new(move |entry: &Entry| {
            sink.lock().unwrap().push(entry.clone());
        })));
        Self {
            scheduler,
            setup: setup.clone(),
            mock,
            now: Time::ZERO,
            known: BTreeMap::new(),
            refused: 0,
            plan: StepPlan::new(),
            outcome: StepOutcome::new(),
            in_flight: false,
            draining: false,
            device: BTreeMap::new(),
            entries,
        }
    }

    fn journal(&self) -> String {
        let entries = self.entries.lock().unwrap();
        entries.iter().map(|entry| format!("{entry}\n")).collect()
    }

    fn give(&mut self, input: &Input) {
        match input {
            Input::Submit { .. } => self.submit(input),
            Input::Cancel(index) => self.cancel(*index),
            Input::Plan => {
                self.plan();
            }
            Input::Complete => self.complete(),
            Input::Fail => self.fail(),
            Input::Lose => self.lose(),
            Input::Wait(ms) => self.now += Span::from_millis(*ms),
            Input::Timeout => self.scheduler.handle_timeout(self.now),
            Input::CancelAll => self.cancel_all(),
            Input::Drain => {
                self.draining = true;
                self.scheduler.drain(self.now);
            }
        }
        self.events();
        self.check();
    }

    fn submit(&mut self, input: &Input) {
        let &Input::Submit {
            prompt,
            output,
            class,
            tenant,
            family,
            deadline_ms,
            stops,
        } = input
        else {
            return;
        };
        let number = self.known.len() as u64 + self.refused;
        let tokens: Vec<_> = (0..prompt)
            .map(|position| TokenId::new(family * 100 + position))
            .collect();
        let deadline = deadline_ms.map(|ms| self.now + Span::from_millis(ms));
        let stop_tokens: Vec<_> = (0..if stops { 4 } else { 0 }).map(TokenId::new).collect();
        let request = Request::new(RequestId::new(number), self.now, tokens, output)
            .unwrap()
            .with_class(Class::new(class))
            .with_tenant(TenantId::new(tenant))
            .with_deadline(deadline)
            .with_stop_tokens(stop_tokens)
            .with_logprobs(number.is_multiple_of(3).then_some((number % 4) as u8))
            .unwrap();
        let request = Arc::new(request);
        let fits = request.positions_max() <= self.setup.limits.context_max
            && self.setup.limits.blocks_for(request.positions_max())
                <= self.setup.limits.usable_blocks();
        match self.scheduler.submit(self.now, Arc::clone(&request)) {
            Ok(()) => {
                assert!(fits && !self.draining, "{request:?} was taken");
                let known = Known {
                    request,
                    submitted: self.known.len(),
                    started: false,
                    outputs: Vec::new(),
                    terminal: None,
                    announced: false,
                    released: false,
                    preemptions: 0,
                    table: Vec::new(),
                    tabled_at: 0,
                };
                self.known.insert(RequestId::new(number), known);
            }
            Err(refusal) => {
                let never = matches!(refusal, Refusal::Never { .. });
                assert!(fits || never, "{refusal} for what can never fit");
                self.check_in_flight_refusal(&request, refusal);
                self.refused += 1;
            }
        }
    }

    /// What a limit on what is in flight says is what is in flight, to the request and the block.
    fn check_in_flight_refusal(&self, request: &Request, refusal: Refusal) {
        let of_tenant = matches!(
            refusal.limit(),
            Limit::TenantInFlight { .. } | Limit::TenantKv { .. }
        );
        let (bound, (live, held)) = match of_tenant {
            true => {
                let same = |other: &Request| other.tenant() == request.tenant();
                (self.setup.bounds[0], self.in_flight(same))
            }
            false => {
                let same = |other: &Request| other.class() == BOUNDED;
                (self.setup.bounds[1], self.in_flight(same))
            }
        };
        match refusal.limit() {
            Limit::TenantInFlight { in_flight, max, .. }
            | Limit::ClassInFlight { in_flight, max, .. } => {
                assert!(in_flight == live && live == max && max == bound.requests);
            }
            Limit::TenantKv { positions, max, .. } | Limit::ClassKv { positions, max, .. } => {
                let own = self.positions(request);
                let never = matches!(refusal, Refusal::Never { .. });
                assert_eq!(never, own > max);
                assert_eq!(positions, own + if never { 0 } else { held });
                assert!(positions > max && max == bound.positions);
            }
            _ => {}
        }
    }

    /// Requests in flight, and the KV positions that they can come to hold in whole blocks.
    fn in_flight(&self, of: impl Fn(&Request) -> bool) -> (u32, u64) {
        let live = self.known.values();
        let live = live.filter(|known| known.terminal.is_none() && of(&known.request));
        live.fold((0, 0), |(requests, positions), known| {
            (requests + 1, positions + self.positions(&known.request))
        })
    }

    fn positions(&self, request: &Request) -> u64 {
        let limits = self.setup.limits;
        u64::from(limits.blocks_for(request.positions_max()) * limits.block_size)
    }

    fn check_in_flight(&self) {
        let is_within = |bound: Bound, (requests, positions): (u32, u64)| {
            (bound.requests == 0 || requests <= bound.requests)
                && (bound.positions == 0 || positions <= bound.positions)
        };
        let [of_tenant, of_class] = self.setup.bounds;
        for tenant in 0..3 {
            let in_flight = self.in_flight(|request| request.tenant() == TenantId::new(tenant));
            assert!(is_within(of_tenant, in_flight), "{in_flight:?}");
        }
        let in_flight = self.in_flight(|request| request.class() == BOUNDED);
        assert!(is_within(of_class, in_flight), "{in_flight:?}");
    }

    fn cancel(&mut self, index: prop::sample::Index) {
        if self.known.is_empty() {
            return;
        }
        let id = *self
            .known
            .keys()
            .nth(index.index(self.known.len()))
            .unwrap();
        let was_live = self.known[&id].terminal.is_none();
        let cancelled = self.scheduler.cancel(self.now, id, CancelReason::Client);
        assert_eq!(cancelled, was_live, "{id}");
        self.events();
        assert!(
            self.known[&id].terminal.is_some(),
            "{id} was answered at once"
        );
    }

    fn cancel_all(&mut self) {
        self.scheduler.cancel_all(self.now, CancelReason::Drain);
        self.events();
        assert_eq!(self.live().count(), 0);
    }

    fn plan(&mut self) -> bool {
        let was_in_flight = self.in_flight;
        let planned = self.scheduler.plan_into(self.now, &mut self.plan);
        if was_in_flight {
            assert!(!planned, "one step is in flight at most");
            return false;
        }
        self.count_preemptions();
        self.events();
        if planned {
            self.in_flight = true;
            self.check_plan();
        }
        let stats = self.scheduler.stats();
        let runs = planned && !self.plan.segments().is_empty();
        if !runs && stats.waiting > 0 {
            // Something waits and nothing runs, so it fits: only a window may hold it.
            assert!(self.setup.is_static() && stats.running == 0, "{stats:?}");
            assert!(
                self.scheduler
                    .next_timeout()
                    .is_some_and(|at| at > self.now)
            );
        }
        planned
    }

    fn complete(&mut self) {
        if !std::mem::take(&mut self.in_flight) {
            return;
        }
        self.run_on_device();
        self.mock.execute(&self.plan, &mut self.outcome).unwrap();
        self.now += Span::from_millis(1);
        self.release();
        self.scheduler.complete(self.now, &self.outcome);
    }

    fn fail(&mut self) {
        if !std::mem::take(&mut self.in_flight) {
            return;
        }
        // Whatever the failed step may have written means nothing.
        for segment in self.plan.segments() {
            let table = &self.known[&segment.request].table;
            for position in segment.positions.clone() {
                self.device
                    .remove(&place(table, position, self.setup.limits.block_size));
            }
        }
        let step = self.plan.step();
        let live: Vec<_> = self.live().collect();
        self.scheduler.fail(self.now, step, "fault");
        self.events();
        let in_step = |id| {
            self.plan
                .segments()
                .iter()
                .any(|segment| segment.request == id)
        };
        for id in live {
            let failed = self.known[&id].terminal.is_some();
            assert_eq!(
                failed,
                in_step(id),
                "{id} fails exactly if it was in the step"
            );
        }
    }

    fn lose(&mut self) {
        self.in_flight = false;
        self.device.clear();
        self.scheduler.fail_all(self.now, "gone");
        self.events();
        for known in self.known.values().filter(|known| known.started) {
            assert!(known.terminal.is_some(), "{known:?} lost its state");
        }
    }

    fn live(&self) -> impl Iterator<Item = RequestId> {
        let live = self
            .known
            .iter()
            .filter(|(_, known)| known.terminal.is_none());
        live.map(|(&id, _)| id)
    }

    /// Reads and writes KV as a device would, and checks that what is read is what was meant.
    fn run_on_device(&mut self) {
        let block_size = self.setup.limits.block_size;
        for segment in self.plan.segments() {
            let known = &self.known[&segment.request];
            let table = &known.table;
            let tokens = known.request.prompt().iter().chain(&known.outputs);
            let mut prefix = 0;
            for (position, token) in (0..segment.positions.end).zip(tokens) {
                prefix = mix2(prefix, u64::from(token.get()) + 1);
                let place = place(table, position, block_size);
                if position < segment.positions.start {
                    let found = self.device.get(&place);
                    assert_eq!(
                        found,
                        Some(&prefix),
                        "{segment:?} reads position {position}"
                    );
                } else {
                    self.device.insert(place, prefix);
                }
            }
        }
    }

    fn check_plan(&mut self) {
        let limits = self.setup.limits;
        let plan = &self.plan;
        assert!(plan.segments().len() as u32 <= limits.sequences_max);
        assert!(plan.tokens() <= limits.step_tokens_max);
        for request in plan.starts() {
            let known = self.known.get_mut(&request.id()).unwrap();
            assert!(!known.announced, "{} is announced once", request.id());
            known.announced = true;
        }
        let mut seen = Vec::new();
        let mut written = BTreeMap::new();
        for segment in plan.segments() {
            let known = self.known.get_mut(&segment.request).unwrap();
            assert!(known.announced && known.terminal.is_none());
            assert!(
                !seen.contains(&segment.request),
                "one segment for each request"
            );
            seen.push(segment.request);
            let end = segment.positions.end;
            let tokens = known.request.prompt_tokens() + known.outputs.len() as u32;
            assert!(end <= tokens && end <= limits.context_max);
            assert_eq!(segment.sample, end == tokens);
            // Only what is new of a table is told, unless its request has lost its blocks.
            let starts_over = known.preemptions > known.tabled_at;
            let kept = if starts_over { 0 } else { known.table.len() };
            assert_eq!(segment.kept as usize, kept, "{segment:?}");
            plan.update_table(segment, &mut known.table).unwrap();
            known.tabled_at = known.preemptions;
            let table = &known.table;
            assert!(table.len() as u32 >= limits.blocks_for(end));
            let valid = |block: &BlockId| (1..limits.blocks).contains(&block.get());
            assert!(table.iter().all(valid), "{table:?}");
            for position in segment.positions.clone() {
                let place = place(table, position, limits.block_size);
                let other = written.insert(place, segment.request);
                assert_eq!(other, None, "two requests write {place:?}");
            }
        }
        for id in plan.releases() {
            let known = &self.known[id];
            assert!(known.announced && known.terminal.is_some() && !known.released);
        }
    }

    /// The device has run the plan: it has forgotten whom it was to forget.
    fn release(&mut self) {
        for id in self.plan.releases() {
            self.known.get_mut(id).unwrap().released = true;
        }
    }

    fn count_preemptions(&mut self) {
        let entries = self.entries.lock().unwrap();
        for known in self.known.values_mut() {
            known.preemptions = 0;
        }
        for entry in entries.iter() {
            if let (Decision::Preempted { .. }, Some(id)) = (&entry.decision, entry.request) {
                self.known.get_mut(&id).unwrap().preemptions += 1;
            }
        }
        let max = self.setup.preemption.times_max;
        assert!(self.known.values().all(|known| known.preemptions <= max));
    }

    fn events(&mut self) {
        while let Some(Event { request, at, kind }) = self.scheduler.poll_event() {
            assert!(at <= self.now);
            let known = self.known.get_mut(&request).unwrap();
            assert_eq!(
                known.terminal, None,
                "{request} has ended, and then {kind:?}"
            );
            match kind {
                EventKind::Started => {
                    assert!(!std::mem::replace(&mut known.started, true));
                }
                EventKind::Token {
                    token,
                    index,
                    logprobs,
                } => {
                    assert!(known.started);
                    // The mock's tokens are certain; nobody is told who does not ask.
                    let told =
                        logprobs.map(|told| told.iter().map(|t| t.token).collect::<Vec<_>>());
                    let asked = known.request.logprobs();
                    assert_eq!(told, asked.map(|n| vec![token; 1 + usize::from(n > 0)]));
                    assert_eq!(index as usize, known.outputs.len());
                    let position = known.request.prompt_tokens() + index;
                    assert_eq!(token, self.mock.token(request, position));
                    known.outputs.push(token);
                }
                EventKind::Finished { reason, usage } => {
                    let full = usage.output_tokens == known.request.output_tokens_max();
                    assert_eq!(full, reason == FinishReason::Length);
                    assert_eq!(usage.output_tokens as usize, known.outputs.len());
                    assert_eq!(usage.prompt_tokens, known.request.prompt_tokens());
                    assert!(usage.cached_tokens < usage.prompt_tokens);
                    known.terminal = Some(kind);
                }
                EventKind::Cancelled { .. } | EventKind::Failed { .. } => {
                    known.terminal = Some(kind);
                }
                EventKind::Displaced { .. } => {
                    assert!(
                        !known.started,
                        "only who has never started gives its place up"
                    );
                    known.terminal = Some(kind);
                }
            }
        }
    }

    fn check(&self) {
        self.check_in_flight();
        let stats = self.scheduler.stats();
        let count = |of: fn(&EventKind) -> bool| {
            let terminal = self
                .known
                .values()
                .filter_map(|known| known.terminal.as_ref());
            terminal.filter(|kind| of(kind)).count() as u64
        };
        let counters = stats.counters;
        let displaced = count(|kind| matches!(kind, EventKind::Displaced { .. }));
        assert_eq!(counters.refused, self.refused + displaced);
        assert_eq!(
            counters.finished,
            count(|kind| matches!(kind, EventKind::Finished { .. }))
        );
        assert_eq!(
            counters.cancelled,
            count(|kind| matches!(kind, EventKind::Cancelled { .. }))
        );
        assert_eq!(
            counters.failed,
            count(|kind| matches!(kind, EventKind::Failed { .. }))
        );
        let ended = counters.finished + counters.refused + counters.cancelled + counters.failed;
        let in_flight = u64::from(stats.waiting) + u64::from(stats.running);
        assert_eq!(counters.arrived, ended + in_flight);
        assert_eq!(in_flight, self.live().count() as u64);
        let sum =
            |of: fn(&serve_sched::ClassStats) -> u64| stats.classes.iter().map(of).sum::<u64>();
        assert_eq!(
            sum(|class| u64::from(class.waiting)),
            u64::from(stats.waiting)
        );
        assert_eq!(
            sum(|class| u64::from(class.running)),
            u64::from(stats.running)
        );
        assert_eq!(sum(|class| class.counters.arrived), counters.arrived);
        let blocks = stats.blocks;
        assert_eq!(blocks.free + blocks.held + blocks.cached, blocks.total);
        assert_eq!(blocks.total, self.setup.limits.usable_blocks());
        if stats.running == 0 && !self.in_flight {
            assert_eq!(blocks.held, 0, "nothing runs, nothing is held");
        }
        if self.in_flight {
            let segments = self.plan.segments().iter();
            let tables = segments.flat_map(|segment| &self.known[&segment.request].table);
            let mut held: Vec<_> = tables.collect();
            held.sort();
            held.dedup();
            assert!(
                held.len() as u32 <= blocks.held,
                "a step in flight keeps its blocks"
            );
        }
    }

    /// Faults stop, nothing new comes: everything must come to its end.
    fn finish(&mut self) {
        let steps_max = 200 + 100 * self.known.len();
        for _ in 0..steps_max {
            self.complete();
            self.events();
            self.check();
            if !self.plan() {
                match self.scheduler.next_timeout() {
                    Some(at) => self.now = self.now.max(at),
                    None => break,
                }
            }
        }
        self.check();
        assert!(self.scheduler.is_idle(), "{:?}", self.scheduler.stats());
        assert_eq!(self.live().count(), 0);
        for (id, known) in &self.known {
            assert_eq!(known.announced, known.released, "{id}");
        }
        self.check_join_order();
    }

    /// Requests of one rank join in the order in which they came.
    fn check_join_order(&self) {
        let rank: fn(&Request) -> u8 =
            match (order_names()[self.setup.order], self.setup.preemption) {
                (_, Preemption { by_class: true, .. }) => return,
                ("fifo", _) => |_| 0,
                ("strict-tiers", _) => |request| request.class().rank(),
                _ => return,
            };
        let mut last = BTreeMap::new();
        for entry in self.entries.lock().unwrap().iter() {
            let Decision::Joined { preemptions: 0, .. } = entry.decision else {
                continue;
            };
            let id = entry.request.unwrap();
            let known = &self.known[&id];
            let before = last.insert(rank(&known.request), known.submitted);
            assert!(before < Some(known.submitted), "{id} overtook");
        }
    }
}

fn place(table: &[BlockId], position: u32, block_size: u32) -> (BlockId, u32) {
    (
        table[(position / block_size) as usize],
        position % block_size,
    )
}

fn play(setup: &Setup, inputs: &[Input]) -> String {
    let mut world = World::new(setup);
    inputs.iter().for_each(|input| world.give(input));
    world.finish();
    world.journal()
}

fn config() -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    ProptestConfig {
        cases: from_environment.cases.max(CASES),
        ..from_environment
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn invariants_hold_for_every_combination_of_policies(setup in setups(), inputs in inputs()) {
        let journal = play(&setup, &inputs);
        prop_assert_eq!(journal, play(&setup, &inputs));
    }
}
