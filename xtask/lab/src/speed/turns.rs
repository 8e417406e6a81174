//! `cargo xtask speed turns`: what another speed program measures, of this build and of another one by turns, so that
//! whatever else the machine does falls on both alike.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use serve_bench::analysis::median;
use serve_bench::figure::Figure;
use thiserror::Error;

use crate::cli::SpeedTurns;
use crate::{TaskResult, place};

/// Why there is nothing to compare.
#[derive(Debug, Error)]
enum TurnsError {
    /// A build's program cannot be started.
    #[error("cannot start {}: {source}", lab.display())]
    Start {
        /// The program.
        lab: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// It failed, and has said why.
    #[error("{} ended with {status}", lab.display())]
    Failed {
        /// The program.
        lab: PathBuf,
        /// How it ended.
        status: ExitStatus,
    },
    /// The builds have no number in common.
    #[error("no number was measured of both builds")]
    Nothing,
}

/// One number, of every round, of this build and of the other.
#[derive(Debug)]
struct Row {
    /// As it was first told.
    figure: Figure,
    /// Which it is of those in one run that are called alike.
    nth: usize,
    values: [Vec<f64>; 2],
}

/// Measures, and prints what the builds have in common.
pub(crate) fn run(options: &SpeedTurns) -> TaskResult {
    let builds = [place::own()?, options.other.clone()];
    let mut rows = Vec::new();
    for round in 0..options.rounds as usize {
        // Who is first changes, so that neither has the colder machine.
        for turn in [round % 2, (round + 1) % 2] {
            book(&mut rows, turn, measure(&builds[turn], &options.what)?);
        }
    }
    let lines = rows.iter().filter_map(compared).collect::<Vec<_>>();
    if lines.is_empty() {
        return Err(TurnsError::Nothing.into());
    }
    for line in lines {
        writeln!(io::stdout(), "{}", line.line(options.json))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(lab: &Path, what: &[String]) -> Result<Vec<Figure>, TurnsError> {
    let mut command = Command::new(lab);
    // Right behind the program's name, as what follows `--` is not for it.
    let (name, args) = what.split_at(what.len().min(1));
    command.arg("speed").args(name).arg("--json").args(args);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|source| TurnsError::Start {
        lab: lab.to_owned(),
        source,
    })?;
    match output.status.success() {
        true => Ok(Figure::parse(&String::from_utf8_lossy(&output.stdout))),
        false => Err(TurnsError::Failed {
            lab: lab.to_owned(),
            status: output.status,
        }),
    }
}

/// Adds what one run of a build measured.
fn book(rows: &mut Vec<Row>, build: usize, figures: Vec<Figure>) {
    let mut seen: Vec<Figure> = Vec::new();
    for figure in figures {
        let Some(value) = figure.number() else {
            continue;
        };
        let nth = seen.iter().filter(|it| alike(it, &figure)).count();
        seen.push(figure.clone());
        let known = rows
            .iter_mut()
            .find(|row| row.nth == nth && alike(&row.figure, &figure));
        match known {
            Some(row) => row.values[build].push(value),
            None => {
                let mut values = [Vec::new(), Vec::new()];
                values[build].push(value);
                rows.push(Row {
                    figure,
                    nth,
                    values,
                });
            }
        }
    }
}

/// Whether two are called alike. What else is said in numbers may be measured, such as a least and a most.
fn alike(a: &Figure, b: &Figure) -> bool {
    let labels = |figure: &Figure| {
        let labels = figure.more.iter().filter(|(_, value)| value.is_string());
        labels
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect::<Vec<_>>()
    };
    a.name == b.name && a.unit == b.unit && labels(a) == labels(b)
}

/// This build's median, the other's, and the one through the other: the median over rounds, the least and the most.
/// `None` for what only one of them measured.
fn compared(row: &Row) -> Option<Figure> {
    let [this, other] = &row.values;
    let middle = |values: &[f64]| median(values.iter().copied());
    let ratios = this.iter().zip(other).map(|(this, other)| this / other);
    let ratios = ratios.collect::<Vec<_>>();
    let mut figure = row.figure.clone();
    figure.value = middle(this)?.into();
    figure.more.retain(|_, value| value.is_string());
    Some(
        figure
            .with("other", middle(other)?)
            .with("ratio", middle(&ratios)?)
            .with(
                "ratio_least",
                ratios.iter().copied().fold(f64::INFINITY, f64::min),
            )
            .with(
                "ratio_most",
                ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(value: f64) -> Figure {
        Figure::new("step", value, "us").with("least", value / 2.0)
    }

    #[test]
    fn a_number_is_compared_with_its_own_kind_in_the_other_build() {
        let mut rows = Vec::new();
        let runs = [
            (0, [2.0, 10.0]),
            (1, [4.0, 10.0]),
            (1, [2.0, 20.0]),
            (0, [4.0, 30.0]),
            (0, [3.0, 20.0]),
            (1, [3.0, 10.0]),
        ];
        for (build, values) in runs {
            let [plain, q8] = values;
            let figures = vec![
                Figure::text("commit", "abc"),
                step(plain),
                step(q8).with("weights", "q8"),
                step(plain * 3.0),
            ];
            book(&mut rows, build, figures);
        }
        let lines = rows.iter().filter_map(compared).collect::<Vec<_>>();
        let told = |index: usize, key: &str| lines[index].more[key].as_f64().unwrap();
        assert_eq!(lines.len(), 3);
        assert_eq!((lines[0].number(), told(0, "other")), (Some(3.0), 3.0));
        assert_eq!(
            (
                told(0, "ratio_least"),
                told(0, "ratio"),
                told(0, "ratio_most")
            ),
            (0.5, 1.0, 2.0)
        );
        assert_eq!(lines[1].more["weights"], "q8");
        assert_eq!((lines[1].number(), told(1, "other")), (Some(20.0), 10.0));
        assert_eq!(lines[2].number(), Some(9.0));
        assert!(!lines[0].more.contains_key("least"));
    }

    #[test]
    fn what_one_build_alone_measures_is_left_out() {
        let mut rows = Vec::new();
        book(&mut rows, 0, vec![step(1.0), Figure::new("new", 1.0, "us")]);
        book(&mut rows, 1, vec![step(1.0)]);
        assert_eq!(rows.iter().filter_map(compared).count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_build_that_fails_or_is_not_there_is_named() {
        let args = |words: &[&str]| {
            words
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>()
        };
        let error = measure(Path::new("/bin/false"), &args(&["sched"])).unwrap_err();
        assert!(error.to_string().starts_with("/bin/false ended with"));
        let error = measure(Path::new("/nowhere/lab"), &args(&["sched"])).unwrap_err();
        assert!(error.to_string().contains("/nowhere/lab"));
    }
}
