//! `strftime_now`: a date that somebody passes in, in Python's `strftime` format.

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use minijinja::{Error, ErrorKind};

/// What jiff writes as Python does, in every locale but for the (English) names. Both know more, such as
/// `%c` and `%f`, and write it differently.
const DIRECTIVES: &str = "YymBbhdejAaHIpMSFTD%";

/// Formats `unix_s`, seconds since 1970; `%-d` leaves out the leading zero.
pub(super) fn strftime(unix_s: i64, format: &str) -> Result<String, Error> {
    if !is_known(format) {
        let accepted: Vec<String> = DIRECTIVES
            .chars()
            .map(|known| format!("%{known}"))
            .collect();
        return Err(error(
            format,
            &format!("has a directive other than {}", accepted.join(" ")),
        ));
    }
    let written = Timestamp::from_second(unix_s).and_then(|now| {
        let now = now.to_zoned(TimeZone::UTC);
        strtime::format(format, &now)
    });
    written.map_err(|cause| error(format, &cause.to_string()))
}

/// Whether there are no directives but those, each with a `-` or without.
fn is_known(format: &str) -> bool {
    let mut chars = format.chars();
    while chars.any(|c| c == '%') {
        let directive = match chars.next() {
            Some('-') => chars.next(),
            directive => directive,
        };
        if !directive.is_some_and(|directive| DIRECTIVES.contains(directive)) {
            return false;
        }
    }
    true
}

fn error(format: &str, cause: &str) -> Error {
    let detail = format!("strftime_now({format:?}) {cause}");
    Error::new(ErrorKind::InvalidOperation, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values from Python's `datetime.fromtimestamp(.., UTC).strftime(..)`.
    #[test]
    fn dates_are_pythons() {
        for (unix_s, format, expected) in [
            (
                0,
                "%Y-%m-%d %H:%M:%S %A %j",
                "1970-01-01 00:00:00 Thursday 001",
            ),
            (951_782_400, "%d %b %Y, %a", "29 Feb 2000, Tue"),
            (
                1_735_689_599,
                "%B %-d, %Y %I:%M %p %j",
                "December 31, 2024 11:59 PM 366",
            ),
            (1_785_542_400, "%-m/%-d/%y 100%%", "8/1/26 100%"),
            (4_107_542_400, "%F %T %D", "2100-03-01 00:00:00 03/01/00"),
            (-1, "%F %T", "1969-12-31 23:59:59"),
            (1_769_904_000, "%-H h %-M", "0 h 0"),
        ] {
            assert_eq!(strftime(unix_s, format).unwrap(), expected);
        }
    }

    /// jiff knows them all.
    #[test]
    fn a_directive_that_python_writes_otherwise_is_an_error() {
        for format in ["%c", "%f", "%x", "%r", "%Z", "%3d", "%_d", "%^B", "%F %c"] {
            let message = strftime(0, format).unwrap_err().to_string();
            assert!(message.contains("has a directive other than"), "{message}");
        }
    }

    #[test]
    fn a_time_beyond_the_calendar_is_an_error() {
        for unix_s in [i64::MIN, i64::MAX] {
            let message = strftime(unix_s, "%F").unwrap_err().to_string();
            assert!(message.contains("strftime_now(\"%F\")"), "{message}");
        }
    }

    #[test]
    fn an_unknown_directive_is_an_error() {
        for format in ["%Q", "%", "%-"] {
            let message = strftime(0, format).unwrap_err().to_string();
            assert!(message.contains("has a directive other than"), "{message}");
        }
    }
}
