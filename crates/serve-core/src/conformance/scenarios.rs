//! The ways of running the same requests.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::{Driver, Failure, Run, Suite};
use crate::rng::Rng;
use crate::{
    Backend, InvalidSampling, Limits, Request, RequestId, Sampled, Sampling, Time, TokenId,
};

/// Tokens that each request generates.
const OUTPUTS: u32 = 6;

/// Requests, and the tokens that each gives when it runs alone.
struct Cases<B, M: FnMut() -> B> {
    make: M,
    suite: Suite,
    requests: Vec<Request>,
    expected: BTreeMap<RequestId, Vec<TokenId>>,
}

/// How a schedule cuts and mixes.
#[derive(Clone, Copy)]
struct Schedule {
    /// Positions in one segment at most.
    chunk_max: u32,
    /// Whether chunks and the choice of who runs are random.
    ragged: bool,
    /// Of a hundred steps, before how many a request loses its blocks.
    preempt_percent: u64,
}

const WHOLE: Schedule = Schedule {
    chunk_max: u32::MAX,
    ragged: false,
    preempt_percent: 0,
};

pub(super) fn run_all<B: Backend>(make: impl FnMut() -> B, suite: Suite) -> Result<(), Failure> {
    let mut cases = Cases::new(make, suite)?;
    let named = |scenario| {
        move |failure| Failure::In {
            scenario,
            failure: Box::new(failure),
        }
    };
    cases.alone_again().map_err(named("alone again"))?;
    cases.together().map_err(named("all together"))?;
    cases.chunked().map_err(named("chunked prefill"))?;
    cases.ragged().map_err(named("ragged mixes"))?;
    cases.preempted().map_err(named("recomputed"))?;
    cases.taken_over().map_err(named("blocks taken over"))?;
    cases.shared_prefix().map_err(named("shared prefix"))?;
    cases.reused_id().map_err(named("reused id"))?;
    cases.full_step().map_err(named("full step"))?;
    cases.nothing_to_run().map_err(named("nothing to run"))
}

impl<B: Backend, M: FnMut() -> B> Cases<B, M> {
    fn new(mut make: M, suite: Suite) -> Result<Self, Failure> {
        let limits = make().limits();
        limits.validate()?;
        let requests = requests(&limits, suite)?;
        let mut cases = Self {
            make,
            suite,
            requests,
            expected: BTreeMap::new(),
        };
        for request in cases.requests.clone() {
            let tokens = cases.run_alone(&request)?;
            cases.expected.insert(request.id(), tokens);
        }
        Ok(cases)
    }

    fn driver(&mut self) -> Result<Driver<B>, Failure> {
        Driver::new((self.make)(), self.suite.seed)
    }

    /// The prompt in as few segments as the step limit allows, then one position at a time.
    fn run_alone(&mut self, request: &Request) -> Result<Vec<TokenId>, Failure> {
        let mut driver = self.driver()?;
        driver.start(request.clone());
        let step_tokens_max = driver.limits().step_tokens_max;
        while driver.outputs(request.id()).len() < request.output_tokens_max() as usize {
            driver.step(&[Run {
                request: request.id(),
                tokens: driver.pending(request.id()).min(step_tokens_max),
            }])?;
        }
        Ok(driver.outputs(request.id()).to_vec())
    }

    fn alone_again(&mut self) -> Result<(), Failure> {
        // On one backend, one after the other, so that each meets what the one before it left.
        let mut driver = self.driver()?;
        for request in &self.requests {
            self.follow(&mut driver, std::slice::from_ref(request), WHOLE)?;
        }
        Ok(())
    }

    fn together(&mut self) -> Result<(), Failure> {
        let mut driver = self.driver()?;
        self.follow(&mut driver, &self.requests, WHOLE)
    }

