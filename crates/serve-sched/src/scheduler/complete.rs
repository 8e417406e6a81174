//! Booking what came of a step: positions run, tokens sampled, requests ended or failed.

use std::sync::Arc;

use serve_core::{
    BackendError, CancelReason, EventKind, FinishReason, Sampled, StepId, StepOutcome, Time,
    TokenId, TokenLogprob,
};

use super::live::{Blocks, Stage};
use super::{End, FlightSegment, Scheduler, TokenEvents};
use crate::admit::Watch;
use crate::journal::Decision;
use crate::lengths;
use crate::order::Served;
use crate::pace::StepDone;

/// What the backend has to say of a token, to those who ask.
type Told<'a> = Option<&'a [TokenLogprob]>;

impl Scheduler {
    /// Books how `step` ended, which a backend has just run: [`complete`](Self::complete),
    /// [`fail`](Self::fail) or [`fail_all`](Self::fail_all).
    pub fn book(&mut self, now: Time, step: StepId, ended: Result<&StepOutcome, &BackendError>) {
        match ended {
            Ok(outcome) => self.complete(now, outcome),
            Err(BackendError::Step { cause }) => self.fail(now, step, cause),
            Err(BackendError::Lost { cause }) => self.fail_all(now, cause),
        }
    }

    /// Books the outcome of the step in flight. The outcome of any other step is ignored.
    ///
    /// A request for which the backend did not sample the token that it was asked for fails.
    pub fn complete(&mut self, now: Time, outcome: &StepOutcome) {
        let now = self.advance(now);
        if self.flight.step != Some(outcome.step) {
            return;
        }
        self.flight.step = None;
        for id in self.flight.releases.drain(..) {
            self.parting.remove(id);
        }
        let segments = std::mem::take(&mut self.flight.segments);
        let finished_before = self.counters.finished;
        let running = self.running.len() as u32;
        // Mostly nobody asks, and then no token is looked up.
        let told = Some(&outcome.logprobs).filter(|told| !told.is_empty());
        let (mut prefill_tokens, mut prompt_tokens) = (0, 0);
        let (mut chunks, mut sampled) = (0, 0);
        for &segment in &segments {
            let next = outcome.sampled.get(sampled);
            if told.is_none() && self.complete_decode(now, segment, next) {
                sampled += 1;
                continue;
            }
            let tokens = segment.end - segment.start;
            prefill_tokens += if tokens > 1 { tokens } else { 0 };
            chunks += usize::from(tokens > 1);
            let id = self.live[segment.slot].id;
            let next = next.filter(|next| segment.sample && next.request == id);
            let logprobs = told
                .filter(|_| next.is_some())
                .and_then(|told| told.of(sampled));
            sampled += usize::from(next.is_some());
            let token = next.map(|sampled| sampled.token);
            let served = self.complete_segment(now, segment, token, logprobs);
            prompt_tokens += u64::from(served);
        }
        let output_tokens = sampled as u32;
        self.counters.prefill_tokens += u64::from(prefill_tokens);
        self.counters.output_tokens += u64::from(output_tokens);
        if !segments.is_empty() {
            let finished = (self.counters.finished - finished_before) as u32;
            self.gate.stepped(&StepDone {
                running,
                prefill_tokens,
                prompt_tokens: prompt_tokens + std::mem::take(&mut self.found_tokens),
                output_tokens,
                finished,
                elapsed: outcome.elapsed,
                step_tokens: self.step_tokens_max,
                lacking: self.lacking,
            });
        }
        if chunks < segments.len() {
            self.step_cost.stepped(prefill_tokens, outcome.elapsed);
        }
        self.keep_flight_buffer(segments);
        self.sweep();
    }

    /// The step in flight failed: its requests fail with `cause`, all others go on. Any other step
    /// is ignored.
    pub fn fail(&mut self, now: Time, step: StepId, cause: &str) {
        let now = self.advance(now);
        if self.flight.step != Some(step) {
            return;
        }
        self.fail_flight(now, &Arc::from(cause));
        self.sweep();
    }

    /// The device is gone and with it everything that it held: every started request fails with
    /// `cause`, and no prefix can be reused. Requests that never started go on waiting.
    pub fn fail_all(&mut self, now: Time, cause: &str) {
        let now = self.advance(now);
        let cause: Arc<str> = Arc::from(cause);
        let lost = Arc::clone(&cause);
        self.gate
            .journal()
            .write(now, None, || Decision::DeviceLost { cause: lost });
        self.fail_flight(now, &cause);
        let mut slots: Vec<usize> = self.live.iter().map(|(slot, _)| slot).collect();
        slots.sort_by_key(|&slot| self.live[slot].sequence);
        for slot in slots {
            match self.live[slot].stage {
                Stage::Running => self.end(now, slot, End::Failed(Arc::clone(&cause))),
                Stage::Waiting => {
                    let id = self.live[slot].id;
                    if let Some(request) = self.gate.cancel(now, id) {
                        self.end_waiting(now, &request, End::Failed(Arc::clone(&cause)));
                    }
                }
                Stage::Ended => {}
            }
        }
        self.sweep();
        self.pool.forget_contents();
    }

