//! What is compared with what: runs with runs, or sections of one run with sections of the other.

use std::collections::BTreeMap;
use std::fmt;

use super::interval::{self, Difference};
use super::measure::Measure;
use crate::analysis::request::{Kept, Request};
use crate::analysis::{Limits, requests_of};
use crate::store::folder::Run;

/// A section has at least so many requests, so that neighbouring sections have little in common and a
/// tail is more than one request.
const SECTION_MIN: usize = 100;
/// Into how many sections a run is cut if it is long enough, and at least.
const SECTIONS: [usize; 2] = [10, 5];

/// The requests of one side, run by run, in order of schedule.
pub(super) struct Side<'a> {
    runs: Vec<Unit<'a>>,
}

/// Requests that give one statistic, and whether each kept every SLO.
#[derive(Clone, Default)]
struct Unit<'a> {
    requests: Vec<Request<'a>>,
    kept: Vec<Kept>,
}

/// One unit for each statistic on both sides.
pub(super) struct Units<'a> {
    a: Vec<Unit<'a>>,
    b: Vec<Unit<'a>>,
    paired: bool,
    sections: bool,
}

impl<'a> Side<'a> {
    pub(super) fn new(runs: &'a [Run], limits: &Limits) -> Self {
        let unit = |run| Unit::new(requests_of(run), limits);
        Self {
            runs: runs.iter().map(unit).collect(),
        }
    }

    /// A measure over all runs together.
    pub(super) fn whole(&self, measure: Measure) -> Option<f64> {
        let mut all = Unit::default();
        for run in &self.runs {
            all.requests.extend(run.requests.iter().cloned());
            all.kept.extend(&run.kept);
        }
        all.measure(measure)
    }
}

impl<'a> Unit<'a> {
    fn new(requests: Vec<Request<'a>>, limits: &Limits) -> Self {
        let kept = requests.iter().map(|it| it.kept(limits.of_request(it)));
        Self {
            kept: kept.collect(),
            requests,
        }
    }

    fn measure(&self, measure: Measure) -> Option<f64> {
        measure.of(&self.requests, &self.kept)
    }

    /// Its requests in sections of equal length, in order.
    fn sections(&self, sections: usize) -> Vec<Self> {
        let count = self.requests.len();
        let cut = |section: usize| section * count / sections;
        let section = |section| Self {
            requests: self.requests[cut(section)..cut(section + 1)].to_vec(),
            kept: self.kept[cut(section)..cut(section + 1)].to_vec(),
        };
        (0..sections).map(section).collect()
    }

    /// Only the requests that the other has too, in the other's order.
    fn matched(&self, other: &Self) -> Self {
        let positions = self.requests.iter().zip(0..);
        let positions = positions.map(|(request, at): (_, usize)| (request.index(), at));
        let positions = positions.collect::<BTreeMap<_, _>>();
        let found = other
            .requests
            .iter()
            .filter_map(|it| positions.get(&it.index()));
        let (requests, kept) = found
            .map(|&at| (self.requests[at].clone(), self.kept[at]))
            .unzip();
        Self { requests, kept }
    }
}

impl<'a> Units<'a> {
    /// `pairs` says of each run of A which of B was sent the same requests, if each has its own.
    pub(super) fn new(a: &Side<'a>, b: &Side<'a>, pairs: Option<Vec<usize>>) -> Self {
        let paired = pairs.is_some();
        if let ([a], [b]) = (&*a.runs, &*b.runs) {
            let (a, b) = match paired {
                true => (a.matched(b), b.matched(&a.matched(b))),
                false => (a.clone(), b.clone()),
            };
            let least = a.requests.len().min(b.requests.len());
            let long_enough = |sections: &&usize| least / **sections >= SECTION_MIN;
            let sections = SECTIONS.iter().find(long_enough).copied().unwrap_or(0);
            let cut = |side: &Unit<'a>| side.sections(sections);
            return Self {
                a: cut(&a),
                b: cut(&b),
                paired,
                sections: true,
            };
        }
        let order = pairs.unwrap_or_else(|| (0..b.runs.len()).collect());
        let b = order.into_iter().map(|run| b.runs[run].clone()).collect();
        Self {
            a: a.runs.clone(),
            b,
            paired,
            sections: false,
        }
    }

    /// How B differs from A on the measure's scale. Absent where fewer than two units of a side have a
    /// value.
    pub(super) fn difference(&self, measure: Measure, confidence: f64) -> Option<Difference> {
        let scaled = |unit: &Unit<'_>| measure.scaled(unit.measure(measure)?);
        if self.paired {
            let pairs = self.a.iter().zip(&self.b);
            let differences = pairs.filter_map(|(a, b)| Some(scaled(b)? - scaled(a)?));
            return interval::paired(&differences.collect::<Vec<_>>(), confidence);
        }
        let side = |units: &[Unit<'_>]| units.iter().filter_map(scaled).collect::<Vec<_>>();
        interval::unpaired(&side(&self.a), &side(&self.b), confidence)
    }
}

impl fmt::Display for Units<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paired = match self.paired {
            true => "paired by request",
            false => "not paired: they were not sent the same requests",
        };
        match (self.sections, self.a.first()) {
            (true, None) => write!(
                f,
                "one run each, too short to be cut into {} sections of {SECTION_MIN} requests; repeat the runs",
                SECTIONS[1]
            ),
            (true, Some(section)) => write!(
                f,
                "one run each, in {} sections of {} requests, {paired}; what differs from run to run is not in the interval",
                self.a.len(),
                section.requests.len(),
            ),
            (false, _) => write!(
                f,
                "{} runs of A, {} of B, {paired}",
                self.a.len(),
                self.b.len()
            ),
        }
    }
}

/// For each run of A the run of B that was sent the same requests, each used once; `None` unless that
/// pairs all runs of both sides.
pub(super) fn pairs(a: &[Run], b: &[Run]) -> Option<Vec<usize>> {
    let mut free = (0..b.len()).collect::<Vec<_>>();
    let mut partner = |run: &Run| {
        let place = free.iter().position(|&at| hash(&b[at]) == hash(run))?;
        Some(free.remove(place))
    };
    let pairs = a.iter().map(&mut partner).collect::<Option<Vec<_>>>()?;
    (a.len() == b.len()).then_some(pairs)
}

/// Whether both sides were sent the same requests, whatever the number of repeats.
pub(super) fn same_workload(a: &[Run], b: &[Run]) -> bool {
    let sent = |runs: &[Run]| {
        let mut hashes = runs
            .iter()
            .map(|run| hash(run).to_owned())
            .collect::<Vec<_>>();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    };
    sent(a) == sent(b)
}

fn hash(run: &Run) -> &str {
    &run.manifest.workload.requests_sha256
}
