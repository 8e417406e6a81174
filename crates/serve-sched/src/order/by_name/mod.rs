//! Orders by name: `fifo`, or names with `/` between them, the outermost first, such as
//! `aging-tiers/fair-tenants`.

use std::sync::Arc;

use serve_core::Span;
use thiserror::Error;

use super::aging_tiers::AGE_AFTER;
use super::fair_tenants::{INPUT_WEIGHT, OUTPUT_WEIGHT, WEIGHTS};
use super::response_ratio::WAIT_MAX;
use super::{
    Aging, AgingTiers, Factory, FairGroups, FairTenants, Fifo, LEVELS_MAX, Members, ORDERS, Order,
    ResponseRatio, Tiers,
};
use crate::settings::{Named, Row, Settings};

/// The parameters of every order; those of an order that is not named do nothing.
#[derive(Clone, Debug)]
pub struct OrderSettings {
    /// After which wait an aging order lets a request go before all others; zero is never.
    pub age_after: Span,
    /// After which wait the response-ratio order lets a request go before everybody; zero is never.
    pub wait_max: Span,
    /// What a prompt token costs under a fair order.
    pub input_weight: u32,
    /// What an output token costs under a fair order.
    pub output_weight: u32,
    /// The tenants of whom something is known.
    pub members: Arc<Members>,
}

impl Default for OrderSettings {
    /// What each order has by default, and nobody known.
    fn default() -> Self {
        Self::of(&Settings::default())
    }
}

/// An order that another one can stand inside of.
pub(crate) struct Outer {
    pub(crate) name: &'static str,
    /// The settings that it reads.
    pub(crate) settings: &'static [&'static Row],
}

/// All of them.
pub(crate) const OUTER: &[Outer] = &[
    Outer {
        name: "aging",
        settings: &[&AGE_AFTER.row],
    },
    Outer {
        name: "aging-tiers",
        settings: &[&AGE_AFTER.row],
    },
    Outer {
        name: "fair-groups",
        settings: WEIGHTS,
    },
    Outer {
        name: "strict-tiers",
        settings: &[],
    },
];

/// A name that stands for no order.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidOrder {
    /// No policy is called so.
    #[error("there is no policy named {name:?}; known are {}", known.join(", "))]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names that exist at that place.
        known: Vec<&'static str>,
    },
    /// It has more levels than are kept.
    #[error(
        "an order has at most {LEVELS_MAX} levels, and this one more; fair-tenants and aging-tiers/ count as two"
    )]
    TooDeep,
}

impl OrderSettings {
    /// What the settings say, of tenants as well.
    pub fn of(settings: &Settings) -> Self {
        Self {
            age_after: settings.get(&AGE_AFTER),
            wait_max: settings.get(&WAIT_MAX),
            input_weight: settings.get(&INPUT_WEIGHT),
            output_weight: settings.get(&OUTPUT_WEIGHT),
            members: Arc::new(Members::of(settings)),
        }
    }

    /// The order that is called `name`.
    ///
    /// | name | what it is |
    /// |---|---|
    /// | `NAME` | one of [`ORDERS`] |
    /// | `strict-tiers/NAME` | [`Tiers`] over `NAME` |
    /// | `fair-groups/NAME` | [`FairGroups`] over `NAME` |
    /// | `aging/NAME` | [`Aging`] over `NAME` |
    /// | `aging-tiers/NAME` | [`Aging`] over `strict-tiers/NAME` |
    ///
    /// ```
    /// use serve_sched::order::{Order as _, OrderSettings};
    ///
    /// let settings = OrderSettings::default();
    /// let order = settings.order("aging/fair-groups/strict-tiers")?;
    /// assert_eq!(order.name(), "aging/fair-groups/strict-tiers");
    /// let error = settings.order("tiers/fifo").err().map(|error| error.to_string());
    /// let expected = "there is no policy named \"tiers\"; known are aging, aging-tiers, fair-groups, strict-tiers";
    /// assert_eq!(error.as_deref(), Some(expected));
    /// # Ok::<(), serve_sched::order::InvalidOrder>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidOrder`], with the names that exist where one does not, and for more than [`LEVELS_MAX`]
    /// levels.
    pub fn order(&self, name: &str) -> Result<Box<dyn Order>, InvalidOrder> {
        // Each name is a level at least; so no text is long enough to nest too many calls.
        if name.split('/').count() > LEVELS_MAX {
            return Err(InvalidOrder::TooDeep);
        }
        let order = self.factory(name)?();
        match order.levels().len() > LEVELS_MAX {
            true => Err(InvalidOrder::TooDeep),
            false => Ok(order),
        }
    }

    fn factory(&self, name: &str) -> Result<Factory, InvalidOrder> {
        match name.split_once('/') {
            Some((outer, inner)) => self.around(outer, self.factory(inner)?),
            None => self.innermost(name),
        }
    }

