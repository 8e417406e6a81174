//! What a setting can be: how its value is read from text, what is accepted, and how it is shown.

use std::fmt;
use std::str::FromStr;

use serve_core::Span;

/// A kind of setting: what its text may be.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A time from 0 to a day: a number of seconds, fractions allowed, or with a unit behind it.
    Seconds,
    /// So many in a second; 0 is no limit.
    Rate,
    /// A whole number of 32 bits, from so many up.
    Whole {
        /// The least.
        min: u32,
    },
    /// Any whole number of 64 bits.
    Seed,
    /// A number above 0, or `inf`.
    Factor,
    /// A number of microseconds from 0 to an hour.
    Micros,
    /// On or off.
    Switch,
    /// One of some names.
    Name(fn() -> Vec<&'static str>),
    /// One of some names, or one of others before it with a `/` between them, any number of times.
    Path {
        /// What may stand before a `/`.
        outer: fn() -> Vec<&'static str>,
        /// What stands last, or alone.
        inner: fn() -> Vec<&'static str>,
    },
    /// Names of classes, the highest first.
    Classes,
    /// A whole number for each of some classes.
    ByClass,
    /// Step times in microseconds for each of some batch sizes.
    StepTimes,
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(untagged))]
pub enum Value {
    /// Of [`Kind::Seconds`].
    #[cfg_attr(feature = "serde", serde(serialize_with = "in_seconds"))]
    Seconds(Span),
    /// Of [`Kind::Rate`], [`Kind::Factor`] and [`Kind::Micros`].
    Number(f64),
    /// Of [`Kind::Whole`] and [`Kind::Seed`].
    Whole(u64),
    /// Of [`Kind::Switch`].
    Switch(bool),
    /// Of [`Kind::Name`].
    Name(&'static str),
    /// Of [`Kind::Path`].
    Path(String),
    /// Of [`Kind::Classes`].
    Classes(Vec<String>),
    /// Of [`Kind::ByClass`].
    ByClass(Vec<(String, u32)>),
    /// Of [`Kind::StepTimes`]: batch size and microseconds.
    StepTimes(Vec<(u32, f64)>),
}

/// As settings say it.
#[cfg(feature = "serde")]
fn in_seconds<S: serde::Serializer>(span: &Span, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}

const DAY_S: f64 = 86_400.0;
const HOUR_US: f64 = 3.6e9;
const RATE_MAX: f64 = 1e9;
/// What is read as on and as off, in any case of letters.
const ON: [&str; 6] = ["y", "yes", "t", "true", "on", "1"];
const OFF: [&str; 6] = ["n", "no", "f", "false", "off", "0"];

impl Kind {
    /// The value that `text` stands for.
    ///
    /// # Errors
    ///
    /// [What is accepted](Self::accepted).
    pub fn parse(self, text: &str) -> Result<Value, String> {
        self.value(text).ok_or_else(|| self.accepted())
    }

    /// What a text may be, to end a sentence with.
    pub fn accepted(self) -> String {
        match self {
            Self::Seconds => {
                "a number of seconds from 0 to 86400, or with a unit, such as 250ms, 30s, 5m or 1h"
                    .to_owned()
            }
            Self::Rate => "a number from 0 to 1000000000; 0 is no limit".to_owned(),
            Self::Whole { min } => format!("a whole number from {min} up"),
            Self::Seed => "a whole number from 0 up".to_owned(),
            Self::Factor => "a number above 0, or inf".to_owned(),
            Self::Micros => "a number of microseconds from 0 to 3600000000".to_owned(),
            Self::Switch => "true or false".to_owned(),
            Self::Name(known) => format!("one of {}", known().join(", ")),
            Self::Path { outer, inner } => format!(
                "one of {}, alone or inside of one or more of {}, such as {}/{}",
                inner().join(", "),
                outer().join(", "),
                outer().first().copied().unwrap_or_default(),
                inner().first().copied().unwrap_or_default()
            ),
            Self::Classes => "names with commas, the highest class first".to_owned(),
            Self::ByClass => "CLASS=N, such as free=64".to_owned(),
            Self::StepTimes => "BATCH=MICROSECONDS, such as 16=17760".to_owned(),
        }
    }

