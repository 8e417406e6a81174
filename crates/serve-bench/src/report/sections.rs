//! The parts of a report: what one run says, and several beside each other.

use std::collections::BTreeSet;

use super::chart::{Chart, Figure};
use super::distributions::cdf;
use super::html::{ReportError, Section};
use super::load::{self, Curve, Point};
use super::{Named, over_time, timeline, waterfall};
use crate::analysis::compare::{self, comparable};
use crate::analysis::definitions::Metric;
use crate::analysis::request::Request;
use crate::analysis::requests_of;
use crate::analysis::summary;
use crate::analysis::table::Table;
use crate::store::manifest::{Manifest, Source};

/// Everything about one run, or about repeats of it; drawings over time are of the first.
///
/// # Errors
///
/// [`ReportError::Draw`].
pub(crate) fn of_one(named: &Named) -> Result<Vec<Section>, ReportError> {
    let analysis = &named.analysis;
    let sources = &[analysis.source];
    let first = named.runs.first().map(requests_of).unwrap_or_default();
    let all = named.runs.iter().flat_map(requests_of).collect::<Vec<_>>();
    let sets = by_class(&all);
    let sets = sets
        .iter()
        .map(|(name, set)| (name.clone(), &set[..]))
        .collect::<Vec<_>>();
    let metrics = [Metric::Ttft, Metric::E2e, Metric::Tpot, Metric::ItlChunk];
    let cdfs = metrics.map(|metric| cdf(metric, &sets));
    let mut time = vec![
        over_time::requests_per_s(&first),
        over_time::tokens_per_s(&first),
        over_time::latencies(&first),
        over_time::in_flight(&first),
    ];
    time.extend(timeline::charts(&named.timeline));
    let mut sections = vec![
        Section {
            title: "Latency".to_owned(),
            tables: vec![summary::times(analysis)],
            figures: figures(sources, &cdfs)?,
            ..Section::default()
        },
        Section {
            title: "Where the time goes".to_owned(),
            text: of_the_first(named),
            tables: waterfall::table(&first).into_iter().collect(),
            figures: waterfall::figure(&first)?
                .map(|figure| labelled(figure, sources))
                .into_iter()
                .collect(),
            ..Section::default()
        },
        Section {
            title: "Over time".to_owned(),
            text: of_the_first(named),
            figures: figures(sources, &time)?,
            ..Section::default()
        },
        Section {
            title: "Parts of the workload".to_owned(),
            tables: summary::parts(analysis)
                .into_iter()
                .chain(summary::fairness(analysis))
                .collect(),
            ..Section::default()
        },
    ];
    sections.extend(named.runs.first().map(|run| measured(&run.manifest)));
    sections.retain(|section| !(section.tables.is_empty() && section.figures.is_empty()));
    Ok(sections)
}

/// Several runs beside each other: one table, and the distributions of TTFT and E2E; where they differ
/// in load, also charts over it.
///
/// # Errors
///
/// [`ReportError::Draw`].
pub(crate) fn beside(title: &str, groups: &[Named]) -> Result<Section, ReportError> {
    let requests = groups.iter().map(|named| {
        let requests = named.runs.iter().flat_map(requests_of).collect::<Vec<_>>();
        (named.name.clone(), requests)
    });
    let requests = requests.collect::<Vec<_>>();
    let sets = requests.iter().map(|(name, set)| (name.clone(), &set[..]));
    let sets = sets.collect::<Vec<_>>();
    let mut charts = Vec::new();
    if let Some((label, offered, curves)) = loads(groups) {
        charts.extend(load::charts(label, offered, &curves));
    }
    charts.extend([Metric::Ttft, Metric::E2e].map(|metric| cdf(metric, &sets)));
    let sources = groups.iter().map(|named| named.analysis.source);
    let sources = &sources
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>();
    let named = groups
        .iter()
        .map(|named| (named.name.as_str(), &named.analysis));
    let mut tables = vec![summary::beside(named)];
    if let [a, b] = groups {
        tables.extend(verdict(a, b));
    }
    Ok(Section {
        title: title.to_owned(),
        text: what_differs(groups),
        tables,
        figures: figures(sources, &charts)?,
        ..Section::default()
    })
}

/// What each word means.
pub(crate) fn definitions() -> Section {
    Section {
        title: "Definitions".to_owned(),
        tables: vec![summary::definitions()],
        ..Section::default()
    }
}

/// Where one of several runs is shown.
fn of_the_first(named: &Named) -> String {
    match named.runs.len() {
        0 | 1 => String::new(),
        runs => format!("The first of {runs} runs."),
    }
}

/// Whether the second is better than the first, where they can be compared.
fn verdict(a: &Named, b: &Named) -> Option<Table> {
    let comparison =
        compare::compare(&a.runs, &b.runs, &compare::CompareOptions::default()).ok()?;
    let mut table = compare::text::table(&comparison);
    table.title = format!(
        "B ({}) against A ({}): {}",
        b.name, a.name, comparison.verdict
    );
    Some(table)
}

/// Draws charts. Where any row does not come from a server, each says so.
fn figures(sources: &[Source], charts: &[Chart]) -> Result<Vec<Figure>, ReportError> {
    let shown = charts.iter().filter(|chart| !chart.is_empty());
    shown
        .map(|chart| Ok(labelled(chart.figure()?, sources)))
        .collect()
}

fn labelled(mut figure: Figure, sources: &[Source]) -> Figure {
    if sources.iter().any(|source| *source != Source::Http) {
        let names = sources.iter().map(|source| source.name());
        let names = names.collect::<Vec<_>>().join(", ");
        figure.title.push_str(&format!(" ({names})"));
    }
    figure
}