    fn fail_flight(&mut self, now: Time, cause: &Arc<str>) {
        let Some(_) = self.flight.step.take() else {
            return;
        };
        let segments = std::mem::take(&mut self.flight.segments);
        self.counters.steps_failed += u64::from(!segments.is_empty());
        for segment in &segments {
            self.live[segment.slot].in_flight = false;
            match self.live[segment.slot].stage {
                Stage::Ended => self.release_blocks(segment.slot),
                _ => self.end(now, segment.slot, End::Failed(Arc::clone(cause))),
            }
        }
        self.keep_flight_buffer(segments);
        // The backend acts as if it had not been asked to forget anybody; it is asked again.
        self.releases.append(&mut self.flight.releases);
    }

    /// Books what nearly all segments are: one position, and a token that says nothing but itself.
    /// False if there is more to it; nothing is booked then.
    #[inline]
    fn complete_decode(
        &mut self,
        now: Time,
        segment: FlightSegment,
        next: Option<&Sampled>,
    ) -> bool {
        let live = &mut self.live[segment.slot];
        let index = live.output_tokens();
        let Some(sampled) = next.filter(|next| segment.sample && next.request == live.id) else {
            return false;
        };
        let is_plain = index > 0
            && index + 1 < live.output_tokens_max
            && segment.end - segment.start == 1
            && segment.end < live.publish_at
            && live.stage == Stage::Running
            && !live.stops
            && !(self.gate.watch() == Watch::Running && lengths::is_milestone(index + 1));
        if !is_plain {
            return false;
        }
        live.in_flight = false;
        live.computed = segment.end;
        if let Some(offset) = live.known.checked_sub(live.tail_from) {
            self.tails.set(segment.slot, offset, sampled.token);
        }
        live.known += 1;
        let served = Served {
            prompt_tokens: 0,
            output_tokens: 1,
        };
        self.gate.served(&live.request, served);
        if self.token_events == TokenEvents::All {
            self.events.push_token(now, live.id, sampled.token, index);
        }
        true
    }

    /// Returns how many positions of the prompt were run for the first time.
    #[inline(never)]
    fn complete_segment(
        &mut self,
        now: Time,
        segment: FlightSegment,
        token: Option<TokenId>,
        logprobs: Told<'_>,
    ) -> u32 {
        let slot = segment.slot;
        let live = &mut self.live[slot];
        live.in_flight = false;
        if live.stage == Stage::Ended {
            self.release_blocks(slot);
            return 0;
        }
        let served = Served {
            prompt_tokens: live.advance(segment.end),
            output_tokens: u32::from(segment.sample),
        };
        self.gate.served(&live.request, served);
        if live.computed >= live.publish_at {
            self.publish_blocks(slot);
        }
        match token {
            Some(token) => self.take_token(now, slot, token, logprobs),
            None if segment.sample => {
                let cause = Arc::from("the backend sampled no token for this request");
                self.end(now, slot, End::Failed(cause));
            }
            None => self.end_doomed(now, slot),
        }
        served.prompt_tokens
    }

    fn take_token(&mut self, now: Time, slot: usize, token: TokenId, logprobs: Told<'_>) {
        let live = &mut self.live[slot];
        if live.stops && live.request.stop_tokens().contains(&token) {
            return self.end(now, slot, End::Finished(FinishReason::Stop));
        }
        let (id, index) = (live.id, live.output_tokens());
        if let Some(offset) = live.known.checked_sub(live.tail_from) {
            self.tails.set(slot, offset, token);
        }
        live.known += 1;
        let is_last = live.output_left() == 0;
        if index == 0 || self.token_events == TokenEvents::All {
            match logprobs {
                None => self.events.push_token(now, id, token, index),
                Some(logprobs) => {
                    let logprobs = Some(Arc::from(logprobs));
                    let kind = EventKind::Token {
                        token,
                        index,
                        logprobs,
                    };
                    self.emit(now, id, kind);
                }
            }
        }
        if is_last {
            self.end(now, slot, End::Finished(FinishReason::Length));
        } else if lengths::is_milestone(index + 1) {
            self.end_doomed(now, slot);
        }
    }

    /// Ends a running request if an admission policy that watches those that run gives it up.
    fn end_doomed(&mut self, now: Time, slot: usize) {
        if self.gate.watch() < Watch::Running {
            return;
        }
        let live = &self.live[slot];
        let (request, left, done) = (
            Arc::clone(&live.request),
            live.pending(),
            live.output_tokens(),
        );
        if request.deadline().is_some() && self.gate.gives_up(now, &request, left, done) {
            self.end(now, slot, End::Cancelled(CancelReason::DeadlineUnreachable));
        }
    }

    /// Gives names to the blocks that have become full.
    #[inline(never)]
    pub(super) fn publish_blocks(&mut self, slot: usize) {
        let block_size = self.limits.block_size;
        let live = &mut self.live[slot];
        let full = live.computed / block_size;
        let Blocks { table, prefixes } = &mut *live.blocks;
        while (prefixes.hashes().len() as u32) < full {
            let prompt = live.request.prompt().get(live.tail_from as usize..);
            let prompt = prompt.unwrap_or_default();
            let sampled = &self.tails.of(slot)[prompt.len()..];
            prefixes.hash_block(prompt, sampled);
            live.tail_from += block_size;
        }
        let named = table.iter().zip(prefixes.hashes());
        let fresh = named.take(full as usize).skip(prefixes.published as usize);
        fresh.for_each(|(&block, &prefix)| self.pool.publish(block, prefix));
        live.published(full, block_size);
    }

    fn keep_flight_buffer(&mut self, mut segments: Vec<FlightSegment>) {
        segments.clear();
        self.flight.segments = segments;
    }
}
