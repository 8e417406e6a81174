//! A folder of runs, of folders of runs, and so on, as a report: what lies beside each other is shown
//! beside each other.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::html::{Report, ReportError, Section};
use super::{Named, sections};
use crate::analysis::AnalysisOptions;
use crate::analysis::compare::comparable::odd_one_out;
use crate::analysis::summary::{self, Fact};
use crate::store::folder::{FolderError, Run, RunFolder, folders_in};
use crate::store::timeline::{self, Sample};

/// Runs that cannot be reported.
#[derive(Debug, Error)]
pub(crate) enum TreeError {
    /// A folder cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The page cannot be made.
    #[error(transparent)]
    Report(#[from] ReportError),
}

/// A folder and what lies in it.
struct Node {
    name: String,
    groups: Vec<Named>,
    below: Vec<Node>,
}

/// A report of all runs under some folders. Those of one folder that differ in nothing but their seed are
/// repeats of each other, and stand together.
///
/// # Errors
///
/// [`TreeError`] when a folder holds no run, or when a run cannot be read.
pub(crate) fn report(folders: &[PathBuf], options: &AnalysisOptions) -> Result<Report, TreeError> {
    let mut nodes = folders
        .iter()
        .map(|path| node(path, options))
        .collect::<Result<Vec<_>, _>>()?;
    let top = match nodes.len() {
        1 => nodes.remove(0),
        _ => gathered(nodes, options),
    };
    let mut named = Vec::new();
    top.visit(&mut |node| named.extend(node.groups.iter()));
    let labels = labels(&named);
    let mut report = Report {
        title: format!(
            "{}: a report of {} runs",
            top.name,
            named.iter().map(|it| it.runs.len()).sum::<usize>()
        ),
        labels,
        ..Report::default()
    };
    if let [one] = named[..] {
        report.title = match one.runs.len() {
            1 => format!("{}: a run", one.name),
            runs => format!("{}: {runs} runs", one.name),
        };
        report.facts = summary::facts(&one.analysis);
        report.sections = sections::of_one(one)?;
    } else {
        add(&top, "", &mut report.sections)?;
    }
    report.sections.push(sections::definitions());
    Ok(report)
}

/// The folders named on a command line as one node. Single runs lie beside each other.
fn gathered(nodes: Vec<Node>, options: &AnalysisOptions) -> Node {
    let (single, below) = nodes
        .into_iter()
        .partition::<Vec<_>, _>(|node| node.below.is_empty() && node.groups.len() == 1);
    let groups = single.into_iter().flat_map(|node| node.groups);
    let mut top = Node {
        name: "serve-bench".to_owned(),
        groups: groups.collect(),
        below,
    };
    // Several folders that hold one run each may be repeats.
    let repeats = top.groups.iter().map(|named| Repeats {
        names: vec![named.name.clone()],
        runs: named.runs.clone(),
        timeline: named.timeline.clone(),
    });
    let name = top.groups.first().map(|named| named.name.clone());
    let groups = together(&name.unwrap_or_default(), repeats.collect(), options);
    if groups.len() < top.groups.len() {
        top.groups = groups;
    }
    top
}

/// One section for what lies beside each other, then those of the folders below.
fn add(node: &Node, above: &str, out: &mut Vec<Section>) -> Result<(), ReportError> {
    let title = match above {
        "" => node.name.clone(),
        above => format!("{above} / {}", node.name),
    };
    if !node.groups.is_empty() {
        out.push(sections::beside(&title, &node.groups)?);
    }
    let above = if above.is_empty() && node.groups.is_empty() {
        ""
    } else {
        &title
    };
    node.below
        .iter()
        .try_for_each(|below| add(below, above, out))
}

/// What must be said before any number. What is not true of all that is shown says of what it is true.
fn labels(named: &[&Named]) -> Vec<Fact> {
    let mut found = Vec::<(Fact, Vec<usize>)>::new();
    for (at, it) in named.iter().enumerate() {
        for label in summary::labels(&it.analysis) {
            match found.iter_mut().find(|(known, _)| *known == label) {
                Some((_, of)) => of.push(at),
                None => found.push((label, vec![at])),
            }
        }
    }
    let all = named.len();
    let labels = found.into_iter().map(|((word, text), mut of)| {
        of.dedup();
        if of.len() == all {
            return (word, text);
        }
        let names = of.iter().take(NAMES_MAX).map(|at| &*named[*at].name);
        let more = if of.len() > NAMES_MAX { ", .." } else { "" };
        let names = names.collect::<Vec<_>>().join(", ");
        (
            word,
            format!("{} of {all} ({names}{more}): {text}", of.len()),
        )
    });
    labels.collect()
}

/// A label names so many of what it is true of.
const NAMES_MAX: usize = 6;

fn node(path: &Path, options: &AnalysisOptions) -> Result<Node, TreeError> {
    let found = find(path, options)?;
    found.ok_or_else(|| FolderError::NoRun(path.to_owned()).into())
}

fn find(path: &Path, options: &AnalysisOptions) -> Result<Option<Node>, TreeError> {
    let name = name(path);
    if RunFolder::at(path).holds_run() {
        let (run, timeline) = open(path)?;
        let groups = vec![Named::new(name.clone(), vec![run], timeline, options)];
        return Ok(Some(Node {
            name,
            groups,
            below: Vec::new(),
        }));
    }
    let (mut runs, mut below) = (Vec::new(), Vec::new());
    for folder in folders_in(path)? {
        match RunFolder::at(&folder).holds_run() {
            true => runs.push(Repeats::alone(&folder)?),
            false => below.extend(find(&folder, options)?),
        }
    }
    let groups = together(&name, runs, options);
    // A folder of folders of repeats: these lie beside each other.
    let only_groups = |node: &Node| node.below.is_empty() && node.groups.len() == 1;
    let (single, below) = below.into_iter().partition::<Vec<_>, _>(only_groups);
    let groups = groups
        .into_iter()
        .chain(single.into_iter().flat_map(|node| node.groups));
    let groups = groups.collect::<Vec<_>>();
    let is_empty = groups.is_empty() && below.is_empty();
    Ok((!is_empty).then_some(Node {
        name,
        groups,
        below,
    }))
}

/// Runs that differ in nothing but their seed.
struct Repeats {
    names: Vec<String>,
    runs: Vec<Run>,
    timeline: Vec<Sample>,
}

impl Repeats {
    fn alone(folder: &Path) -> Result<Self, FolderError> {
        let (run, timeline) = open(folder)?;
        Ok(Self {
            names: vec![name(folder)],
            runs: vec![run],
            timeline,
        })
    }