/// The loads of groups, if they differ: the offered rate of open loops, the clients of closed ones. A curve for
/// each combination of whatever else they differ in.
fn loads(groups: &[Named]) -> Option<(&'static str, bool, Vec<Curve<'_>>)> {
    let clients = groups
        .iter()
        .map(Named::clients)
        .collect::<Option<Vec<_>>>();
    let (label, offered, loads) = match clients {
        Some(clients) => ("clients", false, clients),
        None => {
            let rates = groups.iter().map(|named| named.analysis.offered_per_s());
            (
                "offered load (requests/s)",
                true,
                rates.collect::<Option<Vec<_>>>()?,
            )
        }
    };
    let least = loads.iter().copied().fold(f64::MAX, f64::min);
    let most = loads.iter().copied().fold(0.0, f64::max);
    // The same nominal rate comes out a little different with each seed.
    let differ = groups.len() > 1 && most > least * 1.1;
    let runs = groups
        .iter()
        .filter_map(|named| Some((&*named.name, &named.runs.first()?.manifest)));
    let names = comparable::apart_from_load(&runs.collect::<Vec<_>>());
    let mut curves = Vec::<Curve<'_>>::new();
    for ((named, x), name) in groups.iter().zip(loads).zip(names) {
        let point = Point {
            x,
            analysis: &named.analysis,
        };
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                name,
                points: vec![point],
            }),
        }
    }
    differ.then_some((label, offered, curves))
}

/// The settings in which the groups differ from the first.
fn what_differs(groups: &[Named]) -> String {
    let manifests = groups.iter().filter_map(|named| named.runs.first());
    let mut manifests = manifests.map(|run| &run.manifest);
    let Some(first) = manifests.next() else {
        return String::new();
    };
    let mut fields = manifests
        .flat_map(|other| comparable::differences(first, other))
        .map(|it| format!("{} {}", it.layer, it.field))
        .collect::<Vec<_>>();
    fields.sort_unstable();
    fields.dedup();
    match fields.len() {
        0 => "Their manifests agree in every layer.".to_owned(),
        1..=6 => format!("They differ in: {}.", fields.join(", ")),
        more => format!(
            "They differ in {more} fields, such as {}.",
            fields[..6].join(", ")
        ),
    }
}

/// All requests, or those of each class where there are several.
fn by_class<'a>(requests: &[Request<'a>]) -> Vec<(String, Vec<Request<'a>>)> {
    let mut classes = std::collections::BTreeMap::<_, Vec<_>>::new();
    for request in requests {
        let class = request.first().class.as_deref();
        classes.entry(class).or_default().push(request.clone());
    }
    let name =
        |class: Option<&str>| class.map_or("no class".to_owned(), |it| format!("class {it}"));
    match classes.len() {
        1 => vec![("all requests".to_owned(), requests.to_vec())],
        _ => classes
            .into_iter()
            .map(|(class, set)| (name(class), set))
            .collect(),
    }
}

/// The six layers of a manifest.
fn measured(manifest: &Manifest) -> Section {
    let mut table = Table::new("", &["layer", "what was run"]);
    let said = |value: &Option<String>| value.clone().unwrap_or_else(|| "not stated".to_owned());
    let (model, runtime) = (&manifest.model, &manifest.runtime);
    table.row([
        "model".to_owned(),
        format!("{}, revision {}", model.name, said(&model.revision)),
    ]);
    let server = format!(
        "{} {}",
        said(&runtime.server),
        runtime.version.as_deref().unwrap_or("")
    );
    table.row([
        "runtime".to_owned(),
        format!("{} at {}", server.trim(), runtime.url),
    ]);
    let hardware = &manifest.hardware;
    let gpus = hardware
        .gpus
        .iter()
        .map(|gpu| format!("; {} {}", gpu.name, gpu.memory));
    let cpu = format!(
        "{} x {}, {}{}",
        hardware
            .cores
            .map_or("?".to_owned(), |cores| cores.to_string()),
        said(&hardware.cpu),
        hardware.system,
        gpus.collect::<String>()
    );
    table.row(["hardware".to_owned(), cpu]);
    let workload = &manifest.workload;
    table.row([
        "workload".to_owned(),
        format!(
            "{}: {} requests, seed {}, sha256 {:.12}",
            workload.name, workload.requests, workload.seed, workload.requests_sha256
        ),
    ]);
    let measurement = &manifest.measurement;
    table.row([
        "measurement".to_owned(),
        format!(
            "{} requests and {} s of warm-up left out; timeout {} s",
            measurement.warmup_requests,
            measurement.warmup_ns as f64 / 1e9,
            measurement.timeout_ms as f64 / 1e3,
        ),
    ]);
    let artifact = &manifest.artifact;
    table.row([
        "artifact".to_owned(),
        format!(
            "serve-bench {} at {}, {} to {}, {} rows",
            artifact.bench_version,
            said(&artifact.bench_commit),
            artifact.started,
            artifact.ended,
            artifact.rows
        ),
    ]);
    let mut folded = Vec::new();
    if let Some(config) = &runtime.config {
        let config = serde_json::to_string_pretty(config).unwrap_or_default();
        folded.push(("the server's settings".to_owned(), config));
    }
    if !workload.spec.is_empty() {
        folded.push((
            "the workload's specification".to_owned(),
            workload.spec.clone(),
        ));
    }
    Section {
        title: "What was measured".to_owned(),
        tables: vec![table],
        folded,
        ..Section::default()
    }
}
