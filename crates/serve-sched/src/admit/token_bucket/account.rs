//! One bucket: its rate, and what has been charged to it as one time, exact to the nanosecond. Who is charged what is
//! not decided here.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serve_core::{Span, Time};

/// A rate and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    units: NonZeroU64,
    per: Span,
    burst: NonZeroU64,
}

/// What has been charged to one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// When it will be full again; a time that has passed, when it is.
    pub(super) full_at: Scaled,
    /// Of each request in flight, by number, what was charged from it on to the next one in flight:
    /// by itself, and by those after it that have ended.
    pub(super) charged: BTreeMap<u64, Scaled>,
}

/// A time in nanoseconds times [`Quota::units`].
pub(super) type Scaled = u128;

impl Quota {
    /// More than anybody can use.
    pub(super) const UNLIMITED: Self =
        Self::new(NonZeroU64::MAX, Span::from_nanos(1), NonZeroU64::MAX);

    /// `units` in every `per`, and up to `burst` at once.
    pub const fn new(units: NonZeroU64, per: Span, burst: NonZeroU64) -> Self {
        Self { units, per, burst }
    }

    pub(super) fn time_for(&self, cost: u64) -> Scaled {
        Scaled::from(cost) * Scaled::from(self.per.as_nanos())
    }

    /// The first moment at which one unit is left.
    pub(super) fn room_from(&self, account: &Account) -> Scaled {
        let spent = account.full_at.saturating_add(self.time_for(1));
        spent.saturating_sub(self.time_for(self.burst.get()))
    }

    pub(super) fn scale(&self, time: Time) -> Scaled {
        Scaled::from(time.as_nanos()) * Scaled::from(self.units.get())
    }

    /// The first nanosecond that is not before `scaled`.
    pub(super) fn unscale(&self, scaled: Scaled) -> Time {
        let nanos = scaled.div_ceil(Scaled::from(self.units.get()));
        Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Account {
    /// From times of one quota to those of another.
    pub(super) fn convert(&mut self, from: Quota, to: Quota, now: Time) {
        let (per, per_then) = (
            Scaled::from(from.per.as_nanos()),
            Scaled::from(to.per.as_nanos()),
        );
        let scaled = |time: Scaled| {
            let (units, rest) = (time / per.max(1), time % per.max(1));
            units
                .saturating_mul(per_then)
                .saturating_add(rest * per_then / per.max(1))
        };
        let used = self.full_at.saturating_sub(from.scale(now));
        self.full_at = to.scale(now).saturating_add(scaled(used));
        for charged in self.charged.values_mut() {
            *charged = scaled(*charged);
        }
    }

    /// A request has used `used` of what it was charged, or more than that if its engine counts
    /// other tokens than was expected. O(log n) in the requests in flight, and one step for each
    /// that came after it, until they come to what is missing in the bucket.
    pub(super) fn settle(&mut self, number: u64, charged: Scaled, used: Scaled, now: Scaled) {
        let Some(from_it_on) = self.charged.remove(&number) else {
            return;
        };
        self.full_at = self.full_at.saturating_add(used.saturating_sub(charged));
        let after_it = from_it_on.saturating_sub(charged);
        let mut at_least = now.saturating_add(after_it);
        for (_, charged) in self.charged.range(number..) {
            if at_least >= self.full_at {
                break;
            }
            at_least = at_least.saturating_add(*charged);
        }
        let refund = charged.saturating_sub(used);
        let refunded = self.full_at.saturating_sub(refund);
        self.full_at = self.full_at.min(refunded.max(at_least));
        if let Some((_, before)) = self.charged.range_mut(..number).next_back() {
            *before = before.saturating_add(after_it + used);
        }
    }
}
