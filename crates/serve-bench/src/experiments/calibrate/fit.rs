//! The mock's [cost model](CostModel) from observed times, by least squares.
//!
//! ```text
//! time = answers x edge + sum over steps of decode(batch) + prefill x prompt tokens + context x positions
//! ```
//!
//! `decode` is a table over batch sizes with straight lines between, so the whole is linear in what is
//! looked for. Each observation is divided by its own time, so that errors count relatively: a step of
//! a millisecond is as important as one of a hundred. Outliers, such as steps in which the machine did
//! something else, get less weight in a few rounds (Huber's weights, *Robust Estimation of a Location
//! Parameter*, 1964).
//!
//! What the observations cannot tell from the rest is left out and named: a batch size that was never seen is no point of
//! the table, and a term that goes with another one is within that.

use std::fmt;

use serde::{Deserialize, Serialize};
use serve_core::Span;
use serve_core::mock::{CostModel, InvalidCostModel};
use thiserror::Error;

/// A time that was observed, and what was done in it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Observation {
    /// How many steps.
    pub steps: f64,
    /// How many sequences each of them had, on average.
    pub batch: f64,
    /// Prompt tokens in all steps.
    pub prefill_tokens: f64,
    /// KV positions attended to, added up over sequences and steps.
    pub context_tokens: f64,
    /// How many answers went through the server's edge in that time.
    pub answers: f64,
    /// The time.
    pub seconds: f64,
}

/// Times that explain the observations best.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fit {
    /// `(batch size, step time)`, of the batch sizes that were observed.
    pub decode: Vec<(u32, Span)>,
    /// What a prompt token adds to a step.
    pub prefill_per_token: Span,
    /// What a position of context adds to a step.
    pub context_per_token: Span,
    /// What the way through the edge adds to an answer. It is no part of the cost model.
    pub edge: Span,
    /// What the observations do not determine: a term, which is zero here, or a batch size.
    pub undetermined: Vec<Term>,
    /// Of the relative errors, the one that half are below.
    pub error_median: f64,
    /// Of the relative errors, the largest.
    pub error_max: f64,
}

/// A coefficient of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Term {
    /// The step time of so many sequences.
    Decode(u32),
    /// What a prompt token adds.
    Prefill,
    /// What a position of context adds.
    Context,
    /// What the way through the edge adds.
    Edge,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decode(batch) => write!(f, "the step time of {batch} sequences"),
            Self::Prefill => f.write_str("the time of a prompt token"),
            Self::Context => f.write_str("the time of a position of context"),
            Self::Edge => f.write_str("the time of the edge"),
        }
    }
}

/// Observations that determine nothing.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "none of {0} observations shows a step time; look whether requests were answered, and measure more of them"
)]
pub(crate) struct NoStepTime(usize);

impl Fit {
    /// Step times for `batches`, increasing. O(observations x batches^3) at most.
    ///
    /// # Errors
    ///
    /// [`NoStepTime`] when not one of them was observed.
    pub(crate) fn of(observations: &[Observation], batches: &[u32]) -> Result<Self, NoStepTime> {
        let usable = observations.iter().filter(|it| it.seconds > 0.0);
        let usable = usable.copied().collect::<Vec<_>>();
        let (mut sizes, mut undetermined) = (batches.to_vec(), Vec::new());
        let (rows, solution, missing) = loop {
            if sizes.is_empty() || usable.is_empty() {
                return Err(NoStepTime(observations.len()));
            }
            let rows = usable.iter().map(|it| row(it, &sizes));
            let rows = rows.collect::<Vec<_>>();
            let (solution, missing) = robust(&rows, sizes.len() + OTHERS);
            // Without one of its points the table runs straight there, and the others are fitted to that.
            match missing.iter().find(|&&column| column < sizes.len()) {
                Some(&column) => undetermined.push(Term::Decode(sizes.remove(column))),
                None => break (rows, solution, missing),
            }
        };
        let others = [Term::Prefill, Term::Context, Term::Edge];
        undetermined.extend(missing.iter().map(|column| others[column - sizes.len()]));
        undetermined.sort_unstable();
        let mut errors = rows
            .iter()
            .map(|row| residual(row, &solution).abs())
            .collect::<Vec<_>>();
        errors.sort_by(f64::total_cmp);
        let (decode, others) = solution.split_at(sizes.len());
        let span = |secs: f64| Span::from_secs_f64(secs.max(0.0));
        let times = not_decreasing(decode).into_iter().map(span);
        Ok(Self {
            decode: sizes.iter().copied().zip(times).collect(),
            prefill_per_token: span(others[0]),
            context_per_token: span(others[1]),
            edge: span(others[2]),
            undetermined,
            error_median: errors[errors.len() / 2],
            error_max: errors[errors.len() - 1],
        })
    }

