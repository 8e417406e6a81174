//! How fast this machine reads memory: the floor under a decode step, which reads every weight once.

use std::hint::black_box;
use std::time::Instant;

use super::instructions::{Instructions, Kernel};
use super::lanes::{LANES, Lanes};
use super::pages;
use super::team::Team;

/// A buffer that is read from end to end by the threads and instructions that products use.
#[derive(Debug)]
pub struct ReadSpeed {
    buffer: Vec<[f32; LANES]>,
    sums: Vec<f32>,
    instructions: Instructions,
    team: Team,
}

/// Vectors that a thread reads at a time.
const TASK: usize = 1 << 12;

impl ReadSpeed {
    /// A buffer of about `bytes`, which should be several times larger than all caches.
    pub fn new(bytes: usize, instructions: Instructions, threads: usize) -> Self {
        let tasks = (bytes / size_of::<[f32; LANES]>()).div_ceil(TASK).max(1);
        let mut buffer = pages::room(tasks * TASK);
        // Not zeros: those the system need not keep.
        buffer.resize(tasks * TASK, [1.0; LANES]);
        Self {
            buffer,
            sums: vec![0.0; tasks],
            instructions,
            team: Team::new(threads),
        }
    }

    /// Bytes that one pass read in a second.
    pub fn measure(&mut self) -> f64 {
        let begin = Instant::now();
        let (buffer, instructions) = (&self.buffer, self.instructions);
        let tasks = self.sums.len();
        self.team
            .for_each_tile(&mut self.sums, tasks, 1, &[0], &|_, task, mut tile| {
                instructions.run(Read {
                    vectors: &buffer[task * TASK..(task + 1) * TASK],
                    sum: &mut tile.row(0)[0],
                });
            });
        let seconds = begin.elapsed().as_secs_f64();
        black_box(&self.sums);
        size_of_val(self.buffer.as_slice()) as f64 / seconds
    }
}

struct Read<'a> {
    vectors: &'a [[f32; LANES]],
    sum: &'a mut f32,
}

impl Kernel for Read<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        /// Four vectors are 256 bytes: 16 KiB.
        const AHEAD: usize = 64;
        let (fours, _) = self.vectors.as_chunks::<4>();
        let one = lanes.splat(1.0);
        let mut sums = [lanes.splat(0.0); 4];
        for (index, four) in fours.iter().enumerate() {
            for vector in fours.get(index + AHEAD).into_iter().flatten() {
                lanes.prefetch(vector);
            }
            for (sum, vector) in sums.iter_mut().zip(four) {
                *sum = lanes.multiply_add(lanes.load(vector), one, *sum);
            }
        }
        *self.sum = lanes.sums(sums).iter().sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read() {
        for instructions in Instructions::available() {
            let mut speed = ReadSpeed::new(1 << 20, instructions, 2);
            assert!(speed.measure() > 0.0);
            let sum: f32 = speed.sums.iter().sum();
            assert_eq!(sum, (1 << 18) as f32, "{instructions}");
        }
    }
}
