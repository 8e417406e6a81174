//! Plans that break the contract fail with a cause, run nothing and leave the backend usable.

use std::ops::Range;
use std::sync::Arc;

use serve_core::{Backend, BlockId, RequestId, StepId, StepOutcome, StepPlan, TokenId};
use serve_model::decode::DecoderBackend;

use crate::fixtures::{Golden, fixture, folder, tokens};

const NAME: &str = "tiny-qwen2";

/// One backend, and plans for the golden prompt "medium" of 17 tokens.
struct Plans {
    backend: DecoderBackend,
    plan: StepPlan,
    outcome: StepOutcome,
}

impl Plans {
    fn new() -> Self {
        let mut plans = Self {
            backend: fixture(NAME).backend,
            plan: StepPlan::new(),
            outcome: StepOutcome::new(),
        };
        let golden = Golden::of(&folder(NAME));
        let request = golden.prompt("medium").request(1);
        plans.plan.push_start(Arc::new(request));
        plans.run().unwrap();
        plans
    }

    fn push(&mut self, request: u64, positions: Range<u32>, blocks: &[u32]) {
        self.push_onto(0, request, positions, blocks);
    }

    /// The request's table keeps its first `kept` blocks.
    fn push_onto(&mut self, kept: u32, request: u64, positions: Range<u32>, blocks: &[u32]) {
        let blocks: Vec<BlockId> = blocks.iter().copied().map(BlockId::new).collect();
        let sample = positions.end >= 17;
        let request = RequestId::new(request);
        self.plan
            .push_segment(request, positions, sample, kept, &blocks);
    }

    fn run(&mut self) -> Result<Vec<TokenId>, String> {
        let result = self.backend.execute(&self.plan, &mut self.outcome);
        let next = StepId::new(self.plan.step().get() + 1);
        self.plan.reset(next);
        match result {
            Ok(()) => Ok(self.outcome.sampled.iter().map(|s| s.token).collect()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn cause(build: impl FnOnce(&mut Plans)) -> String {
    let mut plans = Plans::new();
    build(&mut plans);
    let error = plans.run().unwrap_err();
    assert!(error.starts_with("the step failed: "), "{error}");
    // The request goes on as if nothing had happened.
    plans.push(1, 0..17, &[9, 8, 7]);
    let golden = Golden::of(&folder(NAME));
    let expected = tokens(&golden.prompt("medium").greedy[..1]);
    assert_eq!(plans.run(), Ok(expected));
    error["the step failed: ".len()..].to_owned()
}

#[test]
fn a_broken_plan_fails_with_its_cause() {
    let cases = [
        (
            cause(|plans| plans.push(2, 0..1, &[1])),
            "request r2 is unknown",
        ),
        (
            cause(|plans| plans.push(1, 0..17, &[1, 2])),
            "request r1 needs 3 blocks and its table has 2",
        ),
        (
            cause(|plans| plans.push_onto(3, 1, 0..17, &[])),
            "request r1 keeps 3 blocks and its table has 0",
        ),
        (
            cause(|plans| {
                plans.push(1, 0..8, &[1]);
                plans.run().unwrap();
                plans.push_onto(1, 1, 8..17, &[2]);
            }),
            "request r1 needs 3 blocks and its table has 2",
        ),
        (
            cause(|plans| plans.push(1, 17..18, &[1, 2, 3])),
            "request r1 has 17 tokens and positions 17..18 are planned",
        ),
        (
            cause(|plans| plans.push(1, 0..8, &[0])),
            "request r1 names block b0; blocks are b1 to b512",
        ),
        (
            cause(|plans| plans.push(1, 0..8, &[513])),
            "request r1 names block b513; blocks are b1 to b512",
        ),
        (
            cause(|plans| {
                plans.push(1, 0..8, &[1]);
                plans.push(1, 8..16, &[1, 2]);
            }),
            "request r1 has two segments",
        ),
        (
            cause(|plans| {
                for request in 0..17 {
                    plans.push(request, 0..1, &[1]);
                }
            }),
            "17 segments with 17 positions exceed 16 segments or 512 positions",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
}

#[test]
fn a_token_outside_the_vocabulary_fails_its_plan() {
    let found = cause(|plans| {
        let id = RequestId::new(2);
        let prompt = tokens(&[384]);
        let request = serve_core::Request::new(id, serve_core::Time::ZERO, prompt, 1).unwrap();
        plans.plan.push_start(Arc::new(request));
    });
    assert_eq!(found, "token 384 lies outside the vocabulary of 384");
}

#[test]
fn a_released_request_is_forgotten() {
    let mut plans = Plans::new();
    assert_eq!(plans.backend.live_requests(), 1);
    plans.plan.push_release(RequestId::new(1));
    plans.run().unwrap();
    assert_eq!(plans.backend.live_requests(), 0);
    plans.push(1, 0..1, &[1]);
    assert!(plans.run().is_err());
}
