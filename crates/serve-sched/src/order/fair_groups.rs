//! Groups of tenants that want more than there is get equal shares of tokens; inside of a group any
//! order decides.
//!
//! Rule: as the groups of [`FairTenants`](super::FairTenants): one counter for each group, the waiting
//! group with the lowest one goes first. Which of its requests that is, an order of its own says: first
//! come, first served by default, or tiers, or any other. A tenant with a share of its own is a group by
//! itself, and all that nobody has named are one group.
//!
//! Bound: that of fair tenants, between two groups. What the inner order promises holds among the
//! requests of a group, counted in the turns that the group gets.

use std::num::NonZeroU32;
use std::sync::Arc;

use serve_core::{Request, Time};

use super::compose::{Factory, Instances};
use super::fair_tenants::{INPUT_WEIGHT, OUTPUT_WEIGHT, WEIGHTS, reweigh};
use super::share::{Ledger, Members, Weights, ahead};
use super::{Fifo, InFlight, Lanes, Order, Place, Served, Waiting};
use crate::demand::Demand;
use crate::settings::{Change, Named, Row};

/// As its family lists it.
pub(super) const POLICY: Named<dyn Order> = Named {
    name: "fair-groups",
    settings: WEIGHTS,
    build: |settings| {
        let weights = (settings.get(&INPUT_WEIGHT), settings.get(&OUTPUT_WEIGHT));
        let members = Arc::new(Members::of(settings));
        let fifo: Factory = Arc::new(|| Box::new(Fifo));
        Box::new(FairGroups::over(members, weights.0, weights.1, fifo))
    },
};

/// Equal token shares for groups, and an order inside of each.
#[derive(Debug)]
pub struct FairGroups {
    name: String,
    weights: Weights,
    members: Arc<Members>,
    groups: Ledger,
    inner: Instances,
}

impl FairGroups {
    /// Groups of `members`, each with an order that `inner` makes. A prompt token costs
    /// `input_weight` and an output token `output_weight`.
    pub fn over(
        members: Arc<Members>,
        input_weight: u32,
        output_weight: u32,
        inner: Factory,
    ) -> Self {
        let inner = Instances::new(inner);
        Self {
            name: inner.name_under("fair-groups"),
            weights: Weights {
                input: input_weight,
                output: output_weight,
            },
            members,
            groups: Ledger::new(),
            inner,
        }
    }

    fn group(&self, request: &Request) -> u32 {
        self.members.seat(request.tenant()).lane
    }

    /// Takes other tenants and groups. One that changes the group leaves the old one, and its order inside,
    /// and comes to the new one like a tenant that begins to wait.
    fn change_members(&mut self, change: &Change, in_flight: &InFlight<'_>, now: Time) {
        let mut members = Members::clone(&self.members);
        members.change(change.settings());
        let moved =
            in_flight.only(|request| self.group(request) != members.seat(request.tenant()).lane);
        for waiting in &moved.waiting {
            self.left(waiting, false, now);
        }
        for request in &moved.begun {
            self.ended(request);
        }
        self.members = Arc::new(members);
        for lane in 0..=self.members.known().1 {
            self.groups.reshare(lane, self.members.lane_share(lane));
        }
        for waiting in &moved.waiting {
            self.arrived(waiting, now);
        }
        for request in &moved.begun {
            self.moved_here(request);
        }
    }
}

impl Default for FairGroups {
    /// First come, first served inside of the one group of those whom nobody has named.
    fn default() -> Self {
        Self::over(Arc::default(), 1, 2, Arc::new(|| Box::new(Fifo)))
    }
}

impl Order for FairGroups {
    fn name(&self) -> &str {
        &self.name
    }

    fn place(&mut self, waiting: &Waiting<'_>, now: Time) -> Place {
        let group = self.group(waiting.request);
        self.inner.get(group).place(waiting, now).under(group)
    }

    fn levels(&self) -> Vec<Lanes> {
        self.inner.levels_under(Lanes::Rising)
    }

    fn lane_key(&self, path: &[u32], head: &Waiting<'_>, now: Time) -> u64 {
        self.inner.lane_key(path, head, now)
    }

    fn lane_counter(&self, path: &[u32]) -> u128 {
        match *path {
            [group] => self.groups.counter(group),
            _ => self.inner.lane_counter(path),
        }
    }

    fn lane_share(&self, path: &[u32]) -> NonZeroU32 {
        match *path {
            [group] => self.members.lane_share(group),
            _ => self.inner.lane_share(path),
        }
    }

    fn others_ahead(&mut self, path: &[u32], own: &Demand, others: &Demand) -> Demand {
        match *path {
            [group] => {
                let lane = (group, self.members.lane_share(group));
                ahead(&mut self.groups, self.weights, lane, own, others)
            }
            _ => self.inner.others_ahead(path, own, others),
        }
    }

    fn arrived(&mut self, waiting: &Waiting<'_>, now: Time) {
        let seat = self.members.seat(waiting.request.tenant());
        self.groups.arrived(seat.lane, seat.group_share);
        self.inner.get(seat.lane).arrived(waiting, now);
    }

    fn left(&mut self, waiting: &Waiting<'_>, started: bool, now: Time) {
        let group = self.group(waiting.request);
        let first = started && waiting.preemptions == 0;
        let charge = first.then(|| self.weights.prompt(waiting.request));
        self.groups.left(group, charge);
        self.inner.get(group).left(waiting, started, now);
    }

    fn served(&mut self, request: &Request, served: Served) {
        let group = self.group(request);
        self.groups.charge(group, self.weights.outputs(served));
        self.inner.get(group).served(request, served);
    }

    fn ended(&mut self, request: &Request) {
        let group = self.group(request);
        self.groups.ended(group);
        self.inner.get(group).ended(request);
    }

    fn takes(&self, row: &Row) -> bool {
        WEIGHTS.iter().any(|weight| weight.name == row.name) || self.inner.takes(row)
    }

    fn change(&mut self, change: &Change, in_flight: &InFlight<'_>, now: Time) {
        reweigh(&mut self.weights, change);
        if change.concerns_tenants() {
            self.change_members(change, in_flight, now);
        }
        let members = Arc::clone(&self.members);
        let lane_of = |request: &Request| members.seat(request.tenant()).lane;
        self.inner.change(change, in_flight, now, lane_of);
    }

    fn moved_here(&mut self, request: &Request) {
        let seat = self.members.seat(request.tenant());
        self.groups.moved_here(seat.lane, seat.group_share);
        self.inner.get(seat.lane).moved_here(request);
    }
}