    /// What stands for the value where the setting is explained.
    pub const fn placeholder(self) -> &'static str {
        match self {
            Self::Seconds => "SECONDS",
            Self::Rate => "RATE",
            Self::Whole { .. } => "N",
            Self::Seed => "SEED",
            Self::Factor => "FACTOR",
            Self::Micros => "US",
            Self::Switch => "BOOL",
            Self::Name(_) | Self::Path { .. } => "NAME",
            Self::Classes => "NAMES",
            Self::ByClass => "CLASS=N",
            Self::StepTimes => "BATCH=US",
        }
    }

    /// Whether the value is a list, whose items commas part.
    pub const fn is_list(self) -> bool {
        matches!(self, Self::Classes | Self::ByClass | Self::StepTimes)
    }

    fn value(self, text: &str) -> Option<Value> {
        Some(match self {
            Self::Seconds => Value::Seconds(seconds(text)?),
            Self::Rate => Value::Number(number(text, |rate| (0.0..=RATE_MAX).contains(&rate))?),
            Self::Whole { min } => {
                let number = text.parse::<u32>().ok().filter(|number| *number >= min)?;
                Value::Whole(u64::from(number))
            }
            Self::Seed => Value::Whole(text.parse().ok()?),
            Self::Factor => Value::Number(number(text, |factor| factor > 0.0)?),
            Self::Micros => Value::Number(micros(text)?),
            Self::Switch => Value::Switch(switch(text)?),
            Self::Name(known) => Value::Name(known().into_iter().find(|name| *name == text)?),
            Self::Path { outer, inner } => {
                let (outer, inner) = (outer(), inner());
                let mut names = text.rsplit('/');
                let is_known = names.next().is_some_and(|last| inner.contains(&last))
                    && names.all(|name| outer.contains(&name));
                is_known.then(|| Value::Path(text.to_owned()))?
            }
            Self::Classes => Value::Classes(text.split(',').map(ToOwned::to_owned).collect()),
            Self::ByClass => {
                let of_class = |class: &str, depth: &str| {
                    let is_named = !class.is_empty();
                    is_named.then_some((class.to_owned(), depth.parse().ok()?))
                };
                Value::ByClass(pairs(text, of_class)?)
            }
            Self::StepTimes => {
                let time = |batch: &str, us: &str| {
                    let batch = batch.parse::<u32>().ok().filter(|batch| *batch > 0)?;
                    Some((batch, micros(us)?))
                };
                Value::StepTimes(pairs(text, time)?)
            }
        })
    }
}

fn number(text: &str, is_accepted: impl Fn(f64) -> bool) -> Option<f64> {
    f64::from_str(text)
        .ok()
        .filter(|number| is_accepted(*number))
}

/// A time with a unit; seconds without one.
fn seconds(text: &str) -> Option<Span> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
    // Words that stand for numbers, such as inf, have no digits.
    let (count, unit) = text.split_at(digits.len());
    let second = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        "d" => DAY_S,
        _ => return None,
    };
    let count = number(count.trim_end(), |count| {
        (0.0..=DAY_S / second).contains(&count)
    })?;
    Some(Span::from_secs_f64(count * second))
}

fn micros(text: &str) -> Option<f64> {
    number(text.trim(), |us| (0.0..=HOUR_US).contains(&us))
}

fn switch(text: &str) -> Option<bool> {
    let text = text.to_lowercase();
    let is_of = |words: &[&str]| words.contains(&text.as_str());
    (is_of(&ON) || is_of(&OFF)).then(|| is_of(&ON))
}

/// Pairs such as `a=1,b=2`; none of an empty text.
fn pairs<T>(text: &str, pair: impl Fn(&str, &str) -> Option<T>) -> Option<Vec<T>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let items = text.split(',').map(|item| {
        let (left, right) = item.split_once('=')?;
        pair(left.trim(), right.trim())
    });
    items.collect()
}

impl Value {
    /// Whether this is what turns a limit off: nothing, zero or `false`.
    pub fn is_off(&self) -> bool {
        match self {
            Self::Seconds(span) => span.is_zero(),
            Self::Number(number) => *number == 0.0,
            Self::Whole(number) => *number == 0,
            Self::Switch(on) => !on,
            Self::Name(_) | Self::Path(_) => false,
            Self::Classes(names) => names.is_empty(),
            Self::ByClass(pairs) => pairs.is_empty(),
            Self::StepTimes(pairs) => pairs.is_empty(),
        }
    }
}

