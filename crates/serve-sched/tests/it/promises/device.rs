//! Devices of which one thing or another is the limit, requests for them, and what came of a promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::rng::Rng;
use serve_core::{
    Backend, BackendError, Limit, Limits, Refusal, Request, RequestId, Span, StepId, StepLoad,
    StepOutcome, StepPlan, Time, TokenId,
};
use serve_sched::admit::{
    Admit, ConcurrencyLimit, DeadlinePrediction, FirstTokenBudget, LatencyBudget, Load,
};
use serve_sched::kv::KvSettings;
use serve_sched::lengths::{Expected, Lengths, SeenLengths, Unseen};
use serve_sched::sim::{Arrivals, Poisson, Report, Row, Simulation, Terminal};
use serve_sched::{Demand, Policies, Scheduler};

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// The end within a target: `latency-budget`.
    End,
    /// The end by each request's deadline: `deadline-prediction`.
    Deadline,
    /// The first token within a target: `first-token-budget`.
    FirstToken,
    /// A start at once: `concurrency-limit`.
    Start,
    /// The end within a target, by a control that takes every request for the longest that was seen: it refuses long
    /// ones and short ones alike.
    EndOfLongest,
}

/// How long requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// All the same.
    Alike,
    /// Nine short ones for each that is six times as long.
    TwoKinds,
    /// From a few tokens up to six times the mean, each length the product of two exponentials.
    Trace,
}

/// A device and what is asked of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    /// What is the limit.
    pub(super) name: &'static str,
    pub(super) limits: Limits,
    /// Tokens of prompt and answer, of requests that are alike.
    pub(super) tokens: (u32, u32),
    /// Promised to requests that are alike, and to others.
    pub(super) targets: (Span, Span),
    /// Whether every request has the same output limit, and ends before it.
    pub(super) hides_lengths: bool,
    /// Whether the scheduler knows how long each will be all the same: a control for those that hide it.
    pub(super) foretold: bool,
    /// Whether the device takes twice as long for each step from the middle on.
    pub(super) slows_down: bool,
}

/// What came of a promise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    /// Of what was promised, over the promise.
    pub(super) p99: f64,
    /// Those in time, over those that the device can answer.
    pub(super) goodput: f64,
    /// Tokens generated for those, over those that the device can generate.
    pub(super) token_goodput: f64,
    /// The share of all that were refused.
    pub(super) refused: f64,
    /// The longest wait for a start, over the promise.
    pub(super) wait_p99: f64,
    /// The longest of the first hundred that were answered, over the promise.
    pub(super) first: f64,
}

/// What a device can do in some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Able {
    requests: f64,
    tokens: f64,
}

const REQUESTS: usize = 4_000;

/// The limit of requests that hide their lengths.
const LIMIT_HIDING: u32 = 1_024;

const fn limits(sequences_max: u32, step_tokens_max: u32, blocks: u32) -> Limits {
    Limits {
        sequences_max,
        step_tokens_max,
        context_max: 32_768,
        block_size: 16,
        blocks: blocks + 1,
    }
}

/// One device for each binding limit, and one on which slots and memory take turns.
pub(super) fn cases() -> [Case; 4] {
    let case = |name, limits, tokens, targets: (u64, u64)| Case {
        name,
        limits,
        tokens,
        targets: (Span::from_secs(targets.0), Span::from_secs(targets.1)),
        hides_lengths: false,
        foretold: false,
        slows_down: false,
    };
    [
        case("slots", limits(16, 4_096, 16 * 2_048), (100, 60), (6, 30)),
        case("memory", limits(400, 4_096, 24 * 20), (260, 56), (6, 45)),
        case("steps", limits(64, 4_096, 64 * 2_048), (3_000, 8), (6, 30)),
        case("mixed", limits(32, 2_048, 32 * 40), (500, 100), (15, 60)),
    ]
}

/// A device on which nearly everybody is preempted: long answers to short prompts, and memory for a few of them.
pub(super) fn case_of_preemptions() -> Case {
    Case {
        name: "preemptions",
        limits: limits(400, 4_096, 24 * 20),
        tokens: (16, 400),
        targets: (Span::from_secs(30), Span::from_secs(90)),
        hides_lengths: false,
        foretold: false,
        slows_down: false,
    }
}

impl Case {
    fn tokens(&self, shape: Shape, rng: &mut Rng) -> (u32, u32) {
        let (prompt, output) = self.tokens;
        match shape {
            Shape::Alike => (prompt, output),
            // Of the same mean.
            Shape::TwoKinds => match rng.below(10) {
                0 => (prompt * 4, output * 4),
                _ => ((prompt * 2).div_ceil(3), (output * 2).div_ceil(3)),
            },
            Shape::Trace => {
                let mut of = |mean: u32| {
                    let factor = rng.exponential(1.0) * rng.exponential(1.0);
                    ((f64::from(mean) * factor.min(6.0)) as u32).max(2)
                };
                (of(prompt), of(output))
            }
        }
    }

