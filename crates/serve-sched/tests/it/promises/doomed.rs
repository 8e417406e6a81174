//! Work that cannot be in time is not done, and little is refused that could have been.

use std::collections::BTreeSet;

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::rng::Rng;
use serve_core::{
    Backend as _, CancelReason, Limits, Refusal, Request, RequestId, Span, Time, TokenId,
};
use serve_sched::admit::{Admit, DeadlinePrediction, Ended, Load, Watch};
use serve_sched::kv::KvSettings;
use serve_sched::lengths::{Expected, Lengths, Unseen};
use serve_sched::sim::{Arrivals, Input, Poisson, Report, Row, Script, Simulation, Terminal};
use serve_sched::{Policies, Scheduler};

use crate::quoted::quoted;

/// Eight slots, 10 ms a step.
fn device() -> Mock {
    let cost = CostModel::new(vec![(1, Span::from_millis(10))], Span::ZERO, Span::ZERO).unwrap();
    Mock::new(MockConfig {
        limits: Limits {
            sequences_max: 8,
            step_tokens_max: 4_096,
            context_max: 4_096,
            block_size: 16,
            blocks: 8 * 256 + 1,
        },
        cost,
        ..MockConfig::default()
    })
}

fn scheduler(admit: Vec<Box<dyn Admit>>) -> Scheduler {
    let policies = Policies {
        admit,
        kv: KvSettings {
            reuse_prefixes: false,
            ..KvSettings::default()
        },
        ..Policies::default()
    };
    Scheduler::new(device().limits(), policies).unwrap()
}

fn run(admit: Vec<Box<dyn Admit>>, requests: Vec<Request>) -> Report {
    Simulation::new(scheduler(admit), device()).run(&mut Arrivals::new(requests))
}

fn prediction() -> Vec<Box<dyn Admit>> {
    vec![Box::new(DeadlinePrediction::default())]
}

/// The same, but for those that run.
struct LetsRun(DeadlinePrediction);

impl Admit for LetsRun {
    fn name(&self) -> &'static str {
        "lets-run"
    }

    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        self.0.admit(request, load)
    }

    fn watches(&self) -> Watch {
        Watch::Joining
    }

    fn gives_up(&mut self, request: &Request, done: u32, load: &Load<'_>) -> bool {
        self.0.gives_up(request, done, load)
    }

    fn ended(&mut self, ended: &Ended<'_>, load: &Load<'_>) {
        self.0.ended(ended, load);
    }
}

fn letting_run() -> Vec<Box<dyn Admit>> {
    vec![Box::new(LetsRun(DeadlinePrediction::default()))]
}

/// Knows the long ones, and nothing of the others but that they are short.
struct Told(BTreeSet<RequestId>);

impl Lengths for Told {
    fn expected(&self, request: &Request, _unseen: Unseen) -> Expected {
        let is_long = self.0.contains(&request.id());
        Expected::certain(if is_long { 1_500 } else { 12 })
    }

    fn chance(&self, request: &Request, done: u32, more: u32) -> f64 {
        let left = self
            .expected(request, Unseen::Long)
            .tokens
            .saturating_sub(done);
        f64::from(u8::from(left <= more))
    }

    fn ended(&mut self, _request: &Request, _output_tokens: u32, _by_itself: bool) {}
}

/// How a workload says how long its answers are.
#[derive(Clone, Copy)]
enum Limit {
    /// By each request's output limit.
    Own,
    /// The same limit of 1,800 for all.
    Same,
}

/// Requests at 15 a second with 8 s each, of which one in `doomed_every` is of 1,500 tokens, 15 s even alone, and
/// the others of 12; from the `until`-th on none is long.
fn requests(doomed_every: u64, until: usize, limit: Limit) -> Vec<Request> {
    let (mut rng, device) = (Rng::new(11), device());
    let request = |(n, at): (usize, Time)| {
        let long = rng.below(doomed_every) == 0 && n < until;
        let (id, output) = (RequestId::new(n as u64), if long { 1_500 } else { 12 });
        let prompt = vec![TokenId::new(1); 10];
        let request = match limit {
            Limit::Own => Request::new(id, at, prompt, output).unwrap(),
            Limit::Same => {
                let stop = device.token(id, 10 + output - 1);
                let request = Request::new(id, at, prompt, 1_800).unwrap();
                request.with_stop_tokens(vec![stop])
            }
        };
        request.with_deadline(Some(at + Span::from_secs(8)))
    };
    Poisson::new(2, 15.0)
        .take(8_000)
        .enumerate()
        .map(request)
        .collect()
}

