//! What comes after the logits of a step, and outside of what is recorded: tokens drawn at random,
//! penalties, log-probabilities, and the one read of it all. A step in which everybody is greedy and
//! asks for nothing launches nothing here.

use cubecl::bytes::Bytes;
use serve_core::{Logprobs, TokenId};

use super::device::GpuDevice;
use super::kernels::{
    Best, Buffer, DRAW_NUMBERS, FOUND, PARTS, Penalties, TOLD_WORDS, TellParts, told_entries,
};
use crate::decode::{DeviceError, Draw, Draws, Sampler};

impl GpuDevice {
    /// The token of each draw, of which the recorded step has left the most likely one.
    pub(super) fn choose(
        &self,
        draws: &Draws,
        tokens: &mut Vec<TokenId>,
        logprobs: &mut Logprobs,
    ) -> Result<(), DeviceError> {
        self.draw(draws);
        self.draw_penalised(draws);
        let told = self.tell(draws);
        let chosen = self.start_of(&self.buffers.tokens, draws.len() * size_of::<u32>());
        let handles = [chosen].into_iter().chain(told.map(|told| told.handle));
        let read = self.memory.client.read(handles.collect());
        let read = read.map_err(|error| DeviceError::new(&error))?;
        let mut words = read.iter().map(|bytes| {
            let (words, _) = bytes.as_chunks::<4>();
            words.iter().map(|word| u32::from_le_bytes(*word))
        });
        let first = tokens.len();
        tokens.extend(words.next().into_iter().flatten().map(TokenId::new));
        let told: Vec<u32> = words.next().into_iter().flatten().collect();
        let asking = draws.iter().zip(&tokens[first..]).enumerate();
        let asking = asking.filter_map(|(index, (draw, &token))| {
            let alternatives = draw.logprobs?;
            Some((index, token, alternatives))
        });
        for ((index, token, alternatives), told) in asking.zip(told.chunks_exact(TOLD_WORDS)) {
            logprobs.push(index, told_entries(token, alternatives, told));
        }
        Ok(())
    }

    /// Draws the tokens of the rows that are neither greedy nor penalised.
    fn draw(&self, draws: &Draws) {
        let is_drawn = |draw: &Draw| !draw.sampling.is_greedy() && !draw.sampling.penalises();
        if !draws.iter().any(is_drawn) {
            return;
        }
        let how = draws.iter().flat_map(|draw| match is_drawn(draw) {
            true => numbers(draw),
            false => [0.0; DRAW_NUMBERS],
        });
        let how = Bytes::from_elems(how.collect::<Vec<f32>>());
        let buffers = &self.buffers;
        self.memory.client.write(&buffers.draws.handle, how);
        let (logits, how) = (&buffers.logits, &buffers.draws);
        self.kernels.draw(logits, how, &buffers.tokens, draws.len());
    }

    /// Chooses the tokens of the rows that are penalised, from logits of their own.
    fn draw_penalised(&self, draws: &Draws) {
        let penalised = || {
            let all = draws.iter().enumerate();
            all.filter(|(_, draw)| draw.sampling.penalises())
        };
        let count = penalised().count();
        if count == 0 {
            return;
        }
        let rows = penalised().flat_map(|(row, draw)| {
            let seen = &draw.seen;
            [row as u32, seen.start as u32, seen.end as u32]
        });
        let penalties = penalised().flat_map(|(_, Draw { sampling, .. })| {
            [
                sampling.repetition_penalty(),
                sampling.frequency_penalty(),
                sampling.presence_penalty(),
            ]
        });
        let mut seen: Vec<u32> = Vec::with_capacity(2 * draws.all_seen().len().max(1));
        seen.extend(draws.all_seen().iter().flat_map(|s| [s.token, s.outputs]));
        // No runtime takes a buffer of nothing.
        seen.resize(seen.len().max(2), 0);
        let memory = &self.memory;
        let how = Penalties {
            count,
            rows: memory.for_now(rows.collect()),
            numbers: memory.numbers_for_now(penalties.collect()),
            seen: memory.for_now(seen),
        };
        let vocabulary = self.kernels.shape.vocabulary;
        let logits = memory.words_for_now(count * vocabulary);
        self.kernels.penalise(&self.buffers.logits, &how, &logits);
        let best = Best {
            values: memory.words_for_now(count * PARTS),
            places: memory.words_for_now(count * PARTS),
        };
        let chosen = memory.words_for_now(count);
        let kernels = self.kernels.in_f32();
        kernels.most_likely(&logits, &best, &chosen, count);
        if penalised().any(|(_, draw)| !draw.sampling.is_greedy()) {
            let how = penalised().flat_map(|(_, draw)| numbers(draw));
            let how = memory.numbers_for_now(how.collect());
            kernels.draw(&logits, &how, &chosen, count);
        }
        kernels.put_back(&chosen, &how, &self.buffers.tokens);
    }

    /// What is told of the chosen tokens, [`TOLD_WORDS`] for each draw that asks.
    fn tell(&self, draws: &Draws) -> Option<Buffer> {
        let asking = || {
            let all = draws.iter().enumerate();
            all.filter_map(|(row, draw)| Some((row, draw.logprobs?)))
        };
        let wanted = asking().map(|(_, alternatives)| alternatives).max()?;
        let rows: Vec<u32> = asking().map(|(row, _)| row as u32).collect();
        let (memory, count) = (&self.memory, rows.len());
        let parts = TellParts {
            values: memory.words_for_now(count * PARTS * FOUND),
            places: memory.words_for_now(count * PARTS * FOUND),
            sums: memory.words_for_now(count * PARTS),
        };
        let rows = memory.for_now(rows);
        let out = memory.words_for_now(count * TOLD_WORDS);
        let buffers = &self.buffers;
        self.kernels.tell(
            (&buffers.logits, &buffers.tokens),
            (&rows, count),
            // The largest is needed in any case.
            u32::from(wanted.max(1)),
            &parts,
            &out,
        );
        Some(out)
    }
}

/// How a row is drawn, as the kernel takes it.
fn numbers(draw: &Draw) -> [f32; DRAW_NUMBERS] {
    let sampling = &draw.sampling;
    [
        sampling.temperature(),
        sampling.top_k().map_or(0.0, |top_k| top_k.get() as f32),
        sampling.top_p(),
        sampling.min_p(),
        Sampler::random(sampling, draw.position) as f32,
    ]
}
