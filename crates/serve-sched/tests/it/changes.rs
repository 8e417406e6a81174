//! Other settings while requests wait and run: nobody is lost, a replay is the same, a refused change
//! changes nothing, and what was changed is as it would have been from the start.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serve_core::mock::{Mock, MockConfig};
use serve_core::{
    Backend, CancelReason, Class, EventKind, FinishReason, Limits, Request, RequestId, Span,
    StepOutcome, StepPlan, TenantId, Time, TokenId, Usage,
};
use serve_sched::journal::{Decision, Entry, Lines};
use serve_sched::limit::Fixed;
use serve_sched::settings::{Change, ChangeError, GroupId, MAX_BATCH};
use serve_sched::{Dispatcher, Outcome, Scheduler, Settings, TenantSettings};

use crate::support::LIMITS;

/// What a test does to a scheduler.
#[derive(Clone, Debug)]
enum Input {
    Submit(u32, u32, u8, u16),
    Cancel(u64),
    Step,
    Wait(u64),
    Change(usize, usize, Vec<(u32, u32, u32)>),
}

/// Settings that are changed in these tests, and what to; not every pair can be beside every order.
const CHANGES: &[(&str, &[&str])] = &[
    ("queue_cap", &["0", "3", "9"]),
    ("age_after", &["0", "0.01", "0.5"]),
    ("wait_max", &["0", "0.02"]),
    ("input_weight", &["0", "1", "7"]),
    ("output_weight", &["0", "2", "9"]),
    ("class_queue_cap", &["free=2", "free=0"]),
    ("concurrency_limit", &["true", "false"]),
    ("tenant_in_flight", &["0", "1", "4"]),
    ("class_kv_tokens", &["free=40", "free=0"]),
    ("requests_per_s", &["0", "10", "200"]),
    ("tenant_tokens_per_s", &["0", "100", "3000"]),
    ("rate_burst", &["0", "1"]),
    ("latency_budget", &["0", "0.2"]),
    ("first_token_budget", &["0", "0.1"]),
    ("deadline_admission", &["true", "false"]),
    ("budget", &["first-come", "class-first"]),
    ("victim", &["over-share-first", "newest-of-lowest-class"]),
    ("preempt_by_class", &["true", "false"]),
    ("preemptions_max", &["0", "2"]),
    ("max_batch", &["1", "4"]),
];

const ORDERS: &[&str] = &[
    "fifo",
    "aging-tiers",
    "response-ratio",
    "fair-tenants",
    "fair-groups",
    "aging/fair-tenants",
    "strict-tiers/fair-tenants",
    "aging-tiers/fair-groups/fair-tenants",
];

fn start(order: &str) -> Settings {
    let mut settings = Settings::default();
    for (name, value) in [
        ("order", order),
        ("classes", "paid,free"),
        ("max_batch", "4"),
    ] {
        settings.set_text(name, value).unwrap();
    }
    settings
}

fn tenants(settings: Settings, terms: &[(u32, u32, u32)]) -> Settings {
    let each = terms.iter().map(|&(id, weight, group)| TenantSettings {
        id: TenantId::new(id),
        weight: NonZeroU32::new(weight),
        group: (group > 0).then(|| GroupId::new(group)),
        in_flight: (weight == 3).then_some(2),
        ..TenantSettings::default()
    });
    settings.with_tenants(each.collect())
}

fn scheduler(settings: &Settings) -> Scheduler {
    let limits = Limits {
        sequences_max: settings.get(&MAX_BATCH).get(),
        ..LIMITS
    };
    Scheduler::new(limits, settings.policies().unwrap()).unwrap()
}

