//! A batch in the shape that a device with fixed buffers runs: padded to one of a few sizes, and all
//! its numbers in one run of words, so that a step needs one transfer.
//!
//! Few sizes mean few kernels to tune and few graphs to record, and all of them can be run before the
//! first request comes. Padding reads and writes the null block, which no request owns.

use serve_core::Limits;

use super::batch::Batch;

/// What a step is padded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Bucket {
    /// Positions.
    pub(crate) rows: usize,
    /// Rows after which logits are computed.
    pub(crate) wanted: usize,
    /// Where every sequence has one row and wants its logits: positions that the longest may have.
    /// A step with this bucket always launches the same work.
    pub(crate) window: Option<usize>,
}

/// The sizes that steps under some limits can have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buckets {
    sequences_max: usize,
    #[cfg(any(test, feature = "gpu"))]
    step_tokens_max: usize,
    context_max: usize,
}

/// The shortest window.
pub(crate) const WINDOW_MIN: usize = 256;

impl Buckets {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            sequences_max: limits.sequences_max as usize,
            #[cfg(any(test, feature = "gpu"))]
            step_tokens_max: limits.step_tokens_max as usize,
            context_max: limits.context_max as usize,
        }
    }

    /// What `batch` is padded to.
    pub(crate) fn of(&self, batch: &Batch) -> Bucket {
        let rows = batch.tokens().len();
        let wanted = batch.logit_rows().len();
        let decode = batch.sequences().iter().all(|s| s.rows.len() == 1) && wanted == rows;
        let longest = batch.positions().iter().max().map_or(0, |&max| max + 1);
        let decode = decode && rows <= padded(self.sequences_max);
        Bucket {
            rows: padded(rows),
            wanted: if wanted == 0 { 0 } else { padded(wanted) },
            window: decode.then(|| self.window(longest as usize)),
        }
    }

    fn window(&self, positions: usize) -> usize {
        let windows = padded(positions.div_ceil(WINDOW_MIN));
        (windows * WINDOW_MIN).min(self.context_max.next_multiple_of(WINDOW_MIN))
    }
}

/// What a device runs before the first request.
#[cfg(any(test, feature = "gpu"))]
impl Buckets {
    /// All buckets of decode steps, the largest first, so that the memory of one serves the next.
    pub(crate) fn decode(&self) -> Vec<Bucket> {
        let mut all = Vec::new();
        let sequences = self.sequences_max.min(self.step_tokens_max);
        for rows in sizes(sequences) {
            for window in sizes(self.context_max.div_ceil(WINDOW_MIN)) {
                let window = self.window(window * WINDOW_MIN);
                let bucket = Bucket {
                    rows,
                    wanted: rows,
                    window: Some(window),
                };
                if all.last() != Some(&bucket) {
                    all.push(bucket);
                }
            }
        }
        all.sort_unstable_by(|a, b| b.cmp(a));
        all
    }

    /// The buckets of steps with prompts in them that are worth running before the first request.
    pub(crate) fn prefill(&self) -> Vec<Bucket> {
        let bucket = |rows| Bucket {
            rows,
            wanted: 1,
            window: None,
        };
        sizes(self.step_tokens_max).map(bucket).collect()
    }
}

/// The least size that holds `count`: up to 4 all, then two for each doubling.
fn padded(count: usize) -> usize {
    let power = count.next_power_of_two();
    let three_quarters = power / 4 * 3;
    if power > 4 && count <= three_quarters {
        three_quarters
    } else if count <= 4 {
        count
    } else {
        power
    }
}

/// Every size up to the one that holds `max`.
#[cfg(any(test, feature = "gpu"))]
fn sizes(max: usize) -> impl Iterator<Item = usize> {
    let mut next = 1;
    std::iter::from_fn(move || {
        let size = next;
        next = padded(size + 1);
        (size <= padded(max)).then_some(size)
    })
}

