//! A higher class always goes first, and within each class an order of its own decides.
//!
//! Rule and bound are those of [`StrictTiers`](crate::order::StrictTiers) between classes. Within a
//! class the inner order's hold, counted in the turns that the class gets.

use std::num::NonZeroU32;

use serve_core::{Request, Time};

use super::{Factory, Instances};
use crate::demand::Demand;
use crate::order::{InFlight, Lanes, Order, Place, Served, Waiting};
use crate::settings::{Change, Row};

/// A higher class first, and an order inside of each class.
#[derive(Debug)]
pub struct Tiers {
    name: String,
    inner: Instances,
}

impl Tiers {
    /// Classes, each with an order that `inner` makes.
    pub fn over(inner: Factory) -> Self {
        let inner = Instances::new(inner);
        Self {
            name: inner.name_under("strict-tiers"),
            inner,
        }
    }
}

fn class(request: &Request) -> u32 {
    u32::from(request.class().rank())
}

impl Order for Tiers {
    fn name(&self) -> &str {
        &self.name
    }

    fn place(&mut self, waiting: &Waiting<'_>, now: Time) -> Place {
        let class = class(waiting.request);
        self.inner.get(class).place(waiting, now).under(class)
    }

    fn levels(&self) -> Vec<Lanes> {
        self.inner.levels_under(Lanes::Numbered)
    }

    fn lane_key(&self, path: &[u32], head: &Waiting<'_>, now: Time) -> u64 {
        self.inner.lane_key(path, head, now)
    }

    fn lane_counter(&self, path: &[u32]) -> u128 {
        self.inner.lane_counter(path)
    }

    fn lane_share(&self, path: &[u32]) -> NonZeroU32 {
        self.inner.lane_share(path)
    }

    fn others_ahead(&mut self, path: &[u32], own: &Demand, others: &Demand) -> Demand {
        self.inner.others_ahead(path, own, others)
    }

    fn arrived(&mut self, waiting: &Waiting<'_>, now: Time) {
        let class = class(waiting.request);
        self.inner.get(class).arrived(waiting, now);
    }

    fn left(&mut self, waiting: &Waiting<'_>, started: bool, now: Time) {
        let class = class(waiting.request);
        self.inner.get(class).left(waiting, started, now);
    }

    fn served(&mut self, request: &Request, served: Served) {
        self.inner.get(class(request)).served(request, served);
    }

    fn ended(&mut self, request: &Request) {
        self.inner.get(class(request)).ended(request);
    }

    fn takes(&self, row: &Row) -> bool {
        self.inner.takes(row)
    }

    fn change(&mut self, change: &Change, in_flight: &InFlight<'_>, now: Time) {
        self.inner.change(change, in_flight, now, class);
    }

    fn moved_here(&mut self, request: &Request) {
        self.inner.get(class(request)).moved_here(request);
    }
}