    /// What their names have in common, without the number of a repeat.
    fn name(&self) -> String {
        let [first, others @ ..] = &*self.names else {
            return String::new();
        };
        let common = |name: &String| {
            let mut pairs = first.char_indices().zip(name.chars());
            let apart = pairs.find(|((_, a), b)| a != b);
            apart.map_or(first.len().min(name.len()), |((at, _), _)| at)
        };
        let Some(most) = others.iter().map(common).min() else {
            return first.clone();
        };
        let cut = first[..most].trim_end_matches(|c: char| c.is_ascii_digit());
        let cut = cut.strip_suffix("_r").unwrap_or(&first[..most]);
        match cut.trim_end_matches(['_', '-', '.', ' ']) {
            "" => first.clone(),
            name => name.to_owned(),
        }
    }
}

/// Runs with their repeats. If all are repeats of each other, they have the name `of_all`.
fn together(of_all: &str, runs: Vec<Repeats>, options: &AnalysisOptions) -> Vec<Named> {
    let several = runs.len() > 1;
    let mut found = Vec::<Repeats>::new();
    for more in runs {
        let same = |it: &&mut Repeats| {
            let manifests = it.runs.iter().chain(&more.runs).map(|run| &run.manifest);
            odd_one_out(manifests).is_none()
        };
        match found.iter_mut().find(same) {
            Some(it) => {
                it.names.extend(more.names);
                it.runs.extend(more.runs);
            }
            None => found.push(more),
        }
    }
    let all = several && found.len() == 1;
    let named = found.into_iter().map(|it| {
        let name = if all { of_all.to_owned() } else { it.name() };
        Named::new(name, it.runs, it.timeline, options)
    });
    named.collect()
}

impl Node {
    fn visit<'a>(&'a self, see: &mut impl FnMut(&'a Node)) {
        see(self);
        self.below.iter().for_each(|below| below.visit(see));
    }
}

fn name(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = full
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| path.display().to_string())
}

