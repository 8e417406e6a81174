//! A sweep in virtual time, on all cores: no two of its points have anything to do with each other.
//!
//! A simulation has no clock, so what else the machine does changes no number, and the results and
//! their order are those of one core. A search is not simulated: each of its points depends on the
//! ones before.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serve_core::Span;
use thiserror::Error;

use super::{Loads, Repeat, Results, Sweep, folder};
use crate::analysis::delivered::Delivered;
use crate::experiments::servers::ServerSettings;
use crate::experiments::simulate::{self, ModelError, ServerModel, SimulateError, Simulation};
use crate::store::folder::RunFolder;
use crate::workload::{Workload, WorkloadError};

/// What a simulated sweep is besides its points.
#[derive(Clone, Debug)]
pub(crate) struct Pretended<'a> {
    /// Settings of every server, below those of a point.
    pub base: ServerSettings,
    /// The folder of all runs; a run that is there already is an error.
    pub out: &'a Path,
    /// Below which folder the files that workloads name are.
    pub files: &'a Path,
    /// How many points are simulated at once.
    pub threads: NonZeroUsize,
}

/// A sweep that cannot be simulated.
#[derive(Debug, Error)]
pub(crate) enum SweepError {
    /// A search was asked for.
    #[error("a search is measured, not simulated; give the loads by --rates or --clients")]
    Search,
    /// The workload cannot be made.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// There is no such server.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A point cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

/// One combination at one load, with one seed.
struct Point<'a> {
    settings: &'a ServerSettings,
    load: Option<f64>,
    repeat: u32,
}

impl Sweep {
    /// Simulates every point, as many at once as there are threads.
    ///
    /// # Errors
    ///
    /// [`SweepError`] of the first point, in the order of the sweep, that cannot be simulated.
    pub(crate) fn simulate(&self, how: &Pretended<'_>) -> Result<Results, SweepError> {
        if matches!(self.loads, Loads::Search(_)) {
            return Err(SweepError::Search);
        }
        let (combinations, loads) = (self.combinations(), self.loads.fixed());
        let repeats = self.repeats.max(1);
        let at = |settings| {
            let loads = loads.iter();
            loads.flat_map(move |&load| (0..repeats).map(move |repeat| (settings, load, repeat)))
        };
        let points = combinations.iter().flat_map(at);
        let points = points.map(|(settings, load, repeat)| Point {
            settings,
            load,
            repeat,
        });
        let points: Vec<_> = points.collect();
        let simulated = in_order(&points, how.threads, |point| {
            self.simulate_point(point, how)
        });
        let simulated = simulated.into_iter().collect::<Result<Vec<_>, _>>()?;
        let lines = points
            .chunks(repeats as usize)
            .zip(simulated.chunks(repeats as usize));
        let lines = lines.map(|(points, repeats)| {
            let Point { settings, load, .. } = &points[0];
            self.line(settings, *load, repeats)
        });
        Ok(Results {
            lines: lines.collect(),
            searches: Vec::new(),
            whole: true,
        })
    }

    fn simulate_point(&self, point: &Point<'_>, how: &Pretended<'_>) -> Result<Repeat, SweepError> {
        let name = folder(point.settings, point.load, point.repeat);
        let workload = Workload::new(self.spec_at(point.load, point.repeat), how.files)?;
        let server = ServerModel::new(&how.base.clone().and(point.settings))?;
        let simulation = Simulation {
            edge: Span::ZERO,
            folder: Some(RunFolder::at(how.out.join(&name))),
        };
        let (run, _) = simulate::run(&workload, &server, &simulation)?;
        let void = Delivered::of_run(&run).void;
        Ok(Repeat {
            void: void.iter().map(|why| format!("{name}: {why}")).collect(),
            folder: name,
            run,
        })
    }
}

/// What `work` makes of each item, in the order of the items, on up to `threads` threads.
fn in_order<T: Sync, R: Send>(
    items: &[T],
    threads: NonZeroUsize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else {
                return;
            };
            let result = work(item);
            // A worker that panics ends the scope, so nobody sees a list that it left half-way.
            if let Ok(mut done) = done.lock() {
                done.push((index, result));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.get().min(items.len()) {
            scope.spawn(worker);
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items_not_of_their_ends() {
        let items: Vec<u64> = (0..50).collect();
        for threads in [1, 3, 80] {
            let threads = NonZeroUsize::new(threads).unwrap();
            let results = in_order(&items, threads, |&item| {
                // Later items are done sooner.
                (0..(50 - item) * 1_000).fold(item, |sum, n| sum ^ std::hint::black_box(n ^ n))
            });
            assert_eq!(results, items);
        }
    }
}
