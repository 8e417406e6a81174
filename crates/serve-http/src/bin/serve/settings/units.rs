//! Settings of the edge with a unit: seconds and bytes.

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

/// A number of bytes above 0, as it is or with a unit: `8388608`, `8MiB`, `500kB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(usize);

impl Bytes {
    pub(crate) fn get(self) -> usize {
        self.0
    }
}

impl FromStr for Bytes {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const ACCEPTED: &str = "it must be a whole number of bytes from 1 up, or with a unit, such as 64KiB, 8MiB or 1GB";
        let digits = text.len()
            - text
                .trim_start_matches(|digit: char| digit.is_ascii_digit())
                .len();
        let (count, unit) = text.split_at(digits);
        let byte = match unit.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "ki" | "kib" => 1 << 10,
            "m" | "mi" | "mib" => 1 << 20,
            "g" | "gi" | "gib" => 1 << 30,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            _ => return Err(ACCEPTED),
        };
        let bytes = count
            .parse()
            .ok()
            .and_then(|count: usize| count.checked_mul(byte));
        bytes.filter(|bytes| *bytes > 0).map(Self).ok_or(ACCEPTED)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0 as u64)
    }
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
        for (text, millis) in [
            ("250ms", 250),
            ("1.5s", 1_500),
            ("2m", 120_000),
            ("1 h", 3_600_000),
        ] {
            let seconds: Seconds = text.parse().unwrap();
            assert_eq!(seconds.duration(), Duration::from_millis(millis), "{text}");
        }
        for wrong in [
            "-1", "nan", "inf", "86401", "", "1x", "s", "2d", "-1s", "1e5m",
        ] {
            assert!(wrong.parse::<Seconds>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("1", 1),
            ("64KiB", 64 << 10),
            ("8 MiB", 8 << 20),
            ("1GB", 1_000_000_000),
            ("3k", 3 << 10),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for wrong in [
            "0",
            "",
            "MiB",
            "1.5MiB",
            "-1",
            "1TB",
            "99999999999999999999",
            "18446744073709551615GiB",
        ] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong}");
        }
    }
}
