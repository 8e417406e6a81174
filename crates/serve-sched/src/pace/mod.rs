//! How fast the engine has been, from completed work, and what follows of it for work to come.
//!
//! Rates are ratios of two moving averages (work over busy time), so idle time does not make the engine look
//! slow. Plain arithmetic only: the same samples give the same bits anywhere.

mod mean;
mod ratios;
mod waits;

use serve_core::Span;

use crate::demand::{Demand, Underway};
pub(crate) use mean::Line;
use mean::{Mean, Ratio};
use ratios::Ratios;
pub(crate) use waits::Queued;
use waits::Waits;

/// Measured speed of an engine. Each reading is `None` until there is something to read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    step: Mean,
    service: Mean,
    drain: Ratio,
    prefill: Ratio,
    decode: Ratio,
    /// What a step takes by its prompt tokens.
    cost: Line,
    /// Steps run.
    steps: u64,
    /// For how many steps slots are held, for each that the tokens run in them make.
    stretch: Ratio,
    /// How many times as long as predicted from its tokens a request took from its start.
    took: Mean,
    /// Blocks held when the next in line lacked blocks.
    held: Mean,
    /// Prompt tokens in a step when the next in line lacked step tokens.
    full: Mean,
    /// By how much waits turn out longer than predicted.
    waits: Waits,
    /// By how much a request takes longer from its start than requests of its tokens take in the mean.
    took_ratios: Ratios,
}

/// What a step did, and who could not join it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepDone {
    /// Requests in the batch.
    pub(crate) running: u32,
    pub(crate) prefill_tokens: u32,
    /// Of prompts, positions that were run for the first time, or found.
    pub(crate) prompt_tokens: u64,
    pub(crate) output_tokens: u32,
    /// The most that it could have run.
    pub(crate) step_tokens: u32,
    /// Requests that ended by themselves with it.
    pub(crate) finished: u32,
    pub(crate) elapsed: Span,
    /// What the next in line was lacking, if anybody waited.
    pub(crate) lacking: Option<Lacking>,
}

/// What keeps the next in line from joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacking {
    /// A slot, or the batch policy's leave.
    Slots,
    /// KV blocks, of which so many are held.
    Blocks { held: u32 },
    /// Tokens of the step.
    StepTokens,
}

/// What there is of everything that a request occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) slots: u32,
    /// 0 where blocks are not counted.
    pub(crate) blocks: u32,
    /// 0 where a step runs any number.
    pub(crate) step_tokens: u32,
}

/// What a request has before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// What others ask who go before it.
    pub(crate) others: Demand,
    /// Itself. Half of it counts: it starts as soon as there is room for it, in the mean half-way to the next
    /// time that there would be room for one more.
    pub(crate) own: Demand,
}

impl Pace {
    /// How long a step takes.
    pub fn step_time(&self) -> Option<Span> {
        self.step.read().map(Span::from_secs_f64)
    }

    /// How long a request takes from its start to its end: the time of a batch.
    pub fn service_time(&self) -> Option<Span> {
        self.service.read().map(Span::from_secs_f64)
    }

    /// Requests that end in a second of work.
    pub fn drain_rate(&self) -> Option<f64> {
        self.drain.read()
    }

    /// Prompt tokens run in a second of those steps that run any.
    pub fn prefill_rate(&self) -> Option<f64> {
        self.prefill.read()
    }

    /// Tokens sampled in a second of work.
    pub fn decode_rate(&self) -> Option<f64> {
        self.decode.read()
    }

    /// Steps run.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether steps have been seen: an engine that is driven one request at a time has none.
    pub(crate) fn knows_steps(&self) -> bool {
        self.steps > 0
    }

    /// Seconds that a request takes from its start to its end at the present speed, by the tokens that it has
    /// left to run and to sample.
    pub(crate) fn service_secs(
        &self,
        prompt_tokens: u64,
        output_tokens: u64,
        capacity: &Capacity,
    ) -> Option<f64> {
        let (step, (_, token)) = (self.step.read()?, self.cost.read()?);
        let prompt = prompt_tokens as f64;
        let steps = output_tokens as f64 + prompt / self.step_tokens(capacity);
        let secs = prompt * token + self.stretch() * steps * step;
        Some(secs * self.took.read().unwrap_or(1.0))
    }

    /// Seconds until the prompt of a request that has started is run and its first token sampled.
    pub(crate) fn first_token_secs(&self, prompt_tokens: u64, capacity: &Capacity) -> Option<f64> {
        let (step, (_, token)) = (self.step.read()?, self.cost.read()?);
        let prompt = prompt_tokens as f64;
        let steps = (prompt / self.step_tokens(capacity)).ceil().max(1.0);
        Some(steps * step + prompt * token)
    }

