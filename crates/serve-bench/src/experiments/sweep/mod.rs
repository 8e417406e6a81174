//! A workload over settings and loads: every combination of server settings, each with its own server,
//! at every load, a few times with other seeds; or, for each combination, a [search] for the last
//! load that still keeps the objective.

pub(crate) mod search;
pub(crate) mod simulated;
mod tables;

pub(crate) use tables::{last_passing, paths, table};

use serde::Serialize;

use self::search::{Found, Goal, Judged, Measured, Search, Step};
use crate::analysis::bootstrap::Bootstrap;
use crate::analysis::{Analysis, AnalysisOptions};
use crate::experiments::series::{PointError, Series};
use crate::experiments::servers::ServerSettings;
use crate::store::folder::Run;
use crate::workload::spec::{Arrivals, Positive, Spec};

/// A server setting and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    /// The setting.
    pub name: String,
    /// Its values.
    pub values: Vec<String>,
}

/// Which loads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Loads {
    /// What the workload says.
    AsGiven,
    /// These rates of an open loop, a second.
    Rates(Vec<f64>),
    /// These numbers of clients of a closed loop.
    Clients(Vec<u32>),
    /// The last rate that passes.
    Search(Goal),
}

impl Loads {
    /// The loads that are known before anything is measured; `None` is what the workload says.
    fn fixed(&self) -> Vec<Option<f64>> {
        match self {
            Self::AsGiven => vec![None],
            Self::Rates(rates) => rates.iter().copied().map(Some).collect(),
            Self::Clients(clients) => clients.iter().map(|&n| Some(f64::from(n))).collect(),
            Self::Search(_) => Vec::new(),
        }
    }
}

/// What a sweep is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sweep {
    /// The workload; its seed is that of the first repeat.
    pub spec: Spec,
    /// The settings; none is one combination without any.
    pub axes: Vec<Axis>,
    /// The loads.
    pub loads: Loads,
    /// How often each point is measured, with another seed each time. A search has its own number.
    pub repeats: u32,
    /// The share of requests that must keep the objective for a load to pass.
    pub pass_share: f64,
}

/// One combination at one load.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    /// The folders of its repeats.
    pub folders: Vec<String>,
    /// The settings.
    pub settings: ServerSettings,
    /// The load, where there are several.
    pub load: Option<f64>,
    /// Whether it kept the objective, if there is one.
    pub judged: Option<Judged>,
    /// Why loads of its repeats count as not delivered. Such repeats have no part in the numbers, unless
    /// there are no others.
    pub void: Vec<String>,
    /// What its repeats say together.
    pub analysis: Analysis,
}

/// How the last passing load of a combination was looked for.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Searched {
    /// The combination.
    pub settings: ServerSettings,
    /// What was looked for.
    pub goal: Goal,
    /// Every measurement, in order.
    pub path: Vec<Step>,
    /// What is known at its end.
    pub found: Found,
}

/// What a sweep has measured so far.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Results {
    /// Each combination at each load; those of a search by load.
    pub lines: Vec<Line>,
    /// The search of each combination.
    pub searches: Vec<Searched>,
    /// Whether it went to its end.
    pub whole: bool,
}

impl Results {
    /// Whether a load counts as not delivered. In a search such a load is measured again, and only one
    /// that never was delivered counts.
    pub(crate) fn is_void(&self) -> bool {
        let never = |line: &Line| line.judged == Some(Judged::Void);
        match self.searches.is_empty() {
            true => self.lines.iter().any(|line| !line.void.is_empty()),
            false => self.lines.iter().any(never),
        }
    }
}

/// A measurement of a point.
struct Repeat {
    folder: String,
    run: Run,
    void: Vec<String>,
}

impl Sweep {
    /// Every combination of settings.
    pub(crate) fn combinations(&self) -> Vec<ServerSettings> {
        let none = vec![ServerSettings::default()];
        self.axes.iter().fold(none, |all, axis| {
            let with = |before: &ServerSettings| {
                let before = before.clone();
                let values = axis.values.iter();
                values
                    .map(move |value| before.clone().with(&axis.name, value))
                    .collect::<Vec<_>>()
            };
            all.iter().flat_map(with).collect()
        })
    }

    /// Measures everything that is not there yet and shows `on_change` all results after each
    /// measurement. A stop is no error: the results are not whole then.
    ///
    /// # Errors
    ///
    /// [`PointError`] when a point cannot be measured.
    pub(crate) async fn run(
        &self,
        series: &mut Series,
        mut on_change: impl FnMut(&Results),
    ) -> Result<Results, PointError> {
        let combinations = self.combinations();
        let bar = series.live().parts("sweep", combinations.len() as u64);
        let mut results = Results::default();
        for (done, settings) in (0..).zip(combinations) {
            bar.at(done, &settings.to_string());
            let loads = self.loads.fixed();
            let mut measured = self
                .at(series, &settings, &loads, &mut results, &mut on_change)
                .await;
            if let (Loads::Search(goal), Ok(())) = (&self.loads, &measured) {
                measured = self
                    .search(series, &settings, goal, &mut results, &mut on_change)
                    .await;
            }
            match measured {
                Ok(()) => {}
                Err(PointError::Stopped) => return Ok(results),
                Err(error) => return Err(error),
            }
        }
        results.whole = true;
        on_change(&results);
        Ok(results)
    }

