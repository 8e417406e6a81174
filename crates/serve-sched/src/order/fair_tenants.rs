//! Tenants that want more than there is get equal shares of tokens, whatever the number or length
//! of their requests (Sheng et al., *Fairness in Serving Large Language Models*, OSDI 2024: the
//! virtual token counter).
//!
//! Rule: each tenant has a counter of the service that it was given,
//!
//! ```text
//! counter = (input_weight x prompt tokens + output_weight x output tokens) / share
//! ```
//!
//! and the waiting tenant with the lowest one goes first; among its requests, first come, first
//! served. A prompt is charged when its request is taken, so that requests taken in one step see
//! each other; outputs are charged as they come, so no prediction of their number is needed.
//! A tenant that begins to wait is lifted to the lowest counter among those that wait already (or,
//! if nobody does, to that of the last one that did): idle time earns no credit.
//!
//! Groups come first: each has such a counter, the waiting group with the lowest one goes first, and
//! its tenants compete inside of it. A tenant with a share of its own is a group by itself, and all
//! that nobody has named are one group ([`Members`]). Where nobody is named at all there is only
//! that group, and all tenants are equals.
//!
//! Bound: over any interval in which two groups, or two tenants of one group, both have requests
//! waiting, the service that they are given, each divided by its share, differs by at most
//!
//! ```text
//! 2 x max(input_weight x L, output_weight x M) / the smaller share
//! ```
//!
//! where `L` is the longest prompt and `M` is how many tokens the requests that one of them has in
//! the batch can come to hold together (input_weight <= output_weight is assumed). For tenants of a
//! group it is an interval in which the group waits too, as it does while they do. It does not grow
//! with the interval. A schedule that never idles and never interrupts cannot stay below
//! `output_weight x M`.
//!
//! Costs O(log tenants) to choose. A tenant that has nothing waiting and nothing running and is not
//! ahead of the others is forgotten: its counter would be lifted anyway.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use serve_core::{Request, TenantId, Time};

use super::share::{Account, Ledger, Members, Seat, Weights, ahead};
use super::{InFlight, Lanes, Order, Path, Place, Served, Waiting};
use crate::demand::Demand;
use crate::settings::{Change, GroupId, Named, Row, Setting, Settings};

/// As its family lists it.
pub(super) const POLICY: Named<dyn Order> = Named {
    name: "fair-tenants",
    settings: WEIGHTS,
    build: |settings| Box::new(FairTenants::of(settings)),
};

/// The settings of every fair order.
pub(super) const WEIGHTS: &[&Row] = &[&INPUT_WEIGHT.row, &OUTPUT_WEIGHT.row];

/// Takes over the weights that are to be others.
pub(super) fn reweigh(weights: &mut Weights, change: &Change) {
    weights.input = change.value(&INPUT_WEIGHT).unwrap_or(weights.input);
    weights.output = change.value(&OUTPUT_WEIGHT).unwrap_or(weights.output);
}

pub(super) const INPUT_WEIGHT: Setting<u32> =
    Setting::count("input_weight", "What a prompt token costs a tenant", 1);

/// An output token costs twice as much as a prompt token.
pub(super) const OUTPUT_WEIGHT: Setting<u32> =
    Setting::count("output_weight", "What an output token costs a tenant", 2);

/// Equal token shares for tenants that compete, and for the groups that they belong to.
#[derive(Debug)]
pub struct FairTenants {
    weights: Weights,
    members: Arc<Members>,
    groups: Ledger,
    /// The tenants of each group in which there can be more than one.
    tenants: BTreeMap<u32, Ledger>,
}

impl FairTenants {
    /// A prompt token costs `input_weight` and an output token `output_weight`. An output token
    /// takes a whole decode step and a prompt token a part of one, so it should cost more.
    pub fn new(input_weight: u32, output_weight: u32) -> Self {
        Self::among(Arc::default(), input_weight, output_weight)
    }

    /// What the settings say, of tenants as well.
    fn of(settings: &Settings) -> Self {
        let members = Arc::new(Members::of(settings));
        let (input, output) = (settings.get(&INPUT_WEIGHT), settings.get(&OUTPUT_WEIGHT));
        Self::among(members, input, output)
    }

