//! Any order, until a request has waited so long that nobody may pass it any more.
//!
//! Rule and bound are those of [`AgingTiers`](crate::order::AgingTiers): `age_after` after its arrival
//! a request is moved ahead of everything that has not aged, in the order of arrival. What it is given
//! then is charged to its tenant like everything else.

use std::num::NonZeroU32;

use serve_core::{Request, Span, Time};

use crate::demand::Demand;
use crate::order::aging_tiers::AGE_AFTER;
use crate::order::{InFlight, Lanes, Order, Place, Served, Waiting};
use crate::settings::{Change, Row};

/// An order that bounds every wait.
#[derive(Debug)]
pub struct Aging {
    name: String,
    age_after: Span,
    inner: Box<dyn Order>,
}

const STARVING: u32 = 0;
const INNER: u32 = 1;

impl Aging {
    /// A request that has waited for `age_after` goes before all that `inner` orders; zero is never.
    pub fn over(inner: Box<dyn Order>, age_after: Span) -> Self {
        Self {
            name: match inner.name().strip_prefix("strict-tiers") {
                Some(rest) => format!("aging-tiers{rest}"),
                None => format!("aging/{}", inner.name()),
            },
            age_after,
            inner,
        }
    }
}

impl Order for Aging {
    fn name(&self) -> &str {
        &self.name
    }

    fn place(&mut self, waiting: &Waiting<'_>, now: Time) -> Place {
        let arrival = waiting.request.arrival();
        let ages_at = arrival + self.age_after;
        if self.age_after.is_zero() {
            return self.inner.place(waiting, now).under(INNER);
        }
        if now >= ages_at {
            return Place::in_lane(STARVING).keyed(arrival.as_nanos());
        }
        let place = self.inner.place(waiting, now).under(INNER);
        let again = place.again.map_or(ages_at, |again| again.min(ages_at));
        place.until(again)
    }

    fn ages_at(&self, request: &Request) -> Option<Time> {
        (!self.age_after.is_zero()).then(|| request.arrival() + self.age_after)
    }

    fn levels(&self) -> Vec<Lanes> {
        let mut levels = vec![Lanes::Numbered];
        levels.extend(self.inner.levels());
        levels
    }

    fn lane_key(&self, path: &[u32], head: &Waiting<'_>, now: Time) -> u64 {
        inside(path).map_or(0, |path| self.inner.lane_key(path, head, now))
    }

    fn lane_counter(&self, path: &[u32]) -> u128 {
        inside(path).map_or(0, |path| self.inner.lane_counter(path))
    }

    fn lane_share(&self, path: &[u32]) -> NonZeroU32 {
        inside(path).map_or(NonZeroU32::MIN, |path| self.inner.lane_share(path))
    }

    fn others_ahead(&mut self, path: &[u32], own: &Demand, others: &Demand) -> Demand {
        inside(path).map_or(*others, |path| self.inner.others_ahead(path, own, others))
    }

    fn arrived(&mut self, waiting: &Waiting<'_>, now: Time) {
        self.inner.arrived(waiting, now);
    }

    fn left(&mut self, waiting: &Waiting<'_>, started: bool, now: Time) {
        self.inner.left(waiting, started, now);
    }

    fn served(&mut self, request: &Request, served: Served) {
        self.inner.served(request, served);
    }

    fn ended(&mut self, request: &Request) {
        self.inner.ended(request);
    }

    fn takes(&self, row: &Row) -> bool {
        row.name == AGE_AFTER.row.name || self.inner.takes(row)
    }

    fn change(&mut self, change: &Change, in_flight: &InFlight<'_>, now: Time) {
        self.age_after = change.value(&AGE_AFTER).unwrap_or(self.age_after);
        self.inner.change(change, in_flight, now);
    }

    fn moved_here(&mut self, request: &Request) {
        self.inner.moved_here(request);
    }
}

/// A path in the inner order; of those who starve there is none.
fn inside(path: &[u32]) -> Option<&[u32]> {
    match path {
        [INNER, path @ ..] => Some(path),
        _ => None,
    }
}
