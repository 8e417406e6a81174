//! Shared by the tests: requests in one line, and the trace language.
//!
//! A trace is a few lines, `TIME COMMAND ..` with the time in milliseconds. Between two lines the
//! engine runs on a mock whose steps take `10 ms + 1 ms for each prefill token`. What it plans, what
//! it tells its clients and, if asked for, its journal come out as text.

use std::fmt::Write as _;

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{
    Backend, BackendError, CancelReason, Class, Event, EventKind, FinishReason, Limits, Request,
    RequestId, Span, StepOutcome, StepPlan, TenantId, Time, TokenId,
};
use serve_sched::{Policies, Scheduler, journal::Lines};

/// Room for four sequences, 32 tokens a step, 15 blocks of 4 positions.
pub(crate) const LIMITS: Limits = Limits {
    sequences_max: 4,
    step_tokens_max: 32,
    context_max: 64,
    block_size: 4,
    blocks: 16,
};

/// A request whose prompt is unlike any other's.
pub(crate) fn request(id: u64, prompt: u32, output: u32) -> Request {
    let tokens: Vec<_> = (0..prompt)
        .map(|position| TokenId::new(id as u32 * 1_000 + position))
        .collect();
    Request::new(RequestId::new(id), Time::ZERO, tokens, output).unwrap()
}

/// Runs `trace` and returns plans, events and refusals, line by line.
pub(crate) fn check(limits: Limits, policies: Policies, trace: &str) -> String {
    let mut run = Run::new(limits, policies);
    run.trace(trace);
    run.log
}

/// Runs `trace` and returns the journal.
pub(crate) fn journal(limits: Limits, policies: Policies, trace: &str) -> String {
    let mut run = Run::new(limits, policies);
    let lines = Lines::new();
    run.scheduler.set_journal(Some(Box::new(lines.clone())));
    run.trace(trace);
    lines.text()
}

struct Run {
    scheduler: Scheduler,
    mock: Mock,
    plan: StepPlan,
    outcome: StepOutcome,
    /// When the step in flight ends.
    in_flight: Option<Time>,
    /// How it ends, if not well.
    fault: Option<BackendError>,
    now: Time,
    log: String,
}

impl Run {
    fn new(limits: Limits, policies: Policies) -> Self {
        let cost = CostModel::new(
            vec![(1, Span::from_millis(10))],
            Span::from_millis(1),
            Span::ZERO,
        );
        let config = MockConfig {
            limits,
            cost: cost.unwrap(),
            ..MockConfig::default()
        };
        Self {
            scheduler: Scheduler::new(limits, policies).unwrap(),
            mock: Mock::new(config),
            plan: StepPlan::new(),
            outcome: StepOutcome::new(),
            in_flight: None,
            fault: None,
            now: Time::ZERO,
            log: String::new(),
        }
    }

    fn trace(&mut self, trace: &str) {
        let lines = trace.lines().map(str::trim).filter(|line| !line.is_empty());
        for line in lines {
            let (at, command) = line.split_once(' ').unwrap();
            let at = Time::from_millis(at.parse().unwrap());
            self.run_until(at);
            self.command(at, command);
        }
        self.run_until(Time::MAX);
    }

    /// Runs every step that begins before `until`. One that ends after it stays in flight, so that
    /// an input comes while the device is busy.
    fn run_until(&mut self, until: Time) {
        loop {
            if let Some(end) = self.in_flight {
                if end > until {
                    return;
                }
                self.complete(end);
            }
            if self.now >= until {
                return;
            }
            if self.scheduler.plan_into(self.now, &mut self.plan) {
                self.begin();
                continue;
            }
            self.events();
            match self.scheduler.next_timeout() {
                Some(wake) if wake < until => self.now = wake,
                _ if until < Time::MAX => self.now = until,
                _ => return,
            }
        }
    }

