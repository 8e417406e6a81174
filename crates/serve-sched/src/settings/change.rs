//! What is to be other than it was while requests wait and run: two readings of the settings, and where
//! they differ.
//!
//! It is made of whole settings, so what a change may say has the names, ranges and errors of a start. Who
//! owns a setting takes its new value, or says that it cannot: see [`Scheduler::change`](crate::Scheduler::change).

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use super::{Read, Row, Setting, Settings, Value};

/// Where new settings differ from those that hold.
///
/// ```
/// use serve_sched::Settings;
/// use serve_sched::settings::Change;
///
/// let now = Settings::default();
/// let mut then = now.clone();
/// then.set_text("queue_cap", "64")?;
/// assert_eq!(Change::between(&now, &then)?.to_string(), "queue_cap 64");
/// # Ok::<(), serve_sched::settings::SettingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Change {
    pub(crate) to: Settings,
    /// The settings that differ, by name, with the value to be.
    pub(crate) values: BTreeMap<&'static str, Option<Value>>,
    pub(crate) tenants: bool,
}

/// The numbers of settings are never NaN.
impl Eq for Change {}

/// A change that cannot be made while requests wait and run. Nothing has changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChangeError {
    /// What runs now cannot take another value.
    #[error("{setting} cannot change while the server runs; a restart can change it")]
    Fixed {
        /// The setting, as a flag.
        setting: String,
    },
    /// More than what was made at the start has room for.
    #[error("{setting}: it can be {max} at most until a restart")]
    TooMuch {
        /// The setting, as a flag.
        setting: String,
        /// The most that it can be.
        max: u32,
    },
}

impl Change {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && !self.tenants
    }

    /// All settings as they are to be.
    pub fn settings(&self) -> &Settings {
        &self.to
    }

    /// Whether a setting is to be another.
    pub fn concerns(&self, row: &Row) -> bool {
        self.values.contains_key(row.name)
    }

    /// What a setting is to be, if that is another than it was.
    pub fn value<T: Read>(&self, setting: &Setting<T>) -> Option<T> {
        self.concerns(&setting.row).then(|| self.to.get(setting))
    }

    /// Whether something else is to hold of tenants or groups.
    pub fn concerns_tenants(&self) -> bool {
        self.tenants
    }

    /// This change and a later one as one.
    pub(crate) fn then(&mut self, later: &Self) {
        self.values.extend(later.values.clone());
        self.tenants |= later.tenants;
        self.to = later.to.clone();
    }
}

impl ChangeError {
    /// Of a setting that cannot change.
    pub(crate) fn fixed(row: &Row) -> Self {
        Self::Fixed {
            setting: row.flag(),
        }
    }
}

impl fmt::Display for Change {
    /// `queue_cap 64, age_after 3, tenants`, in the order of names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (name, value) in &self.values {
            match value {
                Some(value) => write!(f, "{comma}{name} {value}")?,
                None => write!(f, "{comma}{name} absent")?,
            }
            comma = ", ";
        }
        match self.tenants {
            true => write!(f, "{comma}tenants"),
            false => Ok(()),
        }
    }
}
