//! Settings of the edge with a unit: seconds.

use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serve_core::Span;
use serve_sched::settings::{Kind, Value};

/// A number of seconds from 0 to a day, fractions allowed.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) struct Seconds(Span);

impl Seconds {
    pub(crate) fn duration(self) -> Duration {
        self.0.into()
    }

    /// `None` for zero, which turns a limit off.
    pub(crate) fn if_on(self) -> Option<Self> {
        (!self.0.is_zero()).then_some(self)
    }
}

/// Parses a setting that must not be zero, with an error that says what is accepted.
pub(crate) fn one_or_more<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| Kind::Whole { min: 1 }.accepted())
}

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match Kind::Seconds.parse(text)? {
            Value::Seconds(span) => Ok(Self(span)),
            _ => Err(Kind::Seconds.accepted()),
        }
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        let quarter: Seconds = "0.25".parse().unwrap();
        assert_eq!(quarter.duration(), Duration::from_millis(250));
        assert_eq!("0".parse::<Seconds>().unwrap().if_on(), None);
        for wrong in ["-1", "nan", "inf", "86401", "", "1s"] {
            assert!(wrong.parse::<Seconds>().is_err(), "{wrong}");
        }
    }
}
