//! A higher class goes first, until a request has waited so long that nobody may pass it any more.
//!
//! Rule: lane = class, as in strict tiers. `age_after` after its arrival a request of any class is
//! moved, by a timer, into the *starvation* rank, ahead of all classes and ordered by arrival. Its
//! class stays what it was. A span of zero turns aging off, which is exactly strict tiers.
//!
//! Bound: a request that arrives at `t` is served before everything that arrives after `t + age_after`, so
//!
//! ```text
//! wait <= age_after + what is in service at t + age_after + work of those waiting then that arrived before t
//! ```
//!
//! *Why:* at `t + age_after` it enters the starvation rank. Only older requests are ahead of it
//! there, since every request, of whatever class, enters `age_after` after its own arrival; and
//! nobody who comes later can be older. What is in service is not interrupted. In batches of `b`
//! the last two terms are one batch in flight and `ceil(older / b)` batches, hence "aging plus one
//! batch" where fewer than `b` starve at a time.
//!
//! The highest class ages too. If it did not, lower classes that ask for more than the engine can
//! do would all age and keep the highest one waiting without a bound. Under sustained overload the
//! order tends to first come, first served, which is the price of a bound for everybody.

use serve_core::{Request, Span, Time};

use super::{InFlight, Order, Place, Waiting};
use crate::settings::{Change, Named, Row, Setting};

/// As its family lists it.
pub(super) const POLICY: Named<dyn Order> = Named {
    name: "aging-tiers",
    settings: &[&AGE_AFTER.row],
    build: |settings| Box::new(AgingTiers::new(settings.get(&AGE_AFTER))),
};

/// Two seconds: about the longest that a person waits for a first token without giving up.
pub(super) const AGE_AFTER: Setting<Span> = Setting::seconds(
    "age_after",
    "Seconds after which a waiting request goes before all classes; 0 is never",
    Span::from_secs(2),
);

/// A higher class goes first, until somebody has waited for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgingTiers {
    age_after: Span,
}

const STARVING: u32 = 0;

impl AgingTiers {
    /// A request that has waited for `age_after` goes before all classes; zero is never.
    pub const fn new(age_after: Span) -> Self {
        Self { age_after }
    }

    /// How long a request waits before it is moved ahead; zero is for ever.
    pub const fn age_after(&self) -> Span {
        self.age_after
    }
}

impl Default for AgingTiers {
    /// As the setting `age_after` is by default.
    fn default() -> Self {
        Self::new(AGE_AFTER.usual())
    }
}

impl Order for AgingTiers {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn place(&mut self, waiting: &Waiting<'_>, now: Time) -> Place {
        let arrival = waiting.request.arrival();
        let tier = Place::in_lane(tier(waiting.request));
        match self.ages_at(waiting.request) {
            None => tier,
            Some(ages_at) if now < ages_at => tier.until(ages_at),
            Some(_) => Place::in_lane(STARVING).keyed(arrival.as_nanos()),
        }
    }

    fn takes(&self, row: &Row) -> bool {
        row.name == AGE_AFTER.row.name
    }

    fn change(&mut self, change: &Change, _in_flight: &InFlight<'_>, _now: Time) {
        self.age_after = change.value(&AGE_AFTER).unwrap_or(self.age_after);
    }

    fn ages_at(&self, request: &Request) -> Option<Time> {
        (!self.age_after.is_zero()).then(|| request.arrival() + self.age_after)
    }
}

fn tier(request: &Request) -> u32 {
    1 + u32::from(request.class().rank())
}

#[cfg(test)]
mod tests {
    use serve_core::{Class, RequestId, TokenId};

    use super::*;
    use crate::Settings;

    fn place(order: &mut dyn Order, class: u8, now_ms: u64) -> Place {
        let arrival = Time::from_millis(100);
        let request = Request::new(RequestId::new(1), arrival, [TokenId::new(1)], 1).unwrap();
        let request = request.with_class(Class::new(class));
        let waiting = Waiting {
            request: &request,
            sequence: 0,
            since: Time::from_millis(now_ms),
            preemptions: 0,
        };
        order.place(&waiting, Time::from_millis(now_ms))
    }

    #[test]
    fn a_request_moves_ahead_at_its_time_and_not_before() {
        let mut order = AgingTiers::new(Span::from_millis(50));
        let tier = Place::in_lane(3).until(Time::from_millis(150));
        assert_eq!(place(&mut order, 2, 100), tier);
        assert_eq!(place(&mut order, 2, 149), tier);
        let starving = Place::in_lane(STARVING).keyed(100_000_000);
        assert_eq!(place(&mut order, 2, 150), starving);
        assert_eq!(place(&mut order, 0, 150), starving);
    }

    #[test]
    fn the_time_is_that_of_the_settings() {
        for age_after in [AGE_AFTER.usual(), Span::from_millis(50)] {
            let settings = Settings::default().with(&AGE_AFTER, age_after);
            let mut order = (POLICY.build)(&settings);
            let place = place(&mut *order, 2, 100);
            assert_eq!(place.again, Some(Time::from_millis(100) + age_after));
        }
    }

    #[test]
    fn no_aging_is_no_timer() {
        let mut order = AgingTiers::new(Span::ZERO);
        assert_eq!(place(&mut order, 2, 1_000_000), Place::in_lane(3));
    }
}
