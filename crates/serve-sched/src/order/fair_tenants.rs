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
//! Bound: over any interval in which two tenants both have requests waiting, the service they are
//! given, each divided by its share, differs by at most
//!
//! ```text
//! 2 x max(input_weight x L, output_weight x M) / the smaller share
//! ```
//!
//! where `L` is the longest prompt and `M` is how many tokens the requests that one tenant has in
//! the batch can come to hold together (input_weight <= output_weight is assumed). It does not grow
//! with the interval. A schedule that never idles and never interrupts cannot stay below
//! `output_weight x M`.
//!
//! Costs O(log tenants) to choose. A tenant that has nothing waiting and nothing running and is not
//! ahead of the others is forgotten: its counter would be lifted anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use hashbrown::HashTable;
use serve_core::rng::mix;
use serve_core::{Request, TenantId, Time};

use super::{Lanes, Order, Place, Served, Waiting};
use crate::named::Named;
use crate::settings::{Setting, Settings};

/// As its family lists it.
pub(super) const POLICY: Named<dyn Order> = Named {
    name: "fair-tenants",
    settings: &[&INPUT_WEIGHT.row, &OUTPUT_WEIGHT.row],
    build: |settings| Box::new(FairTenants::of(settings)),
};

const INPUT_WEIGHT: Setting<u32> =
    Setting::count("input_weight", "What a prompt token costs a tenant", 1);

/// An output token costs twice as much as a prompt token.
const OUTPUT_WEIGHT: Setting<u32> =
    Setting::count("output_weight", "What an output token costs a tenant", 2);

/// Equal token shares for tenants that compete.
#[derive(Debug)]
pub struct FairTenants {
    input_weight: u32,
    output_weight: u32,
    shares: BTreeMap<TenantId, NonZeroU32>,
    tenants: HashTable<Tenant>,
    /// Tenants that wait, by a counter that may have risen since.
    waiting: BTreeSet<(u64, TenantId)>,
    last_waiting: Option<TenantId>,
    forget_at: usize,
}

/// A tenant that waits, is served, or is ahead of the others.
#[derive(Debug)]
struct Tenant {
    id: TenantId,
    share: NonZeroU32,
    /// Weighted tokens, not divided by the share: charges add up exactly.
    service: u64,
    waiting: u32,
    /// Requests taken and not ended, the preempted included.
    begun: u32,
    /// Under which counter it is in the index of those that wait.
    indexed: u64,
}

/// How finely counters resolve a token divided by a share.
const RESOLUTION: u32 = 1 << 16;
const FORGET_AT_LEAST: usize = 64;

impl FairTenants {
    /// A prompt token costs `input_weight` and an output token `output_weight`. An output token
    /// takes a whole decode step and a prompt token a part of one, so it should cost more.
    pub fn new(input_weight: u32, output_weight: u32) -> Self {
        Self {
            input_weight,
            output_weight,
            shares: BTreeMap::new(),
            tenants: HashTable::new(),
            waiting: BTreeSet::new(),
            last_waiting: None,
            forget_at: FORGET_AT_LEAST,
        }
    }

    /// With the weights of the settings, and the shares of their tenants.
    fn of(settings: &Settings) -> Self {
        let weights = (settings.get(&INPUT_WEIGHT), settings.get(&OUTPUT_WEIGHT));
        let tenants = settings.tenants.iter();
        let shares = tenants.filter_map(|tenant| Some((tenant.id, tenant.weight?)));
        let fair = Self::new(weights.0, weights.1);
        shares.fold(fair, |fair, (tenant, share)| fair.with_share(tenant, share))
    }

    /// Gives `tenant` a share of `share` where others have one of 1.
    #[must_use]
    pub fn with_share(mut self, tenant: TenantId, share: NonZeroU32) -> Self {
        self.shares.insert(tenant, share);
        self
    }

    /// The counter of a tenant in weighted tokens for each share, if it is remembered.
    pub fn counter(&self, tenant: TenantId) -> Option<f64> {
        let tenant = self.find(tenant)?;
        Some(tenant.service as f64 / f64::from(tenant.share.get()))
    }

    fn find(&self, id: TenantId) -> Option<&Tenant> {
        self.tenants.find(hash(id), |tenant| tenant.id == id)
    }