    /// The same for tenants of whom something is known.
    pub fn among(members: Arc<Members>, input_weight: u32, output_weight: u32) -> Self {
        Self {
            weights: Weights {
                input: input_weight,
                output: output_weight,
            },
            members,
            groups: Ledger::new(),
            tenants: BTreeMap::new(),
        }
    }

    /// Gives `tenant` a share of `share` where others have one of 1, as [`Members::with_share`].
    #[must_use]
    pub fn with_share(self, tenant: TenantId, share: NonZeroU32) -> Self {
        self.with(|members| members.with_share(tenant, share))
    }

    /// Makes `tenant` a member of `group`.
    #[must_use]
    pub fn with_group(self, tenant: TenantId, group: GroupId) -> Self {
        self.with(|members| members.with_group(tenant, group))
    }

    /// Gives all members of `group` together a share of `share` where others have one of 1.
    #[must_use]
    pub fn with_group_share(self, group: GroupId, share: NonZeroU32) -> Self {
        self.with(|members| members.with_group_share(group, share))
    }

    /// The counter of a tenant in weighted tokens for each share, if it is remembered.
    pub fn counter(&self, tenant: TenantId) -> Option<f64> {
        let seat = self.members.seat(tenant);
        let account = match seat.alone {
            true => self.groups.find(seat.lane),
            false => self.tenants.get(&seat.lane)?.find(tenant.get()),
        };
        account.map(Account::service_per_share)
    }

    fn with(mut self, more: impl FnOnce(Members) -> Members) -> Self {
        let members = std::mem::take(Arc::make_mut(&mut self.members));
        self.members = Arc::new(more(members));
        self
    }

    fn seat(&self, request: &Request) -> Seat {
        self.members.seat(request.tenant())
    }

    /// Takes other tenants and groups. One that changes the group leaves the old one, and comes to the new
    /// one like a tenant that begins to wait.
    fn change_members(&mut self, change: &Change, in_flight: &InFlight<'_>, now: Time) {
        let before = Arc::clone(&self.members);
        let mut members = Members::clone(&before);
        members.change(change.settings());
        let moved = in_flight.only(|request| {
            let tenant = request.tenant();
            before.seat(tenant).lane != members.seat(tenant).lane
        });
        for waiting in &moved.waiting {
            self.left(waiting, false, now);
        }
        for request in &moved.begun {
            self.ended(request);
        }
        self.members = Arc::new(members);
        self.reshare(&before);
        for waiting in &moved.waiting {
            self.arrived(waiting, now);
        }
        for request in &moved.begun {
            self.moved_here(request);
        }
    }

    /// Gives every count the share that it has now.
    fn reshare(&mut self, before: &Members) {
        let ((mut tenants, _), (named, lanes)) = (before.known(), self.members.known());
        for lane in 0..=lanes {
            self.groups.reshare(lane, self.members.lane_share(lane));
        }
        tenants.extend(named);
        for tenant in tenants {
            let seat = self.members.seat(tenant);
            if let Some(ledger) = self.tenants.get_mut(&seat.lane) {
                ledger.reshare(tenant.get(), seat.share);
            }
        }
    }

    /// The counters among which the tenant of this seat is one of several.
    fn tenants_of(&mut self, seat: Seat) -> Option<&mut Ledger> {
        let tenants = &mut self.tenants;
        (!seat.alone).then(|| tenants.entry(seat.lane).or_insert_with(Ledger::new))
    }
}

impl Default for FairTenants {
    /// With the weights that the settings have by default, and equal shares.
    fn default() -> Self {
        Self::of(&Settings::default())
    }
}

impl Order for FairTenants {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn place(&mut self, waiting: &Waiting<'_>, _now: Time) -> Place {
        let group = self.seat(waiting.request).lane;
        let tenant = waiting.request.tenant().get();
        Place {
            path: Path::of(tenant).under(group),
            ..Place::default()
        }
    }

    fn levels(&self) -> Vec<Lanes> {
        vec![Lanes::Rising, Lanes::Rising]
    }

