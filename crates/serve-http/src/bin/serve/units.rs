//! Settings with a unit: seconds, and rates in a second.

use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serve_core::Span;

/// A number of seconds from 0 to a day, fractions allowed.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) struct Seconds(f64);

impl Seconds {
    pub(crate) const fn of_millis(millis: u16) -> Self {
        Self(millis as f64 / 1e3)
    }

    pub(crate) fn span(self) -> Span {
        Span::from_secs_f64(self.0)
    }

    pub(crate) fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }

    pub(crate) fn get(self) -> f64 {
        self.0
    }

    /// `None` for zero, which turns a limit off.
    pub(crate) fn if_on(self) -> Option<Self> {
        (self.0 > 0.0).then_some(self)
    }
}

/// Parses a setting that must not be zero, with an error that says what is accepted.
pub(crate) fn one_or_more<T: FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "a whole number from 1 up")
}

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        number(text, 86_400.0)
            .map(Self)
            .ok_or_else(|| "a number of seconds from 0 to 86400".to_owned())
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

/// So many in a second; 0 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) struct Rate(f64);

impl Rate {
    /// A rate from a settings file.
    pub(crate) fn new(per_s: f64) -> Option<Self> {
        (0.0..=RATE_MAX).contains(&per_s).then_some(Self(per_s))
    }

    pub(crate) fn get(self) -> f64 {
        self.0
    }
}

const RATE_MAX: f64 = 1e9;
pub(crate) const RATE_ACCEPTED: &str = "a number from 0 to 1000000000; 0 is no limit";

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        number(text, RATE_MAX)
            .map(Self)
            .ok_or_else(|| RATE_ACCEPTED.to_owned())
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

fn number(text: &str, max: f64) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    (0.0..=max).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert_eq!(
            "0.25".parse::<Seconds>().unwrap().span(),
            Span::from_millis(250)
        );
        assert_eq!("0".parse::<Seconds>().unwrap().if_on(), None);
        for wrong in ["-1", "nan", "inf", "86401", "", "1s"] {
            assert!(wrong.parse::<Seconds>().is_err(), "{wrong}");
        }
        for wrong in ["-1", "nan", "inf", "1e10"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
