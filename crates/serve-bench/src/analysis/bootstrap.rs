//! Intervals without a formula for the error: draw the requests again, compute again, and see how the
//! number moves (Efron, *Bootstrap Methods*, Annals of Statistics 7, 1979; percentile intervals as in
//! Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13).
//!
//! Neighbouring requests wait in the same queue, so they are drawn in blocks: with single draws the
//! intervals of a busy server would be far too narrow. Blocks are circular (Politis and Romano, *A
//! Circular Block-Resampling Procedure*, 1992), 30 to a run (so many batches suffice: Schmeiser, *Batch
//! Size Effects*, Operations Research 30, 1982). With several runs, runs are drawn first and blocks
//! within each (Davison and Hinkley, *Bootstrap Methods and their Application*, 1997, section 3.8).
//! With one run, what differs from run to run is not in the interval.

use std::fmt;

use serde::Serialize;
use serve_core::rng::Rng;

/// How many blocks a run is cut into.
const BLOCKS: usize = 30;

/// How often and how surely.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bootstrap {
    /// How often everything is drawn again.
    pub resamples: u32,
    /// The share of the resampled numbers that an interval holds.
    pub confidence: f64,
    /// Fixes the draws.
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self {
            resamples: 1_000,
            confidence: 0.95,
            seed: 1,
        }
    }
}

/// What was drawn again, for the line under a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scheme {
    /// How many requests each run has.
    pub requests_of_run: Vec<usize>,
    /// The length of a block in each run, in requests.
    pub block_of_run: Vec<usize>,
}

/// A number and how far it may be off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// Computed from all rows; absent where there is nothing to compute it from.
    pub value: Option<f64>,
    /// From and to; absent where it cannot be told.
    pub interval: Option<[f64; 2]>,
}

impl Scheme {
    /// Draws from runs with so many requests each, which lie one after another in order of schedule.
    pub fn new(requests_of_run: Vec<usize>) -> Self {
        let block = |requests: &usize| requests.div_ceil(BLOCKS).max(1);
        Self {
            block_of_run: requests_of_run.iter().map(block).collect(),
            requests_of_run,
        }
    }

    /// How many requests there are in all.
    pub fn requests(&self) -> usize {
        self.requests_of_run.iter().sum()
    }

    /// One draw: how often each request counts. O(requests).
    fn draw(&self, rng: &mut Rng, weights: &mut [u32]) {
        weights.fill(0);
        let runs = self.requests_of_run.len();
        for turn in 0..runs {
            let run = match runs {
                1 => turn,
                _ => rng.below(runs as u64) as usize,
            };
            let start = self.requests_of_run[..run].iter().sum::<usize>();
            let (requests, block) = (self.requests_of_run[run], self.block_of_run[run]);
            let run = &mut weights[start..start + requests];
            let mut drawn = 0;
            while drawn < requests {
                let first = rng.below(requests as u64) as usize;
                for place in first..first + block.min(requests - drawn) {
                    run[place % requests] += 1;
                }
                drawn += block;
            }
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = self.block_of_run.iter().max().copied().unwrap_or(0);
        match self.requests_of_run.len() {
            0 | 1 => write!(
                f,
                "requests of one run drawn again in blocks of {longest}; what differs from run to run is not in it"
            ),
            runs => write!(
                f,
                "{runs} runs drawn again, and their requests in blocks of up to {longest}"
            ),
        }
    }
}

impl Bootstrap {
    /// How many resamples are made where one costs `visits` steps: all, or fewer where that would take
    /// more than some seconds, but no fewer than 100.
    pub fn affordable(&self, visits: usize) -> u32 {
        const BUDGET: usize = 400_000_000;
        let affordable = u32::try_from(BUDGET / visits.max(1)).unwrap_or(u32::MAX);
        self.resamples.min(affordable.max(100))
    }