    /// The cost model of these times.
    ///
    /// # Errors
    ///
    /// [`InvalidCostModel`] when they are no function of the batch.
    pub(crate) fn cost_model(&self) -> Result<CostModel, InvalidCostModel> {
        CostModel::new(
            self.decode.clone(),
            self.prefill_per_token,
            self.context_per_token,
        )
    }
}

/// Columns beside those of the decode table: prefill, context, edge.
const OTHERS: usize = 3;
/// Relative errors from which an observation counts less.
const HUBER: f64 = 0.02;
const ROUNDS: usize = 20;

/// Coefficients of an equation whose right side is 1: everything divided by the observed time.
fn row(observation: &Observation, batches: &[u32]) -> Vec<f64> {
    let mut row = vec![0.0; batches.len() + OTHERS];
    for (index, weight) in interpolation(observation.batch, batches) {
        row[index] += weight * observation.steps;
    }
    row[batches.len()] = observation.prefill_tokens;
    row[batches.len() + 1] = observation.context_tokens;
    row[batches.len() + 2] = observation.answers;
    row.iter()
        .map(|value| value / observation.seconds)
        .collect()
}

/// The two points of the table that a batch size lies between, and how much of each it is.
fn interpolation(batch: f64, batches: &[u32]) -> [(usize, f64); 2] {
    let after = batches.partition_point(|&size| f64::from(size) < batch);
    if after == 0 {
        return [(0, 1.0), (0, 0.0)];
    }
    if after == batches.len() {
        return [(after - 1, 1.0), (0, 0.0)];
    }
    let (low, high) = (f64::from(batches[after - 1]), f64::from(batches[after]));
    let part = (batch - low) / (high - low);
    [(after - 1, 1.0 - part), (after, part)]
}

fn residual(row: &[f64], solution: &[f64]) -> f64 {
    row.iter().zip(solution).map(|(a, x)| a * x).sum::<f64>() - 1.0
}

/// Least squares with Huber's weights and no negative answer: the coefficient beside the table that
/// comes out most negative is taken for zero and the others are fitted again. Gives back the columns that
/// no row has, or that the columns before them explain, as well; they are zero.
fn robust(rows: &[Vec<f64>], columns: usize) -> (Vec<f64>, Vec<usize>) {
    let observed = |column: &usize| rows.iter().any(|row| row[*column] > 0.0);
    let (mut active, mut missing) = (0..columns).partition::<Vec<_>, _>(observed);
    let mut weights = vec![1.0; rows.len()];
    let mut solution = vec![0.0; columns];
    for _ in 0..ROUNDS {
        let found = loop {
            let found = match least_squares(rows, &weights, &active, columns) {
                Ok(found) => found,
                Err(explained) => {
                    active.retain(|column| *column != explained);
                    missing.push(explained);
                    continue;
                }
            };
            // What a coefficient adds to a typical time, so that seconds and microseconds compare.
            let adds = |column: usize| {
                found[column] * rows.iter().map(|row| row[column]).sum::<f64>() / rows.len() as f64
            };
            let others = active
                .iter()
                .copied()
                .filter(|column| *column + OTHERS >= columns);
            let negative = others.filter(|column| found[*column] < 0.0);
            match negative.min_by(|a, b| adds(*a).total_cmp(&adds(*b))) {
                Some(negative) => active.retain(|column| *column != negative),
                None => break found,
            }
        };
        for (weight, row) in weights.iter_mut().zip(rows) {
            *weight = (HUBER / residual(row, &found).abs().max(HUBER)).min(1.0);
        }
        solution = found;
    }
    (solution, missing)
}

