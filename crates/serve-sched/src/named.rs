//! Policies by name, for a binary that reads its settings from text. Library users pass values.

use thiserror::Error;

/// One policy of a family: its name and how to make it with default parameters.
pub struct Named<T: ?Sized> {
    /// The name, in the spelling of settings and journals.
    pub name: &'static str,
    /// Makes the policy with its default parameters.
    pub build: fn() -> Box<T>,
}

/// A name that no policy of its family has.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("there is no policy named {name:?}; known are {}", known.join(", "))]
pub struct UnknownPolicy {
    /// The name asked for.
    pub name: String,
    /// The names of the family.
    pub known: Vec<&'static str>,
}

/// The policy of `family` that is called `name`, with its default parameters.
///
/// # Errors
///
/// [`UnknownPolicy`], with the names that exist.
pub fn by_name<T: ?Sized>(family: &[Named<T>], name: &str) -> Result<Box<T>, UnknownPolicy> {
    row(family, name).map(|policy| (policy.build)())
}

/// The row of `family` that is called `name`.
pub(crate) fn row<'a, T: ?Sized>(
    family: &'a [Named<T>],
    name: &str,
) -> Result<&'a Named<T>, UnknownPolicy> {
    let found = family.iter().find(|policy| policy.name == name);
    found.ok_or_else(|| UnknownPolicy {
        name: name.to_owned(),
        known: family.iter().map(|policy| policy.name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{admit::ADMISSIONS, batch::BATCHES, limit::LIMITS, order::ORDERS, victim::VICTIMS};

    #[test]
    fn every_policy_carries_the_name_in_its_table() {
        for policy in ADMISSIONS {
            assert_eq!((policy.build)().name(), policy.name);
        }
        for policy in ORDERS {
            assert_eq!((policy.build)().name(), policy.name);
        }
        for policy in BATCHES {
            assert_eq!((policy.build)().name(), policy.name);
        }
        for policy in LIMITS {
            assert_eq!((policy.build)().name(), policy.name);
        }
        for policy in VICTIMS {
            assert_eq!((policy.build)().name(), policy.name);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let message = by_name(BATCHES, "statik").err().unwrap().to_string();
        assert_eq!(
            message,
            "there is no policy named \"statik\"; known are continuous, one-at-a-time, static"
        );
    }
}