impl fmt::Display for Value {
    /// The text that stands for the value: `2`, `0.01`, `free=64,paid=0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seconds(span) => write!(f, "{}", span.as_secs_f64()),
            Self::Number(number) => write!(f, "{number}"),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Switch(on) => write!(f, "{on}"),
            Self::Name(name) => f.write_str(name),
            Self::Path(path) => f.write_str(path),
            Self::Classes(names) => f.write_str(&names.join(",")),
            Self::ByClass(pairs) => write_pairs(f, pairs),
            Self::StepTimes(pairs) => write_pairs(f, pairs),
        }
    }
}

fn write_pairs<A: fmt::Display, B: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    pairs: &[(A, B)],
) -> fmt::Result {
    for (index, (left, right)) in pairs.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(f, "{comma}{left}={right}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Kind = Kind::Name(|| vec!["fifo", "lifo"]);
    const PATHS: Kind = Kind::Path {
        outer: || vec!["aging", "tiers"],
        inner: || vec!["fifo", "lifo"],
    };

    #[test]
    fn what_is_accepted_is_shown_as_it_is_set_and_the_rest_is_refused() {
        let table: &[(Kind, &[&str], &[&str])] = &[
            (
                Kind::Seconds,
                &["0", "0.25", "86400"],
                &["-1", "nan", "inf", "86401", "", "1x", "s", "2d", "inf s"],
            ),
            (
                Kind::Rate,
                &["0", "0.5", "1000000000"],
                &["-1", "nan", "inf", "1e10", " 1"],
            ),
            (
                Kind::Whole { min: 0 },
                &["0", "4294967295"],
                &["-1", "4294967296", "1.5", "1 "],
            ),
            (Kind::Whole { min: 1 }, &["1"], &["0", ""]),
            (Kind::Seed, &["0", "18446744073709551615"], &["-1", "x"]),
            (Kind::Factor, &["0.5", "inf"], &["0", "-1", "nan", "fast"]),
            (
                Kind::Micros,
                &["0", "0.25", "3600000000"],
                &["-1", "inf", "3600000001"],
            ),
            (Kind::Switch, &["true", "false"], &["", "maybe", "2"]),
            (NAMES, &["fifo", "lifo"], &["", "FIFO", "filo"]),
            (
                PATHS,
                &["fifo", "tiers/fifo", "tiers/aging/tiers/lifo"],
                &[
                    "",
                    "/",
                    "/fifo",
                    "fifo/",
                    "tiers",
                    "fifo/lifo",
                    "tiers//fifo",
                    "tiers/ fifo",
                ],
            ),
            (Kind::Classes, &["paid,free", "a"], &[]),
            (
                Kind::ByClass,
                &["", "free=64", "free=4,paid=0"],
                &["free", "=1", "free=x", "free=1,"],
            ),
            (
                Kind::StepTimes,
                &["", "1=16000,16=17760.5"],
                &["16000", "0=5", "1=-5", "1=inf", "a=1"],
            ),
        ];
        for (kind, accepted, refused) in table {
            for text in *accepted {
                assert_eq!(kind.parse(text).unwrap().to_string(), *text, "{kind:?}");
            }
            for text in *refused {
                assert_eq!(kind.parse(text), Err(kind.accepted()), "{kind:?} {text:?}");
            }
        }
    }

    #[test]
    fn a_time_can_have_a_unit() {
        for (text, seconds) in [
            ("250ms", "0.25"),
            ("1s", "1"),
            ("5m", "300"),
            ("1h", "3600"),
            ("1d", "86400"),
            ("0.5 h", "1800"),
        ] {
            let value = Kind::Seconds.parse(text).unwrap();
            assert_eq!(value.to_string(), seconds, "{text}");
        }
    }

    #[test]
    fn a_switch_can_be_said_in_other_words() {
        for (text, on) in [
            ("YES", true),
            ("on", true),
            ("1", true),
            ("Off", false),
            ("n", false),
        ] {
            assert_eq!(Kind::Switch.parse(text), Ok(Value::Switch(on)), "{text}");
        }
    }

    #[test]
    fn spaces_around_a_pair_do_not_matter() {
        let spaced = Kind::ByClass.parse(" free = 64 , paid=0 ").unwrap();
        assert_eq!(spaced.to_string(), "free=64,paid=0");
    }
}
