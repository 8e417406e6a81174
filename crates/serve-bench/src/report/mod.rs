//! A report of one run, of repeats of it, or of many runs beside each other: one HTML file with tables
//! and drawings, every number of which is computed again from rows and manifests.
//!
//! [`Named`] is what a report is about: runs of one thing under a name. [`sections`] turns these into
//! parts, and [`html`] into a page. Commands that make many runs build their own pages from the same
//! parts.

pub(crate) mod chart;
pub(crate) mod distributions;
pub(crate) mod html;
pub(crate) mod load;
pub(crate) mod over_time;
pub(crate) mod sections;
pub(crate) mod ticks;
pub(crate) mod timeline;
pub(crate) mod tree;
pub(crate) mod waterfall;

use crate::analysis::{Analysis, AnalysisOptions, requests_of};
use crate::store::folder::Run;
use crate::store::timeline::Sample;

/// Runs of one thing, under a name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// The name, such as the setting that sets it apart.
    pub name: String,
    /// Repeats of it.
    pub runs: Vec<Run>,
    /// What the server's counters said during the first, if they were asked.
    pub timeline: Vec<Sample>,
    /// What the runs say together.
    pub analysis: Analysis,
}

impl Named {
    /// Analyses runs.
    pub(crate) fn new(
        name: impl Into<String>,
        runs: Vec<Run>,
        timeline: Vec<Sample>,
        options: &AnalysisOptions,
    ) -> Self {
        Self {
            name: name.into(),
            analysis: Analysis::of(&runs, options),
            runs,
            timeline,
        }
    }

    /// How many clients of a closed loop sent the requests; `None` for an open loop.
    pub(crate) fn clients(&self) -> Option<f64> {
        let requests = self.runs.iter().flat_map(requests_of);
        let clients = requests.map(|request| request.first().client);
        let most = clients.collect::<Option<Vec<_>>>()?.into_iter().max()?;
        Some(f64::from(most) + 1.0)
    }
}
