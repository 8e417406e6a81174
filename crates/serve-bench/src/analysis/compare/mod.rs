//! Is B better than A? A verdict with an interval for each measure, or none.
//!
//! Requests of one run wait for each other, so their number is no measure of how much is known. What
//! is compared is one statistic for each *unit*: a whole run, where there are several of each side, or
//! else a long section of the one run ("batch means": Conway, *Some Tactical Problems in Digital
//! Simulation*, Management Science 10, 1963). Where both sides were sent the same requests, units are
//! paired, and what the requests had in common cancels. All intervals together hold with the stated
//! confidence (Bonferroni), so that looking at many measures finds no more than looking at one.

pub(crate) mod comparable;
pub(crate) mod interval;
pub(crate) mod measure;
#[cfg(test)]
mod simulation;
pub(crate) mod text;
mod units;

use std::fmt;

use serde::Serialize;
use thiserror::Error;

use self::comparable::{Difference, Incomparable, Layer};
use self::measure::Measure;
use self::units::{Side, Units};
use crate::analysis::delivered::{Delivered, Void};
use crate::analysis::{Limits, source};
use crate::store::folder::Run;
use crate::store::manifest::Source;
use crate::workload::slo::Slo;

/// How to compare.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompareOptions {
    /// Judge goodput by these limits instead of those of A's manifest.
    pub slo: Option<Slo>,
    /// How surely all intervals together hold.
    pub confidence: f64,
    /// Layers that may differ. The runtime always may.
    pub allowed: Vec<Layer>,
    /// Whether runs whose client was the bottleneck may be compared.
    pub allow_void: bool,
}

impl Default for CompareOptions {
    fn default() -> Self {
        Self {
            slo: None,
            confidence: 0.95,
            allowed: Vec::new(),
            allow_void: false,
        }
    }
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// B is better than A.
    Better,
    /// B is worse than A.
    Worse,
    /// Better in some measures, worse in others.
    Mixed,
    /// The interval holds zero. It does not say that there is no difference.
    NoDifferenceShown,
    /// There is too little to say anything.
    TooFew,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Mixed => "better in some, worse in others",
            Self::NoDifferenceShown => "no difference shown",
            Self::TooFew => "too few to say",
        })
    }
}

/// One measure on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Line {
    /// Which.
    pub measure: Measure,
    /// Over all of A: milliseconds, or a share.
    pub a: Option<f64>,
    /// Over all of B.
    pub b: Option<f64>,
    /// B against A, a mean over units: +0.1 is a tenth more time, or ten percentage points more.
    pub change: Option<f64>,
    /// From and to.
    pub interval: Option<[f64; 2]>,
    /// What B is in this.
    pub verdict: Verdict,
}

/// A comparison of B with A.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Comparison {
    /// Where the rows come from; of several sources, the furthest from a server.
    pub source: Source,
    /// What was compared with what.
    pub units: String,
    /// In what the manifests differ.
    pub differences: Vec<Difference>,
    /// How surely all intervals together hold.
    pub confidence: f64,
    /// One for each measure.
    pub lines: Vec<Line>,
    /// All lines together.
    pub verdict: Verdict,
}

