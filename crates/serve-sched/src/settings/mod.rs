//! Every setting once: what it is called, what it means, what it accepts, what it needs and what it is
//! where nobody says anything.
//!
//! Each policy keeps the settings that are its own, in its file, and reads them there; [`table`] is all
//! of them. Whatever takes settings is made from the table: the flags, variables and file of a server,
//! what it shows of itself, the simulation that predicts it, the tables of the documents. So the same
//! settings are accepted everywhere, refused in the same words, and mean the same.
//!
//! Library users who know their policies fill in [`Policies`] themselves and need none of this.

mod device;
mod error;
mod kind;
mod requests;
mod row;
mod table;
#[cfg(test)]
mod tests;
mod typed;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serve_core::TenantId;

pub use device::{CONTEXT, KV_TOKENS, MAX_BATCH, MOCK, STEP_TOKENS};
pub use error::SettingError;
pub use kind::{Kind, Value};
pub use requests::{CLASSES, QUEUE_TIMEOUT, REQUEST_TIMEOUT};
pub use row::{Check, Row, Setting, Usual};
pub use table::{Entry, Needs, find, table};
pub use typed::{Read, Typed};

use crate::admit::ADMISSIONS;
use crate::batch::{BATCH, BATCHES};
use crate::budget::{BUDGET, BUDGETS};
use crate::config::Policies;
use crate::kv::KvSettings;
use crate::lengths::SeenLengths;
use crate::named::Named;
use crate::order::{GroupId, ORDER, Order, OrderSettings};
use crate::victim::{Preemption, VICTIM, VICTIMS};

/// What was given of the settings in the [`table`]; the rest is as the table says.
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
pub struct Settings {
    given: BTreeMap<&'static str, Value>,
    /// Tenants of whom something is said.
    pub tenants: Vec<TenantSettings>,
    /// Shares of groups under a fair order, where others have one of 1.
    pub groups: Vec<(GroupId, NonZeroU32)>,
    /// Keys the prefix hash; a server makes up a secret.
    pub hash_key: u128,
}

/// What is said of one tenant; what is absent is as for everybody.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantSettings {
    /// Which one.
    pub id: TenantId,
    /// Its share under a fair order, where others have one of 1: among all, or in its group.
    pub weight: Option<NonZeroU32>,
    /// The group that it belongs to; absent, it is one by itself.
    pub group: Option<GroupId>,
    /// Requests that it may have in flight at once; zero is no limit.
    pub in_flight: Option<u32>,
    /// Positions that its requests may come to hold in the KV cache; zero is no limit.
    pub kv_tokens: Option<u64>,
    /// Its requests in a second; zero is no limit.
    pub requests_per_s: Option<f64>,
    /// Its tokens in a second; zero is no limit.
    pub tokens_per_s: Option<f64>,
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

    /// Gives a setting the value that a text stands for.
    ///
    /// # Errors
    ///
    /// [`SettingError`] for a name that no setting has, and for a text that the setting does not take.
    pub fn set_text(&mut self, name: &str, text: &str) -> Result<(), SettingError> {
        let Some(row) = find(name) else {
            return Err(SettingError::Unknown {
                name: name.to_owned(),
                known: table().iter().map(|entry| entry.row.name).collect(),
            });
        };
        let value = row.parse(text)?;
        self.given.insert(row.name, value);
        Ok(())
    }

    /// Whether somebody has given the setting of this name.
    pub fn is_given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// What holds: the value that was given or the default, and nothing of a setting that changes
    /// nothing beside the others.
    pub fn effective(&self, entry: &Entry) -> Option<Value> {
        let usual = || entry.row.usual.value().filter(|_| self.applies(entry));
        self.given.get(entry.row.name).cloned().or_else(usual)
    }

    /// Whether what the setting needs is chosen.
    fn applies(&self, entry: &Entry) -> bool {
        let Some(needs) = &entry.needs else {
            return true;
        };
        let chooser = needs.chooser();
        let chosen = self.given.get(chooser.name).cloned();
        let chosen = chosen.or_else(|| chooser.usual.value());
        chosen.is_some_and(|value| needs.are_met_by(&value))
    }

    /// Looks for what cannot be: a value out of range, a setting that would change nothing, two that
    /// contradict each other.
    ///
    /// # Errors
    ///
    /// [`SettingError`] for the first in the order of the table.
    pub fn check(&self) -> Result<(), SettingError> {
        for entry in table() {
            let row = entry.row;
            let Some(value) = self.given.get(row.name) else {
                continue;
            };
            row.parse(&value.to_string())?;
            if let Some(needs) = entry.needs.as_ref().filter(|_| !self.applies(&entry)) {
                return Err(row.wrong(format!("it needs {}", needs.flags())));
            }
            let checked = row.check.map_or(Ok(()), |check| check(self));
            checked.map_err(|cause| row.wrong(cause))?;
        }
        Ok(())
    }

    /// The policies that the settings ask for. Admission policies are asked in the order of their
    /// table, and those that are off are not among them.
    ///
    /// # Errors
    ///
    /// What [`check`](Self::check) finds.
    pub fn policies(&self) -> Result<Policies, SettingError> {
        self.check()?;
        let admissions = ADMISSIONS.iter();
        Ok(Policies {
            admit: admissions.flat_map(|policy| (policy.build)(self)).collect(),
            order: self.order()?,
            batch: self.chosen(&BATCH, BATCHES)?,
            budget: self.chosen(&BUDGET, BUDGETS)?,
            victim: self.chosen(&VICTIM, VICTIMS)?,
            preemption: Preemption::of(self),
            kv: KvSettings::of(self),
            lengths: Box::new(SeenLengths::new()),
        })
    }

    fn order(&self) -> Result<Box<dyn Order>, SettingError> {
        let name = self.get(&ORDER);
        let order = OrderSettings::of(self).order(&name);
        order.map_err(|error| ORDER.row.wrong(error.to_string()))
    }

    fn chosen<T: ?Sized>(
        &self,
        family: &Setting<&'static str>,
        policies: &[Named<T>],
    ) -> Result<Box<T>, SettingError> {
        let name = self.get(family);
        match policies.iter().find(|policy| policy.name == name) {
            Some(policy) => Ok((policy.build)(self)),
            None => Err(family.row.refused(name)),
        }
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
    fn refused(&self, text: &str) -> SettingError {
        SettingError::Value {
            setting: format!("{} <{}>", self.flag(), self.kind.placeholder()),
            value: text.to_owned(),
            accepted: self.kind.accepted(),
        }
    }

    /// The error of a setting that cannot be beside the others.
    fn wrong(&self, cause: String) -> SettingError {
        SettingError::Contradiction {
            setting: self.flag(),
            cause,
        }
    }
}
