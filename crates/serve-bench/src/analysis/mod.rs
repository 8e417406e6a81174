//! What a run says: every number from its rows and its manifest, none from anywhere else.
//!
//! Several runs of the same thing are analysed together as repeats. Requests are the unit: a retry is
//! an attempt of its request. Latencies are of answered requests, and beside each stands how many were
//! not. The words are those of [`definitions`].

pub(crate) mod bootstrap;
pub(crate) mod compare;
pub(crate) mod cost;
pub mod definitions;
pub(crate) mod delivered;
pub(crate) mod fairness;
pub(crate) mod group;
pub mod histograms;
pub(crate) mod little;
pub(crate) mod quantile;
pub(crate) mod rates;
pub(crate) mod request;
pub(crate) mod retries;
pub(crate) mod steady;
pub(crate) mod strata;
pub mod summary;
pub mod table;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod tokens;

pub use quantile::{median, quantile};

use std::collections::BTreeMap;

use serde::Serialize;
use serve_core::Span;

use self::bootstrap::{Bootstrap, Scheme};
use self::cost::Cost;
use self::fairness::{Fairness, Share};
use self::group::Group;
use self::little::Little;
use self::rates::Rates;
use self::request::Request;
use self::retries::Retries;
use self::steady::Thirds;
use self::strata::Cuts;
use crate::analysis::definitions::Metric;
use crate::analysis::delivered::Delivered;
use crate::store::folder::Run;
use crate::store::manifest::Source;
use crate::store::record::Outcome;
use crate::workload::slo::Slo;

/// What may be asked beyond what the manifests say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AnalysisOptions {
    /// Judge goodput by these limits instead of those of the manifests.
    pub slo: Option<Slo>,
    /// What the hardware costs, in dollars an hour.
    pub price_per_hour: Option<f64>,
    /// Where short ends and long begins.
    pub cuts: Cuts,
    /// After how long without a first token a request is starved. Unset: ten times the limit on TTFT,
    /// or the median TTFT where there is no limit.
    pub starved_after: Option<Span>,
    /// How intervals are drawn.
    pub bootstrap: Bootstrap,
}

/// Everything that the tables and the report say about a run, or about several repeats of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Where the rows come from; of several sources, the furthest from a server.
    pub source: Source,
    /// How many runs were put together.
    pub runs: usize,
    /// Whether a run was stopped before its time.
    pub interrupted: bool,
    /// The limits of goodput, for all and for single classes.
    pub slo: Slo,
    /// Where a class has its own.
    pub slo_by_class: BTreeMap<String, Slo>,
    /// Of each run: whether the load that was asked for is the load that was sent.
    pub delivered: Vec<Delivered>,
    /// Rates, and the time that they are of.
    pub rates: Rates,
    /// Everything first, then its parts.
    pub groups: Vec<Group>,
    /// Where short ends and long begins, in tokens.
    pub cuts: Cuts,
    /// Attempts that did not end well, by cause.
    pub causes: BTreeMap<String, u64>,
    /// Attempts beside requests.
    pub retries: Retries,
    /// Between tenants and between classes, where there are several.
    pub fairness: Vec<Fairness>,
    /// Of each run: the mean in flight beside rate times stay.
    pub little: Vec<Option<Little>>,
    /// The first, middle and last third of each run.
    pub thirds: Vec<Option<Thirds>>,
    /// What a million tokens cost, if a price was given.
    pub cost: Option<Cost>,
    /// What was drawn again for the intervals.
    pub scheme: Scheme,
    /// How it was drawn.
    pub bootstrap: Bootstrap,
}

impl Analysis {
    /// Puts runs of the same thing together. O(rows log rows), plus the resamples.
    pub fn of(runs: &[Run], options: &AnalysisOptions) -> Self {
        let of_run = runs.iter().map(requests_of).collect::<Vec<_>>();
        let scheme = Scheme::new(of_run.iter().map(Vec::len).collect());
        let requests = of_run.concat();
        let limits = Limits::of(runs, options.slo);
        let kept = requests
            .iter()
            .map(|request| request.kept(limits.of_request(request)))
            .collect::<Vec<_>>();
        let cuts = options.cuts.or_medians(&requests);
        let parts = strata::parts(&requests, cuts);
        let (groups, resamples) =
            group::groups(&requests, &kept, parts, &scheme, &options.bootstrap);
        let rates = Rates::of(&of_run, &groups[0]);
        let limit_ms = limits.slo.ttft.map(Span::as_millis_f64);
        let usual_ms = limit_ms.or_else(|| groups[0].percentile_ms(Metric::Ttft, 0.5));
        let starved_after = options
            .starved_after
            .or_else(|| Some(Span::from_nanos((usual_ms? * 1e7) as u64)));
        let cost =
            |per_hour| Cost::new(per_hour, rates.output_tokens_per_s, rates.good_tokens_per_s);
        Self {
            source: source(runs),
            runs: runs.len(),
            interrupted: runs.iter().any(|run| run.manifest.artifact.interrupted),
            delivered: runs.iter().map(Delivered::of_run).collect(),
            causes: causes(&requests),
            retries: Retries::of(&requests),
            fairness: fairness(&requests, starved_after),
            little: of_run.iter().map(|requests| little(requests)).collect(),
            thirds: of_run.iter().map(|requests| thirds(requests)).collect(),
            cost: options.price_per_hour.map(cost),
            rates,
            groups,
            cuts,
            scheme,
            bootstrap: Bootstrap {
                resamples,
                ..options.bootstrap
            },
            slo: limits.slo,
            slo_by_class: limits.by_class,
        }
    }