    fn chunked(&mut self) -> Result<(), Failure> {
        let longest = self.requests.iter().map(Request::prompt_tokens).max();
        for chunk_max in 1..=longest.unwrap_or(1) {
            let mut driver = self.driver()?;
            let schedule = Schedule { chunk_max, ..WHOLE };
            self.follow(&mut driver, &self.requests, schedule)?;
        }
        Ok(())
    }

    fn ragged(&mut self) -> Result<(), Failure> {
        let mut driver = self.driver()?;
        let schedule = Schedule {
            ragged: true,
            ..WHOLE
        };
        for _ in 0..8 {
            self.follow(&mut driver, &self.requests, schedule)?;
        }
        Ok(())
    }

    fn preempted(&mut self) -> Result<(), Failure> {
        let mut driver = self.driver()?;
        for ragged in [false, true] {
            let schedule = Schedule {
                ragged,
                preempt_percent: 30,
                ..WHOLE
            };
            for _ in 0..8 {
                self.follow(&mut driver, &self.requests, schedule)?;
            }
        }
        Ok(())
    }

    /// A preempted request is run again once another one has its blocks.
    fn taken_over(&mut self) -> Result<(), Failure> {
        let mut driver = self.driver()?;
        let rng = &mut Rng::new(0);
        let others = self.requests.iter().cycle().skip(1);
        for (first, second) in self.requests.iter().zip(others) {
            let ids = [first.id(), second.id()];
            driver.start(first.clone());
            self.run_until(&mut driver, &ids[..1], 1, WHOLE, rng)?;
            driver.preempt(first.id());
            driver.start(second.clone());
            self.run_until(&mut driver, &ids[1..], 1, WHOLE, rng)?;
            self.run_until(&mut driver, &ids, OUTPUTS, WHOLE, rng)?;
            ids.into_iter().for_each(|id| driver.release(id));
            driver.step(&[])?;
        }
        Ok(())
    }

    /// The longest request runs; others with the same beginning start inside its blocks.
    fn shared_prefix(&mut self) -> Result<(), Failure> {
        let Some(donor) = self.requests.iter().max_by_key(|r| r.prompt_tokens()) else {
            return Ok(());
        };
        let donor = donor.clone();
        let mut driver = self.driver()?;
        let block_size = driver.limits().block_size;
        let shared = donor.prompt_tokens() / block_size * block_size;
        driver.start(donor.clone());
        self.run_until(&mut driver, &[donor.id()], 1, WHOLE, &mut Rng::new(0))?;
        for tail in 1..=3_u32 {
            let mut prompt = donor.prompt()[..shared as usize].to_vec();
            prompt.extend((0..tail).map(|i| TokenId::new(i % self.suite.vocabulary)));
            let id = RequestId::new(100 + u64::from(tail));
            let request = build(id, prompt, *donor.sampling())?;
            let expected = self.run_alone(&request)?;
            self.expected.insert(id, expected);
            driver.start(request);
            driver.share(donor.id(), id, shared)?;
        }
        let ids = [donor.id(), id(101), id(102), id(103)];
        self.run_until(&mut driver, &ids, OUTPUTS, WHOLE, &mut Rng::new(0))
    }

    fn reused_id(&mut self) -> Result<(), Failure> {
        let mut driver = self.driver()?;
        let reused = id(7);
        for original in self.requests.clone() {
            let request = build(reused, original.prompt().to_vec(), *original.sampling())?;
            let expected = self.run_alone(&request)?;
            self.expected.insert(reused, expected);
            self.follow(&mut driver, &[request], WHOLE)?;
        }
        Ok(())
    }

    /// As many sequences as one step takes, up to 64.
    fn full_step(&mut self) -> Result<(), Failure> {
        let mut driver = self.driver()?;
        let limits = driver.limits();
        let usable = limits.usable_blocks().min(limits.step_tokens_max);
        let count = limits.sequences_max.min(usable).min(64);
        let ids: Vec<RequestId> = (0..u64::from(count)).map(|i| id(200 + i)).collect();
        for &id in &ids {
            let token = TokenId::new(id.get() as u32 % self.suite.vocabulary);
            let request = build(id, vec![token], Sampling::GREEDY)?;
            let expected = self.run_alone(&request)?;
            self.expected.insert(id, expected);
            driver.start(request);
        }
        self.run_until(&mut driver, &ids, 1, WHOLE, &mut Rng::new(0))
    }