    fn target(&self, shape: Shape) -> Span {
        match shape {
            Shape::Alike => self.targets.0,
            Shape::TwoKinds | Shape::Trace => self.targets.1,
        }
    }

    pub(super) fn target_secs(&self, shape: Shape) -> f64 {
        self.target(shape).as_secs_f64()
    }

    fn mock(&self, step_ms: u64, token_us: u64) -> Mock {
        let step = vec![(1, Span::from_millis(step_ms))];
        let cost = CostModel::new(step, Span::from_micros(token_us), Span::ZERO).unwrap();
        Mock::new(MockConfig {
            limits: self.limits,
            cost,
            ..MockConfig::default()
        })
    }

    fn device(&self, slow_from: u64) -> Device {
        Device {
            fast: self.mock(18, 30),
            slow: self.mock(36, 60),
            slow_from,
            busy_before: Arc::default(),
        }
    }

    pub(super) fn requests(
        &self,
        shape: Shape,
        arrivals: impl Iterator<Item = Time>,
        seed: u64,
    ) -> Vec<Request> {
        let mut rng = Rng::new(seed);
        let mock = self.mock(18, 30);
        let request = |(id, at): (usize, Time)| {
            let (prompt, output) = self.tokens(shape, &mut rng);
            let id = RequestId::new(id as u64);
            let tokens = vec![TokenId::new(1); prompt as usize];
            if !self.hides_lengths {
                return Request::new(id, at, tokens, output).unwrap();
            }
            // It ends by a stop token, where nobody could know.
            let stop = mock.token(id, prompt + output - 1);
            let request = Request::new(id, at, tokens, LIMIT_HIDING).unwrap();
            request.with_stop_tokens(vec![stop])
        };
        arrivals.enumerate().map(request).collect()
    }

    fn run(&self, device: Device, admit: Vec<Box<dyn Admit>>, requests: Vec<Request>) -> Report {
        let lengths: Box<dyn Lengths> = match self.foretold {
            true => Box::new(Foretold(self.mock(18, 30))),
            false => Box::new(SeenLengths::default()),
        };
        let policies = Policies {
            admit,
            lengths,
            kv: KvSettings {
                reuse_prefixes: false,
                ..KvSettings::default()
            },
            ..Policies::default()
        };
        let scheduler = Scheduler::new(self.limits, policies).unwrap();
        Simulation::new(scheduler, device).run(&mut Arrivals::new(requests))
    }

    /// What the device does in a second when requests wait from the start.
    pub(super) fn able(&self, shape: Shape) -> Able {
        let arrivals = std::iter::repeat_n(Time::ZERO, 1_500);
        let requests = self.requests(shape, arrivals, 5);
        let report = self.run(self.device(u64::MAX), Vec::new(), requests);
        let tokens: f64 = report.rows.iter().map(tokens).sum();
        let secs = report.end.as_secs_f64();
        Able {
            requests: 1_500.0 / secs,
            tokens: tokens / secs,
        }
    }

    pub(super) fn keep(&self, promise: Promise, shape: Shape, load: f64, seed: u64) -> Kept {
        let mut able = self.able(shape);
        let arrivals = Poisson::new(100 + seed, able.requests * load).take(REQUESTS);
        let mut requests = self.requests(shape, arrivals, 200 + seed);
        let target = self.target(shape);
        if promise == Promise::Deadline {
            let due = |request: Request| {
                let deadline = request.arrival() + target;
                request.with_deadline(Some(deadline))
            };
            requests = requests.into_iter().map(due).collect();
        }
        let last = requests.last().unwrap().arrival();
        let admit = || -> Vec<Box<dyn Admit>> {
            vec![match promise {
                Promise::End => Box::new(LatencyBudget::new(target)),
                Promise::EndOfLongest => Box::new(Longest::new(target)),
                Promise::FirstToken => Box::new(FirstTokenBudget::new(target)),
                Promise::Deadline => Box::new(DeadlinePrediction::default()),
                Promise::Start => Box::new(ConcurrencyLimit),
            }]
        };
        let slow_from = match self.slows_down {
            false => u64::MAX,
            true => {
                let fast = self.run(self.device(u64::MAX), admit(), requests.clone());
                fast.stats.counters.steps / 3
            }
        };
        let device = self.device(slow_from);
        let busy_before = Arc::clone(&device.busy_before);
        let report = self.run(device, admit(), requests);
        let mut rows: Vec<&Row> = report.rows.iter().collect();
        let mut secs = last.as_secs_f64();
        if self.slows_down {
            // Admitted later than a mean response time after it has become slower.
            let slow_at = Time::from_nanos(busy_before.load(Ordering::Relaxed));
            let finished = rows.iter().filter(|row| row.is_finished());
            let total: f64 = finished
                .clone()
                .map(|row| row.response_time().as_secs_f64())
                .sum();
            let mean = Span::from_secs_f64(total / finished.count() as f64);
            let from = slow_at + mean;
            rows.retain(|row| row.arrival > from);
            secs = last.since(from).as_secs_f64();
            able = able.within(0.5);
        }
        kept(&rows, promise, target, able.within(secs))
    }
}