/// A padded batch: where each kind of number starts among [`Layout::words`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    words: Vec<u32>,
    rows: usize,
    wanted: usize,
    wanted_unpadded: usize,
    units: usize,
    /// Of each row: its token.
    pub(crate) tokens_at: usize,
    /// Of each row: its position.
    pub(crate) positions_at: usize,
    /// Of each row: its block times the block size plus its place in the block.
    pub(crate) slots_at: usize,
    /// The rows after which logits are wanted.
    pub(crate) wanted_at: usize,
    /// Of each work unit: first row, rows, position of the first row, where its block table starts.
    pub(crate) units_at: usize,
}

impl Layout {
    /// Lays a batch out, with at most `unit_rows` rows of a sequence in a work unit, and tells its
    /// bucket.
    pub(crate) fn fill(
        &mut self,
        batch: &Batch,
        buckets: &Buckets,
        block_size: usize,
        unit_rows: usize,
    ) -> Bucket {
        let bucket = buckets.of(batch);
        self.words.clear();
        self.rows = bucket.rows;
        self.wanted = bucket.wanted;
        self.wanted_unpadded = batch.logit_rows().len();
        let pad = |words: &mut Vec<u32>, from: usize, size: usize| {
            words.resize(from + size, 0);
        };
        self.tokens_at = 0;
        self.words.extend(batch.tokens());
        self.positions_at = bucket.rows;
        pad(&mut self.words, 0, bucket.rows);
        self.words.extend(batch.positions());
        self.slots_at = 2 * bucket.rows;
        pad(&mut self.words, self.positions_at, bucket.rows);
        for sequence in batch.sequences() {
            let blocks = batch.blocks(sequence);
            self.words.extend(sequence.rows.clone().map(|row| {
                let position = batch.positions()[row] as usize;
                let block = blocks[position / block_size] as usize;
                (block * block_size + position % block_size) as u32
            }));
        }
        self.wanted_at = 3 * bucket.rows;
        pad(&mut self.words, self.slots_at, bucket.rows);
        self.words.extend(batch.logit_rows());
        self.units_at = self.wanted_at + bucket.wanted;
        pad(&mut self.words, self.wanted_at, bucket.wanted);
        match bucket.window {
            Some(window) => self.decode_units(batch, bucket.rows, window.div_ceil(block_size)),
            None => self.prefill_units(batch, unit_rows),
        }
        bucket
    }

    /// As many units as rows, and tables of one size, so that nothing but the words differs from step
    /// to step.
    fn decode_units(&mut self, batch: &Batch, rows: usize, table_size: usize) {
        self.units = rows;
        let tables_at = self.units_at + 4 * rows;
        for row in 0..rows {
            let position = batch.positions().get(row).copied().unwrap_or(0);
            let table = (tables_at + row * table_size) as u32;
            self.words.extend([row as u32, 1, position, table]);
        }
        for sequence in batch.sequences() {
            let end = self.words.len() + table_size;
            self.words.extend(batch.blocks(sequence));
            self.words.resize(end, 0);
        }
        self.words.resize(tables_at + rows * table_size, 0);
    }

    fn prefill_units(&mut self, batch: &Batch, unit_rows: usize) {
        let units = batch
            .sequences()
            .iter()
            .map(|s| s.rows.len().div_ceil(unit_rows));
        self.units = units.sum();
        let mut table = self.units_at + 4 * self.units;
        for sequence in batch.sequences() {
            let rows = sequence.rows.len();
            for first in (0..rows).step_by(unit_rows) {
                self.words.extend([
                    (sequence.rows.start + first) as u32,
                    unit_rows.min(rows - first) as u32,
                    sequence.start + first as u32,
                    table as u32,
                ]);
            }
            table += batch.blocks(sequence).len();
        }
        for sequence in batch.sequences() {
            self.words.extend(batch.blocks(sequence));
        }
    }

    /// Everything.
    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Positions, padding included.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Wanted rows, padding included.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Work units of attention.
    #[cfg(any(test, feature = "gpu"))]
    pub(crate) fn units(&self) -> usize {
        self.units
    }

    /// Wanted rows.
    pub(crate) fn wanted_unpadded(&self) -> usize {
        self.wanted_unpadded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Logits;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        sequences_max: 16,
        step_tokens_max: 64,
        context_max: 1_000,
        block_size: 8,
        blocks: 1_001,
    };

