//! What a setting is: what it is called, what it means, what it accepts and what it is where nobody says
//! anything. The value that was given to each.
//!
//! Each policy keeps the settings that are its own, in its file, and reads them there;
//! [`table`](crate::table) is all of them.

mod change;
mod device;
mod error;
mod kind;
mod named;
mod requests;
mod row;
mod tenant;
mod typed;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

pub use change::{Change, ChangeError};
pub(crate) use device::ROOM;
pub use device::{CONTEXT, KV_TOKENS, MAX_BATCH, MOCK, STEP_TOKENS};
pub use error::SettingError;
pub use kind::{Kind, Value};
pub use named::Named;
pub(crate) use requests::REQUESTS;
pub use requests::{CLASSES, QUEUE_TIMEOUT, REQUEST_TIMEOUT};
pub use row::{Check, Row, Setting, Usual};
pub use tenant::{GroupId, TenantSettings};
pub use typed::{Read, Typed};

/// What was given of the settings in the [table](crate::table); the rest is as the table says.
///
/// ```
/// use serve_sched::Settings;
///
/// let mut settings = Settings::default();
/// settings.set_text("order", "response-ratio")?;
/// settings.set_text("wait_max", "30")?;
/// assert_eq!(settings.policies()?.order.name(), "response-ratio");
/// # Ok::<(), serve_sched::settings::SettingError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Settings {
    pub(crate) given: BTreeMap<&'static str, Value>,
    /// Tenants of whom something is said.
    pub tenants: Vec<TenantSettings>,
    /// Shares of groups under a fair order, where others have one of 1.
    pub groups: Vec<(GroupId, NonZeroU32)>,
    /// Keys the prefix hash; a server makes up a secret.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub hash_key: u128,
}

impl Settings {
    /// The value of a setting.
    pub fn get<T: Read>(&self, setting: &Setting<T>) -> T {
        match self.given.get(setting.row.name) {
            Some(value) => T::read(Some(value)),
            None => setting.usual(),
        }
    }

    /// The same with a value for a setting.
    #[must_use]
    pub fn with<T: Read>(mut self, setting: &Setting<T>, value: T) -> Self {
        match value.into_value() {
            Some(value) => self.given.insert(setting.row.name, value),
            None => self.given.remove(setting.row.name),
        };
        self
    }

    /// The same with something to say of these tenants.
    #[must_use]
    pub fn with_tenants(self, tenants: Vec<TenantSettings>) -> Self {
        Self { tenants, ..self }
    }

    /// Whether somebody has given the setting of this name.
    pub fn is_given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }
}

impl Row {
    /// The value that `text` stands for.
    ///
    /// # Errors
    ///
    /// [`SettingError::Value`] names the setting and what it accepts.
    pub fn parse(&self, text: &str) -> Result<Value, SettingError> {
        self.kind.parse(text).map_err(|_| self.refused(text))
    }

    /// The error of a text that the setting does not take.
    pub(crate) fn refused(&self, text: &str) -> SettingError {
        SettingError::Value {
            setting: format!("{} <{}>", self.flag(), self.kind.placeholder()),
            value: text.to_owned(),
            accepted: self.kind.accepted(),
        }
    }

    /// The error of a setting that cannot be beside the others.
    pub(crate) fn wrong(&self, cause: String) -> SettingError {
        SettingError::Contradiction {
            setting: self.flag(),
            cause,
        }
    }
}
