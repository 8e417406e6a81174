//! `cargo run --release --bin policy-charts -- docs/charts` draws one chart for each policy: what it
//! does to the users who wait, beside the control condition, from the simulator with fixed seeds. The
//! same code draws the same bytes.

mod chart;
mod charts;

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use charts::CHARTS;

/// Draws every policy beside its control, from the simulator with fixed seeds.
#[derive(Debug, Parser)]
struct Options {
    /// The folder of the charts, as docs/charts; it is made if it is not there
    folder: PathBuf,
}

#[expect(clippy::print_stderr, reason = "a command says what it did")]
fn main() -> ExitCode {
    let Options { folder } = Options::parse();
    if let Err(error) = std::fs::create_dir_all(&folder) {
        eprintln!("cannot make {}: {error}", folder.display());
        return ExitCode::FAILURE;
    }
    for (name, _) in CHARTS {
        let path = folder.join(format!("{name}.svg"));
        let written = draw(name).and_then(|svg| Ok(std::fs::write(&path, svg)?));
        if let Err(error) = written {
            eprintln!("cannot draw {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
        // Who reads no further has the charts nevertheless.
        let _ = writeln!(std::io::stdout(), "{}", path.display());
    }
    ExitCode::SUCCESS
}

/// The chart of that name, as SVG.
fn draw(name: &str) -> Result<String, Box<dyn Error>> {
    let chart = CHARTS.iter().find(|(other, _)| *other == name);
    let (_, make) = chart.ok_or_else(|| format!("there is no chart named {name}"))?;
    make()?.svg()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/charts")
    }

    #[test]
    fn the_charts_in_the_documentation_are_those_that_are_drawn() {
        for name in [
            "fifo",
            "latency-budget",
            "gradient",
            "prefix-cache",
            "first-come",
            "over-share-first",
        ] {
            let kept = fs::read_to_string(folder().join(format!("{name}.svg"))).unwrap();
            assert!(
                draw(name).unwrap() == kept,
                "draw docs/charts anew: {name}.svg has changed"
            );
        }
    }

    /// The names of a folder's files with this ending.
    fn names(folder: &Path, ending: &str) -> BTreeSet<String> {
        let files = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        let files = files.map(|name| name.into_string().unwrap());
        files
            .filter_map(|name| Some(name.strip_suffix(ending)?.to_owned()))
            .collect()
    }

    #[test]
    fn every_policy_page_shows_its_chart_with_its_title_and_nothing_else_is_drawn() {
        let drawn: BTreeSet<String> = CHARTS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(names(&folder(), ".svg"), drawn);
        let policies = folder().join("../policies");
        let mut pages = names(&policies, ".md");
        pages.remove("README");
        assert_eq!(pages, drawn);
        for name in drawn {
            let page = fs::read_to_string(policies.join(format!("{name}.md"))).unwrap();
            let svg = fs::read_to_string(folder().join(format!("{name}.svg"))).unwrap();
            let (before, _) = page
                .split_once(&format!("](../charts/{name}.svg)"))
                .unwrap_or_else(|| panic!("{name}.md does not show its chart"));
            let (_, title) = before.rsplit_once("![").unwrap();
            let title = title.replace('\'', "&apos;");
            assert!(
                svg.lines().any(|line| line == title),
                "{name}.svg is not titled: {title}"
            );
        }
    }
}
