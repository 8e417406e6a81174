//! Every setting once, in one table, put together from the lists that the policies keep.
//!
//! Whatever takes settings is made from the table: the flags, variables and file of a server, what it
//! shows of itself, the simulation that predicts it, the tables of the documents. So the same settings
//! are accepted everywhere, refused in the same words, and mean the same.
//!
//! Library users who know their policies fill in [`Policies`](crate::Policies) themselves and need none
//! of this.

mod build;
mod change;
#[cfg(test)]
mod tests;

use crate::admit::ADMISSIONS;
use crate::batch::{BATCH, BATCHES};
use crate::budget::{BUDGET, BUDGETS};
use crate::order::{ORDER, ORDERS, OUTER};
use crate::settings::{MOCK, Named, REQUESTS, ROOM, Row, Value};
use crate::victim::{VICTIM, VICTIMS};
use crate::{kv, victim};

/// A setting and what it depends on.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The setting.
    pub row: &'static Row,
    /// What has to be chosen, or it would change nothing.
    pub needs: Option<Needs>,
}

/// What has to be chosen for a setting to change anything.
#[derive(Clone, Debug)]
pub enum Needs {
    /// A switch that is on.
    Switch(&'static Row),
    /// One of some policies.
    Policy {
        /// The setting that chooses among the family.
        family: &'static Row,
        /// The policies that have the setting.
        names: Vec<&'static str>,
    },
}

impl Needs {
    /// In the words of flags: `--order aging-tiers`.
    pub fn flags(&self) -> String {
        match self {
            Self::Switch(switch) => switch.flag(),
            Self::Policy { family, names } => format!("{} {}", family.flag(), names.join(" or ")),
        }
    }

    /// The setting that chooses.
    fn chooser(&self) -> &'static Row {
        match self {
            Self::Switch(switch) => switch,
            Self::Policy { family, .. } => family,
        }
    }

    /// Whether this value of that setting is what is needed.
    fn are_met_by(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Switch(_), Value::Switch(on)) => *on,
            (Self::Policy { names, .. }, Value::Name(name)) => names.contains(name),
            (Self::Policy { names, .. }, Value::Path(path)) => {
                path.split('/').any(|part| names.contains(&part))
            }
            _ => false,
        }
    }
}

/// Every setting, in the order of explanations.
pub fn table() -> Vec<Entry> {
    let mut table = Table(Vec::new());
    table.rows(ROOM);
    table.rows(MOCK);
    table.rows(REQUESTS);
    table.family(&ORDER.row, ORDERS);
    for outer in OUTER {
        for &row in outer.settings {
            table.of_policy(&ORDER.row, outer.name, row);
        }
    }
    for admission in ADMISSIONS {
        table.rows(admission.settings);
    }
    table.family(&BATCH.row, BATCHES);
    table.family(&BUDGET.row, BUDGETS);
    table.family(&VICTIM.row, VICTIMS);
    table.rows(victim::PREEMPTION);
    table.rows(kv::CACHE);
    table.0
}

/// The setting of this name.
pub fn find(name: &str) -> Option<&'static Row> {
    let found = table().into_iter().find(|entry| entry.row.name == name);
    found.map(|entry| entry.row)
}

struct Table(Vec<Entry>);

impl Table {
    fn rows(&mut self, rows: &[&'static Row]) {
        let entries = rows.iter().map(|row| Entry {
            row,
            needs: row.switch.map(Needs::Switch),
        });
        self.0.extend(entries);
    }

    /// The setting that chooses among a family, and the settings of its policies. One that several of
    /// them have is one setting.
    fn family<T: ?Sized>(&mut self, family: &'static Row, policies: &[Named<T>]) {
        self.rows(&[family]);
        for policy in policies {
            for &row in policy.settings {
                self.of_policy(family, policy.name, row);
            }
        }
    }

    fn of_policy(&mut self, family: &'static Row, policy: &'static str, row: &'static Row) {
        let known = self.0.iter_mut().find(|entry| entry.row.name == row.name);
        match known.map(|entry| &mut entry.needs) {
            Some(Some(Needs::Policy { names, .. })) => {
                if !names.contains(&policy) {
                    names.push(policy);
                }
            }
            Some(_) => {}
            None => self.0.push(Entry {
                row,
                needs: Some(Needs::Policy {
                    family,
                    names: vec![policy],
                }),
            }),
        }
    }
}