    /// How long a request waits that has `ahead` before it and `underway` running.
    ///
    /// So many steps have to be run first: the most, over slots, blocks and step tokens, of what is asked divided
    /// by what there is. Of those that run, that is what they have left, less the half of it that runs on when
    /// the one who waits is served. Each step takes what one without prompts takes, and each prompt token its own
    /// time on top.
    pub(crate) fn wait_secs(
        &self,
        ahead: &Ahead,
        underway: &Underway,
        capacity: &Capacity,
    ) -> Option<f64> {
        let (step, token) = self.cost.read()?;
        let (stretch, step_tokens) = (self.stretch(), self.step_tokens(capacity));
        let slots = |of: &Demand| stretch * of.slot_steps(step_tokens);
        let asked = ahead.sum(slots) + slots(&underway.demand) / 2.0;
        let by_slots = (asked - underway.slot_steps(self.steps)) / f64::from(capacity.slots.max(1));
        let blocks = |of: &Demand| stretch * of.block_steps(step_tokens);
        let by_blocks = match capacity.blocks {
            0 => 0.0,
            usable => {
                let asked = ahead.sum(blocks) + blocks(&underway.demand) / 2.0;
                let asked = asked - underway.block_steps(self.steps);
                asked / self.held.read().unwrap_or(f64::from(usable)).max(1.0)
            }
        };
        let prompts = ahead.sum(|of| of.prompt_tokens as f64);
        let by_tokens = prompts / step_tokens;
        // Where two are nearly as scarce they are the limit by turns, so it takes longer than either alone: a
        // norm that is the largest where that stands out.
        let fourth = |steps: f64| (steps.max(0.0) * steps) * (steps * steps);
        let steps = fourth(by_slots) + fourth(by_blocks) + fourth(by_tokens);
        let mut outputs = ahead.others;
        outputs += underway.demand;
        let steps = steps.sqrt().sqrt() * (1.0 + outputs.doubt());
        Some(steps * step + prompts * token)
    }

    /// By how much waits in a queue turn out longer than predicted.
    pub(crate) fn wait_factor(&self, queued: Queued) -> f64 {
        self.waits.factor(queued, self.knows_steps())
    }

    /// By how much requests take longer from their start than predicted.
    pub(crate) fn service_factor(&self) -> f64 {
        self.took_ratios.factor()
    }

    /// A request that was predicted to wait so long in a queue waited so long.
    pub(crate) fn waited(&mut self, queued: Queued, predicted: Span, waited: Span) {
        // What is short beside a request's own time does not matter, and its ratio could be anything: a batch whose
        // requests end together makes a short wait one of a whole batch.
        let slack = self.service.read().unwrap_or(0.0) / 5.0;
        let ratio = (waited.as_secs_f64() + slack) / (predicted.as_secs_f64() + slack).max(1e-9);
        let knows_steps = self.knows_steps();
        self.waits.add(queued, ratio, knows_steps);
    }

    /// A step has run.
    pub(crate) fn stepped(&mut self, done: &StepDone) {
        let secs = done.elapsed.as_secs_f64();
        let prefill = f64::from(done.prefill_tokens);
        self.steps += 1;
        self.step.add(secs, 1.0 / 64.0);
        self.cost.add(prefill, secs, 1.0 / 64.0);
        self.decode
            .add(f64::from(done.output_tokens), secs, 1.0 / 64.0);
        if done.prefill_tokens > 0 {
            self.prefill.add(prefill, secs, 1.0 / 16.0);
        }
        self.finished(done.finished, done.elapsed);
        let step_tokens = f64::from(done.step_tokens.max(1));
        let progress = f64::from(done.output_tokens) + done.prompt_tokens as f64 / step_tokens;
        self.stretch
            .add(f64::from(done.running), progress, 1.0 / 256.0);
        match done.lacking {
            Some(Lacking::Blocks { held }) if done.finished > 0 => {
                self.held.add(f64::from(held), 1.0 / 64.0);
            }
            Some(Lacking::StepTokens) => self.full.add(prefill, 1.0 / 16.0),
            Some(Lacking::Blocks { .. } | Lacking::Slots) | None => {}
        }
    }

    /// `requests` ended in `elapsed` of work; none is a sample too.
    pub fn finished(&mut self, requests: u32, elapsed: Span) {
        let secs = elapsed.as_secs_f64();
        self.drain.add(f64::from(requests), secs, 1.0 / 256.0);
    }

    /// A request ended by itself, `took` after its start, and has used so much.
    pub(crate) fn served(
        &mut self,
        took: Span,
        prompt_tokens: u64,
        output_tokens: u64,
        capacity: &Capacity,
    ) {
        let took = took.as_secs_f64();
        self.service.add(took, 1.0 / 16.0);
        let predicted = self.service_secs(prompt_tokens, output_tokens, capacity);
        if let Some(predicted) = predicted.filter(|secs| *secs > 0.0) {
            // What is short beside others' time does not matter, and its ratio could be anything.
            let slack = self.service.read().unwrap_or(0.0) / 10.0;
            let ratio = (took + slack) / (predicted + slack);
            self.took_ratios.add(ratio);
            let usual = self.took.read().unwrap_or(1.0);
            self.took.add((usual * ratio).clamp(0.2, 5.0), 1.0 / 64.0);
        }
    }