    fn begin(&mut self) {
        self.log_plan();
        self.mock.execute(&self.plan, &mut self.outcome).unwrap();
        self.in_flight = Some(self.now + self.outcome.elapsed);
        self.events();
    }

    fn complete(&mut self, end: Time) {
        self.in_flight = None;
        self.now = end;
        let step = self.plan.step();
        match self.fault.take() {
            None => self.scheduler.complete(end, &self.outcome),
            Some(BackendError::Step { cause }) => self.scheduler.fail(end, step, &cause),
            Some(BackendError::Lost { cause }) => self.scheduler.fail_all(end, &cause),
        }
        self.events();
    }

    fn command(&mut self, at: Time, command: &str) {
        let mut words = command.split(' ');
        let verb = words.next().unwrap();
        let mut id = || {
            let word = words.next().unwrap();
            RequestId::new(word.trim_start_matches('r').parse().unwrap())
        };
        match verb {
            "submit" => {
                let id = id().get();
                let fields: Vec<_> = words.map(|word| word.split_once('=').unwrap()).collect();
                let request = described(id, at, &fields);
                if let Err(refusal) = self.scheduler.submit(at, request) {
                    writeln!(self.log, "{at} r{id} {refusal}").unwrap();
                }
            }
            "cancel" => {
                let id = id();
                self.scheduler.cancel(at, id, CancelReason::Client);
            }
            "drain" => self.scheduler.drain(at),
            "fail" => {
                self.fault = Some(BackendError::Step {
                    cause: "fault".into(),
                })
            }
            "lose" => {
                self.fault = Some(BackendError::Lost {
                    cause: "gone".into(),
                })
            }
            other => panic!("no such command: {other}"),
        }
        self.events();
    }

    fn log_plan(&mut self) {
        let plan = &self.plan;
        write!(self.log, "{} {}:", self.now, plan.step()).unwrap();
        for segment in plan.segments() {
            let (start, end) = (segment.positions.start, segment.positions.end);
            let mark = if segment.sample { "*" } else { "" };
            write!(self.log, " {}[{start}..{end}]{mark}", segment.request).unwrap();
        }
        for id in plan.releases() {
            write!(self.log, " -{id}").unwrap();
        }
        self.log.push('\n');
    }

    fn events(&mut self) {
        while let Some(Event { request, at, kind }) = self.scheduler.poll_event() {
            let what = match kind {
                EventKind::Started | EventKind::Token { .. } => continue,
                EventKind::Finished { reason, usage } => {
                    let reason = match reason {
                        FinishReason::Stop => "stop",
                        FinishReason::Length => "length",
                    };
                    format!("finished ({reason}), {} tokens", usage.output_tokens)
                }
                EventKind::Cancelled { reason, usage } => {
                    format!("cancelled ({reason:?}), {} tokens", usage.output_tokens)
                }
                EventKind::Failed { cause, usage } => {
                    format!("failed ({cause}), {} tokens", usage.output_tokens)
                }
                EventKind::Displaced { refusal } => format!("displaced ({refusal})"),
            };
            writeln!(self.log, "  {at} {request} {what}").unwrap();
        }
    }
}

/// `prompt=N out=N class=N tenant=N deadline=MS like=ID`; `like` gives the prompt of another
/// request.
fn described(id: u64, at: Time, fields: &[(&str, &str)]) -> Request {
    let field = |name: &str| {
        let found = fields.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.parse::<u64>().unwrap())
    };
    let like = field("like").unwrap_or(id) as u32;
    let prompt: Vec<_> = (0..field("prompt").unwrap_or(4) as u32)
        .map(|position| TokenId::new(like * 1_000 + position))
        .collect();
    let output = field("out").unwrap_or(1) as u32;
    Request::new(RequestId::new(id), at, prompt, output)
        .unwrap()
        .with_class(Class::new(field("class").unwrap_or(0) as u8))
        .with_tenant(TenantId::new(field("tenant").unwrap_or(0) as u32))
        .with_deadline(field("deadline").map(Time::from_millis))
}