/// The normal equations, by Cholesky's decomposition on columns scaled to one. Where they have no single
/// solution, the first column that those before it explain.
fn least_squares(
    rows: &[Vec<f64>],
    weights: &[f64],
    active: &[usize],
    columns: usize,
) -> Result<Vec<f64>, usize> {
    let sum = |a: usize, b: usize| {
        let products = rows
            .iter()
            .zip(weights)
            .map(|(row, weight)| weight * row[a] * row[b]);
        products.sum::<f64>()
    };
    let scale = active
        .iter()
        .map(|&column| sum(column, column).sqrt())
        .collect::<Vec<_>>();
    let size = active.len();
    let mut lower = vec![vec![0.0; size]; size];
    for i in 0..size {
        for j in 0..=i {
            let inner = (0..j).map(|k| lower[i][k] * lower[j][k]).sum::<f64>();
            let value = sum(active[i], active[j]) / (scale[i] * scale[j]) - inner;
            // What is left of a column that the ones before it explain is rounding.
            if i == j && value < 1e-10 {
                return Err(active[i]);
            }
            lower[i][j] = if i == j {
                value.sqrt()
            } else {
                value / lower[j][j]
            };
        }
    }
    let mut x = active.iter().zip(&scale).map(|(&column, scale)| {
        rows.iter()
            .zip(weights)
            .map(|(row, weight)| weight * row[column])
            .sum::<f64>()
            / scale
    });
    let mut x = x.by_ref().collect::<Vec<_>>();
    for i in 0..size {
        let inner = (0..i).map(|k| lower[i][k] * x[k]).sum::<f64>();
        x[i] = (x[i] - inner) / lower[i][i];
    }
    for i in (0..size).rev() {
        let inner = (i + 1..size).map(|k| lower[k][i] * x[k]).sum::<f64>();
        x[i] = (x[i] - inner) / lower[i][i];
    }
    let mut solution = vec![0.0; columns];
    for (at, &column) in active.iter().enumerate() {
        solution[column] = x[at] / scale[at];
    }
    Ok(solution)
}

/// The closest sequence that does not decrease: neighbours in the wrong order become their mean (pool
/// adjacent violators).
fn not_decreasing(values: &[f64]) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for &value in values {
        let mut pool = (value, 1);
        while let Some(&(mean, count)) = pools.last()
            && mean > pool.0
        {
            pools.pop();
            let all = count + pool.1;
            pool = (
                (mean * count as f64 + pool.0 * pool.1 as f64) / all as f64,
                all,
            );
        }
        pools.push(pool);
    }
    pools
        .into_iter()
        .flat_map(|(mean, count)| std::iter::repeat_n(mean, count))
        .collect()
}

#[cfg(test)]
mod tests {
    use serve_core::StepLoad;
    use serve_core::rng::Rng;

    use super::*;

    const BATCHES: [u32; 4] = [1, 4, 8, 16];

    fn truth() -> CostModel {
        let us = Span::from_micros;
        let decode = vec![
            (1, us(9_000)),
            (4, us(9_500)),
            (8, us(11_000)),
            (16, us(15_000)),
        ];
        CostModel::new(decode, us(70), Span::from_nanos(900)).unwrap()
    }

    /// What a clock would show of steps of `truth`, with `noise` of either sign.
    fn observed(noise: f64, spikes: f64) -> Vec<Observation> {
        let mut rng = Rng::new(7);
        let mut observations = Vec::new();
        for batch in BATCHES {
            for context in [32, 300, 1_000] {
                for prefill in [0, 0, 100, 400] {
                    let load = StepLoad {
                        segments: batch,
                        prefill_tokens: prefill,
                        context_tokens: u64::from(batch * context),
                    };
                    let mut seconds = truth().step(&load).as_secs_f64();
                    seconds *= 1.0 + noise * (2.0 * rng.next_f64() - 1.0);
                    if rng.next_f64() < spikes {
                        seconds *= 3.0;
                    }
                    let answers = if prefill > 0 { 1.0 } else { 0.0 };
                    observations.push(Observation {
                        steps: 1.0,
                        batch: f64::from(batch),
                        prefill_tokens: prefill as f64,
                        context_tokens: load.context_tokens as f64,
                        answers,
                        seconds: seconds + answers * 0.000_5,
                    });
                }
            }
        }
        observations
    }

    fn assert_close(fit: &Fit, tolerance: f64) {
        let truth = truth();
        let close = |found: Span, true_: Span| {
            let (found, true_) = (found.as_secs_f64(), true_.as_secs_f64());
            assert!(
                (found / true_ - 1.0).abs() < tolerance,
                "{found} is not {true_}: {fit:?}"
            );
        };
        for (&(_, found), &(_, true_)) in fit.decode.iter().zip(truth.points()) {
            close(found, true_);
        }
        close(fit.prefill_per_token, truth.prefill_per_token());
        close(fit.context_per_token, truth.context_per_token());
    }