    async fn at(
        &self,
        series: &mut Series,
        settings: &ServerSettings,
        loads: &[Option<f64>],
        results: &mut Results,
        on_change: &mut impl FnMut(&Results),
    ) -> Result<(), PointError> {
        for &load in loads {
            let mut repeats = Vec::new();
            for repeat in 0..self.repeats.max(1) {
                repeats.push(self.measure(series, settings, load, repeat).await?);
            }
            results.lines.push(self.line(settings, load, &repeats));
            on_change(results);
        }
        Ok(())
    }

    async fn search(
        &self,
        series: &mut Series,
        settings: &ServerSettings,
        goal: &Goal,
        results: &mut Results,
        on_change: &mut impl FnMut(&Results),
    ) -> Result<(), PointError> {
        let mut search = Search::new(*goal);
        let (first, at) = (results.lines.len(), results.searches.len());
        let mut measured: Vec<(f64, Vec<Repeat>)> = Vec::new();
        while let Some(next) = search.next() {
            let load = Some(next.load);
            let repeat = self.measure(series, settings, load, next.repeat).await?;
            let said = self.line(settings, load, std::slice::from_ref(&repeat));
            search.saw(next, said.measured());
            series.live().line(&tables::sentence(&search));
            let index = measured.partition_point(|(load, _)| *load < next.load);
            match measured.get_mut(index) {
                Some((load, repeats)) if *load == next.load => repeats.push(repeat),
                _ => measured.insert(index, (next.load, vec![repeat])),
            }
            let line = self.line(settings, load, &measured[index].1);
            match measured[index].1.len() {
                1 => results.lines.insert(first + index, line),
                _ => results.lines[first + index] = line,
            }
            results.searches.truncate(at);
            results.searches.push(Searched {
                settings: settings.clone(),
                goal: *goal,
                path: search.path().to_vec(),
                found: search.found(),
            });
            on_change(results);
        }
        Ok(())
    }

    async fn measure(
        &self,
        series: &mut Series,
        settings: &ServerSettings,
        load: Option<f64>,
        repeat: u32,
    ) -> Result<Repeat, PointError> {
        let folder = folder(settings, load, repeat);
        let spec = self.spec_at(load, repeat);
        let point = series.point(&folder, settings, spec).await?;
        let void = point.void.iter().map(|why| format!("{folder}: {why}"));
        Ok(Repeat {
            void: void.collect(),
            run: point.run,
            folder,
        })
    }

    fn line(&self, settings: &ServerSettings, load: Option<f64>, repeats: &[Repeat]) -> Line {
        let runs_of = |void: bool| {
            let of = repeats.iter().filter(|it| it.void.is_empty() != void);
            of.map(|it| it.run.clone()).collect::<Vec<_>>()
        };
        let delivered = runs_of(false);
        let void = delivered.is_empty();
        let runs = if void { runs_of(true) } else { delivered };
        let bootstrap = Bootstrap {
            resamples: 200,
            ..Bootstrap::default()
        };
        let options = AnalysisOptions {
            bootstrap,
            ..AnalysisOptions::default()
        };
        let mut line = Line {
            folders: repeats.iter().map(|it| it.folder.clone()).collect(),
            settings: settings.clone(),
            load,
            judged: None,
            void: repeats.iter().flat_map(|it| it.void.clone()).collect(),
            analysis: Analysis::of(&runs, &options),
        };
        let all = line.analysis.all();
        // A verdict without them would be one on the server's manners.
        let void = void || all.unjudged > 0;
        if let (1.., Some(missing)) = (all.unjudged, all.output_tokens.missing()) {
            let why = format!(
                "{}: a limit on TPOT, and {missing}",
                line.folders.join(", ")
            );
            line.void.push(why);
        }
        let said = Measured {
            void,
            ..line.measured()
        };
        let judged = Judged::of(&[said], self.pass_share);
        line.judged = (void || line.analysis.has_slo()).then_some(judged);
        line
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

impl Line {
    /// What a search is told of it.
    fn measured(&self) -> Measured {
        let all = self.analysis.all();
        Measured {
            good: all.good,
            requests: all.requests.scheduled(),
            answers_per_s: self.analysis.rates.answers_per_s,
            void: self.judged == Some(Judged::Void),
        }
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
fn folder(settings: &ServerSettings, load: Option<f64>, repeat: u32) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
