//! Devices of which one thing or another is the limit, requests for them, and what came of a promise.

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::rng::Rng;
use serve_core::{Backend as _, Limits, Request, RequestId, Span, Time, TokenId};
use serve_sched::admit::{Admit, DeadlinePrediction, FirstTokenBudget, LatencyBudget};
use serve_sched::kv::KvSettings;
use serve_sched::sim::{Arrivals, Poisson, Row, Simulation, Terminal};
use serve_sched::{Policies, Scheduler};

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// The end within a target: `latency-budget`.
    End,
    /// The end by each request's deadline: `deadline-prediction`.
    Deadline,
    /// The first token within a target: `first-token-budget`.
    FirstToken,
}

/// How long requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// All the same.
    Alike,
    /// Nine short ones for each long one.
    TwoKinds,
    /// From a few tokens to some thousands.
    Trace,
}

/// A device and what is asked of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    limits: Limits,
    /// Tokens of prompt and answer, of requests that are alike.
    tokens: (u32, u32),
    /// Promised to requests that are alike, and to others.
    targets: (Span, Span),
}

/// What came of a promise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// Of what was promised, over the promise.
    pub(super) p99: f64,
    /// The share of the answered that were late.
    pub(super) late: f64,
    /// Those in time, over those whom the device can answer.
    pub(super) goodput: f64,
    /// The share of all that were refused.
    pub(super) refused: f64,
    /// The share of all that expired.
    pub(super) expired: f64,
}

const REQUESTS: usize = 4_000;

const fn limits(sequences_max: u32, step_tokens_max: u32, blocks: u32) -> Limits {
    Limits {
        sequences_max,
        step_tokens_max,
        context_max: 32_768,
        block_size: 16,
        blocks: blocks + 1,
    }
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "slots",
            limits: limits(16, 4_096, 16 * 2_048),
            tokens: (100, 60),
            targets: (Span::from_secs(6), Span::from_secs(15)),
        },
        Case {
            name: "memory",
            limits: limits(400, 4_096, 24 * 20),
            tokens: (260, 56),
            targets: (Span::from_secs(6), Span::from_secs(15)),
        },
        Case {
            name: "steps",
            limits: limits(64, 4_096, 64 * 2_048),
            tokens: (3_000, 8),
            targets: (Span::from_secs(6), Span::from_secs(15)),
        },
        Case {
            name: "mixed",
            limits: limits(32, 2_048, 32 * 40),
            tokens: (500, 100),
            targets: (Span::from_secs(15), Span::from_secs(30)),
        },
    ]
}

impl Case {
    fn tokens(&self, shape: Shape, rng: &mut Rng) -> (u32, u32) {
        let (prompt, output) = self.tokens;
        match shape {
            Shape::Alike => (prompt, output),
            // Of the same mean: a tenth are 4 times as long, the others two thirds.
            Shape::TwoKinds => match rng.below(10) {
                0 => (prompt * 4, output * 4),
                _ => ((prompt * 2).div_ceil(3), (output * 2).div_ceil(3)),
            },
            Shape::Trace => {
                let mut of = |mean: u32, max: f64| {
                    // Heavy-tailed: the product of two exponentials.
                    let factor = rng.exponential(1.0) * rng.exponential(1.0);
                    ((f64::from(mean) * factor.min(max)) as u32).max(2)
                };
                (of(prompt, 6.0), of(output, 6.0))
            }
        }
    }

    fn mock(&self) -> Mock {
        let step = vec![(1, Span::from_millis(18))];
        let cost = CostModel::new(step, Span::from_micros(30), Span::ZERO).unwrap();
        Mock::new(MockConfig {
            limits: self.limits,
            cost,
            ..MockConfig::default()
        })
    }

    fn requests(
        &self,
        shape: Shape,
        arrivals: impl Iterator<Item = Time>,
        seed: u64,
    ) -> Vec<Request> {
        let mut rng = Rng::new(seed);
        arrivals
            .enumerate()
            .map(|(id, at)| {
                let (prompt, output) = self.tokens(shape, &mut rng);
                let prompt = vec![TokenId::new(1); prompt as usize];
                Request::new(RequestId::new(id as u64), at, prompt, output).unwrap()
            })
            .collect()
    }