    fn lane_counter(&self, path: &[u32]) -> u128 {
        match *path {
            [group] => self.groups.counter(group),
            [group, tenant, ..] => {
                let tenants = self.tenants.get(&group);
                tenants.map_or(0, |tenants| tenants.counter(tenant))
            }
            [] => 0,
        }
    }

    fn lane_share(&self, path: &[u32]) -> NonZeroU32 {
        match *path {
            [group] => self.members.lane_share(group),
            [_, tenant, ..] => self.members.seat(TenantId::new(tenant)).share,
            [] => NonZeroU32::MIN,
        }
    }

    fn others_ahead(&mut self, path: &[u32], own: &Demand, others: &Demand) -> Demand {
        let share = self.lane_share(path);
        let (ledger, lane) = match *path {
            [group] => (&mut self.groups, group),
            [group, tenant, ..] => match self.tenants.get_mut(&group) {
                Some(tenants) => (tenants, tenant),
                None => return *others,
            },
            [] => return *others,
        };
        ahead(ledger, self.weights, (lane, share), own, others)
    }

    fn arrived(&mut self, waiting: &Waiting<'_>, _now: Time) {
        let seat = self.seat(waiting.request);
        self.groups.arrived(seat.lane, seat.group_share);
        if let Some(tenants) = self.tenants_of(seat) {
            tenants.arrived(waiting.request.tenant().get(), seat.share);
        }
    }

    fn left(&mut self, waiting: &Waiting<'_>, started: bool, _now: Time) {
        let seat = self.seat(waiting.request);
        // Put back, the same prompt is run again, which is not the tenant's doing.
        let first = started && waiting.preemptions == 0;
        let charge = first.then(|| self.weights.prompt(waiting.request));
        self.groups.left(seat.lane, charge);
        if let Some(tenants) = self.tenants_of(seat) {
            tenants.left(waiting.request.tenant().get(), charge);
        }
    }

    fn served(&mut self, request: &Request, served: Served) {
        let (seat, charge) = (self.seat(request), self.weights.outputs(served));
        self.groups.charge(seat.lane, charge);
        if let Some(tenants) = self.tenants_of(seat) {
            tenants.charge(request.tenant().get(), charge);
        }
    }

    fn ended(&mut self, request: &Request) {
        let seat = self.seat(request);
        self.groups.ended(seat.lane);
        if let Some(tenants) = self.tenants_of(seat) {
            tenants.ended(request.tenant().get());
        }
    }

    fn takes(&self, row: &Row) -> bool {
        WEIGHTS.iter().any(|weight| weight.name == row.name)
    }

    fn change(&mut self, change: &Change, in_flight: &InFlight<'_>, now: Time) {
        reweigh(&mut self.weights, change);
        if change.concerns_tenants() {
            self.change_members(change, in_flight, now);
        }
    }