    fn nothing_to_run(&mut self) -> Result<(), Failure> {
        let mut driver = self.driver()?;
        driver.step(&[])?;
        for request in &self.requests {
            driver.start(request.clone());
        }
        driver.step(&[])?;
        for request in &self.requests {
            driver.release(request.id());
        }
        driver.step(&[])?;
        self.follow(&mut driver, &self.requests, WHOLE)
    }

    /// Starts `requests`, runs them to the end and releases them.
    fn follow(
        &self,
        driver: &mut Driver<B>,
        requests: &[Request],
        schedule: Schedule,
    ) -> Result<(), Failure> {
        let ids: Vec<RequestId> = requests.iter().map(Request::id).collect();
        for request in requests {
            driver.start(request.clone());
        }
        let mut rng = Rng::new(self.suite.seed ^ u64::from(schedule.chunk_max));
        self.run_until(driver, &ids, OUTPUTS, schedule, &mut rng)?;
        for &id in &ids {
            driver.release(id);
        }
        driver.step(&[])?;
        Ok(())
    }

    /// Steps until each of `ids` has `outputs` tokens, all of them as when it runs alone.
    fn run_until(
        &self,
        driver: &mut Driver<B>,
        ids: &[RequestId],
        outputs: u32,
        schedule: Schedule,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let limits = driver.limits();
        let mut order = ids.to_vec();
        loop {
            order.retain(|&id| driver.outputs(id).len() < outputs as usize);
            if order.is_empty() {
                return Ok(());
            }
            if rng.below(100) < schedule.preempt_percent {
                driver.preempt(order[rng.below(order.len() as u64) as usize]);
            }
            let runs = plan(driver, &mut order, schedule, &limits, rng);
            for sampled in driver.step(&runs)?.to_vec() {
                self.check_token(driver, sampled)?;
            }
        }
    }

    fn check_token(&self, driver: &Driver<B>, sampled: Sampled) -> Result<(), Failure> {
        let index = driver.outputs(sampled.request).len() - 1;
        let expected = self.expected.get(&sampled.request);
        match expected.and_then(|tokens| tokens.get(index)) {
            Some(&expected) if expected != sampled.token => Err(Failure::Token {
                request: sampled.request,
                position: driver.known(sampled.request) - 1,
                expected,
                found: sampled.token,
            }),
            _ => Ok(()),
        }
    }
}

/// One step: in order, or with some left out and everything cut at random.
fn plan<B: Backend>(
    driver: &Driver<B>,
    order: &mut [RequestId],
    schedule: Schedule,
    limits: &Limits,
    rng: &mut Rng,
) -> Vec<Run> {
    if schedule.ragged {
        for end in (1..order.len()).rev() {
            order.swap(end, rng.below(end as u64 + 1) as usize);
        }
    }
    let mut left = limits.step_tokens_max;
    let mut runs = Vec::new();
    for &request in order.iter().take(limits.sequences_max as usize) {
        // The first always runs, so that every step gets somewhere.
        let skipped = schedule.ragged && !runs.is_empty() && rng.below(3) == 0;
        let most = driver.pending(request).min(schedule.chunk_max).min(left);
        if skipped || most == 0 {
            continue;
        }
        let tokens = match schedule.ragged {
            true => 1 + rng.below(u64::from(most)) as u32,
            false => most,
        };
        left -= tokens;
        runs.push(Run { request, tokens });
    }
    runs
}

