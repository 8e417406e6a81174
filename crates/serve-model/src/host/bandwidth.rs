//! How fast the team reads memory: the floor under every decode step.

use std::hint::black_box;
use std::time::Instant;

use crate::kernels::Team;

/// More than caches hold, so that every pass comes from memory.
const BYTES: usize = 512 << 20;
/// What a thread takes at once.
const PART: usize = 1 << 20;
/// Passes; the fastest counts, since others only disturb.
const PASSES: usize = 7;

/// Bytes a second of the fastest of a few passes over half a gigabyte.
pub(super) fn read(team: &mut Team) -> f64 {
    // Other values than zero, or the system would give one page of zeros for all.
    let words: Vec<u64> = (0..(BYTES / size_of::<u64>()) as u64).collect();
    let parts: Vec<&[u64]> = words.chunks(PART / size_of::<u64>()).collect();
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let begin = Instant::now();
        team.for_each(parts.len(), &|index| {
            black_box(sum(parts[index]));
        });
        best = best.min(begin.elapsed().as_secs_f64());
    }
    BYTES as f64 / best
}

/// Eight sums at a time, which keeps several loads under way.
fn sum(words: &[u64]) -> [u64; 8] {
    let mut sums = [0_u64; 8];
    let (eights, _) = words.as_chunks::<8>();
    for eight in eights {
        for (sum, word) in sums.iter_mut().zip(eight) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let words: Vec<u64> = (0..4_096).collect();
        let total: u64 = sum(&words).iter().sum();
        assert_eq!(total, 4_095 * 4_096 / 2);
    }
}