/// The share of all tokens that were generated for nobody.
fn wasted(report: &Report) -> f64 {
    let tokens = |finished: bool| -> f64 {
        let rows = report
            .rows
            .iter()
            .filter(|row| row.is_finished() == finished);
        rows.map(|row| f64::from(row.usage.output_tokens)).sum()
    };
    tokens(false) / (tokens(false) + tokens(true))
}

fn answered<'a>(rows: impl Iterator<Item = &'a Row>) -> f64 {
    let (mut all, mut finished) = (0, 0);
    for row in rows {
        all += 1;
        finished += u32::from(row.is_finished());
    }
    f64::from(finished) / f64::from(all)
}

/// Of those that were refused or given up, the share that the control answered in time.
fn wrongly(report: &Report, control: &Report) -> f64 {
    let given_up = |row: &&Row| {
        matches!(
            row.terminal,
            Terminal::Refused(_) | Terminal::Cancelled(CancelReason::DeadlineUnreachable)
        )
    };
    let in_time = |row: &Row| {
        control
            .rows
            .iter()
            .any(|other| other.request == row.request && other.is_finished())
    };
    let given_up: Vec<&Row> = report.rows.iter().filter(given_up).collect();
    given_up.iter().filter(|row| in_time(row)).count() as f64 / given_up.len() as f64
}

/// Whether or not limits tell the lengths, ending what runs and is doomed loses nothing of what would be answered
/// without any policy; letting it run does, where they do not.
#[test]
fn what_is_doomed_is_not_done_whether_limits_or_time_tell() {
    for (name, limit) in [("its limit", Limit::Own), ("nothing", Limit::Same)] {
        let requests = requests(12, usize::MAX, limit);
        let control = run(Vec::new(), requests.clone());
        let letting = run(letting_run(), requests.clone());
        let on = run(prediction(), requests);
        let share = |report: &Report| answered(report.rows.iter());
        assert!(wasted(&control) > 0.7, "{name}: {}", wasted(&control));
        assert!(wasted(&on) < 0.2, "{name}: {}", wasted(&on));
        let lost = share(&control) - share(&on);
        assert!(lost < 0.005, "{name}: {lost}");
        assert!(share(&on) >= share(&letting), "{name}: {}", share(&letting));
        let wrongly = wrongly(&on, &control);
        assert!(wrongly <= 0.05, "{name}: {wrongly}");
        let cells = [control, letting, on].map(|report| {
            let (wasted, answered) = (100.0 * wasted(&report), 100.0 * share(&report));
            format!("{wasted:.1}% | {answered:.1}%")
        });
        quoted(
            "deadline-prediction",
            &format!("| {name} | {} |", cells.join(" | ")),
        );
    }
}

/// A predictor of one's own knows what the limits do not tell, and nothing has to run for it to be found out.
#[test]
fn what_a_predictor_tells_to_be_doomed_is_not_done() {
    let requests = requests(12, usize::MAX, Limit::Same);
    let long =
        |request: &&Request| device().token(request.id(), 10 + 11) != request.stop_tokens()[0];
    let long = requests.iter().filter(long).map(Request::id).collect();
    let control = run(Vec::new(), requests.clone());
    let policies = Policies {
        admit: prediction(),
        lengths: Box::new(Told(long)),
        ..Policies::default()
    };
    let told = Scheduler::new(device().limits(), policies).unwrap();
    let report = Simulation::new(told, device()).run(&mut Arrivals::new(requests));
    assert!(wasted(&control) > 0.7, "{}", wasted(&control));
    assert!(wasted(&report) < 0.1, "{}", wasted(&report));
    let lost = answered(control.rows.iter()) - answered(report.rows.iter());
    assert!(lost < 0.01, "{lost}");
}