    fn around(&self, outer: &str, inner: Factory) -> Result<Factory, InvalidOrder> {
        let age_after = self.age_after;
        let (members, weights) = (Arc::clone(&self.members), self.weights());
        Ok(match outer {
            "strict-tiers" => Arc::new(move || Box::new(Tiers::over(Arc::clone(&inner)))),
            "aging-tiers" => Arc::new(move || {
                let tiers = Tiers::over(Arc::clone(&inner));
                Box::new(Aging::over(Box::new(tiers), age_after))
            }),
            "aging" => Arc::new(move || Box::new(Aging::over(inner(), age_after))),
            "fair-groups" => Arc::new(move || {
                let (members, (input, output)) = (Arc::clone(&members), weights);
                Box::new(FairGroups::over(members, input, output, Arc::clone(&inner)))
            }),
            name => {
                return Err(InvalidOrder::Unknown {
                    name: name.to_owned(),
                    known: OUTER.iter().map(|outer| outer.name).collect(),
                });
            }
        })
    }

    fn innermost(&self, name: &str) -> Result<Factory, InvalidOrder> {
        let (age_after, wait_max) = (self.age_after, self.wait_max);
        Ok(match name {
            "aging-tiers" => Arc::new(move || Box::new(AgingTiers::new(age_after))),
            "response-ratio" => Arc::new(move || Box::new(ResponseRatio::new(wait_max))),
            "fair-tenants" => {
                let (members, (input, output)) = (Arc::clone(&self.members), self.weights());
                Arc::new(move || Box::new(FairTenants::among(Arc::clone(&members), input, output)))
            }
            "fair-groups" => self.around(name, Arc::new(|| Box::new(Fifo)))?,
            name => {
                let policy = ORDERS.iter().find(|policy| policy.name == name);
                let unknown = || InvalidOrder::Unknown {
                    name: name.to_owned(),
                    known: Named::names(ORDERS),
                };
                let policy = policy.ok_or_else(unknown)?;
                Arc::new(|| policy.by_default())
            }
        })
    }

    fn weights(&self) -> (u32, u32) {
        (self.input_weight, self.output_weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_stands_inside_of_every_outer_one() {
        let settings = OrderSettings::default();
        for inner in ORDERS {
            assert_eq!(settings.order(inner.name).unwrap().name(), inner.name);
            for outer in OUTER {
                let asked = format!("{}/{}", outer.name, inner.name);
                let order = settings.order(&asked).unwrap();
                let again = settings.order(order.name()).unwrap();
                assert_eq!(order.name(), again.name(), "{asked}");
            }
        }
        let name = |asked| settings.order(asked).unwrap().name().to_owned();
        assert_eq!(
            name("aging/strict-tiers/fair-tenants"),
            "aging-tiers/fair-tenants"
        );
        assert_eq!(name("strict-tiers/fifo"), "strict-tiers");
        let deepest = settings.order("aging/fair-groups/strict-tiers/fair-tenants");
        assert_eq!(deepest.unwrap().levels().len(), LEVELS_MAX - 1);
    }

    #[test]
    fn what_does_not_exist_lists_what_does() {
        let settings = OrderSettings::default();
        let error = |asked| match settings.order(asked).err().unwrap() {
            InvalidOrder::Unknown { name, known } => (name, known),
            InvalidOrder::TooDeep => panic!("{asked}"),
        };
        let outer: Vec<_> = OUTER.iter().map(|outer| outer.name).collect();
        assert_eq!(error("fifo/fifo"), ("fifo".to_owned(), outer));
        assert!(error("strict-tiers/lifo").1.contains(&"fair-tenants"));
        assert_eq!(error("strict-tiers/").0, "");
        assert_eq!(error("/fifo").0, "");
    }

    #[test]
    fn what_has_more_levels_than_are_kept_is_refused_however_long_it_is() {
        let settings = OrderSettings::default();
        for outer in OUTER {
            for inner in ORDERS {
                for names in [0, 1, 2, 3, 4, 5, 6, 7, 100_000] {
                    let asked = format!("{}/", outer.name).repeat(names) + inner.name;
                    let levels = |name: &str| settings.order(name).unwrap().levels().len();
                    // What one more outer order adds.
                    let each = levels(&format!("{}/fifo", outer.name)) - 1;
                    let fits = levels(inner.name) + names * each <= LEVELS_MAX;
                    let order = settings.order(&asked);
                    let shown = &asked[..asked.len().min(80)];
                    assert_eq!(
                        order.as_ref().err(),
                        (!fits).then_some(&InvalidOrder::TooDeep),
                        "{shown}"
                    );
                }
            }
        }
    }
}
