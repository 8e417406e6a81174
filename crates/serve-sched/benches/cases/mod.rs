//! What is measured, shared by the criterion benches and `cargo xtask speed`, which takes in this file.

use std::sync::Arc;

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::rng::Rng;
use serve_core::{
    Backend, CancelReason, Limits, Request, RequestId, Span, StepOutcome, StepPlan, Time, TokenId,
};
use serve_sched::admit::QueueCap;
use serve_sched::kv::KvSettings;
use serve_sched::sim::{Arrivals, Poisson, Row, Simulation};
use serve_sched::{Policies, Scheduler};

fn policies(reuse_prefixes: bool) -> Policies {
    Policies {
        admit: vec![Box::new(QueueCap::new(u32::MAX))],
        kv: KvSettings {
            reuse_prefixes,
            ..KvSettings::default()
        },
        ..Policies::default()
    }
}

pub(crate) fn scheduler(limits: Limits, reuse_prefixes: bool) -> Scheduler {
    Scheduler::new(limits, policies(reuse_prefixes)).expect("the limits of a benchmark are valid")
}

pub(crate) fn request(id: u64, arrival: Time, prompt: Arc<[TokenId]>, output: u32) -> Request {
    Request::new(RequestId::new(id), arrival, prompt, output)
        .expect("the requests of a benchmark are valid")
}

/// A scheduler with a long queue and nothing running.
pub(crate) struct Crowd {
    scheduler: Scheduler,
    prompt: Arc<[TokenId]>,
    submitted: u64,
    rng: Rng,
}

impl Crowd {
    pub(crate) fn new(waiting: u64) -> Self {
        let mut crowd = Self {
            scheduler: scheduler(Mock::default().limits(), true),
            prompt: vec![TokenId::new(1); 32].into(),
            submitted: 0,
            rng: Rng::new(1),
        };
        let requests = crowd.requests(waiting);
        requests
            .into_iter()
            .for_each(|request| crowd.submit(request));
        crowd
    }

    /// Requests that have not been submitted yet.
    pub(crate) fn requests(&mut self, count: u64) -> Vec<Arc<Request>> {
        let ids = self.submitted..self.submitted + count;
        let make = |id| Arc::new(request(id, Time::ZERO, Arc::clone(&self.prompt), 16));
        self.submitted += count;
        ids.map(make).collect()
    }

    pub(crate) fn submit(&mut self, request: Arc<Request>) {
        let taken = self.scheduler.submit(Time::ZERO, request);
        assert!(taken.is_ok(), "{taken:?}");
    }

    /// Waiting requests all over the queue, each once.
    pub(crate) fn some_ids(&mut self, count: u64) -> Vec<RequestId> {
        let stride = self.submitted / count;
        let mut ids: Vec<_> = (0..count).map(|n| RequestId::new(n * stride)).collect();
        for last in (1..ids.len()).rev() {
            ids.swap(last, self.rng.below(last as u64 + 1) as usize);
        }
        ids
    }

    pub(crate) fn cancel(&mut self, id: RequestId) {
        assert!(self.scheduler.cancel(Time::ZERO, id, CancelReason::Client));
        self.scheduler.poll_event();
    }
}

/// A full batch that decodes, in front of a queue.
pub(crate) struct Decoding {
    scheduler: Scheduler,
    mock: Mock,
    plan: StepPlan,
    outcome: StepOutcome,
    now: Time,
}

impl Decoding {
    /// `running` requests that have just sampled their first token, at contexts of about `context`
    /// positions and a thousand more in the end, and `waiting` behind them.
    pub(crate) fn new(running: u32, waiting: u32, context: u32) -> Self {
        let block_size = 16;
        let context_max = context + block_size + 2_000;
        let limits = Limits {
            sequences_max: running,
            step_tokens_max: running * (context + block_size),
            context_max,
            block_size,
            blocks: running * (context_max / block_size + 1) + 1,
        };
        let mock = Mock::new(MockConfig {
            limits,
            cost: CostModel::free(),
            ..MockConfig::default()
        });
        let mut decoding = Self {
            scheduler: scheduler(limits, true),
            mock,
            plan: StepPlan::new(),
            outcome: StepOutcome::new(),
            now: Time::ZERO,
        };
        for id in 0..running + waiting {
            // Prompts differ, so that nothing is shared, and their last blocks fill in turns.
            let tokens = match id < running {
                true => context + id % block_size,
                false => 128,
            };
            let prompt: Arc<[TokenId]> = vec![TokenId::new(id); tokens as usize].into();
            let request = request(id.into(), Time::ZERO, prompt, 1_900);
            let taken = decoding.scheduler.submit(Time::ZERO, request);
            assert!(taken.is_ok(), "{taken:?}");
        }
        decoding.step();
        assert_eq!(decoding.scheduler.stats().running, running);
        decoding
    }

    pub(crate) fn plan(&mut self) {
        self.now += Span::from_micros(1);
        assert!(self.scheduler.plan_into(self.now, &mut self.plan));
    }

    pub(crate) fn execute(&mut self) {
        let executed = self.mock.execute(&self.plan, &mut self.outcome);
        assert!(executed.is_ok(), "{executed:?}");
    }

    /// Completes the step and takes its events, as every driver does.
    pub(crate) fn complete(&mut self) {
        self.scheduler.complete(self.now, &self.outcome);
        while self.scheduler.poll_event().is_some() {}
    }

    pub(crate) fn step(&mut self) {
        self.plan();
        self.execute();
        self.complete();
    }
}

/// A device of 64 slots: 10 ms for a decode step alone and 14 ms for 64 sequences, 0.05 ms for a
/// prompt token.
pub(crate) fn device(context_max: u32, block_size: u32, blocks: u32) -> Mock {
    let decode = vec![(1, Span::from_millis(10)), (64, Span::from_millis(14))];
    let cost = CostModel::new(decode, Span::from_micros(50), Span::ZERO);
    Mock::new(MockConfig {
        limits: Limits {
            sequences_max: 64,
            step_tokens_max: 2_048,
            context_max,
            block_size,
            blocks,
        },
        cost: cost.expect("the cost model of a benchmark is valid"),
        ..MockConfig::default()
    })
}

/// Requests of 256 tokens in and 64 out, arriving as a Poisson process at nine tenths of what the
/// device can serve, none of whose prompts begins like another one. One row for each.
pub(crate) fn simulate_poisson(requests: usize, reuse_prefixes: bool) -> Vec<Row> {
    let mock = device(4_096, 16, 64 * 24);
    let scheduler = scheduler(mock.limits(), reuse_prefixes);
    // Each request takes a 64th of 64 decode steps and its prefill: 14 + 12.8 ms.
    let arrivals = Poisson::new(7, 0.9 / 0.026_8).take(requests);
    let requests = (0..).zip(arrivals);
    let requests = requests.map(|(id, at)| {
        let prompt = vec![TokenId::new(id as u32); 256];
        request(id, at, prompt.into(), 64)
    });
    Simulation::new(scheduler, mock)
        .run(&mut Arrivals::new(requests))
        .rows
}
