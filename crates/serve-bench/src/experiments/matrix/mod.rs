//! The control matrix: pairs of conditions on one binary, each pair one setting apart, each *proved* to
//! differ before it is measured, and beside each measured number the one that others have published.
//!
//! It does not know a server's speed beforehand: two short points measure what one answer takes alone
//! and what the server can do at most, and loads, durations and limits follow from these. So the same
//! matrix fits a mock, a laptop's processor and a GPU.

mod beside;
mod proof;
mod report;
mod scale;
mod sections;
mod seen;

pub(crate) use beside::Pair;
pub(crate) use proof::{NotShown, Proof};
pub(crate) use report::{headlines, labels, report, tables};
pub(crate) use scale::{Effort, Scale};
pub(crate) use sections::named;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use thiserror::Error;

use crate::analysis::table::Table;
use crate::experiments::series::{Point, PointError, Series};
use crate::experiments::servers::{Effective, ServerSettings};
use crate::figure::Figure;
use crate::report::chart::Chart;
use crate::workload::spec::Spec;
use beside::Beside;
use proof::Proofs;

/// What is measured, and with how much effort.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// How many requests a point has.
    pub effort: Effort,
    /// Sections, by name; empty is all.
    pub only: Vec<String>,
    /// How long it may take; the owner of the series stops it then.
    pub budget: Option<Duration>,
    /// What the hardware costs an hour, in dollars.
    pub price_per_hour: Option<f64>,
}

/// A part of the matrix that is done.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Section {
    /// Its name.
    pub name: String,
    /// What it asks.
    pub question: String,
    /// Ours beside the published.
    pub tables: Vec<Table>,
    /// The pairs that published experiments are known for.
    pub headlines: Vec<Pair>,
    /// Our numbers in these tables.
    pub numbers: Vec<Figure>,
    /// What can be seen better than read.
    #[serde(skip)]
    pub charts: Vec<Chart>,
    /// How the conditions differ.
    pub proofs: Vec<Proof>,
    /// What should have been different and was not.
    pub not_shown: Vec<NotShown>,
    /// Points whose load was not delivered, and why.
    pub void: Vec<(String, String)>,
}

/// What came of a matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Measured {
    /// What the loads follow from.
    pub scale: Scale,
    /// Sections in order.
    pub sections: Vec<Section>,
    /// Sections that were asked for and not measured, and why.
    pub missing: Vec<(String, String)>,
    /// Whether somebody said stop.
    pub stopped: bool,
}