/// What is never tried is never learnt again: lengths change, and the refusals end.
#[test]
fn lengths_that_become_short_are_noticed() {
    let requests = requests(1, 4_000, Limit::Same);
    let changed = requests[4_000].arrival();
    let report = run(prediction(), requests);
    let later = report.rows.iter().filter(|row| row.arrival > changed);
    let answered = answered(later);
    assert!(answered > 0.9, "{answered}");
}

/// An idle engine, and a first request that its client cancels: its limit is not taken for how long answers are.
#[test]
fn one_cancel_on_an_idle_engine_locks_nobody_out() {
    for tokens in [1, 100, 700] {
        let device = device();
        let mut inputs = Vec::new();
        for n in 0..200_u64 {
            let at = Time::from_secs(n * 2);
            let output = if n == 0 { 1_500 } else { 12 };
            let stop = device.token(RequestId::new(n), 10 + output - 1);
            let prompt = vec![TokenId::new(1); 10];
            let request = Request::new(RequestId::new(n), at, prompt, 1_800).unwrap();
            let request = request.with_stop_tokens(vec![stop]);
            let request = request.with_deadline(Some(at + Span::from_secs(8)));
            if n == 1 {
                let request = RequestId::new(0);
                let reason = CancelReason::Client;
                let at = Time::from_millis(10 * tokens + 5);
                inputs.push((at, Input::Cancel { request, reason }));
            }
            inputs.push((at, Input::Submit(request)));
        }
        inputs.sort_by_key(|(at, _)| *at);
        let simulation = Simulation::new(scheduler(prediction()), device);
        let report = simulation.run(&mut Script::new(inputs));
        let answered = report.rows.iter().filter(|row| row.is_finished()).count();
        assert!(answered >= 195, "{answered} of 199 after {tokens} tokens");
    }
}

/// A request that cannot be in time any more when its turn comes is not begun.
#[test]
fn nobody_starts_that_cannot_be_in_time() {
    // Without anything measured at first, the queue is long before anybody can be refused.
    let request = |(n, at): (usize, Time)| {
        let prompt = vec![TokenId::new(1); 10];
        let request = Request::new(RequestId::new(n as u64), at, prompt, 100).unwrap();
        request.with_deadline(Some(at + Span::from_millis(2_500)))
    };
    let burst = std::iter::repeat_n(Time::ZERO, 60);
    let requests: Vec<Request> = burst.enumerate().map(request).collect();
    let report = run(prediction(), requests.clone());
    let dropped = |row: &&Row| {
        matches!(
            row.terminal,
            Terminal::Cancelled(CancelReason::DeadlineUnreachable)
        )
    };
    assert!(report.rows.iter().filter(dropped).count() > 20);
    let unstarted = report
        .rows
        .iter()
        .filter(dropped)
        .all(|row| row.started.is_none());
    assert!(unstarted);
    assert!(wasted(&report) < 0.05, "{}", wasted(&report));
    assert!(wasted(&run(Vec::new(), requests)) > 0.1);
}

/// Gives up each request that has generated so many tokens.
struct GivesUpAfter(u32);

impl Admit for GivesUpAfter {
    fn name(&self) -> &'static str {
        "gives-up-after"
    }

    fn admit(&mut self, _: &Request, _: &Load<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn watches(&self) -> Watch {
        Watch::Running
    }

    fn gives_up(&mut self, _: &Request, done: u32, _: &Load<'_>) -> bool {
        done >= self.0
    }
}

/// Most tokens say nothing but themselves, and are booked as such.
#[test]
fn a_policy_that_watches_is_asked_whether_or_not_a_token_could_end_a_request() {
    let request = |id: u64, stop_tokens: Vec<TokenId>| {
        let prompt = vec![TokenId::new(1); 10];
        let request = Request::new(RequestId::new(id), Time::ZERO, prompt, 100).unwrap();
        let request = request.with_stop_tokens(stop_tokens);
        request.with_deadline(Some(Time::from_millis(60_000)))
    };
    // One that is never sampled.
    let requests = vec![request(0, vec![]), request(1, vec![TokenId::new(u32::MAX)])];
    for tokens in [2, 20, 64] {
        let report = run(vec![Box::new(GivesUpAfter(tokens))], requests.clone());
        for row in &report.rows {
            assert_eq!(row.usage.output_tokens, tokens, "{row:?}");
        }
    }
}
