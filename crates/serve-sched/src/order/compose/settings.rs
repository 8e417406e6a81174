//! Orders by name: `fifo`, or names with `/` between them, the outermost first, such as
//! `aging-tiers/fair-tenants`.

use std::sync::Arc;

use serve_core::Span;

use super::{Aging, Factory, Tiers};
use crate::named::{UnknownPolicy, row};
use crate::order::{AgingTiers, FairGroups, FairTenants, Members, ORDERS, Order, ResponseRatio};

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
        Self {
            age_after: Span::from_secs(2),
            wait_max: Span::from_secs(60),
            input_weight: 1,
            output_weight: 2,
            members: Arc::default(),
        }
    }
}

/// Orders that another one can stand inside of.
const OUTER: [&str; 4] = ["aging", "aging-tiers", "fair-groups", "strict-tiers"];

impl OrderSettings {
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
    /// # Ok::<(), serve_sched::UnknownPolicy>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`], with the names that exist at that place.
    pub fn order(&self, name: &str) -> Result<Box<dyn Order>, UnknownPolicy> {
        Ok(self.factory(name)?())
    }

    fn factory(&self, name: &str) -> Result<Factory, UnknownPolicy> {
        match name.split_once('/') {
            Some((outer, inner)) => self.around(outer, self.factory(inner)?),
            None => self.innermost(name),
        }
    }

    fn around(&self, outer: &str, inner: Factory) -> Result<Factory, UnknownPolicy> {
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
                return Err(UnknownPolicy {
                    name: name.to_owned(),
                    known: OUTER.to_vec(),
                });
            }
        })
    }

    fn innermost(&self, name: &str) -> Result<Factory, UnknownPolicy> {
        let (age_after, wait_max) = (self.age_after, self.wait_max);
        let (members, (input, output)) = (Arc::clone(&self.members), self.weights());
        Ok(match name {
            "aging-tiers" => Arc::new(move || Box::new(AgingTiers::new(age_after))),
            "response-ratio" => Arc::new(move || Box::new(ResponseRatio::new(wait_max))),
            "fair-tenants" => Arc::new(move || {
                let members = Arc::clone(&members);
                Box::new(FairTenants::among(members, input, output))
            }),
            "fair-groups" => self.around(name, self.innermost("fifo")?)?,
            name => Arc::new(row(ORDERS, name)?.build),
        })
    }

    fn weights(&self) -> (u32, u32) {
        (self.input_weight, self.output_weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::LEVELS_MAX;

    #[test]
    fn every_order_stands_inside_of_every_outer_one() {
        let settings = OrderSettings::default();
        for inner in ORDERS {
            assert_eq!(settings.order(inner.name).unwrap().name(), inner.name);
            for outer in OUTER {
                let asked = format!("{outer}/{}", inner.name);
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
        let error = |name| settings.order(name).err().unwrap();
        assert_eq!(error("fifo/fifo").known, OUTER);
        assert_eq!(error("fifo/fifo").name, "fifo");
        assert!(error("strict-tiers/lifo").known.contains(&"fair-tenants"));
        assert_eq!(error("strict-tiers/").name, "");
    }
}
