//! How long something is: a distribution over whole numbers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Positive, Wrong};

/// A distribution of tokens, milliseconds or turns.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Lengths {
    /// Always the same.
    Fixed(u32),
    /// Each number from `min` to `max` as often as any other.
    Uniform {
        /// The smallest.
        min: u32,
        /// The greatest.
        max: u32,
    },
    /// The logarithm is normal: most are short, a few are very long.
    Lognormal {
        /// Half are shorter.
        median: Positive,
        /// One in a hundred is longer.
        p99: Positive,
        /// Longer ones are cut to this.
        max: u32,
    },
    /// One of these, each as often as any other.
    Empirical(Vec<u32>),
    /// One of the numbers in a column of a CSV file.
    EmpiricalCsv {
        /// The file, from the folder of the specification. Its first line names the columns.
        file: PathBuf,
        /// The column.
        column: String,
    },
}

impl Lengths {
    /// What is wrong with it under `key`, where nothing below `least` makes sense.
    pub(super) fn wrong(&self, key: &str, least: u32) -> Option<Wrong> {
        let wrong = |key: String, cause: String| Some(Wrong::new(key, cause));
        match self {
            Self::Fixed(n) if *n < least => wrong(
                format!("{key}.fixed"),
                format!("{n} is too few; accepted is {least} or more"),
            ),
            Self::Uniform { min, max } if min > max || *min < least => wrong(
                format!("{key}.uniform"),
                format!("min {min} and max {max}; accepted is {least} <= min <= max"),
            ),
            Self::Lognormal { median, p99, max } => {
                if p99 < median {
                    return wrong(
                        format!("{key}.lognormal.p99"),
                        "it cannot be below the median".to_owned(),
                    );
                }
                let small = *max < least.max(1);
                let cause = || format!("{max} is too few; accepted is {} or more", least.max(1));
                small.then(|| Wrong::new(format!("{key}.lognormal.max"), cause()))
            }
            Self::Empirical(values) if values.is_empty() || values.iter().any(|n| *n < least) => {
                wrong(
                    format!("{key}.empirical"),
                    format!("accepted is a list of at least one number, each {least} or more"),
                )
            }
            _ => None,
        }
    }
}