    fn moved_here(&mut self, request: &Request) {
        let seat = self.seat(request);
        self.groups.moved_here(seat.lane, seat.group_share);
        if let Some(tenants) = self.tenants_of(seat) {
            tenants.moved_here(request.tenant().get(), seat.share);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serve_core::{RequestId, Span, TokenId, Usage};

    use super::*;
    use crate::Gate;
    use crate::admit::{Cause, Ended};

    /// A gate with this order, and a way to serve its head to the end.
    struct Server {
        gate: Gate,
        next_id: u64,
    }

    impl Server {
        fn new(order: FairTenants) -> Self {
            Self {
                gate: Gate::new(Vec::new(), Box::new(order), 1),
                next_id: 0,
            }
        }

        fn submit(&mut self, tenant: u32, prompt: usize, output: u32) {
            let id = RequestId::new(self.next_id);
            self.next_id += 1;
            let prompt = vec![TokenId::new(1); prompt];
            let request = Request::new(id, Time::ZERO, prompt, output).unwrap();
            let request = request.with_tenant(TenantId::new(tenant));
            self.gate.submit(Time::ZERO, Arc::new(request)).unwrap();
        }

        fn serve(&mut self) -> u32 {
            let taken = self.gate.take(Time::ZERO).unwrap();
            let served = Served {
                prompt_tokens: taken.request.prompt_tokens(),
                output_tokens: taken.request.output_tokens_max(),
            };
            self.gate.served(&taken.request, served);
            let ended = Ended {
                request: &taken.request,
                cause: Cause::Finished,
                usage: Usage::default(),
                ran: Some(Span::ZERO),
            };
            self.gate.ended(Time::ZERO, &ended);
            taken.request.tenant().get()
        }
    }

    #[test]
    fn weights_and_shares_are_those_of_the_settings() {
        let three = NonZeroU32::MIN.saturating_add(2);
        let tenant = |id, weight| crate::TenantSettings {
            id: TenantId::new(id),
            weight,
            ..crate::TenantSettings::default()
        };
        let tenants = vec![tenant(1, Some(three)), tenant(2, None)];
        let settings = Settings::default().with_tenants(tenants);
        let settings = settings.with(&INPUT_WEIGHT, 5).with(&OUTPUT_WEIGHT, 7);
        let order = FairTenants::of(&settings);
        assert_eq!((order.weights.input, order.weights.output), (5, 7));
        let members = Members::new().with_share(TenantId::new(1), three);
        let members = members.with_share(TenantId::new(2), NonZeroU32::MIN);
        assert_eq!(*order.members, members);
    }

    #[test]
    fn many_requests_of_one_tenant_do_not_delay_the_only_one_of_another() {
        let mut server = Server::new(FairTenants::default());
        (0..100).for_each(|_| server.submit(1, 10, 10));
        server.serve();
        server.submit(2, 10, 10);
        let next_two = [server.serve(), server.serve()];
        assert!(next_two.contains(&2), "{next_two:?}");
    }

    #[test]
    fn equal_tokens_are_unequal_numbers_of_requests() {
        let mut server = Server::new(FairTenants::new(1, 1));
        for _ in 0..300 {
            server.submit(1, 10, 10);
            server.submit(2, 30, 30);
        }
        let served: Vec<u32> = (0..200).map(|_| server.serve()).collect();
        let of_1 = served.iter().filter(|&&tenant| tenant == 1).count();
        assert!((149..=151).contains(&of_1), "{of_1}");
    }

    #[test]
    fn a_share_of_three_is_three_times_the_tokens() {
        let three = NonZeroU32::new(3).unwrap();
        let order = FairTenants::default().with_share(TenantId::new(1), three);
        let mut server = Server::new(order);
        for _ in 0..400 {
            server.submit(1, 10, 10);
            server.submit(2, 10, 10);
        }
        let served: Vec<u32> = (0..400).map(|_| server.serve()).collect();
        let of_1 = served.iter().filter(|&&tenant| tenant == 1).count();
        assert!((299..=301).contains(&of_1), "{of_1}");
    }

    #[test]
    fn idle_time_earns_no_credit() {
        let mut server = Server::new(FairTenants::default());
        server.submit(2, 10, 10);
        server.serve();
        (0..100).for_each(|_| server.submit(1, 10, 10));
        (0..50).for_each(|_| assert_eq!(server.serve(), 1));
        // Tenant 2 was away for 50 requests. It comes back as an equal, not as a creditor.
        (0..10).for_each(|_| server.submit(2, 10, 10));
        let served: Vec<u32> = (0..10).map(|_| server.serve()).collect();
        assert_eq!(served.iter().filter(|&&tenant| tenant == 2).count(), 5);
    }

    #[test]
    fn tenants_that_are_gone_take_no_memory() {
        let mut order = FairTenants::default();
        for tenant in 0..100_000 {
            let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1);
            let request = request.unwrap().with_tenant(TenantId::new(tenant));
            let waiting = Waiting {
                request: &request,
                sequence: 0,
                since: Time::ZERO,
                preemptions: 0,
            };
            order.arrived(&waiting, Time::ZERO);
            order.left(&waiting, true, Time::ZERO);
            order.ended(&request);
        }
        let remembered = order.tenants[&0].len();
        assert!(remembered <= 64, "{remembered}");
    }

    /// With the greatest weights, and after a thousand years at full speed.
    #[test]
    fn counters_do_not_saturate() {
        for (weight, years) in [(1, 1_000), (1_000, 1_000), (u32::MAX, 1)] {
            let mut server = Server::new(FairTenants::new(weight, weight));
            (1..=2).for_each(|tenant| server.submit(tenant, 1, 1));
            let both = [(); 2].map(|()| server.gate.take(Time::ZERO).unwrap());
            for taken in both {
                // 100,000 tokens a second, told in parts.
                let tokens = 100_000_u64 * 365 * 86_400 * years;
                let part = Served {
                    prompt_tokens: 0,
                    output_tokens: u32::MAX,
                };
                for _ in 0..tokens / u64::from(u32::MAX) {
                    server.gate.served(&taken.request, part);
                }
                server.gate.put_back(Time::ZERO, taken);
            }
            for _ in 0..200 {
                server.submit(1, 10, 10);
                server.submit(2, 10, 10);
            }
            let served: Vec<u32> = (0..200).map(|_| server.serve()).collect();
            let of_1 = served.iter().filter(|&&tenant| tenant == 1).count();
            assert!((98..=102).contains(&of_1), "{of_1} with {weight}");
        }
    }

    /// However often it is put back, and whether or not that was a preemption.
    #[test]
    fn a_prompt_is_charged_once() {
        let tenant = TenantId::new(1);
        let mut order = FairTenants::new(1, 2);
        let mut gate = Gate::new(Vec::new(), Box::new(FairTenants::new(1, 2)), 1);
        let request = |id, tenant, prompt: usize| {
            let prompt = vec![TokenId::new(1); prompt];
            let request = Request::new(RequestId::new(id), Time::ZERO, prompt, 1).unwrap();
            request.with_tenant(tenant)
        };
        let first = request(1, tenant, 100);
        for preemptions in 0..3 {
            let waiting = Waiting {
                request: &first,
                sequence: 0,
                since: Time::ZERO,
                preemptions,
            };
            order.arrived(&waiting, Time::ZERO);
            order.left(&waiting, true, Time::ZERO);
        }
        assert_eq!(order.counter(tenant), Some(100.0));
        order.ended(&first);

        let other = request(2, TenantId::new(2), 150);
        gate.submit(Time::ZERO, Arc::new(first)).unwrap();
        gate.submit(Time::ZERO, Arc::new(other)).unwrap();
        let mut take = || {
            let taken = gate.take(Time::ZERO).unwrap();
            let id = taken.request.id().get();
            gate.put_back(Time::ZERO, taken);
            id
        };
        // 100 against 0, then 100 against 150, and that is what they stay.
        assert_eq!([take(), take(), take(), take()], [1, 2, 1, 1]);
    }

    #[test]
    fn a_tenant_that_was_put_back_and_has_ended_is_forgotten() {
        let mut server = Server::new(FairTenants::default());
        for tenant in 0..1_000 {
            server.submit(tenant, 10, 10);
            let taken = server.gate.take(Time::ZERO).unwrap();
            server.gate.put_back(Time::ZERO, taken);
            assert_eq!(server.serve(), tenant);
        }
        let mut order = FairTenants::default();
        for tenant in 0..1_000 {
            let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1);
            let request = request.unwrap().with_tenant(TenantId::new(tenant));
            for preemptions in 0..3 {
                let waiting = Waiting {
                    request: &request,
                    sequence: 0,
                    since: Time::ZERO,
                    preemptions,
                };
                order.arrived(&waiting, Time::ZERO);
                order.left(&waiting, true, Time::ZERO);
            }
            order.ended(&request);
        }
        let remembered = order.tenants[&0].len();
        assert!(remembered <= 64, "{remembered}");
    }

    /// A tenant that has had more than the others is not let off for pausing among many.
    #[test]
    fn a_debt_is_remembered_among_many_tenants() {
        let mut server = Server::new(FairTenants::default());
        // The first waits throughout; the second has much and is gone.
        (0..600).for_each(|_| server.submit(1, 10, 10));
        server.submit(2, 100_000, 10);
        assert_eq!([server.serve(), server.serve()], [1, 2]);
        for tenant in 10..500 {
            server.submit(tenant, 1, 1);
            server.serve();
        }
        (0..10).for_each(|_| server.submit(2, 10, 10));
        let left: Vec<u32> = (0..10).map(|_| server.serve()).collect();
        assert!(
            !left.contains(&2),
            "{left:?}: the others have not had as much"
        );
    }
}
