//! `strftime_now`: a date that somebody passes in, in Python's `strftime` format.

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

const SECONDS_PER_DAY: i64 = 86_400;

/// Formats `unix_s`, seconds since 1970, by the directives that are the same in every locale but for
/// their (English) names; `%-d` leaves out the leading zero.
pub(super) fn strftime(unix_s: i64, format: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(format.len());
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let text = directive
            .and_then(|directive| field(unix_s, directive))
            .ok_or_else(|| unknown(format))?;
        match text.trim_start_matches(['0', ' ']) {
            "" if unpadded => out.push('0'),
            short if unpadded => out.push_str(short),
            _ => out.push_str(&text),
        }
    }
    Ok(out)
}

fn field(unix_s: i64, directive: char) -> Option<String> {
    let days = unix_s.div_euclid(SECONDS_PER_DAY);
    let second = unix_s.rem_euclid(SECONDS_PER_DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (year, month, day) = civil(days);
    let month_name = MONTHS[(month - 1) as usize];
    // The first of January 1970 was a Thursday.
    let day_name = DAYS[(days + 4).rem_euclid(7) as usize];
    Some(match directive {
        'Y' => year.to_string(),
        'y' => format!("{:02}", year.rem_euclid(100)),
        'm' => format!("{month:02}"),
        'B' => month_name.to_owned(),
        'b' | 'h' => month_name[..3].to_owned(),
        'd' => format!("{day:02}"),
        'e' => format!("{day:2}"),
        'j' => format!("{:03}", days - days_before(year) + 1),
        'A' => day_name.to_owned(),
        'a' => day_name[..3].to_owned(),
        'H' => format!("{hour:02}"),
        'I' => format!("{:02}", (hour + 11) % 12 + 1),
        'p' => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
        'M' => format!("{minute:02}"),
        'S' => format!("{second:02}"),
        'F' => format!("{year}-{month:02}-{day:02}"),
        'T' => format!("{hour:02}:{minute:02}:{second:02}"),
        'D' => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

/// Year, month and day of a day counted from 1970, in the proleptic Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // 400 years are 146,097 days, so a year found from the mean length is off by one at most.
    let mut year = 1970 + days * 400 / 146_097;
    while days_before(year) > days {
        year -= 1;
    }
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = days_before(year + 1) - days_before(year) == 366;
    let february = if leap { 29 } else { 28 };
    let mut day = days - days_before(year);
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1)
}

/// Days from the first of January 1970 to the first of January of `year`.
fn days_before(year: i64) -> i64 {
    let before = year - 1;
    let leap_days = before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400);
    (year - 1970) * 365 + leap_days - 477
}

fn unknown(format: &str) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!(
            "strftime_now({format:?}) has a directive other than %Y %y %m %B %b %h %d %e %j %A %a %H \
             %I %p %M %S %F %T %D %%"
        ),
    )
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

    #[test]
    fn an_unknown_directive_is_an_error() {
        for format in ["%Q", "%", "%-"] {
            let message = strftime(0, format).unwrap_err().to_string();
            assert!(message.contains("has a directive other than"), "{message}");
        }
    }
}