    fn run(&self, admit: Vec<Box<dyn Admit>>, requests: Vec<Request>) -> (Vec<Row>, f64) {
        let policies = Policies {
            admit,
            kv: KvSettings {
                reuse_prefixes: false,
                ..KvSettings::default()
            },
            ..Policies::default()
        };
        let mock = self.mock();
        let scheduler = Scheduler::new(mock.limits(), policies).unwrap();
        let report = Simulation::new(scheduler, mock).run(&mut Arrivals::new(requests));
        (report.rows, report.end.as_secs_f64())
    }

    /// Requests that the device answers in a second when they all wait from the start.
    fn capacity(&self, shape: Shape) -> f64 {
        let arrivals = std::iter::repeat_n(Time::ZERO, 1_500);
        let (rows, secs) = self.run(Vec::new(), self.requests(shape, arrivals, 5));
        rows.len() as f64 / secs
    }

    pub(super) fn keep(&self, promise: Promise, shape: Shape, load: f64, seed: u64) -> Kept {
        let capacity = self.capacity(shape);
        let arrivals = Poisson::new(100 + seed, capacity * load).take(REQUESTS);
        let mut requests = self.requests(shape, arrivals, 200 + seed);
        let target = match shape {
            Shape::Alike => self.targets.0,
            Shape::TwoKinds | Shape::Trace => self.targets.1,
        };
        let admit: Box<dyn Admit> = match promise {
            Promise::End => Box::new(LatencyBudget::new(target)),
            Promise::FirstToken => Box::new(FirstTokenBudget::new(target)),
            Promise::Deadline => {
                let due = |request: Request| {
                    let deadline = request.arrival() + target;
                    request.with_deadline(Some(deadline))
                };
                requests = requests.into_iter().map(due).collect();
                Box::new(DeadlinePrediction::default())
            }
        };
        let debug = std::env::var("DEBUG").is_ok();
        let last = requests.last().unwrap().arrival().as_secs_f64();
        let (rows, _) = self.run(vec![admit], requests);
        let took = |row: &Row| match promise {
            Promise::FirstToken => row.first_token_time().unwrap(),
            Promise::End | Promise::Deadline => row.response_time(),
        };
        if debug {
            println!("\ncapacity {capacity}");
            let mut sorted: Vec<&Row> = rows.iter().filter(|r| r.is_finished()).collect();
            sorted.sort_by_key(|r| r.arrival);
            for chunk in sorted.chunks(sorted.len().div_ceil(20)) {
                let mut t: Vec<f64> = chunk
                    .iter()
                    .map(|r| took(r).as_secs_f64() / target.as_secs_f64())
                    .collect();
                t.sort_by(f64::total_cmp);
                let w: f64 = chunk
                    .iter()
                    .map(|r| r.waited().unwrap().as_secs_f64())
                    .sum::<f64>()
                    / chunk.len() as f64;
                let p: u32 = chunk.iter().map(|r| r.usage.preemptions).sum();
                println!(
                    "from {:6.1} median {:.2} max {:.2} wait {w:.2} preempted {p} of {}",
                    chunk[0].arrival.as_secs_f64(),
                    t[t.len() / 2],
                    t[t.len() - 1],
                    t.len()
                );
            }
        }
        let mut times: Vec<Span> = rows.iter().filter(|r| r.is_finished()).map(took).collect();
        times.sort_unstable();
        let in_time = times.iter().filter(|time| **time <= target).count() as f64;
        let answered = times.len() as f64;
        let share = |of: fn(&Terminal) -> bool| {
            rows.iter().filter(|row| of(&row.terminal)).count() as f64 / rows.len() as f64
        };
        let rank = (times.len() * 99).div_ceil(100).max(1) - 1;
        Kept {
            p99: times[rank].as_secs_f64() / target.as_secs_f64(),
            late: 1.0 - in_time / answered,
            goodput: in_time / (capacity * last).min(rows.len() as f64),
            refused: share(|terminal| matches!(terminal, Terminal::Refused(_))),
            expired: share(|terminal| matches!(terminal, Terminal::Cancelled(_))),
        }
    }
}