    #[test]
    fn exact_times_give_the_coefficients_back() {
        let fit = Fit::of(&observed(0.0, 0.0), &BATCHES).unwrap();
        assert_close(&fit, 1e-3);
        assert!((fit.edge.as_secs_f64() - 0.000_5).abs() < 2e-6, "{fit:?}");
        assert!(fit.error_max < 1e-3 && fit.cost_model().is_ok());
    }

    #[test]
    fn a_few_steps_that_took_three_times_as_long_change_little() {
        let fit = Fit::of(&observed(0.01, 0.1), &BATCHES).unwrap();
        assert_close(&fit, 0.06);
        assert!(fit.error_max > 0.5, "the spikes are still seen");
    }

    #[test]
    fn what_is_not_there_is_zero_and_not_negative() {
        let mut observations = observed(0.0, 0.0);
        for it in &mut observations {
            // A device that is faster with more context is noise.
            it.seconds -= it.context_tokens * 1.5e-6;
        }
        let fit = Fit::of(&observations, &BATCHES).unwrap();
        assert_eq!(fit.context_per_token, Span::ZERO, "{fit:?}");
        assert!(fit.cost_model().is_ok(), "{fit:?}");
    }

    /// Whether the fit says of every observation what was observed.
    fn assert_explains(fit: &Fit, observations: &[Observation]) {
        let cost = fit.cost_model().unwrap();
        for it in observations {
            let load = StepLoad {
                segments: it.batch as u32,
                prefill_tokens: it.prefill_tokens as u64,
                context_tokens: it.context_tokens as u64,
            };
            let found = cost.step(&load).as_secs_f64() + it.answers * fit.edge.as_secs_f64();
            assert!(
                (found / it.seconds - 1.0).abs() < 1e-3,
                "{found} is not {it:?}: {fit:?}"
            );
        }
    }

    #[test]
    fn whatever_was_not_observed_is_named_and_the_rest_is_fitted() {
        type Kept = fn(&Observation) -> bool;
        let cases: [(Kept, &[Term]); 7] = [
            (|_| true, &[]),
            (|it| it.batch < 16.0, &[Term::Decode(16)]),
            (|it| it.batch != 4.0, &[Term::Decode(4)]),
            (
                |it| it.batch > 1.0 && it.batch < 16.0,
                &[Term::Decode(1), Term::Decode(16)],
            ),
            (|it| it.answers < 0.5, &[Term::Prefill, Term::Edge]),
            // One length of prompt: its tokens and the edge are one thing.
            (|it| it.prefill_tokens < 200.0, &[Term::Edge]),
            // One context: it is within the step time.
            (
                |it| it.answers < 0.5 && it.context_tokens == 300.0 * it.batch,
                &[Term::Prefill, Term::Context, Term::Edge],
            ),
        ];
        for (kept, undetermined) in cases {
            let mut observations = observed(0.0, 0.0);
            observations.retain(kept);
            let fit = Fit::of(&observations, &BATCHES).unwrap();
            assert_eq!(fit.undetermined, undetermined);
            assert_explains(&fit, &observations);
        }
    }

    #[test]
    fn one_observation_is_one_step_time() {
        let alike = vec![observed(0.0, 0.0)[0]; 9];
        let fit = Fit::of(&alike, &[1, 4]).unwrap();
        assert_eq!(fit.undetermined[0], Term::Decode(4));
        assert_explains(&fit, &alike);
    }

    #[test]
    fn no_step_time_is_an_error() {
        assert!(Fit::of(&[], &BATCHES).is_err());
        assert!(Fit::of(&observed(0.0, 0.0), &[]).is_err());
        let timeless = Observation {
            seconds: 0.0,
            ..observed(0.0, 0.0)[0]
        };
        let error = Fit::of(&[timeless], &BATCHES).unwrap_err();
        assert!(error.to_string().contains("none of 1 observations"));
    }

    #[test]
    fn larger_batches_are_not_faster() {
        assert_eq!(not_decreasing(&[1.0, 3.0, 2.0, 5.0]), [1.0, 2.5, 2.5, 5.0]);
        assert_eq!(not_decreasing(&[3.0, 2.0, 1.0]), [2.0, 2.0, 2.0]);
    }
}