/// Runs that are not compared.
#[derive(Debug, Error)]
pub(crate) enum CompareError {
    /// A side is empty.
    #[error("nothing to compare: A has {a} runs and B has {b}")]
    Empty {
        /// Runs of A.
        a: usize,
        /// Runs of B.
        b: usize,
    },
    /// The runs of one side are not of the same thing.
    #[error("the runs of {side} are no repeats of each other: {difference}")]
    NoRepeats {
        /// `A` or `B`.
        side: char,
        /// Where the first differs from another; A and B stand for these two.
        difference: Box<Difference>,
    },
    /// The client of a run was the bottleneck.
    #[error("a run of {side} is void: {reason}; --allow-void compares it all the same")]
    Void {
        /// `A` or `B`.
        side: char,
        /// Why.
        reason: Void,
    },
    /// The sides differ in what must be the same.
    #[error(transparent)]
    Incomparable(#[from] Incomparable),
}

/// Compares the repeats of B with those of A.
///
/// # Errors
///
/// [`CompareError`] when a side is empty, holds runs of several things or a void one, or when the
/// manifests differ in a layer that may not.
pub(crate) fn compare(
    a: &[Run],
    b: &[Run],
    options: &CompareOptions,
) -> Result<Comparison, CompareError> {
    let (Some(first_a), Some(first_b)) = (a.first(), b.first()) else {
        return Err(CompareError::Empty {
            a: a.len(),
            b: b.len(),
        });
    };
    for (side, runs) in [('A', a), ('B', b)] {
        let manifests = runs.iter().map(|run| &run.manifest);
        if let Some(difference) = comparable::odd_one_out(manifests) {
            let difference = Box::new(difference);
            return Err(CompareError::NoRepeats { side, difference });
        }
        let mut reasons = runs.iter().flat_map(|run| Delivered::of_run(run).void);
        if let (Some(reason), false) = (reasons.next(), options.allow_void) {
            return Err(CompareError::Void { side, reason });
        }
    }
    let differences = comparable::differences(&first_a.manifest, &first_b.manifest);
    // Repeats may have seeds of their own, as long as both sides have the same ones.
    let same_workload = units::same_workload(a, b);
    let counts = |difference: &Difference| match difference.layer {
        Layer::Runtime => false,
        Layer::Workload => !same_workload && !options.allowed.contains(&Layer::Workload),
        layer => !options.allowed.contains(&layer),
    };
    let forbidden = differences
        .iter()
        .filter(|it| counts(it))
        .cloned()
        .collect::<Vec<_>>();
    if !forbidden.is_empty() {
        return Err(Incomparable(forbidden).into());
    }
    let limits = Limits::of(a, options.slo);
    let (side_a, side_b) = (Side::new(a, &limits), Side::new(b, &limits));
    let measures = Measure::all(!limits.is_empty());
    let units = Units::new(&side_a, &side_b, units::pairs(a, b));
    let lines = lines(&side_a, &side_b, &units, &measures, options.confidence);
    Ok(Comparison {
        source: source(a.iter().chain(b)),
        units: units.to_string(),
        differences: differences
            .into_iter()
            .filter(|it| it.layer != Layer::Workload || !same_workload)
            .collect(),
        confidence: options.confidence,
        verdict: overall(&lines),
        lines,
    })
}

fn lines(
    a: &Side<'_>,
    b: &Side<'_>,
    units: &Units<'_>,
    measures: &[Measure],
    confidence: f64,
) -> Vec<Line> {
    let each = 1.0 - (1.0 - confidence) / measures.len() as f64;
    let line = |&measure: &Measure| {
        let found = units.difference(measure, each);
        let interval = found.map(|it| it.interval.map(|end| measure.change(end)));
        Line {
            measure,
            a: a.whole(measure),
            b: b.whole(measure),
            change: found.map(|it| measure.change(it.mean)),
            interval,
            verdict: verdict(measure, interval),
        }
    };
    measures.iter().map(line).collect()
}

fn verdict(measure: Measure, interval: Option<[f64; 2]>) -> Verdict {
    let (more, less) = match measure.is_time() {
        true => (Verdict::Worse, Verdict::Better),
        false => (Verdict::Better, Verdict::Worse),
    };
    match interval {
        None => Verdict::TooFew,
        Some([low, _]) if low > 0.0 => more,
        Some([_, high]) if high < 0.0 => less,
        Some(_) => Verdict::NoDifferenceShown,
    }
}

fn overall(lines: &[Line]) -> Verdict {
    let any = |verdict| lines.iter().any(|line| line.verdict == verdict);
    match (any(Verdict::Better), any(Verdict::Worse)) {
        (true, true) => Verdict::Mixed,
        (true, false) => Verdict::Better,
        (false, true) => Verdict::Worse,
        (false, false) if any(Verdict::NoDifferenceShown) => Verdict::NoDifferenceShown,
        (false, false) => Verdict::TooFew,
    }
}
