//! Only so many requests in flight, and only so much of the KV cache, for each tenant and each class.
//!
//! Rule: of a tenant, and of a class, at most `requests` are in flight (waiting and running), and all of
//! them together could come to hold at most `positions` of the KV cache. A request is counted from
//! its admission to its end, however it ends, with the positions of its prompt and its longest
//! answer, in whole blocks:
//!
//! ```text
//! refuse if  in flight >= requests,  or  positions in flight + own > positions
//! ```
//!
//! What alone is more than its tenant's or its class's positions is told *never*.
//!
//! The sums are exact, and a tenant with nothing in flight is forgotten: memory is bounded by the
//! tenants that have something in flight. O(log of those) for each arrival and each end.

use std::collections::BTreeMap;

use serve_core::{Class, Limit, Refusal, Request, Span, TenantId, Time};

use super::{Admission, Admit, Ended, Load, check_classes};
use crate::settings::{Setting, Settings, TenantSettings};

/// As its family lists it.
pub(super) const POLICY: Admission = Admission {
    name: "in-flight-limits",
    settings: &[
        &TENANT_IN_FLIGHT.row,
        &TENANT_KV_TOKENS.row,
        &CLASS_IN_FLIGHT.row,
        &CLASS_KV_TOKENS.row,
    ],
    reads_tenants: true,
    build: |settings| match InFlightLimits::of(settings) {
        limits if limits.are_off() => Vec::new(),
        limits => vec![Box::new(limits)],
    },
    by_default: || Box::new(InFlightLimits::default()),
};

const TENANT_IN_FLIGHT: Setting<u32> = Setting::count(
    "tenant_in_flight",
    "Requests of one tenant that may wait and run together; more are refused; 0 is no limit",
    0,
);

const TENANT_KV_TOKENS: Setting<u32> = Setting::count(
    "tenant_kv_tokens",
    "Tokens of the KV cache that the requests of one tenant may come to hold together; 0 is no limit",
    0,
);

const CLASS_IN_FLIGHT: Setting<Vec<(String, u32)>> = Setting::by_class(
    "class_in_flight",
    "Requests of single classes that may wait and run together, such as `batch=16`; 0 is no limit",
)
.checked(|settings| check_classes(settings, &CLASS_IN_FLIGHT));

const CLASS_KV_TOKENS: Setting<Vec<(String, u32)>> = Setting::by_class(
    "class_kv_tokens",
    "Tokens of the KV cache that the requests of single classes may come to hold together, such as \
     `batch=65536`; 0 is no limit",
)
.checked(|settings| check_classes(settings, &CLASS_KV_TOKENS));

/// Only so many requests in flight, and only so much of the KV cache, for each tenant and each class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlightLimits {
    tenants: Book<TenantId>,
    classes: Book<Class>,
}

/// What may be in flight together; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Requests waiting and running.
    pub requests: u32,
    /// KV positions that they could come to hold, each request's in whole blocks.
    pub positions: u64,
}

/// The bounds of tenants, or of classes, and what is in flight of each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Book<K: Ord> {
    usual: Bound,
    named: BTreeMap<K, Bound>,
    held: BTreeMap<K, Held>,
}

/// What one tenant, or one class, has in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    requests: u32,
    positions: u64,
    /// Refused since one of these ended.
    refused: u32,
}

impl InFlightLimits {
    /// The same bound for each tenant, and none for any class, but for
    /// [`with_tenant`](Self::with_tenant) and [`with_class`](Self::with_class).
    pub const fn new(each_tenant: Bound) -> Self {
        Self {
            tenants: Book::new(each_tenant),
            classes: Book::new(Bound {
                requests: 0,
                positions: 0,
            }),
        }
    }