impl Able {
    /// In so many times the time.
    fn within(self, times: f64) -> Self {
        Self {
            requests: self.requests * times,
            tokens: self.tokens * times,
        }
    }
}

/// Tokens generated.
fn tokens(row: &Row) -> f64 {
    f64::from(row.usage.output_tokens)
}

/// What came of a promise to these, of which the device can answer so many.
fn kept(rows: &[&Row], promise: Promise, target: Span, able: Able) -> Kept {
    let took = |row: &&&Row| match promise {
        Promise::FirstToken => row.first_token_time().unwrap(),
        Promise::Start => row.waited().unwrap(),
        Promise::End | Promise::Deadline | Promise::EndOfLongest => row.response_time(),
    };
    let finished = || rows.iter().filter(|row| row.is_finished());
    let times: Vec<Span> = finished().map(|row| took(&row)).collect();
    let waits = finished().map(|row| row.waited().unwrap());
    let in_time = || finished().filter(|row| took(row) <= target);
    let in_time_tokens: f64 = in_time().map(|row| tokens(row)).sum();
    let refused = |row: &&&Row| matches!(row.terminal, Terminal::Refused(_));
    let over_target = |times: Vec<Span>| p99(times) / target.as_secs_f64();
    Kept {
        goodput: in_time().count() as f64 / able.requests.min(rows.len() as f64),
        token_goodput: in_time_tokens / able.tokens,
        refused: rows.iter().filter(refused).count() as f64 / rows.len() as f64,
        wait_p99: over_target(waits.collect()),
        first: over_target(times.iter().take(100).max().copied().into_iter().collect()),
        p99: over_target(times),
    }
}

/// In seconds, by nearest rank.
fn p99(mut times: Vec<Span>) -> f64 {
    times.sort_unstable();
    let rank = (times.len() * 99).div_ceil(100).max(1) - 1;
    times[rank].as_secs_f64()
}

/// Takes every request for the one of the longest answer that it has seen.
struct Longest {
    target: Span,
    own: Demand,
}

impl Longest {
    fn new(target: Span) -> Self {
        Self {
            target,
            own: Demand::default(),
        }
    }
}

impl Admit for Longest {
    fn name(&self) -> &'static str {
        "longest"
    }

    fn admit(&mut self, _request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        if load.own.output_tokens > self.own.output_tokens {
            self.own = load.own;
        }
        let mut longest = *load;
        longest.own = self.own;
        let times = (load.time_to_start(), longest.time_to_serve());
        let (Some(wait), Some(service)) = times else {
            return Ok(());
        };
        let (predicted, target) = (wait + service, self.target);
        if predicted <= target || wait.is_zero() {
            return Ok(());
        }
        Err(Refusal::Later {
            limit: Limit::LatencyBudget { predicted, target },
            retry_after: None,
        })
    }
}

/// Knows from the device when each request's stop token comes.
struct Foretold(Mock);

impl Foretold {
    fn tokens(&self, request: &Request) -> u32 {
        let (prompt, limit) = (request.prompt_tokens(), request.output_tokens_max());
        let ends = |tokens: &u32| {
            let last = self.0.token(request.id(), prompt + tokens - 1);
            request.stop_tokens().contains(&last)
        };
        (1..limit).find(ends).unwrap_or(limit)
    }
}

impl Lengths for Foretold {
    fn expected(&self, request: &Request, _unseen: Unseen) -> Expected {
        Expected::certain(self.tokens(request))
    }

    fn chance(&self, request: &Request, done: u32, more: u32) -> f64 {
        let left = self.tokens(request).saturating_sub(done);
        f64::from(u8::from(left <= more))
    }

    fn ended(&mut self, _request: &Request, _output_tokens: u32, _by_itself: bool) {}
}

/// A device that takes longer from some step on.
struct Device {
    fast: Mock,
    slow: Mock,
    slow_from: u64,
    /// For how long it was busy before that, in nanoseconds.
    busy_before: Arc<AtomicU64>,
}

impl Device {
    fn was_busy(&self, step: StepId, elapsed: Span) {
        if step.get() < self.slow_from {
            self.busy_before
                .fetch_add(elapsed.as_nanos(), Ordering::Relaxed);
        }
    }
}

impl Backend for Device {
    fn limits(&self) -> Limits {
        self.fast.limits()
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        self.fast.execute(plan, outcome)?;
        if plan.step().get() >= self.slow_from {
            // Costs are the double of the fast one's in every part.
            outcome.elapsed = outcome.elapsed * 2;
        }
        self.was_busy(plan.step(), outcome.elapsed);
        Ok(())
    }

    fn price(&self, step: StepId, load: &StepLoad) -> Option<Span> {
        let device = match step.get() < self.slow_from {
            true => &self.fast,
            false => &self.slow,
        };
        let elapsed = device.price(step, load)?;
        self.was_busy(step, elapsed);
        Some(elapsed)
    }

    fn foresee(&self, request: RequestId, position: u32) -> Option<TokenId> {
        self.fast.foresee(request, position)
    }
}