    /// All requests.
    pub fn all(&self) -> &Group {
        &self.groups[0]
    }

    /// Requests due a second, a mean over runs; absent in a closed loop.
    pub fn offered_per_s(&self) -> Option<f64> {
        mean(self.delivered.iter().filter_map(|it| it.offered_per_s))
    }

    /// The same requests actually sent a second.
    pub fn delivered_per_s(&self) -> Option<f64> {
        mean(self.delivered.iter().filter_map(|it| it.delivered_per_s))
    }

    /// Whether the client was the bottleneck of any run. Then nothing is said about the server.
    pub fn is_void(&self) -> bool {
        self.delivered.iter().any(|it| !it.void.is_empty())
    }

    /// Whether goodput asks for anything.
    pub fn has_slo(&self) -> bool {
        !self.slo.is_empty() || self.slo_by_class.values().any(|slo| !slo.is_empty())
    }
}

/// The requests of a run in order of schedule, without its warm-up.
pub fn requests_of(run: &Run) -> Vec<Request<'_>> {
    Request::all(&run.records, run.manifest.measurement.warmup_ns)
}

/// Where the rows of runs come from; of several sources, the furthest from a server.
pub fn source<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Source {
    let of_run = |run: &Run| {
        let rows = run.records.iter().map(|row| row.source).max();
        rows.unwrap_or_default().max(run.manifest.source)
    };
    runs.into_iter().map(of_run).max().unwrap_or_default()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values = values.collect::<Vec<_>>();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The limits of goodput.
pub(crate) struct Limits {
    slo: Slo,
    by_class: BTreeMap<String, Slo>,
}

impl Limits {
    /// `slo` for everything, else what the first manifest says: runs that are put together are of the
    /// same thing.
    pub(crate) fn of(runs: &[Run], slo: Option<Slo>) -> Self {
        let said = runs.first().map(|run| &run.manifest.measurement);
        match (slo, said) {
            (None, Some(said)) => Self {
                slo: said.slo,
                by_class: said.slo_by_class.clone(),
            },
            (slo, _) => Self {
                slo: slo.unwrap_or_default(),
                by_class: BTreeMap::new(),
            },
        }
    }

    pub(crate) fn of_request(&self, request: &Request<'_>) -> &Slo {
        let class = request.first().class.as_ref();
        let own = class.and_then(|class| self.by_class.get(class));
        own.unwrap_or(&self.slo)
    }

    /// Whether nothing is asked.
    pub(crate) fn is_empty(&self) -> bool {
        self.slo.is_empty() && self.by_class.values().all(Slo::is_empty)
    }
}

fn causes(requests: &[Request<'_>]) -> BTreeMap<String, u64> {
    let mut causes = BTreeMap::new();
    let attempts = requests.iter().flat_map(Request::attempts);
    for attempt in attempts.filter(|attempt| attempt.outcome != Outcome::Ok) {
        let cause = attempt.cause.as_deref().unwrap_or("unknown");
        *causes.entry(cause.to_owned()).or_default() += 1;
    }
    causes
}

fn fairness(requests: &[Request<'_>], starved_after: Option<Span>) -> Vec<Fairness> {
    let limit_ns = starved_after.map_or(u64::MAX, Span::as_nanos);
    let by = |by, name: fn(&Request<'_>) -> Option<String>| {
        let mut shares = BTreeMap::<String, Share>::new();
        for request in requests {
            let Some(name) = name(request) else {
                continue;
            };
            let share = shares.entry(name.clone()).or_default();
            if let Some(answer) = request.answer() {
                share.output_tokens.add(answer);
            }
            share.name = name;
            share.requests += 1;
            share.answered += u64::from(request.answer().is_some());
            share.starved += u64::from(request.waited_ns() > limit_ns);
        }
        let starved_after_ms = limit_ns as f64 / 1e6;
        let several = shares.len() > 1;
        several.then(|| Fairness::new(by, shares.into_values().collect(), starved_after_ms))
    };
    let found = [
        by("tenant", |request| request.first().tenant.clone()),
        by("class", |request| request.first().class.clone()),
    ];
    found.into_iter().flatten().collect()
}

/// From the first attempt of each request to its end: a server is steady to those who ask it.
fn thirds(requests: &[Request<'_>]) -> Option<Thirds> {
    let stays = requests.iter().filter_map(|request| {
        let last = request.attempts().last()?;
        Some((request.first().sent_ns?, last.end_ns?, request.ttft_ns()))
    });
    Thirds::of(&stays.collect::<Vec<_>>())
}

/// The stays of attempts, not of requests: between two attempts a request is with nobody.
fn little(requests: &[Request<'_>]) -> Option<Little> {
    let attempts = requests.iter().flat_map(Request::attempts);
    let stays = attempts.filter_map(|row| Some((row.sent_ns?, row.end_ns?)));
    Little::of(&stays.collect::<Vec<_>>())
}