fn open(path: &Path) -> Result<(Run, Vec<Sample>), FolderError> {
    let folder = RunFolder::at(path);
    let run = folder.open()?;
    let file = folder.timeline();
    let samples = match std::fs::File::open(&file) {
        Ok(open) => timeline::read(BufReader::new(open)),
        Err(_) => Ok(Vec::new()), // the server was not asked
    };
    let samples = samples.map_err(|source| FolderError::Io { path: file, source })?;
    Ok((run, samples))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{answer, numbered};
    use crate::store::manifest::Source;
    use crate::store::manifest::tests::example;

    #[test]
    fn a_folder_without_a_run_is_named() {
        let path = std::env::temp_dir().join(format!("no-runs-{}", std::process::id()));
        std::fs::create_dir_all(path.join("inner")).unwrap();
        let error = report(std::slice::from_ref(&path), &AnalysisOptions::default()).unwrap_err();
        assert!(error.to_string().contains("holds no run"), "{error}");
        std::fs::remove_dir_all(path).unwrap();
    }

    /// A run at a load on a server with such a batch, kept in a folder of its own.
    fn keep(path: &Path, max_batch: u32, rate: u64, seed: u64) {
        let folder = RunFolder::at(path.join(format!("max_batch={max_batch}_load={rate}_r{seed}")));
        let gap = 1_000 / rate;
        let rows = (0..20).map(|at| answer(at * gap, &[at * gap + 5, at * gap + 9], Some(2)));
        let mut writer = folder.create().unwrap();
        numbered(rows)
            .iter()
            .for_each(|row| writer.write(row).unwrap());
        let mut manifest = example();
        // Another setting follows from the one that was set.
        let config = serde_json::json!({"kv_blocks": 10 * max_batch, "max_batch": max_batch, "queue_cap": 4});
        manifest.runtime.config = Some(config);
        manifest.workload.spec =
            format!("seed = {seed}\n[arrivals.constant]\nrate_per_s = {rate}.0\n");
        manifest.workload.requests_sha256 = format!("{max_batch}{rate}{seed}");
        (manifest.artifact.rows, manifest.artifact.rows_sha256) = writer.finish().unwrap();
        manifest.write(&folder.manifest()).unwrap();
    }

    #[test]
    fn a_sweep_has_a_curve_for_each_setting_and_a_point_for_each_load_however_often_it_was_repeated()
     {
        let path = std::env::temp_dir().join(format!("sweep-{}", std::process::id()));
        for max_batch in [1, 8] {
            for (rate, seed) in [(5, 0), (5, 1), (20, 0), (20, 1), (20, 10), (50, 0)] {
                keep(&path, max_batch, rate, seed);
            }
        }
        let node = node(&path, &AnalysisOptions::default()).unwrap();
        let groups = node
            .groups
            .iter()
            .map(|it| format!("{} x{}", it.name, it.runs.len()));
        let expected = [
            "max_batch=1_load=5 x2",
            "max_batch=1_load=20 x3",
            "max_batch=1_load=50_r0 x1",
            "max_batch=8_load=5 x2",
            "max_batch=8_load=20 x3",
            "max_batch=8_load=50_r0 x1",
        ];
        assert_eq!(groups.collect::<Vec<_>>(), expected);
        let section = sections::beside("sweep", &node.groups).unwrap();
        let ttft = &section.figures[0];
        assert_eq!(ttft.title, "TTFT against load");
        let legend = ttft.legend.iter().map(|it| it.name.as_str());
        let expected = [
            "max_batch 1: TTFT p50",
            "max_batch 8: TTFT p50",
            "max_batch 1: TTFT p99",
            "max_batch 8: TTFT p99",
        ];
        assert_eq!(legend.collect::<Vec<_>>(), expected);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_label_that_is_true_of_some_says_of_which() {
        let path = std::env::temp_dir().join(format!("mixed-{}", std::process::id()));
        for rate in [5, 20, 50] {
            keep(&path, 1, rate, 0);
        }
        let labels = || {
            report(std::slice::from_ref(&path), &AnalysisOptions::default())
                .unwrap()
                .labels
        };
        let simulated = || labels().into_iter().find(|label| label.0 == "SIMULATED");
        assert_eq!(simulated(), None);
        for (rate, expected) in [
            (5, "1 of 3 (max_batch=1_load=5_r0): every number"),
            (
                20,
                "2 of 3 (max_batch=1_load=5_r0, max_batch=1_load=20_r0): every number",
            ),
            (50, "every number"),
        ] {
            let folder = RunFolder::at(path.join(format!("max_batch=1_load={rate}_r0")));
            let mut manifest = folder.open().unwrap().manifest;
            manifest.source = Source::Simulated;
            manifest.write(&folder.manifest()).unwrap();
            let said = simulated().unwrap().1;
            assert!(said.starts_with(expected), "{said}");
        }
        std::fs::remove_dir_all(path).unwrap();
    }
}