    /// With the bounds of the settings.
    fn of(settings: &Settings) -> Self {
        let usual = Bound {
            requests: settings.get(&TENANT_IN_FLIGHT),
            positions: u64::from(settings.get(&TENANT_KV_TOKENS)),
        };
        let own = |tenant: &TenantSettings| Bound {
            requests: tenant.in_flight.unwrap_or(usual.requests),
            positions: tenant.kv_tokens.unwrap_or(usual.positions),
        };
        let mut limits = Self::new(usual);
        for tenant in settings
            .tenants
            .iter()
            .filter(|tenant| own(tenant) != usual)
        {
            limits = limits.with_tenant(tenant.id, own(tenant));
        }
        let classes = &mut limits.classes.named;
        for (name, max) in settings.get(&CLASS_IN_FLIGHT) {
            if let Some(class) = settings.class(&name) {
                classes.entry(class).or_default().requests = max;
            }
        }
        for (name, max) in settings.get(&CLASS_KV_TOKENS) {
            if let Some(class) = settings.class(&name) {
                classes.entry(class).or_default().positions = u64::from(max);
            }
        }
        limits
    }

    /// Whether nothing is limited.
    fn are_off(&self) -> bool {
        self.tenants.is_off() && self.classes.is_off()
    }

    /// Gives a tenant a bound of its own.
    #[must_use]
    pub fn with_tenant(mut self, tenant: TenantId, bound: Bound) -> Self {
        self.tenants.named.insert(tenant, bound);
        self
    }

    /// Bounds a class, whatever its tenants.
    #[must_use]
    pub fn with_class(mut self, class: Class, bound: Bound) -> Self {
        self.classes.named.insert(class, bound);
        self
    }
}

impl Default for InFlightLimits {
    /// 64 requests for each tenant.
    fn default() -> Self {
        Self::new(Bound {
            requests: 64,
            positions: 0,
        })
    }
}

impl Admit for InFlightLimits {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn refuses_any_length(&self) -> bool {
        true
    }

    fn change(&mut self, settings: &Settings, _now: Time) {
        let to = Self::of(settings);
        (self.tenants.usual, self.tenants.named) = (to.tenants.usual, to.tenants.named);
        (self.classes.usual, self.classes.named) = (to.classes.usual, to.classes.named);
    }

    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        let (tenant, class) = (request.tenant(), request.class());
        let own = positions(request, load);
        self.tenants.check_alone(tenant, own)?;
        self.classes.check_alone(class, own)?;
        self.tenants.check(tenant, own, load)?;
        self.classes.check(class, own, load)
    }

    fn admitted(&mut self, request: &Request, load: &Load<'_>) {
        let own = positions(request, load);
        self.tenants.add(request.tenant(), own);
        self.classes.add(request.class(), own);
    }

    fn ended(&mut self, ended: &Ended<'_>, load: &Load<'_>) {
        let own = positions(ended.request, load);
        self.tenants.take(ended.request.tenant(), own);
        self.classes.take(ended.request.class(), own);
    }
}

/// What a request could come to hold of the KV cache.
fn positions(request: &Request, load: &Load<'_>) -> u64 {
    u64::from(request.positions_max()).next_multiple_of(u64::from(load.block_size.max(1)))
}

/// Whose requests are counted together, and how a refusal says that they are too many.
trait Owner: Ord + Copy {
    fn too_many(self, in_flight: u32, max: u32) -> Limit;

    fn too_large(self, positions: u64, max: u64) -> Limit;
}

impl Owner for TenantId {
    fn too_many(self, in_flight: u32, max: u32) -> Limit {
        Limit::TenantInFlight {
            tenant: self,
            in_flight,
            max,
        }
    }

    fn too_large(self, positions: u64, max: u64) -> Limit {
        Limit::TenantKv {
            tenant: self,
            positions,
            max,
        }
    }
}

impl Owner for Class {
    fn too_many(self, in_flight: u32, max: u32) -> Limit {
        Limit::ClassInFlight {
            class: self,
            in_flight,
            max,
        }
    }

    fn too_large(self, positions: u64, max: u64) -> Limit {
        Limit::ClassKv {
            class: self,
            positions,
            max,
        }
    }
}

impl Bound {
    /// Whether positions are limited, and to fewer than these.
    const fn is_below(self, positions: u64) -> bool {
        self.positions > 0 && self.positions < positions
    }
}

