//! A policy as its family lists it: by its name, with the settings that it owns.

use crate::settings::{Row, Settings};

/// One policy of a family. Library users make the policies that they know themselves.
pub struct Named<T: ?Sized> {
    /// The name, in the spelling of settings and journals.
    pub name: &'static str,
    /// The settings that it alone reads, or with few others of its family.
    pub settings: &'static [&'static Row],
    /// Makes the policy that the settings ask for.
    pub build: fn(&Settings) -> Box<T>,
}

impl<T: ?Sized> Named<T> {
    /// The policy with its default parameters.
    pub fn by_default(&self) -> Box<T> {
        (self.build)(&Settings::default())
    }

    /// The policy of this name in a family.
    pub(crate) fn of<'a>(family: &'a [Self], name: &str) -> Option<&'a Self> {
        family.iter().find(|policy| policy.name == name)
    }

    /// The names of a family.
    pub(crate) fn names(family: &[Self]) -> Vec<&'static str> {
        family.iter().map(|policy| policy.name).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::budget::BUDGETS;
    use crate::limit::LIMITS;
    use crate::route::ROUTES;
    use crate::{admit::ADMISSIONS, batch::BATCHES, order::ORDERS, victim::VICTIMS};

    #[test]
    fn every_policy_carries_the_name_in_its_table() {
        for policy in ADMISSIONS {
            assert_eq!((policy.by_default)().name(), policy.name);
        }
        for policy in ORDERS {
            assert_eq!(policy.by_default().name(), policy.name);
        }
        for policy in BATCHES {
            assert_eq!(policy.by_default().name(), policy.name);
        }
        for policy in LIMITS {
            assert_eq!(policy.by_default().name(), policy.name);
        }
        for policy in ROUTES {
            assert_eq!(policy.by_default().name(), policy.name);
        }
        for policy in BUDGETS {
            assert_eq!(policy.by_default().name(), policy.name);
        }
        for policy in VICTIMS {
            assert_eq!(policy.by_default().name(), policy.name);
        }
    }
}
