//! A workload over settings and loads: every combination of server settings, each with its own server,
//! at every load, a few times with other seeds; or, for each combination, a search for the last load
//! that still keeps the objective.
//!
//! The search doubles the load until it fails and then halves the interval (in the logarithm). A "last
//! passing load" is the highest *tested* load that passed, not the exact capacity.

use serde::Serialize;

use crate::analyse::bootstrap::Bootstrap;
use crate::analyse::{Analysis, Options};
use crate::definitions::Metric;
use crate::folder::Run;
use crate::series::{PointError, Series};
use crate::servers::Settings;
use crate::slo::Slo;
use crate::spec::{Arrivals, Positive, Spec};
use crate::table::{Table, number, percent};

/// A server setting and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The setting.
    pub name: String,
    /// Its values.
    pub values: Vec<String>,
}

/// Which loads.
#[derive(Clone, Debug, PartialEq)]
pub enum Loads {
    /// What the workload says.
    AsGiven,
    /// These rates of an open loop, a second.
    Rates(Vec<f64>),
    /// These numbers of clients of a closed loop.
    Clients(Vec<u32>),
    /// The last passing rate, from this one on up to that one.
    Search {
        /// The first rate.
        from_per_s: f64,
        /// No rate above it is tried.
        to_per_s: f64,
    },
}

/// What a sweep is.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The workload; its seed is that of the first repeat.
    pub spec: Spec,
    /// The settings; none is one combination without any.
    pub axes: Vec<Axis>,
    /// The loads.
    pub loads: Loads,
    /// How often each point is measured, with another seed each time.
    pub repeats: u32,
    /// The share of requests that must keep the objective for a load to pass.
    pub pass_share: f64,
}

/// One combination at one load.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The folders of its repeats.
    pub folders: Vec<String>,
    /// The settings.
    pub settings: Settings,
    /// The load, where there are several.
    pub load: Option<f64>,
    /// Whether it kept the objective, if there is one.
    pub passed: Option<bool>,
    /// Why its load counts as not delivered, if it does.
    pub void: Vec<String>,
    /// What its repeats say together.
    pub analysis: Analysis,
}

/// A search goes on until the last passing and the first failing load are this close.
const PRECISION: f64 = 1.1;

impl Sweep {
    /// Every combination of settings.
    pub fn combinations(&self) -> Vec<Settings> {
        let none = vec![Settings::default()];
        self.axes.iter().fold(none, |all, axis| {
            let with = |before: &Settings| {
                let before = before.clone();
                let values = axis.values.iter();
                values
                    .map(move |value| before.clone().with(&axis.name, value))
                    .collect::<Vec<_>>()
            };
            all.iter().flat_map(with).collect()
        })
    }