impl<K: Owner> Book<K> {
    const fn new(usual: Bound) -> Self {
        Self {
            usual,
            named: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// Whether nobody has a bound.
    fn is_off(&self) -> bool {
        let mut bounds = self.named.values().chain([&self.usual]);
        bounds.all(|bound| *bound == Bound::default())
    }

    fn bound(&self, of: K) -> Bound {
        self.named.get(&of).copied().unwrap_or(self.usual)
    }

    /// Refuses for ever what is too large even with nothing else in flight.
    fn check_alone(&self, of: K, own: u64) -> Result<(), Refusal> {
        let bound = self.bound(of);
        match bound.is_below(own) {
            true => Err(Refusal::Never {
                limit: of.too_large(own, bound.positions),
            }),
            false => Ok(()),
        }
    }

    /// Refuses for now what is too much beside what is in flight.
    fn check(&mut self, of: K, own: u64, load: &Load<'_>) -> Result<(), Refusal> {
        let bound = self.bound(of);
        let held = self.held.get(&of).copied().unwrap_or_default();
        let requests = u64::from(held.requests);
        // After so many ends there is room.
        let (limit, ends) = if bound.requests > 0 && held.requests >= bound.requests {
            let limit = of.too_many(held.requests, bound.requests);
            (limit, requests + 1 - u64::from(bound.requests))
        } else if bound.is_below(held.positions + own) {
            let positions = held.positions + own;
            let over = u128::from(positions - bound.positions) * u128::from(requests);
            let limit = of.too_large(positions, bound.positions);
            (
                limit,
                over.div_ceil(u128::from(held.positions.max(1))) as u64,
            )
        } else {
            return Ok(());
        };
        Err(Refusal::Later {
            limit,
            retry_after: self.retry_after(of, ends, load),
        })
    }

    /// Counts a refusal and says when it is worth coming back: after `ends` of this tenant or class, and
    /// one more for each who was refused since one of them ended. They are taken to end as often as their
    /// part of all that is in flight says.
    fn retry_after(&mut self, of: K, ends: u64, load: &Load<'_>) -> Option<Span> {
        let held = self.held.get_mut(&of)?;
        let (requests, before) = (u64::from(held.requests), u64::from(held.refused));
        held.refused = held.refused.saturating_add(1);
        let all = u64::from(load.waiting) + u64::from(load.running);
        let departures = (ends + before).saturating_mul(all.max(requests));
        let departures = departures.div_ceil(requests.max(1));
        load.time_to_drain(u32::try_from(departures).unwrap_or(u32::MAX))
    }

    fn add(&mut self, of: K, own: u64) {
        let held = self.held.entry(of).or_default();
        held.requests += 1;
        held.positions += own;
    }

    fn take(&mut self, of: K, own: u64) {
        let Some(held) = self.held.get_mut(&of) else {
            return;
        };
        held.requests -= 1;
        held.positions -= own;
        held.refused = 0;
        if held.requests == 0 {
            self.held.remove(&of);
        }
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{CancelReason, RequestId, Time, TokenId, Usage};

    use super::*;
    use crate::Pace;
    use crate::admit::Cause;

    const fn bound(requests: u32, positions: u64) -> Bound {
        Bound {
            requests,
            positions,
        }
    }

    /// `prompt` positions, as its one output is never run.
    fn request(tenant: u32, class: u8, prompt: usize) -> Request {
        let prompt = vec![TokenId::new(1); prompt];
        Request::new(RequestId::new(1), Time::ZERO, prompt, 1)
            .unwrap()
            .with_tenant(TenantId::new(tenant))
            .with_class(Class::new(class))
    }

    fn load(pace: &Pace) -> Load<'_> {
        Load {
            block_size: 16,
            ..Load::idle(8, pace)
        }
    }

    fn ask(limits: &mut InFlightLimits, request: &Request) -> Result<(), Refusal> {
        let pace = Pace::default();
        limits.admit(request, &load(&pace))?;
        limits.admitted(request, &load(&pace));
        Ok(())
    }

    fn end(limits: &mut InFlightLimits, request: &Request, cause: Cause) {
        let pace = Pace::default();
        let ended = Ended {
            request,
            cause,
            usage: Usage::default(),
            ran: None,
        };
        limits.ended(&ended, &load(&pace));
    }

    #[test]
    fn a_tenant_and_a_class_are_bounded_each_by_its_own() {
        let mut limits = InFlightLimits::new(bound(2, 0))
            .with_tenant(TenantId::new(9), bound(0, 0))
            .with_class(Class::new(1), bound(3, 0));
        for tenant in [1, 1, 2] {
            assert_eq!(ask(&mut limits, &request(tenant, 1, 5)), Ok(()));
        }
        let refused = |limits: &mut InFlightLimits, tenant, class| {
            ask(limits, &request(tenant, class, 5)).unwrap_err().limit()
        };
        let of_tenant = Limit::TenantInFlight {
            tenant: TenantId::new(1),
            in_flight: 2,
            max: 2,
        };
        let of_class = Limit::ClassInFlight {
            class: Class::new(1),
            in_flight: 3,
            max: 3,
        };
        assert_eq!(refused(&mut limits, 1, 0), of_tenant);
        assert_eq!(refused(&mut limits, 9, 1), of_class);
        for _ in 0..100 {
            assert_eq!(ask(&mut limits, &request(9, 0, 5)), Ok(()), "no limit");
        }
    }

    #[test]
    fn positions_count_in_whole_blocks_and_too_many_for_one_are_never_taken() {
        let mut limits = InFlightLimits::new(bound(0, 48)).with_class(Class::new(1), bound(0, 32));
        let kv = |positions, max| TenantId::new(1).too_large(positions, max);
        let never = |limit| Err(Refusal::Never { limit });
        assert_eq!(ask(&mut limits, &request(1, 0, 49)), never(kv(64, 48)));
        let class = Class::new(1).too_large(48, 32);
        assert_eq!(ask(&mut limits, &request(1, 1, 33)), never(class));
        assert_eq!(ask(&mut limits, &request(1, 0, 17)), Ok(()));
        let refusal = ask(&mut limits, &request(1, 0, 17)).unwrap_err();
        assert_eq!(refusal.limit(), kv(64, 48));
        assert!(matches!(refusal, Refusal::Later { .. }));
        assert_eq!(ask(&mut limits, &request(1, 0, 16)), Ok(()));
    }

    #[test]
    fn every_end_makes_room_and_nothing_is_kept_of_who_has_nothing_in_flight() {
        let causes = [
            Cause::Finished,
            Cause::Cancelled(CancelReason::Client),
            Cause::Failed,
            Cause::Displaced,
        ];
        let mut limits = InFlightLimits::new(bound(1, 16));
        let empty = limits.clone();
        for cause in causes {
            let request = request(1, 2, 16);
            assert!(ask(&mut limits, &request).is_ok());
            assert!(ask(&mut limits, &request).is_err());
            end(&mut limits, &request, cause);
            assert_eq!(limits, empty, "{cause:?}");
        }
    }

    #[test]
    fn each_who_is_refused_is_told_one_departure_of_the_tenant_more() {
        let mut pace = Pace::default();
        pace.finished(10, Span::from_secs(1));
        let mut limits = InFlightLimits::new(bound(2, 0));
        assert!(ask(&mut limits, &request(1, 0, 1)).is_ok());
        assert!(ask(&mut limits, &request(1, 0, 1)).is_ok());
        // One in four of what runs is the tenant's, and ten requests end in a second.
        let load = Load {
            running: 8,
            ..load(&pace)
        };
        let mut after_ms = || {
            let refusal = limits.admit(&request(1, 0, 1), &load).unwrap_err();
            refusal.retry_after().unwrap().as_millis()
        };
        assert_eq!([(); 3].map(|()| after_ms()), [400, 800, 1_200]);
        end(&mut limits, &request(1, 0, 1), Cause::Finished);
        assert!(ask(&mut limits, &request(1, 0, 1)).is_ok());
        let refusal = limits.admit(&request(1, 0, 1), &load).unwrap_err();
        assert_eq!(refusal.retry_after(), Some(Span::from_millis(400)));
    }
}