/// Prompts of one token and around block boundaries; greedy and seeded sampling, with penalties and
/// without. Every other one asks for log-probabilities.
fn requests(limits: &Limits, suite: Suite) -> Result<Vec<Request>, Failure> {
    let block = limits.block_size;
    let lengths = [1, 2 * block + 3, block, 5, block + 1, 3 * block];
    let lengths = lengths.map(|n| n.min(40));
    let longest = lengths.into_iter().max().unwrap_or(1) + OUTPUTS;
    let blocks = |n: u32| limits.blocks_for(n + OUTPUTS);
    // Room for all of them, and for the requests that share the longest one's prefix.
    let needed = lengths.map(blocks).iter().sum::<u32>() + 1;
    for (what, needed, found) in [
        ("context_max", longest, limits.context_max),
        ("blocks", needed, limits.blocks),
    ] {
        if found < needed {
            return Err(Failure::TooSmall {
                what,
                needed,
                found,
            });
        }
    }
    let mut rng = Rng::new(suite.seed);
    let vocabulary = u64::from(suite.vocabulary.max(1));
    let sampled = Sampling::GREEDY
        .with_temperature(1.0)
        .unwrap_or_default()
        .with_top_k(NonZeroU32::new(50))
        .with_seed(suite.seed);
    let penalised = |sampling: Sampling| -> Result<Sampling, InvalidSampling> {
        let sampling = sampling.with_presence_penalty(0.7)?;
        sampling
            .with_frequency_penalty(0.4)?
            .with_repetition_penalty(1.3)
    };
    let penalised = |sampling| penalised(sampling).unwrap_or_default();
    let sampling = [
        Sampling::GREEDY,
        sampled,
        penalised(Sampling::GREEDY),
        penalised(sampled),
    ];
    let request = |(index, &length): (usize, &u32)| {
        let token = |_| TokenId::new(rng.below(vocabulary) as u32);
        let prompt = (0..length).map(token).collect();
        let sampling = sampling[index % sampling.len()];
        let request = build(id(index as u64 + 1), prompt, sampling)?;
        let alternatives = (index % 2 == 0).then_some(index as u8);
        let asking = request.clone().with_logprobs(alternatives);
        Ok(asking.unwrap_or(request))
    };
    lengths.iter().enumerate().map(request).collect()
}

fn build(id: RequestId, prompt: Vec<TokenId>, sampling: Sampling) -> Result<Request, Failure> {
    let tokens = prompt.len() as u32;
    match Request::new(id, Time::ZERO, prompt, OUTPUTS) {
        Ok(request) => Ok(request.with_sampling(sampling)),
        Err(_) => Err(Failure::Misuse {
            request: id,
            positions: 0..tokens,
        }),
    }
}