/// A run, with everything that can be seen of it.
struct Run {
    scheduler: Scheduler,
    mock: Mock,
    settings: Settings,
    now: Time,
    next_id: u64,
    started: Vec<u64>,
    ended: u64,
    /// Changes that could be made.
    made: u32,
    lines: Lines,
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Run {
    fn new(settings: Settings) -> Self {
        let mut scheduler = scheduler(&settings);
        let (lines, entries) = (Lines::new(), Arc::new(Mutex::new(Vec::new())));
        let (mut text, kept) = (lines.clone(), Arc::clone(&entries));
        let sink = move |entry: &Entry| {
            serve_sched::journal::Sink::record(&mut text, entry);
            kept.lock().unwrap().push(entry.clone());
        };
        scheduler.set_journal(Some(Box::new(sink)));
        let config = MockConfig {
            limits: LIMITS,
            ..MockConfig::default()
        };
        Self {
            scheduler,
            mock: Mock::new(config),
            settings,
            now: Time::ZERO,
            next_id: 0,
            started: Vec::new(),
            ended: 0,
            made: 0,
            lines,
            entries,
        }
    }

    fn input(&mut self, input: &Input) {
        match input {
            Input::Submit(tenant, prompt, class, deadline_ms) => {
                let id = RequestId::new(self.next_id);
                self.next_id += 1;
                let tokens = vec![TokenId::new(1 + *tenant); 1 + *prompt as usize % 12];
                let request = Request::new(id, self.now, tokens, 1 + prompt % 7).unwrap();
                let deadline = self.now + Span::from_millis(u64::from(*deadline_ms));
                let request = request
                    .with_tenant(TenantId::new(*tenant))
                    .with_class(Class::new(*class))
                    .with_deadline((*deadline_ms > 0).then_some(deadline));
                self.ended += u64::from(self.scheduler.submit(self.now, request).is_err());
            }
            Input::Cancel(id) => {
                let id = RequestId::new(id % self.next_id.max(1));
                self.scheduler.cancel(self.now, id, CancelReason::Client);
            }
            Input::Step => self.step(),
            Input::Wait(millis) => {
                self.now += Span::from_millis(*millis);
                self.scheduler.handle_timeout(self.now);
            }
            Input::Change(which, value, terms) => self.change(*which, *value, terms),
        }
        self.events();
        self.check();
    }

    fn step(&mut self) {
        let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
        if self.scheduler.plan_into(self.now, &mut plan) {
            self.mock.execute(&plan, &mut outcome).unwrap();
            self.now += outcome.elapsed;
            self.scheduler.complete(self.now, &outcome);
        }
    }

    fn change(&mut self, which: usize, value: usize, terms: &[(u32, u32, u32)]) {
        let (name, values) = CHANGES[which % CHANGES.len()];
        let mut to = tenants(self.settings.clone(), terms);
        to.set_text(name, values[value % values.len()]).unwrap();
        // What would not be taken at a start is not taken now, in the same words.
        let change = match Change::between(&self.settings, &to) {
            Ok(change) => change,
            Err(error) => {
                assert_eq!(Some(error), to.policies().err());
                return;
            }
        };
        self.scheduler.change(self.now, &change).unwrap();
        self.made += 1;
        self.settings = to;
    }

    fn events(&mut self) {
        while let Some(event) = self.scheduler.poll_event() {
            match event.kind {
                EventKind::Started => self.started.push(event.request.get()),
                EventKind::Token { .. } => {}
                EventKind::Finished { .. }
                | EventKind::Cancelled { .. }
                | EventKind::Displaced { .. }
                | EventKind::Failed { .. } => self.ended += 1,
            }
        }
    }

    /// Everybody who has come waits, runs or has ended.
    fn check(&self) {
        let stats = self.scheduler.stats();
        let here = u64::from(stats.waiting) + u64::from(stats.running);
        assert_eq!(stats.counters.arrived, self.next_id);
        assert_eq!(self.ended + here, self.next_id, "{stats:?}");
    }

    fn finish(&mut self) {
        for _ in 0..10_000 {
            if self.scheduler.is_idle() {
                break;
            }
            self.step();
            self.events();
            let wake = self.scheduler.next_timeout();
            self.now = wake.map_or(self.now, |wake| {
                self.now.max(wake.min(self.now + Span::from_millis(5)))
            });
        }
        assert_eq!(self.ended, self.next_id, "somebody is left");
    }
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let terms = prop::collection::vec((0..5_u32, 0..4_u32, 0..3_u32), 0..3);
    let terms = terms.prop_map(|mut terms| {
        terms.sort_unstable();
        terms.dedup_by_key(|term| term.0);
        terms
    });
    let deadline = prop_oneof![4 => Just(0_u16), 1 => 1..400_u16];
    let input = prop_oneof![
        6 => (0..5_u32, 0..60_u32, 0..2_u8, deadline).prop_map(|(a, b, c, d)| Input::Submit(a, b, c, d)),
        1 => (0..64_u64).prop_map(Input::Cancel),
        6 => Just(Input::Step),
        1 => (1..80_u64).prop_map(Input::Wait),
        3 => (0..CHANGES.len(), 0..3_usize, terms).prop_map(|(a, b, c)| Input::Change(a, b, c)),
    ];
    prop::collection::vec(input, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nobody_is_lost_whatever_changes(order in 0..ORDERS.len(), inputs in inputs()) {
        let mut run = Run::new(start(ORDERS[order]));
        inputs.iter().for_each(|input| run.input(input));
        run.finish();
    }

    /// The same inputs, with the changes taken from the journal of the first run, give the same journal.
    #[test]
    fn a_replay_from_the_journal_is_the_same(order in 0..ORDERS.len(), inputs in inputs()) {
        let mut first = Run::new(start(ORDERS[order]));
        inputs.iter().for_each(|input| first.input(input));
        first.finish();
        let entries = first.entries.lock().unwrap().clone();
        let mut changes = entries.iter().filter_map(|entry| match &entry.decision {
            Decision::Changed { change } => Some((entry.at, change)),
            _ => None,
        });
        let mut second = Run::new(start(ORDERS[order]));
        for input in &inputs {
            let before = (second.settings.clone(), second.now);
            match input {
                Input::Change(which, value, terms) => {
                    let (name, values) = CHANGES[which % CHANGES.len()];
                    let mut to = tenants(before.0.clone(), terms);
                    to.set_text(name, values[value % values.len()]).unwrap();
                    if Change::between(&before.0, &to).is_ok_and(|change| !change.is_empty()) {
                        let (at, change) = changes.next().unwrap();
                        second.scheduler.change(at, change).unwrap();
                    }
                    if to.check().is_ok() {
                        second.settings = to;
                    }
                    second.events();
                }
                other => second.input(other),
            }
        }
        second.finish();
        prop_assert_eq!(changes.next(), None);
        prop_assert_eq!(first.lines.text(), second.lines.text());
        prop_assert_eq!(first.started, second.started);
    }

    /// A scheduler that was changed before the first request is one that was made so.
    #[test]
    fn who_changes_first_has_changed_nothing_else(
        order in 0..ORDERS.len(),
        changes in prop::collection::vec((0..CHANGES.len(), 0..3_usize), 0..5),
        inputs in inputs(),
    ) {
        let mut changed = Run::new(start(ORDERS[order]));
        for (which, value) in changes {
            changed.change(which, value, &[(1, 3, 0), (2, 2, 1), (3, 1, 1)]);
        }
        let mut made = Run::new(changed.settings.clone());
        for input in inputs.iter().filter(|input| !matches!(input, Input::Change(..))) {
            changed.input(input);
            made.input(input);
        }
        changed.finish();
        made.finish();
        prop_assert_eq!(&changed.started, &made.started);
        let since = |run: &Run| {
            let text = run.lines.text();
            let lines = text.lines().filter(|line| !line.contains(" changed: "));
            lines.map(ToOwned::to_owned).collect::<Vec<_>>()
        };
        prop_assert_eq!(since(&changed), since(&made));
    }
}

#[test]
fn what_cannot_change_is_refused_whole() {
    for (name, value, error) in [
        (
            "order",
            "fifo",
            "--order cannot change while the server runs; a restart can change it",
        ),
        (
            "batch",
            "static",
            "--batch cannot change while the server runs; a restart can change it",
        ),
        (
            "step_tokens",
            "64",
            "--step-tokens cannot change while the server runs; a restart can change it",
        ),
        (
            "max_batch",
            "9",
            "--max-batch: it can be 4 at most until a restart",
        ),
    ] {
        let mut run = Run::new(start("fair-tenants"));
        let mut same = Run::new(start("fair-tenants"));
        let mut to = run.settings.clone();
        to.set_text("queue_cap", "1").unwrap();
        to.set_text(name, value).unwrap();
        let change = Change::between(&run.settings, &to).unwrap();
        let refused = run.scheduler.change(Time::ZERO, &change).unwrap_err();
        assert_eq!(refused.to_string(), error);
        for each in [&mut run, &mut same] {
            (0..8).for_each(|tenant| each.input(&Input::Submit(tenant, 5, 0, 0)));
            each.finish();
        }
        assert_eq!(run.lines.text(), same.lines.text());
        assert!(!run.lines.text().contains("changed"));
    }
}

#[test]
fn a_setting_of_another_order_is_refused_as_at_a_start() {
    let from = start("fifo");
    let mut to = from.clone();
    to.set_text("age_after", "3").unwrap();
    let refused = Change::between(&from, &to).unwrap_err();
    assert_eq!(Some(&refused), to.policies().err().as_ref());
    assert!(
        refused
            .to_string()
            .starts_with("--age-after: it needs --order aging")
    );
}

fn front(settings: &Settings, slots: u32) -> Dispatcher {
    let policies = settings.policies().unwrap();
    Dispatcher::new(policies.admit, policies.order, Box::new(Fixed::new(slots)))
}

fn of_tenant(id: u64, tenant: u32) -> Request {
    let request = Request::of_lengths(RequestId::new(id), Time::ZERO, 10, 10).unwrap();
    request.with_tenant(TenantId::new(tenant))
}

/// Serves one after another, and says whose they were.
fn serve(dispatcher: &mut Dispatcher, requests: usize) -> Vec<u32> {
    let mut served = Vec::new();
    for _ in 0..requests {
        let request = dispatcher.next(Time::ZERO).unwrap();
        served.push(request.tenant().get());
        let usage = Usage {
            prompt_tokens: 10,
            output_tokens: 10,
            ..Usage::default()
        };
        let reason = FinishReason::Stop;
        dispatcher.served(Time::ZERO, request.id(), 10);
        let outcome = Outcome::Answered { reason, usage };
        dispatcher.done(Time::ZERO, request.id(), outcome);
    }
    served
}

#[test]
fn a_new_share_holds_for_those_who_wait_from_the_change_on() {
    let from = tenants(start("fair-tenants"), &[(1, 1, 0), (2, 1, 0)]);
    let mut dispatcher = front(&from, 1);
    for id in 0..120 {
        dispatcher
            .submit(Time::ZERO, of_tenant(id, 1 + id as u32 % 2))
            .unwrap();
    }
    let of_2 = |served: &[u32]| served.iter().filter(|&&tenant| tenant == 2).count();
    assert_eq!(of_2(&serve(&mut dispatcher, 20)), 10);
    let to = tenants(from.clone(), &[(1, 1, 0), (2, 3, 0)]);
    dispatcher
        .change(Time::ZERO, &Change::between(&from, &to).unwrap())
        .unwrap();
    // Three of four from now on, and nothing for what was before.
    let then = of_2(&serve(&mut dispatcher, 40));
    assert!((29..=31).contains(&then), "{then}");
    let back = Change::between(&to, &from).unwrap();
    dispatcher.change(Time::ZERO, &back).unwrap();
    let then = of_2(&serve(&mut dispatcher, 20));
    assert!((9..=11).contains(&then), "{then}");
}

#[test]
fn a_tenant_that_is_named_or_forgotten_moves_with_all_that_it_has_in_flight() {
    let from = start("fair-tenants");
    let mut dispatcher = front(&from, 1);
    for id in 0..90 {
        dispatcher
            .submit(Time::ZERO, of_tenant(id, 1 + id as u32 % 3))
            .unwrap();
    }
    let of_3 = |served: &[u32]| served.iter().filter(|&&tenant| tenant == 3).count();
    assert_eq!(of_3(&serve(&mut dispatcher, 12)), 4, "one of three equals");
    let to = tenants(from.clone(), &[(3, 1, 0)]);
    dispatcher
        .change(Time::ZERO, &Change::between(&from, &to).unwrap())
        .unwrap();
    let then = of_3(&serve(&mut dispatcher, 20));
    assert!(
        (9..=11).contains(&then),
        "a group by itself beside all others: {then}"
    );
    dispatcher
        .change(Time::ZERO, &Change::between(&to, &from).unwrap())
        .unwrap();
    let then = of_3(&serve(&mut dispatcher, 12));
    assert!((3..=5).contains(&then), "{then}");
}

#[test]
fn an_age_holds_for_those_who_wait_already() {
    let mut from = start("aging-tiers");
    from.set_text("age_after", "1000").unwrap();
    let mut to = from.clone();
    to.set_text("age_after", "1").unwrap();
    let mut dispatcher = front(&from, 1);
    let (old, new) = (Time::ZERO, Time::from_millis(1_500));
    let request = |id, at, class| {
        let request = Request::of_lengths(RequestId::new(id), at, 1, 1).unwrap();
        request.with_class(Class::new(class))
    };
    dispatcher.submit(old, request(1, old, 1)).unwrap();
    dispatcher.submit(new, request(2, new, 0)).unwrap();
    dispatcher
        .change(new, &Change::between(&from, &to).unwrap())
        .unwrap();
    assert_eq!(dispatcher.next(new).unwrap().id().get(), 1);
}

#[test]
fn slots_of_a_dispatcher_change_both_ways() {
    let from = start("fifo");
    let slots = |n: &str| {
        let mut to = from.clone();
        to.set_text("max_batch", n).unwrap();
        to
    };
    let mut dispatcher = front(&from, 4);
    (0..12).for_each(|id| dispatcher.submit(Time::ZERO, of_tenant(id, 0)).unwrap());
    let next =
        |dispatcher: &mut Dispatcher| std::iter::from_fn(|| dispatcher.next(Time::ZERO)).count();
    assert_eq!(next(&mut dispatcher), 4);
    dispatcher
        .change(Time::ZERO, &Change::between(&from, &slots("6")).unwrap())
        .unwrap();
    assert_eq!(next(&mut dispatcher), 2);
    dispatcher
        .change(
            Time::ZERO,
            &Change::between(&slots("6"), &slots("2")).unwrap(),
        )
        .unwrap();
    assert_eq!(
        (
            next(&mut dispatcher),
            dispatcher.stats().running,
            dispatcher.stats().limit
        ),
        (0, 6, 2)
    );
}

#[test]
fn a_limit_that_is_switched_on_counts_who_is_there_already() {
    let from = start("fifo");
    let mut to = from.clone();
    to.set_text("tenant_in_flight", "3").unwrap();
    let mut dispatcher = front(&from, 1);
    (0..3).for_each(|id| dispatcher.submit(Time::ZERO, of_tenant(id, 1)).unwrap());
    dispatcher.next(Time::ZERO).unwrap();
    dispatcher
        .change(Time::ZERO, &Change::between(&from, &to).unwrap())
        .unwrap();
    assert!(dispatcher.submit(Time::ZERO, of_tenant(3, 1)).is_err());
    assert!(dispatcher.submit(Time::ZERO, of_tenant(4, 2)).is_ok());
    let usage = Usage::default();
    let reason = FinishReason::Stop;
    dispatcher.done(
        Time::ZERO,
        RequestId::new(0),
        Outcome::Answered { reason, usage },
    );
    assert!(dispatcher.submit(Time::ZERO, of_tenant(5, 1)).is_ok());
}

/// What was used of a burst stays used, and is paid off at the new rate.
#[test]
fn a_rate_that_changes_keeps_what_was_used() {
    let rate = |per_s: &str| {
        let mut to = start("fifo");
        to.set_text("requests_per_s", per_s).unwrap();
        to.set_text("rate_burst", "1").unwrap();
        to
    };
    let mut dispatcher = front(&rate("10"), 1);
    let mut id = 0;
    let mut taken = |dispatcher: &mut Dispatcher, at: Time| {
        let taken = |_: &u32| {
            id += 1;
            dispatcher.submit(at, of_tenant(id, 1)).is_ok()
        };
        (0..100).take_while(taken).count()
    };
    assert_eq!(taken(&mut dispatcher, Time::ZERO), 10);
    let change = Change::between(&rate("10"), &rate("20")).unwrap();
    dispatcher.change(Time::ZERO, &change).unwrap();
    // The burst is twenty now, of which ten are used.
    assert_eq!(taken(&mut dispatcher, Time::ZERO), 10);
    assert_eq!(taken(&mut dispatcher, Time::from_millis(500)), 10);
    let change = Change::between(&rate("20"), &rate("2")).unwrap();
    dispatcher.change(Time::from_millis(500), &change).unwrap();
    // Twenty used of two are paid off at two in a second.
    assert_eq!(taken(&mut dispatcher, Time::from_millis(9_000)), 0);
    assert_eq!(taken(&mut dispatcher, Time::from_millis(10_500)), 2);
}

#[test]
fn an_order_of_ones_own_refuses_what_it_does_not_know() {
    let from = start("aging-tiers");
    let mut to = from.clone();
    to.set_text("age_after", "3").unwrap();
    let change = Change::between(&from, &to).unwrap();
    let order = Box::new(serve_sched::order::Fifo);
    let mut dispatcher = Dispatcher::new(Vec::new(), order, Box::new(Fixed::new(1)));
    let refused = dispatcher.change(Time::ZERO, &change).unwrap_err();
    let setting = "--age-after".to_owned();
    assert_eq!(refused, ChangeError::Fixed { setting });
}

/// Whatever an admission policy or an order owns is among what these tests change, or refused.
#[test]
fn every_setting_is_taken_or_refused_by_name() {
    for entry in serve_sched::table::table() {
        let row = entry.row;
        let from = start("fifo");
        let values = ["1", "2", "true", "false", "free=1", "0.5"];
        let changes = values.iter().filter_map(|value| {
            let mut to = from.clone();
            to.set_text(row.name, value).ok()?;
            Change::between(&from, &to)
                .ok()
                .filter(|change| !change.is_empty())
        });
        for change in changes {
            let mut scheduler = scheduler(&from);
            if let Err(error) = scheduler.change(Time::ZERO, &change) {
                assert!(error.to_string().contains(&row.flag()), "{error}");
            }
        }
    }
}