    fn tenant(&mut self, id: TenantId) -> &mut Tenant {
        let shares = &self.shares;
        let entry =
            self.tenants
                .entry(hash(id), |tenant| tenant.id == id, |tenant| hash(tenant.id));
        entry
            .or_insert_with(|| Tenant {
                id,
                share: shares.get(&id).copied().unwrap_or(NonZeroU32::MIN),
                service: 0,
                waiting: 0,
                begun: 0,
                indexed: 0,
            })
            .into_mut()
    }

    /// The counter below which nobody has any credit.
    fn floor(&mut self) -> u64 {
        while let Some(&(indexed, id)) = self.waiting.first() {
            let counter = self.find(id).map_or(indexed, Tenant::counter);
            if counter <= indexed {
                return counter;
            }
            // It has risen since it was looked at last.
            self.waiting.remove(&(indexed, id));
            self.waiting.insert((counter, id));
            self.tenant(id).indexed = counter;
        }
        let last = self.last_waiting.and_then(|id| self.find(id));
        last.map_or(0, Tenant::counter)
    }

    fn forget_idle(&mut self) {
        if self.tenants.len() < self.forget_at {
            return;
        }
        let (floor, last) = (self.floor(), self.last_waiting);
        self.tenants.retain(|tenant| {
            let idle = tenant.waiting == 0 && tenant.begun == 0;
            !idle || tenant.counter() > floor || Some(tenant.id) == last
        });
        self.forget_at = FORGET_AT_LEAST.max(2 * self.tenants.len());
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
        Place::in_lane(waiting.request.tenant().get())
    }

    fn lanes(&self) -> Lanes {
        Lanes::Rising
    }

    fn lane_key(&self, lane: u32, _head: &Waiting<'_>, _now: Time) -> u64 {
        self.find(TenantId::new(lane)).map_or(0, Tenant::counter)
    }

    fn arrived(&mut self, waiting: &Waiting<'_>, _now: Time) {
        let id = waiting.request.tenant();
        let returns = self.find(id).is_none_or(|tenant| tenant.waiting == 0);
        let floor = if returns { self.floor() } else { 0 };
        let tenant = self.tenant(id);
        tenant.waiting += 1;
        if returns {
            tenant.lift(floor);
            tenant.indexed = tenant.counter();
            let indexed = (tenant.indexed, id);
            self.waiting.insert(indexed);
        }
    }

    fn left(&mut self, waiting: &Waiting<'_>, started: bool, _now: Time) {
        let id = waiting.request.tenant();
        let charge = u64::from(self.input_weight) * u64::from(waiting.request.prompt_tokens());
        let tenant = self.tenant(id);
        tenant.waiting = tenant.waiting.saturating_sub(1);
        // After a preemption the same prompt is run again, which is not the tenant's doing.
        if started && waiting.preemptions == 0 {
            tenant.begun += 1;
            tenant.service = tenant.service.saturating_add(charge);
        }
        if tenant.waiting == 0 {
            let indexed = (tenant.indexed, id);
            self.waiting.remove(&indexed);
            self.last_waiting = Some(id);
            self.forget_idle();
        }
    }

    fn served(&mut self, request: &Request, served: Served) {
        let charge = u64::from(self.output_weight) * u64::from(served.output_tokens);
        let tenant = self.tenant(request.tenant());
        tenant.service = tenant.service.saturating_add(charge);
    }

    fn ended(&mut self, request: &Request) {
        let tenant = self.tenant(request.tenant());
        tenant.begun = tenant.begun.saturating_sub(1);
        self.forget_idle();
    }
}

impl Tenant {
    fn counter(&self) -> u64 {
        let scaled = u128::from(self.service) * u128::from(RESOLUTION);
        u64::try_from(scaled / u128::from(self.share.get())).unwrap_or(u64::MAX)
    }

    fn lift(&mut self, floor: u64) {
        let least = u128::from(floor) * u128::from(self.share.get());
        let least = least.div_ceil(u128::from(RESOLUTION));
        self.service = self.service.max(u64::try_from(least).unwrap_or(u64::MAX));
    }
}

fn hash(id: TenantId) -> u64 {
    mix(u64::from(id.get()))
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
        let fair = FairTenants::of(&settings);
        assert_eq!((fair.input_weight, fair.output_weight), (5, 7));
        assert_eq!(fair.shares, BTreeMap::from([(TenantId::new(1), three)]));
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
        assert!(
            order.tenants.len() <= FORGET_AT_LEAST,
            "{}",
            order.tenants.len()
        );
        assert!(order.waiting.is_empty());
    }
}
