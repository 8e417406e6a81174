//! A folder of runs, of folders of runs, and so on, as a report: what lies beside each other is shown
//! beside each other.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::html::{Report, ReportError, Section};
use super::{Named, sections};
use crate::analysis::Options;
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

/// A report of all runs under some folders. Runs of one folder that differ in nothing but their seed are
/// repeats of each other.
///
/// # Errors
///
/// [`TreeError`] when a folder holds no run, or when a run cannot be read.
pub(crate) fn report(folders: &[PathBuf], options: &Options) -> Result<Report, TreeError> {
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
fn gathered(nodes: Vec<Node>, options: &Options) -> Node {
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
    let runs = || top.groups.iter().flat_map(|named| &named.runs);
    if top.groups.len() > 1 && odd_one_out(runs().map(|run| &run.manifest)).is_none() {
        let timeline = top.groups[0].timeline.clone();
        let name = top.groups[0].name.clone();
        let runs = runs().cloned().collect();
        top.groups = vec![Named::new(name, runs, timeline, options)];
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

fn labels(named: &[&Named]) -> Vec<Fact> {
    let mut labels = Vec::new();
    for label in named.iter().flat_map(|it| summary::labels(&it.analysis)) {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    labels
}

fn node(path: &Path, options: &Options) -> Result<Node, TreeError> {
    let found = find(path, options)?;
    found.ok_or_else(|| FolderError::NoRun(path.to_owned()).into())
}

fn find(path: &Path, options: &Options) -> Result<Option<Node>, TreeError> {
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
            true => runs.push((self::name(&folder), open(&folder)?)),
            false => below.extend(find(&folder, options)?),
        }
    }
    let manifests = runs.iter().map(|(_, (run, _))| &run.manifest);
    let repeats = odd_one_out(manifests).is_none();
    let groups = if runs.len() > 1 && repeats {
        let timeline = runs[0].1.1.clone();
        let runs = runs.into_iter().map(|(_, (run, _))| run).collect();
        vec![Named::new(name.clone(), runs, timeline, options)]
    } else {
        let named = |(name, (run, timeline))| Named::new(name, vec![run], timeline, options);
        runs.into_iter().map(named).collect()
    };
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

    #[test]
    fn a_folder_without_a_run_is_named() {
        let path = std::env::temp_dir().join(format!("no-runs-{}", std::process::id()));
        std::fs::create_dir_all(path.join("inner")).unwrap();
        let error = report(std::slice::from_ref(&path), &Options::default()).unwrap_err();
        assert!(error.to_string().contains("holds no run"), "{error}");
        std::fs::remove_dir_all(path).unwrap();
    }
}
