//! From what was given of the settings to policies: parsing by name, what holds, what cannot be.

use super::{Entry, find, table};
use crate::admit::ADMISSIONS;
use crate::batch::{BATCH, BATCHES};
use crate::budget::{BUDGET, BUDGETS};
use crate::kv::KvSettings;
use crate::lengths::SeenLengths;
use crate::order::{ORDER, Order, OrderSettings};
use crate::policies::Policies;
use crate::settings::{Named, Setting, SettingError, Settings, Value};
use crate::victim::{Preemption, VICTIM, VICTIMS};

impl Settings {
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