fn id(raw: u64) -> RequestId {
    RequestId::new(raw)
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;
    use crate::mock::{CostModel, Faults, Mock, MockConfig};
    use crate::{BackendError, BlockId, Segment, StepOutcome, StepPlan};

    const SUITE: Suite = Suite {
        vocabulary: 1_000,
        seed: 5,
    };

    #[test]
    fn the_mock_passes() {
        for block_size in [1, 4, 16] {
            for sequences_max in [1, 3, 16] {
                let config = MockConfig {
                    limits: Limits {
                        sequences_max,
                        block_size,
                        ..MockConfig::default().limits
                    },
                    cost: CostModel::free(),
                    ..MockConfig::default()
                };
                assert_eq!(check(|| Mock::new(config.clone()), SUITE), Ok(()));
            }
        }
    }

    /// A mock with one thing wrong.
    struct Broken<F>(Mock, F);

    impl<F: FnMut(&StepPlan, &mut StepOutcome)> Backend for Broken<F> {
        fn limits(&self) -> Limits {
            self.0.limits()
        }

        fn execute(
            &mut self,
            plan: &StepPlan,
            outcome: &mut StepOutcome,
        ) -> Result<(), BackendError> {
            self.0.execute(plan, outcome)?;
            (self.1)(plan, outcome);
            Ok(())
        }
    }

    /// How a backend follows the block table of a segment.
    type Follow = fn(&StepPlan, &Segment, &mut Vec<BlockId>) -> Result<(), BackendError>;

    /// A model whose next token depends on all tokens before it, as they lie in its cache.
    struct Cached {
        limits: Limits,
        live: BTreeMap<RequestId, Kept>,
        cache: BTreeMap<(BlockId, u32), TokenId>,
        follow: Follow,
    }

    /// Its tokens and its table, and what log-probabilities it asks for.
    type Kept = (Vec<TokenId>, Vec<BlockId>, Option<u8>);

    impl Cached {
        fn new(follow: Follow) -> Self {
            let limits = Limits {
                block_size: 4,
                ..MockConfig::default().limits
            };
            Self {
                limits,
                live: BTreeMap::new(),
                cache: BTreeMap::new(),
                follow,
            }
        }
    }

    impl Backend for Cached {
        fn limits(&self) -> Limits {
            self.limits
        }

        fn execute(
            &mut self,
            plan: &StepPlan,
            outcome: &mut StepOutcome,
        ) -> Result<(), BackendError> {
            outcome.reset(plan.step());
            for request in plan.starts() {
                let prompt = request.prompt().to_vec();
                let live = (prompt, Vec::new(), request.logprobs());
                self.live.insert(request.id(), live);
            }
            let size = self.limits.block_size;
            for segment in plan.segments() {
                let (tokens, table, asked) = self.live.get_mut(&segment.request).unwrap();
                (self.follow)(plan, segment, table)?;
                let cause = || BackendError::Step {
                    cause: "the table is too short".to_owned(),
                };
                let mut next = 17;
                for position in 0..segment.positions.end {
                    let block = table.get((position / size) as usize).ok_or_else(cause)?;
                    let place = (*block, position % size);
                    if position >= segment.positions.start {
                        self.cache.insert(place, tokens[position as usize]);
                    }
                    let found = self.cache.get(&place).map_or(0, |token| token.get());
                    next = crate::rng::mix2(next, found.into());
                }
                if segment.sample {
                    let token = TokenId::new((next % 1_000) as u32);
                    let certain = crate::TokenLogprob {
                        token,
                        logprob: 0.0,
                    };
                    if let Some(alternatives) = *asked {
                        let entries = 1 + usize::from(alternatives > 0);
                        let entries = std::iter::repeat_n(certain, entries);
                        outcome.logprobs.push(outcome.sampled.len(), entries);
                    }
                    tokens.push(token);
                    outcome.sampled.push(Sampled {
                        request: segment.request,
                        token,
                    });
                }
            }
            for request in plan.releases() {
                self.live.remove(request);
            }
            Ok(())
        }
    }

    #[test]
    fn a_backend_that_follows_its_tables_passes() {
        assert_eq!(check(|| Cached::new(StepPlan::update_table), SUITE), Ok(()));
    }

    /// What a table would be after `segment`.
    fn updated(plan: &StepPlan, segment: &Segment, table: &[BlockId]) -> Vec<BlockId> {
        let mut new = table.to_vec();
        plan.update_table(segment, &mut new).unwrap();
        new
    }

    #[test]
    fn a_backend_that_loses_track_of_a_table_is_found() {
        let wrong: [(Follow, &str); 4] = [
            // Takes what is new for all that there is.
            (
                |plan, segment, table| {
                    let new = updated(plan, segment, table);
                    let fresh = new[table.len().min(new.len())..].to_vec();
                    table.clear();
                    table.extend(fresh);
                    Ok(())
                },
                "the table is too short",
            ),
            // Never starts over.
            (
                |plan, segment, table| {
                    let new = updated(plan, segment, table);
                    table.extend_from_slice(new.get(table.len()..).unwrap_or_default());
                    Ok(())
                },
                "blocks taken over: ",
            ),
            // Reads only the tables of segments that sample.
            (
                |plan, segment, table| match segment.sample {
                    true => plan.update_table(segment, table),
                    false => Ok(()),
                },
                "the table is too short",
            ),
            // Keeps what the first segment said.
            (
                |plan, segment, table| match table.is_empty() {
                    true => plan.update_table(segment, table),
                    false => Ok(()),
                },
                "the table is too short",
            ),
        ];
        for (index, (follow, expected)) in wrong.into_iter().enumerate() {
            let failure = check(|| Cached::new(follow), SUITE).err();
            let message = failure
                .map(|failure| failure.to_string())
                .unwrap_or_default();
            assert!(message.contains(expected), "{index}: {message}");
        }
    }

    fn failure_of(wrong: fn(&StepPlan, &mut StepOutcome)) -> String {
        let make = || Broken(Mock::default(), wrong);
        check(make, SUITE).unwrap_err().to_string()
    }

    fn shift(sampled: &mut Sampled) {
        sampled.token = TokenId::new(sampled.token.get() + 1);
    }

    #[test]
    fn a_token_that_depends_on_the_batch_is_found() {
        let message = failure_of(|plan, outcome| {
            if plan.segments().len() == 6 {
                outcome.sampled.iter_mut().for_each(shift);
            }
        });
        assert!(message.starts_with("all together: r"), "{message}");
    }

    #[test]
    fn a_token_that_depends_on_the_cut_is_found() {
        let message = failure_of(|plan, outcome| {
            let sampling = plan.segments().iter().filter(|s| s.sample);
            for (segment, sampled) in sampling.zip(&mut outcome.sampled) {
                if segment.positions.start > 0 && segment.tokens() == 2 {
                    shift(sampled);
                }
            }
        });
        assert!(message.starts_with("chunked prefill: r"), "{message}");
    }

    #[test]
    fn a_token_that_changes_after_recomputation_is_found() {
        let message = failure_of(|plan, outcome| {
            let sampling = plan.segments().iter().filter(|s| s.sample);
            for (segment, sampled) in sampling.zip(&mut outcome.sampled) {
                // No prompt ends there, so outputs are being recomputed.
                let is_prompt = [1, 5, 16, 17, 35, 40].contains(&segment.positions.end);
                if segment.positions.start == 0 && !is_prompt {
                    shift(sampled);
                }
            }
        });
        assert!(message.starts_with("recomputed: r"), "{message}");
    }

    #[test]
    fn an_outcome_out_of_order_is_found() {
        let message = failure_of(|_, outcome| outcome.sampled.reverse());
        assert!(message.contains("expected tokens of"), "{message}");
        let message = failure_of(|_, outcome| outcome.step = crate::StepId::new(0));
        assert!(
            message.contains("the outcome of step 1 names step 0"),
            "{message}"
        );
    }

    #[test]
    fn log_probabilities_that_are_wrong_are_found() {
        let message = failure_of(|_, outcome| outcome.logprobs.clear());
        assert!(
            message.contains("asks for Some(0) alternatives"),
            "{message}"
        );
        let message = failure_of(|_, outcome| {
            let own = |sampled: &Sampled| crate::TokenLogprob {
                token: sampled.token,
                logprob: -0.5,
            };
            outcome.logprobs.clear();
            for (index, sampled) in outcome.sampled.iter().enumerate() {
                outcome.logprobs.push(index, [own(sampled)]);
            }
        });
        assert!(
            message.contains("r2 asks for None alternatives"),
            "{message}"
        );
    }

    #[test]
    fn a_failing_step_is_told_with_its_cause() {
        let config = MockConfig {
            faults: Faults {
                errors_per_million: 1_000_000,
                ..Faults::NONE
            },
            ..MockConfig::default()
        };
        let message = check(|| Mock::new(config.clone()), SUITE)
            .unwrap_err()
            .to_string();
        assert_eq!(message, "step 0: the step failed: injected fault in step 0");
    }
}