    fn stretch(&self) -> f64 {
        let stretch = self.stretch.read();
        stretch.map_or(1.0, |stretch| stretch.clamp(0.1, 10.0))
    }

    /// Prompt tokens that a step can run.
    fn step_tokens(&self, capacity: &Capacity) -> f64 {
        let most = match capacity.step_tokens {
            0 => f64::INFINITY,
            most => f64::from(most),
        };
        self.full.read().map_or(most, |full| full.clamp(1.0, most))
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            step: Mean::default(),
            service: Mean::default(),
            drain: Ratio::default(),
            prefill: Ratio::default(),
            decode: Ratio::default(),
            cost: Line::default(),
            steps: 0,
            stretch: Ratio::default(),
            took: Mean::default(),
            held: Mean::default(),
            full: Mean::default(),
            waits: Waits::default(),
            took_ratios: Ratios::new(1.0),
        }
    }
}

impl Ahead {
    fn sum(&self, of: impl Fn(&Demand) -> f64) -> f64 {
        of(&self.others) + of(&self.own) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lengths::Expected;

    fn decodes(tokens: u32, millis: u64) -> StepDone {
        StepDone {
            output_tokens: tokens,
            elapsed: Span::from_millis(millis),
            ..StepDone::default()
        }
    }

    #[test]
    fn nothing_measured_is_nothing_known() {
        let pace = Pace::default();
        assert_eq!(pace.step_time(), None);
        assert_eq!(pace.drain_rate(), None);
        assert_eq!(pace.prefill_rate(), None);
    }

    #[test]
    fn a_batch_that_ends_together_drains_as_fast_as_one_that_ends_one_by_one() {
        let (mut together, mut spread) = (Pace::default(), Pace::default());
        for step in 0..10_000 {
            together.finished(if step % 16 == 0 { 16 } else { 0 }, Span::from_millis(10));
            spread.finished(1, Span::from_millis(10));
        }
        let (together, spread) = (together.drain_rate().unwrap(), spread.drain_rate().unwrap());
        assert!((spread - 100.0).abs() < 1e-6, "{spread}");
        assert!((together / spread - 1.0).abs() < 0.05, "{together}");
    }

    #[test]
    fn a_change_of_speed_is_followed() {
        let mut pace = Pace::default();
        (0..100).for_each(|_| pace.stepped(&decodes(4, 10)));
        (0..400).for_each(|_| pace.stepped(&decodes(4, 20)));
        let step = pace.step_time().unwrap().as_millis_f64();
        assert!((step - 20.0).abs() < 0.1, "{step}");
        // Four tokens in 20 ms.
        let decode = pace.decode_rate().unwrap();
        assert!((decode - 200.0).abs() < 1.0, "{decode}");
    }

    /// Steps of 10 ms and 10 us for each prompt token.
    fn measured() -> Pace {
        let mut pace = Pace::default();
        for n in 0..400 {
            let prefill_tokens = (n % 3) * 100;
            pace.stepped(&StepDone {
                running: 8,
                prefill_tokens,
                output_tokens: 8,
                step_tokens: 100_000,
                elapsed: Span::from_micros(10_000 + 10 * u64::from(prefill_tokens)),
                ..StepDone::default()
            });
        }
        pace
    }

    #[test]
    fn whatever_there_is_least_of_sets_the_pace() {
        let pace = measured();
        let mut others = Demand::default();
        (0..20).for_each(|_| others += Demand::of(160, Expected::certain(100), 16));
        let roomy = Capacity {
            slots: 1_000,
            blocks: 100_000,
            step_tokens: 100_000,
        };
        let ahead = Ahead {
            others,
            own: Demand::default(),
        };
        let near = |capacity: Capacity, steps: f64| {
            let secs = pace.wait_secs(&ahead, &Underway::default(), &capacity);
            let expected = steps * 0.01 + 20.0 * 160.0 * 10e-6;
            let secs = secs.unwrap();
            assert!((secs / expected - 1.0).abs() < 0.02, "{secs} of {expected}");
        };
        let slots = 4;
        near(Capacity { slots, ..roomy }, 20.0 * 100.0 / 4.0);
        // 14 blocks in the mean of each.
        let blocks = 28;
        near(Capacity { blocks, ..roomy }, 20.0 * 100.0 / 2.0);
        let step_tokens = 16;
        near(
            Capacity {
                step_tokens,
                ..roomy
            },
            20.0 * 10.0,
        );
        // Where blocks are not counted they are no limit.
        let blocks = 0;
        near(
            Capacity {
                slots,
                blocks,
                ..roomy
            },
            20.0 * 100.0 / 4.0,
        );
    }
}