    /// Measures everything that is not there yet and gives each line to `on_line`. Returns whether it
    /// went to its end.
    ///
    /// # Errors
    ///
    /// [`PointError`] when a point cannot be measured. A stop is none.
    pub async fn run(
        &self,
        series: &mut Series,
        mut on_line: impl FnMut(Line),
    ) -> Result<bool, PointError> {
        let combinations = self.combinations();
        let bar = series.live().parts("sweep", combinations.len() as u64);
        for (done, settings) in (0..).zip(combinations) {
            bar.at(done, &settings.to_string());
            let done = match &self.loads {
                Loads::AsGiven => self.at(series, &settings, &[None], &mut on_line).await,
                Loads::Rates(rates) => {
                    let loads = rates.iter().copied().map(Some).collect::<Vec<_>>();
                    self.at(series, &settings, &loads, &mut on_line).await
                }
                Loads::Clients(clients) => {
                    let loads = clients
                        .iter()
                        .map(|&n| Some(f64::from(n)))
                        .collect::<Vec<_>>();
                    self.at(series, &settings, &loads, &mut on_line).await
                }
                Loads::Search {
                    from_per_s,
                    to_per_s,
                } => {
                    self.search(series, &settings, *from_per_s, *to_per_s, &mut on_line)
                        .await
                }
            };
            match done {
                Ok(()) => {}
                Err(PointError::Stopped) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    async fn at(
        &self,
        series: &mut Series,
        settings: &Settings,
        loads: &[Option<f64>],
        on_line: &mut impl FnMut(Line),
    ) -> Result<(), PointError> {
        for load in loads {
            on_line(self.line(series, settings, *load).await?);
        }
        Ok(())
    }

    async fn search(
        &self,
        series: &mut Series,
        settings: &Settings,
        from: f64,
        to: f64,
        on_line: &mut impl FnMut(Line),
    ) -> Result<(), PointError> {
        let mut search = Search::new(from, to);
        while let Some(load) = search.next() {
            let line = self.line(series, settings, Some(load)).await?;
            search.saw(load, line.passed.unwrap_or(true));
            on_line(line);
        }
        Ok(())
    }

    async fn line(
        &self,
        series: &mut Series,
        settings: &Settings,
        load: Option<f64>,
    ) -> Result<Line, PointError> {
        let (mut runs, mut folders, mut void) = (Vec::<Run>::new(), Vec::new(), Vec::new());
        for repeat in 0..self.repeats.max(1) {
            let id = folder(settings, load, repeat);
            let point = series
                .point(&id, settings, self.spec_at(load, repeat))
                .await?;
            void.extend(point.void.iter().map(|why| format!("{id}: {why}")));
            runs.push(point.run);
            folders.push(id);
        }
        let bootstrap = Bootstrap {
            resamples: 200,
            ..Bootstrap::default()
        };
        let analysis = Analysis::of(
            &runs,
            &Options {
                bootstrap,
                ..Options::default()
            },
        );
        let share = analysis.all().good as f64 / analysis.all().requests.scheduled().max(1) as f64;
        let passed = share >= self.pass_share && void.is_empty();
        Ok(Line {
            folders,
            settings: settings.clone(),
            load,
            passed: analysis.has_slo().then_some(passed),
            void,
            analysis,
        })
    }

    /// The workload at a load, drawn anew for each repeat.
    fn spec_at(&self, load: Option<f64>, repeat: u32) -> Spec {
        let mut spec = self.spec.clone();
        spec.seed += u64::from(repeat);
        if let Some(load) = load {
            spec.arrivals = at_load(&spec.arrivals, load);
        }
        spec
    }
}

/// The same arrivals at another load; those without a rate of their own become Poisson.
fn at_load(arrivals: &Arrivals, load: f64) -> Arrivals {
    let Ok(rate_per_s) = Positive::try_from(load) else {
        return arrivals.clone();
    };
    match arrivals.clone() {
        Arrivals::Closed { clients, think_ms } => {
            let load = std::num::NonZeroU32::new(load as u32);
            Arrivals::Closed {
                clients: load.unwrap_or(clients),
                think_ms,
            }
        }
        Arrivals::Constant { .. } => Arrivals::Constant { rate_per_s },
        Arrivals::Gamma { cv, .. } => Arrivals::Gamma { rate_per_s, cv },
        _ => Arrivals::Poisson { rate_per_s },
    }
}

/// A name that tells the point apart and is a folder's on any system.
fn folder(settings: &Settings, load: Option<f64>, repeat: u32) -> String {
    let settings = settings
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let load = load.map(|load| format!("load={load}"));
    let parts = settings.chain(load).chain([format!("r{repeat}")]);
    let name = parts.collect::<Vec<_>>().join("_");
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || "=._-".contains(c) {
            c
        } else {
            '+'
        }
    };
    name.chars().map(safe).collect()
}

/// The loads that a search tries.
#[derive(Clone, Debug)]
struct Search {
    first: f64,
    to: f64,
    passed: Option<f64>,
    failed: Option<f64>,
}

impl Search {
    fn new(from: f64, to: f64) -> Self {
        Self {
            first: from,
            to,
            passed: None,
            failed: None,
        }
    }

    fn saw(&mut self, load: f64, passed: bool) {
        let (side, closer): (_, fn(f64, f64) -> f64) = match passed {
            true => (&mut self.passed, f64::max),
            false => (&mut self.failed, f64::min),
        };
        *side = Some(side.map_or(load, |before| closer(before, load)));
    }

    /// The next load to try; `None` when the answer is known.
    fn next(&self) -> Option<f64> {
        // Three digits: a load is a folder's name.
        let rounded = |load: f64| {
            let unit = 10_f64.powf(load.log10().floor() - 2.0);
            (load / unit).round() * unit
        };
        let load = match (self.passed, self.failed) {
            (None, None) => self.first,
            (Some(passed), None) if passed >= self.to => return None,
            (Some(passed), None) => (passed * 2.0).min(self.to),
            (None, Some(failed)) => {
                // A search may begin too high; a 64th of its beginning is too low to be meant.
                let lower = failed / 2.0;
                return (lower > self.first / 64.0).then(|| rounded(lower));
            }
            (Some(passed), Some(failed)) => {
                if failed / passed <= PRECISION {
                    return None;
                }
                let middle = rounded((passed * failed).sqrt());
                // Nothing lies between them any more.
                if middle <= passed || middle >= failed {
                    return None;
                }
                middle
            }
        };
        Some(rounded(load))
    }
}

/// The lines as a table.
pub fn table(lines: &[Line], slo: &Slo) -> Table {
    let columns = [
        "settings",
        "load",
        "answered",
        "not ok",
        "TTFT p50 ms",
        "TTFT p99 ms",
        "TPOT p50 ms",
        "E2E p50 ms",
        "E2E p99 ms",
        "output tokens/s",
        "goodput/s",
        "good",
        "",
    ];
    let mut table = Table::new("", &columns);
    for line in lines {
        let all = line.analysis.all();
        let ms = |metric, quantile| number(all.percentile_ms(metric, quantile));
        let scheduled = all.requests.scheduled();
        table.row([
            line.settings.to_string(),
            number(line.load),
            all.requests.ok.to_string(),
            (scheduled - all.requests.ok).to_string(),
            ms(Metric::Ttft, 0.5),
            ms(Metric::Ttft, 0.99),
            ms(Metric::Tpot, 0.5),
            ms(Metric::E2e, 0.5),
            ms(Metric::E2e, 0.99),
            number(Some(line.analysis.rates.output_tokens_per_s)),
            number(Some(line.analysis.rates.goodput_per_s)),
            percent(Some(all.good as f64 / scheduled.max(1) as f64)),
            match (line.void.is_empty(), line.passed) {
                (false, _) => "VOID".to_owned(),
                (true, Some(true)) => "passes".to_owned(),
                (true, Some(false)) => "fails".to_owned(),
                (true, None) => String::new(),
            },
        ]);
    }
    if slo.is_empty() {
        table.note("no objective: give slo in the workload, or --slo-ttft-ms and the like");
    }
    table
}

/// Of each combination, the highest tested load that passed, and the lowest above it that failed.
pub fn last_passing(lines: &[Line]) -> Table {
    let mut table = Table::new("last passing load", &["settings", "passes", "fails"]);
    let mut settings = lines.iter().map(|line| &line.settings).collect::<Vec<_>>();
    settings.dedup();
    for settings in settings {
        let of = |passed: bool| {
            let lines = lines.iter().filter(|line| line.settings == *settings);
            lines
                .filter(move |line| line.passed == Some(passed))
                .filter_map(|line| line.load)
        };
        let last = of(true).reduce(f64::max);
        let above = of(false).filter(|load| last.is_none_or(|last| *load > last));
        table.row([
            settings.to_string(),
            number(last),
            number(above.reduce(f64::min)),
        ]);
    }
    table.note("the highest tested load that passed, not the exact capacity");
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(from: f64, to: f64, capacity: f64) -> Vec<f64> {
        let mut search = Search::new(from, to);
        let mut tried = Vec::new();
        while let Some(load) = search.next() {
            assert!(tried.len() < 30, "it ends: {tried:?}");
            search.saw(load, load <= capacity);
            tried.push(load);
        }
        tried
    }

    #[test]
    fn a_search_doubles_and_then_halves_the_interval() {
        let loads = tried(1.0, 1_000.0, 11.0);
        assert_eq!(loads[..5], [1.0, 2.0, 4.0, 8.0, 16.0]);
        let passed = loads
            .iter()
            .copied()
            .filter(|&load| load <= 11.0)
            .fold(0.0, f64::max);
        let failed = loads
            .iter()
            .copied()
            .filter(|&load| load > 11.0)
            .fold(f64::MAX, f64::min);
        assert!(failed / passed <= PRECISION, "{loads:?}");
    }

    #[test]
    fn a_search_ends_at_its_bounds_and_finds_its_way_down() {
        assert_eq!(tried(1.0, 6.0, 100.0), [1.0, 2.0, 4.0, 6.0]);
        let loads = tried(8.0, 100.0, 3.0);
        assert_eq!(loads[..3], [8.0, 4.0, 2.0]);
        assert!(tried(8.0, 100.0, 0.0).len() < 10);
    }

    #[test]
    fn combinations_are_all_of_them_and_have_names_of_their_own() {
        let axis = |name: &str, values: &[&str]| Axis {
            name: name.to_owned(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
        };
        let sweep = Sweep {
            spec: Spec::new(Arrivals::Constant {
                rate_per_s: Positive::try_from(1.0).unwrap(),
            }),
            axes: vec![
                axis("max_batch", &["1", "8"]),
                axis("model", &["a/b", "a:b"]),
            ],
            loads: Loads::AsGiven,
            repeats: 1,
            pass_share: 0.99,
        };
        let all = sweep.combinations();
        let shown = all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown[1], "max_batch=1, model=a:b");
        assert_eq!(all.len(), 4);
        assert_eq!(
            folder(&all[0], Some(2.5), 1),
            "max_batch=1_model=a+b_load=2.5_r1"
        );
        let spec = sweep.spec_at(Some(4.0), 2);
        assert_eq!(spec.seed, sweep.spec.seed + 2);
        assert_eq!(
            spec.arrivals,
            Arrivals::Constant {
                rate_per_s: Positive::try_from(4.0).unwrap()
            }
        );
    }
}