    /// Computes `N` statistics on each of `resamples` draws and returns the interval of each. A
    /// statistic that is absent in more than one draw of a hundred has none.
    pub fn intervals(
        &self,
        scheme: &Scheme,
        resamples: u32,
        statistics: usize,
        mut compute: impl FnMut(&[u32], &mut Vec<Option<f64>>),
    ) -> Vec<Option<[f64; 2]>> {
        if scheme.requests() == 0 || resamples == 0 {
            return vec![None; statistics];
        }
        let mut rng = Rng::new(self.seed);
        let mut weights = vec![0; scheme.requests()];
        let mut drawn = vec![Vec::with_capacity(resamples as usize); statistics];
        let mut row = Vec::with_capacity(statistics);
        for _ in 0..resamples {
            scheme.draw(&mut rng, &mut weights);
            row.clear();
            compute(&weights, &mut row);
            for (drawn, value) in drawn.iter_mut().zip(&row) {
                drawn.extend(*value);
            }
        }
        let enough = |values: &Vec<f64>| values.len() * 100 >= resamples as usize * 99;
        let interval = |mut values: Vec<f64>| {
            values.sort_unstable_by(f64::total_cmp);
            let tail = (1.0 - self.confidence) / 2.0;
            let last = values.len() - 1;
            let low = (tail * last as f64).floor() as usize;
            [values[low], values[last - low]]
        };
        drawn
            .into_iter()
            .map(|values| (!values.is_empty() && enough(&values)).then(|| interval(values)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::quantile::Sample;

    fn interval(values: &[f64], runs: Vec<usize>, q: f64, seed: u64) -> [f64; 2] {
        let sample = Sample::new(values.iter().enumerate().map(|(i, v)| (i as u32, *v)));
        let bootstrap = Bootstrap {
            resamples: 300,
            seed,
            ..Bootstrap::default()
        };
        let compute = |weights: &[u32], out: &mut Vec<_>| out.extend(sample.weighted(weights, [q]));
        let found = bootstrap.intervals(&Scheme::new(runs), 300, 1, compute);
        found[0].unwrap()
    }

    #[test]
    fn a_draw_keeps_the_number_of_requests_and_whole_runs() {
        let scheme = Scheme::new(vec![100, 7, 100]);
        assert_eq!(scheme.block_of_run, [4, 1, 4]);
        let mut rng = Rng::new(3);
        let mut weights = vec![0; 207];
        let mut drawn = std::collections::BTreeSet::new();
        for _ in 0..200 {
            scheme.draw(&mut rng, &mut weights);
            let of = |range: std::ops::Range<usize>| weights[range].iter().sum::<u32>();
            let counts = [of(0..100), of(100..107), of(107..207)];
            assert!(counts[0] % 100 == 0 && counts[1] % 7 == 0 && counts[2] % 100 == 0);
            assert_eq!(counts[0] / 100 + counts[1] / 7 + counts[2] / 100, 3);
            drawn.insert(counts);
        }
        // Three runs drawn with replacement: ten ways.
        assert_eq!(drawn.len(), 10);
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let values = (0..500)
            .map(|i| f64::from(i * 7919 % 500))
            .collect::<Vec<_>>();
        let first = interval(&values, vec![500], 0.9, 5);
        assert_eq!(first, interval(&values, vec![500], 0.9, 5));
        assert_ne!(first, interval(&values, vec![500], 0.9, 6));
    }

    #[test]
    fn an_interval_of_95_percent_holds_the_truth_about_so_often() {
        // Exponential times of mean 1: the median is ln 2, the 90th percentile ln 10.
        for (q, truth) in [(0.5, 2_f64.ln()), (0.9, 10_f64.ln())] {
            let held = (0..200).filter(|&seed| {
                let mut rng = Rng::new(1_000 + seed);
                let values = (0..600).map(|_| rng.exponential(1.0)).collect::<Vec<_>>();
                let [low, high] = interval(&values, vec![600], q, seed);
                (low..=high).contains(&truth)
            });
            let held = held.count();
            assert!((180..200).contains(&held), "p{}: {held} of 200", q * 100.0);
        }
    }

    #[test]
    fn runs_that_differ_widen_the_interval() {
        // Two runs of constant speed: within a run nothing moves, between runs everything does.
        let values = [vec![1.0; 50], vec![2.0; 50]].concat();
        assert_eq!(interval(&values, vec![50, 50], 0.5, 1), [1.0, 2.0]);
        let same = [1.0; 100];
        assert_eq!(interval(&same, vec![50, 50], 0.5, 1), [1.0, 1.0]);
    }

    #[test]
    fn nothing_drawn_has_no_interval_and_large_runs_fewer_draws() {
        let bootstrap = Bootstrap::default();
        let none = |_: &[u32], out: &mut Vec<Option<f64>>| out.push(None);
        let scheme = Scheme::new(vec![4]);
        assert_eq!(bootstrap.intervals(&scheme, 10, 1, none), [None]);
        let empty = Scheme::new(vec![]);
        assert_eq!(bootstrap.intervals(&empty, 10, 1, none), [None]);
        assert_eq!(bootstrap.affordable(1_000), 1_000);
        assert_eq!(bootstrap.affordable(1_000_000), 400);
        assert_eq!(bootstrap.affordable(usize::MAX), 100);
    }
}