    #[test]
    fn sizes_grow_by_half_at_most() {
        let small: Vec<usize> = sizes(17).collect();
        assert_eq!(small, [1, 2, 3, 4, 6, 8, 12, 16, 24]);
        for count in 1..2_000 {
            let size = padded(count);
            assert!(
                size >= count && 2 * size <= 3 * count + 2,
                "{count}: {size}"
            );
            assert_eq!(padded(size), size);
            assert!(sizes(count).any(|known| known == size), "{count}");
        }
    }

    #[test]
    fn a_decode_step_of_a_bucket_differs_in_its_words_alone() {
        let buckets = Buckets::new(&LIMITS);
        let laid_out = |positions: &[u32]| {
            let mut batch = Batch::new();
            for &position in positions {
                batch.push(&[7], position, 1..=position / 8 + 1, Logits::Last);
            }
            let mut layout = Layout::default();
            let bucket = layout.fill(&batch, &buckets, 8, 4);
            (bucket, layout)
        };
        let (first, a) = laid_out(&[0, 3, 90, 255, 1]);
        let (second, b) = laid_out(&[200, 7, 7, 7, 7, 31]);
        assert_eq!(first, second);
        assert_eq!((first.rows, first.window), (6, Some(256)));
        assert_eq!(a.words.len(), b.words.len());
        assert_eq!((a.units_at, a.units), (b.units_at, b.units));
        assert_eq!(laid_out(&[256]).0.window, Some(512));
        assert_eq!(laid_out(&[999]).0.window, Some(1_024));
    }

    proptest! {
        /// Any batch: its bucket is one that was run before the first request if it is a decode step,
        /// every row is in one unit, and every table has the blocks of its sequence.
        #[test]
        fn all_rows_are_where_the_words_say(
            sequences in prop::collection::vec((0_u32..900, 1_usize..20, any::<bool>()), 1..16),
            unit_rows in 1_usize..9,
        ) {
            let mut batch = Batch::new();
            for (index, &(start, rows, sample)) in sequences.iter().enumerate() {
                let rows = if index % 2 == 0 { rows } else { 1 };
                let blocks = (start as usize + rows).div_ceil(8) as u32;
                let first = index as u32 * 113;
                let logits = if sample { Logits::Last } else { Logits::None };
                batch.push(&vec![index as u32; rows], start, first..first + blocks, logits);
            }
            let buckets = Buckets::new(&LIMITS);
            let mut layout = Layout::default();
            let bucket = layout.fill(&batch, &buckets, 8, unit_rows);
            if bucket.window.is_some() {
                prop_assert!(buckets.decode().contains(&bucket));
            }
            let words = layout.words();
            let rows = batch.tokens().len();
            prop_assert!(rows > 64 || buckets.prefill().iter().any(|b| b.rows == bucket.rows));
            prop_assert!(bucket.rows >= rows && bucket.wanted >= batch.logit_rows().len());
            prop_assert_eq!(&words[layout.tokens_at..][..rows], batch.tokens());
            prop_assert_eq!(&words[layout.positions_at..][..rows], batch.positions());
            let wanted = &words[layout.wanted_at..][..batch.logit_rows().len()];
            prop_assert_eq!(wanted, batch.logit_rows());
            let mut seen = vec![0; bucket.rows];
            for unit in words[layout.units_at..][..4 * layout.units()].chunks(4) {
                let (first, count) = (unit[0] as usize, unit[1] as usize);
                for row in first..first + count {
                    seen[row] += 1;
                    if row >= rows {
                        continue;
                    }
                    let position = words[layout.positions_at + row] as usize;
                    prop_assert_eq!(position, unit[2] as usize + row - first);
                    let block = words[unit[3] as usize + position / 8];
                    let slot = words[layout.slots_at + row];
                    prop_assert_eq!(slot, block * 8 + position as u32 % 8);
                    let sequence = batch.tokens()[row];
                    prop_assert_eq!(block, sequence * 113 + position as u32 / 8);
                }
            }
            prop_assert!(seen[..rows].iter().all(|&times| times == 1));
        }
    }
}