/// A matrix that cannot be measured.
#[derive(Debug, Error)]
pub(crate) enum MatrixError {
    /// A point failed.
    #[error("{id}: {cause}")]
    Point {
        /// The point.
        id: String,
        /// Why.
        cause: PointError,
    },
    /// Two conditions are no pair.
    #[error("{pair}: {cause}")]
    Proof {
        /// The pair.
        pair: String,
        /// Why.
        cause: crate::experiments::servers::NotOneApart,
    },
    /// A server does not say what it has, so that nothing can be proved.
    #[error("{0}: the server does not show its settings, so the pair cannot be proved to differ")]
    NoConfig(String),
    /// What was proved before cannot be read or written.
    #[error("{path}: {cause}", path = path.display())]
    Proofs {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A load cannot be made.
    #[error("{0}")]
    Load(String),
}

impl Measured {
    /// Every number, with the name of its section before its own.
    pub(crate) fn numbers(&self) -> Vec<Figure> {
        let scale = &self.scale;
        let scale = [
            ("first token of a request alone", scale.first_token_s, "s"),
            ("answer of a request alone", scale.answer_s, "s"),
            ("all places taken", scale.capacity_per_s, "answers/s"),
        ];
        let scale = scale.map(|(name, value, unit)| Figure::new(name, value, unit));
        let scale = scale.into_iter().map(|figure| ("scale", figure));
        let sections = self.sections.iter().flat_map(|section| {
            let numbers = section.numbers.iter().cloned();
            numbers.map(|figure| (section.name.as_str(), figure))
        });
        let named = |(section, figure): (&str, Figure)| Figure {
            name: format!("{section}: {}", figure.name),
            ..figure
        };
        scale.chain(sections).map(named).collect()
    }
}

impl MatrixError {
    fn is_stop(&self) -> bool {
        matches!(
            self,
            Self::Point {
                cause: PointError::Stopped,
                ..
            }
        )
    }
}

/// Measures the matrix, section by section. A stop ends it with what there is.
///
/// # Errors
///
/// [`MatrixError`] when a point cannot be measured or a pair does not differ in one setting; what was
/// measured stays in its folders.
pub(crate) async fn measure(series: &mut Series, plan: &Plan) -> Result<Measured, MatrixError> {
    let began = Instant::now();
    let mut bench = Bench {
        proofs: Proofs::read(series.out())?,
        series,
        plan: plan.clone(),
        scale: Scale::default(),
        section: Section::default(),
    };
    let mut outcome = Measured::default();
    match bench.measure_scale().await {
        Ok(scale) => bench.scale = scale,
        Err(error) if error.is_stop() => outcome.stopped = true,
        Err(error) => return Err(error),
    }
    outcome.scale = bench.scale.clone();
    let asked = |name: &&str| plan.only.is_empty() || plan.only.iter().any(|only| only == *name);
    let all = sections::NAMES.iter().filter(|(name, _)| asked(name));
    let bar = bench
        .series
        .live()
        .parts("matrix", all.clone().count() as u64);
    for (done, (name, question)) in (0..).zip(all) {
        let used_up = || plan.budget.is_some_and(|budget| began.elapsed() >= budget);
        let missing = |why: &str| {
            let why = if used_up() {
                "the budget was used up"
            } else {
                why
            };
            ((*name).to_owned(), why.to_owned())
        };
        if outcome.stopped || used_up() {
            outcome.missing.push(missing("stopped"));
            continue;
        }
        bar.at(done, name);
        bench.section = Section {
            name: (*name).to_owned(),
            question: (*question).to_owned(),
            ..Section::default()
        };
        match sections::measure(&mut bench, name).await {
            Ok(()) => outcome.sections.push(std::mem::take(&mut bench.section)),
            Err(error) if error.is_stop() => {
                outcome.stopped = true;
                outcome.missing.push(missing("stopped half-way"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(outcome)
}

/// What a section works with.
struct Bench<'a> {
    series: &'a mut Series,
    plan: Plan,
    scale: Scale,
    proofs: Proofs,
    section: Section,
}

impl Bench<'_> {
    /// Measures a point, unless it is there.
    async fn point(
        &mut self,
        id: &str,
        settings: &ServerSettings,
        spec: Spec,
    ) -> Result<Point, MatrixError> {
        let point = self.series.point(id, settings, spec).await;
        let point = point.map_err(|cause| MatrixError::Point {
            id: id.to_owned(),
            cause,
        })?;
        let void = point.void.iter().map(|why| (id.to_owned(), why.clone()));
        self.section.void.extend(void);
        Ok(point)
    }

    /// Proves that two conditions are one setting apart, before anything is sent to the second.
    async fn prove(
        &mut self,
        pair: &str,
        off: &ServerSettings,
        on: &ServerSettings,
    ) -> Result<(), MatrixError> {
        let mut of = [None, None];
        for (effective, settings) in of.iter_mut().zip([off, on]) {
            let known = self.proofs.known(settings);
            *effective = match known {
                Some(known) => Some(known),
                None => {
                    let read = self.series.effective(settings).await;
                    let id = || pair.to_owned();
                    let read = read.map_err(|cause| MatrixError::Point { id: id(), cause })?;
                    let read = read.ok_or_else(|| MatrixError::NoConfig(id()))?;
                    self.proofs.keep(settings, &read)?;
                    Some(read)
                }
            };
        }
        let [Some(off), Some(on)] = of else {
            return Err(MatrixError::NoConfig(pair.to_owned()));
        };
        let difference = off.one_apart(&on);
        let difference = difference.map_err(|cause| MatrixError::Proof {
            pair: pair.to_owned(),
            cause,
        })?;
        self.section.proofs.push(Proof {
            pair: pair.to_owned(),
            difference,
        });
        Ok(())
    }

    /// Proves that two loads of one server differ in one key of their workload, and in nothing else.
    fn prove_load(&mut self, pair: &str, off: &Spec, on: &Spec) -> Result<(), MatrixError> {
        let keys = |spec: &Spec| {
            let keys = spec.to_toml().map_err(|error| error.to_string());
            let keys = keys.and_then(|text| toml::from_str(&text).map_err(|it| it.to_string()));
            keys.map(Effective).map_err(MatrixError::Load)
        };
        let difference = keys(off)?.one_apart(&keys(on)?);
        let mut difference = difference.map_err(|cause| MatrixError::Proof {
            pair: pair.to_owned(),
            cause,
        })?;
        difference.name = format!("workload: {}", difference.name);
        self.section.proofs.push(Proof {
            pair: pair.to_owned(),
            difference,
        });
        Ok(())
    }

    /// Puts a table beside the published into the section.
    fn show(&mut self, beside: Beside) {
        let (table, numbers, headlines) = beside.end();
        self.section.tables.push(table);
        self.section.numbers.extend(numbers);
        self.section.headlines.extend(headlines);
    }

    /// Notes what the measurement itself must show of a pair, if the experiment is to mean anything.
    fn expect(&mut self, what: &str, shown: bool, seen: impl std::fmt::Display) {
        if !shown {
            self.section.not_shown.push(NotShown {
                what: what.to_owned(),
                seen: seen.to_string(),
            });
        }
    }
}
