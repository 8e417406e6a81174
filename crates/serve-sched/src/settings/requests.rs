//! The settings that hold for every request: in which classes they come, and how long each may take.

use serve_core::{Class, Span};

use super::{Row, Setting, Settings};

/// The names of the classes, the highest first.
pub const CLASSES: Setting<Vec<String>> = Setting::classes(
    "classes",
    "The names of the request classes, the highest first",
    &["paid", "free"],
)
.in_group(GROUP)
.checked(check_classes);

/// How long a request may take in all; zero is no limit.
pub const REQUEST_TIMEOUT: Setting<Span> = Setting::seconds(
    "request_timeout",
    "Seconds that a request may take in all, waiting included; 0 is no limit. A client can ask for less",
    Span::ZERO,
)
.in_group(GROUP);

/// How long a request may wait before its first step; zero is no limit.
pub const QUEUE_TIMEOUT: Setting<Span> = Setting::seconds(
    "queue_timeout",
    "Seconds that a request may wait before its first step; 0 is no limit. A client can ask for less",
    Span::ZERO,
)
.in_group(GROUP)
.checked(check_queue_timeout);

const GROUP: &str = "Requests";
const CLASSES_MAX: usize = 16;

/// What holds for every request.
pub(crate) const REQUESTS: &[&Row] = &[&REQUEST_TIMEOUT.row, &QUEUE_TIMEOUT.row, &CLASSES.row];

impl Settings {
    /// The class of this name.
    pub fn class(&self, name: &str) -> Option<Class> {
        let rank = self.get(&CLASSES).iter().position(|class| class == name)?;
        Some(Class::new(u8::try_from(rank).unwrap_or(u8::MAX)))
    }
}

fn check_queue_timeout(settings: &Settings) -> Result<(), String> {
    let (total, wait) = (settings.get(&REQUEST_TIMEOUT), settings.get(&QUEUE_TIMEOUT));
    if !total.is_zero() && wait >= total {
        return Err("it must be below --request-timeout, which ends the wait as well".to_owned());
    }
    Ok(())
}

fn check_classes(settings: &Settings) -> Result<(), String> {
    if are_classes(&settings.get(&CLASSES)) {
        return Ok(());
    }
    Err(format!(
        "it must be 1 to {CLASSES_MAX} different names of letters, digits, `-`, `_` and `.`"
    ))
}

fn are_classes(classes: &[String]) -> bool {
    let is_name = |name: &String| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        (1..=64).contains(&name.len()) && name.bytes().all(allowed)
    };
    let is_new = |(index, name): (usize, &String)| !classes[..index].contains(name);
    (1..=CLASSES_MAX).contains(&classes.len())
        && classes.iter().all(is_name)
        && classes.iter().enumerate().all(is_new)
}
