//! So many requests or tokens in a time, with bursts: for each tenant, or for all together.
//!
//! Rule: the generic cell rate algorithm (ITU-T I.371), which is a token bucket kept as one number:
//! the *theoretical arrival time* at which the bucket will be full again. A request of cost `c` at a
//! rate of `units` in `per`, with a burst of `b`, is taken if
//!
//! ```text
//! max(TAT, now) + c x per / units <= now + b x per / units
//! ```
//!
//! and then the left side becomes the new TAT. Times are kept in nanoseconds times `units`, so there
//! is no rounding: over any span `s` at most `b + s x units / per` units are taken, and the time to
//! come back is exact to the nanosecond: one nanosecond earlier is refused, then is not (unless
//! somebody else came first). What costs more than the burst is told *never*.
//!
//! Only what is admitted is charged; what is called off later is not paid back. A tenant whose
//! bucket is full again is forgotten, so memory is bounded by the tenants that have spent something
//! within the last `b x per / units`, twice over.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serve_core::{Limit, Refusal, Request, Span, TenantId, Time};

use super::{Admission, Admit, Load};
use crate::settings::{Setting, Settings, TenantSettings};

/// As its family lists it: a bucket for all and one for each tenant, of requests and of tokens.
pub(super) const POLICY: Admission = Admission {
    name: "token-bucket",
    settings: &[
        &REQUESTS_PER_S.row,
        &TOKENS_PER_S.row,
        &TENANT_REQUESTS_PER_S.row,
        &TENANT_TOKENS_PER_S.row,
        &RATE_BURST.row,
    ],
    build: buckets,
    by_default: || Box::new(TokenBucket::default()),
};

const REQUESTS_PER_S: Setting<f64> = Setting::rate(
    "requests_per_s",
    "Requests in a second for all together; 0 is no limit",
);

const TOKENS_PER_S: Setting<f64> = Setting::rate(
    "tokens_per_s",
    "Tokens in a second for all together, prompts and answers at their longest; 0 is no limit",
);

const TENANT_REQUESTS_PER_S: Setting<f64> = Setting::rate(
    "tenant_requests_per_s",
    "Requests in a second for each tenant whose keys say nothing else; 0 is no limit",
);

const TENANT_TOKENS_PER_S: Setting<f64> = Setting::rate(
    "tenant_tokens_per_s",
    "Tokens in a second for each tenant whose keys say nothing else; 0 is no limit",
);

const RATE_BURST: Setting<Span> = Setting::seconds(
    "rate_burst",
    "Seconds' worth of its rate that may come at once; a request that costs more is never taken",
    Span::from_secs(10),
);

/// So many requests or tokens in a time, with bursts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    scope: Scope,
    cost: Cost,
    quota: Quota,
    quotas: BTreeMap<TenantId, Quota>,
    full_at: BTreeMap<TenantId, Scaled>,
    forget_at: usize,
}

/// A rate and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    units: NonZeroU64,
    per: Span,
    burst: NonZeroU64,
}

/// What a request costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cost {
    /// One unit.
    #[default]
    Request,
    /// A unit for each prompt token.
    PromptTokens,
    /// A unit for each prompt token and for each token that may be generated.
    Tokens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Tenant,
    Global,
}

/// A time in nanoseconds times [`Quota::units`].
type Scaled = u128;

const FORGET_AT_LEAST: usize = 64;

impl TokenBucket {
    /// A bucket for each tenant, all alike but for [`with_tenant`](Self::with_tenant).
    pub const fn per_tenant(quota: Quota, cost: Cost) -> Self {
        Self::new(Scope::Tenant, quota, cost)
    }

    /// One bucket for all.
    pub const fn global(quota: Quota, cost: Cost) -> Self {
        Self::new(Scope::Global, quota, cost)
    }

    /// Gives a tenant a quota of its own. Without effect on a bucket for all.
    #[must_use]
    pub fn with_tenant(mut self, tenant: TenantId, quota: Quota) -> Self {
        if self.scope == Scope::Tenant {
            self.quotas.insert(tenant, quota);
        }
        self
    }

    const fn new(scope: Scope, quota: Quota, cost: Cost) -> Self {
        Self {
            scope,
            cost,
            quota,
            quotas: BTreeMap::new(),
            full_at: BTreeMap::new(),
            forget_at: FORGET_AT_LEAST,
        }
    }

    /// Which bucket a request is charged to, and that bucket's quota.
    fn bucket(&self, request: &Request) -> (TenantId, Quota) {
        let tenant = match self.scope {
            Scope::Tenant => request.tenant(),
            Scope::Global => TenantId::default(),
        };
        (tenant, self.quota_of(tenant))
    }

    fn quota_of(&self, tenant: TenantId) -> Quota {
        self.quotas.get(&tenant).copied().unwrap_or(self.quota)
    }

    /// When the bucket would be full again if the request were charged now.
    fn charged(&self, request: &Request, now: Time) -> Scaled {
        let (tenant, quota) = self.bucket(request);
        let full_at = self.full_at.get(&tenant).copied().unwrap_or(0);
        let cost = quota.time_for(self.cost.of(request));
        full_at.max(quota.scale(now)).saturating_add(cost)
    }

    fn forget_full(&mut self, now: Time) {
        if self.full_at.len() < self.forget_at {
            return;
        }
        let mut full_at = std::mem::take(&mut self.full_at);
        full_at.retain(|&tenant, full_at| *full_at > self.quota_of(tenant).scale(now));
        self.forget_at = FORGET_AT_LEAST.max(2 * full_at.len());
        self.full_at = full_at;
    }
}

impl Default for TokenBucket {
    /// Ten requests in a second and bursts of twenty, for each tenant.
    fn default() -> Self {
        const TEN: NonZeroU64 = NonZeroU64::MIN.saturating_add(9);
        const TWENTY: NonZeroU64 = NonZeroU64::MIN.saturating_add(19);
        Self::per_tenant(Quota::new(TEN, Span::from_secs(1), TWENTY), Cost::Request)
    }
}

impl Admit for TokenBucket {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        let (tenant, quota) = self.bucket(request);
        let (cost, max) = (self.cost.of(request), quota.burst.get());
        if cost > max {
            return Err(Refusal::Never {
                limit: Limit::RateBurst { cost, max },
            });
        }
        // The first moment at which the burst reaches as far as the charge.
        let charged = self.charged(request, load.now);
        let from = charged.saturating_sub(quota.time_for(max));
        if from <= quota.scale(load.now) {
            return Ok(());
        }
        Err(Refusal::Later {
            limit: match self.scope {
                Scope::Tenant => Limit::TenantRate { tenant },
                Scope::Global => Limit::GlobalRate,
            },
            retry_after: Some(quota.unscale(from).since(load.now)),
        })
    }

    fn admitted(&mut self, request: &Request, load: &Load<'_>) {
        let (tenant, _) = self.bucket(request);
        let charged = self.charged(request, load.now);
        self.full_at.insert(tenant, charged);
        self.forget_full(load.now);
    }
}

/// The buckets that the settings ask for.
fn buckets(settings: &Settings) -> Vec<Box<dyn Admit>> {
    let global = [
        (&REQUESTS_PER_S, Cost::Request),
        (&TOKENS_PER_S, Cost::Tokens),
    ];
    let global = global.into_iter().filter_map(|(per_s, cost)| {
        let quota = Quota::of(settings.get(per_s), settings)?;
        Some(TokenBucket::global(quota, cost))
    });
    let requests = of_tenants(settings, &TENANT_REQUESTS_PER_S, Cost::Request, |tenant| {
        tenant.requests_per_s
    });
    let tokens = of_tenants(settings, &TENANT_TOKENS_PER_S, Cost::Tokens, |tenant| {
        tenant.tokens_per_s
    });
    let all = global.chain(requests).chain(tokens);
    all.map(|bucket| Box::new(bucket) as Box<_>).collect()
}

/// A bucket for each tenant, if any tenant has a limit.
fn of_tenants(
    settings: &Settings,
    usual_per_s: &Setting<f64>,
    cost: Cost,
    of_tenant: impl Fn(&TenantSettings) -> Option<f64>,
) -> Option<TokenBucket> {
    let usual_per_s = settings.get(usual_per_s);
    let quotas = || {
        let per_s = |tenant| of_tenant(tenant).unwrap_or(usual_per_s);
        let tenants = settings.tenants.iter();
        tenants.map(move |tenant| (tenant.id, Quota::of(per_s(tenant), settings)))
    };
    let usual = Quota::of(usual_per_s, settings);
    if usual.is_none() && quotas().all(|(_, quota)| quota.is_none()) {
        return None;
    }
    let usual = TokenBucket::per_tenant(usual.unwrap_or(Quota::UNLIMITED), cost);
    Some(quotas().fold(usual, |bucket, (id, quota)| {
        bucket.with_tenant(id, quota.unwrap_or(Quota::UNLIMITED))
    }))
}

impl Quota {
    /// More than anybody can use.
    const UNLIMITED: Self = Self::new(NonZeroU64::MAX, Span::from_nanos(1), NonZeroU64::MAX);

    /// So many units in a second, with the burst of the settings; `None` for a rate of 0. Rates are kept
    /// to a thousandth.
    fn of(per_s: f64, settings: &Settings) -> Option<Self> {
        let whole = |number: f64| NonZeroU64::new(number.round() as u64).unwrap_or(NonZeroU64::MIN);
        let (units, per) = (per_s * 1_000.0, Span::from_secs(1_000));
        let burst = per_s * settings.get(&RATE_BURST).as_secs_f64();
        (per_s > 0.0).then(|| Self::new(whole(units), per, whole(burst)))
    }

    /// `units` in every `per`, and up to `burst` at once.
    pub const fn new(units: NonZeroU64, per: Span, burst: NonZeroU64) -> Self {
        Self { units, per, burst }
    }

    fn time_for(&self, cost: u64) -> Scaled {
        Scaled::from(cost) * Scaled::from(self.per.as_nanos())
    }

    fn scale(&self, time: Time) -> Scaled {
        Scaled::from(time.as_nanos()) * Scaled::from(self.units.get())
    }

    /// The first nanosecond that is not before `scaled`.
    fn unscale(&self, scaled: Scaled) -> Time {
        let nanos = scaled.div_ceil(Scaled::from(self.units.get()));
        Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Cost {
    fn of(self, request: &Request) -> u64 {
        let prompt = u64::from(request.prompt_tokens());
        match self {
            Self::Request => 1,
            Self::PromptTokens => prompt,
            Self::Tokens => prompt + u64::from(request.output_tokens_max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serve_core::{RequestId, TokenId};

    use super::*;
    use crate::Pace;

    fn quota(units: u64, per: Span, burst: u64) -> Quota {
        let some = |n| NonZeroU64::new(n).unwrap();
        Quota::new(some(units), per, some(burst))
    }

    fn request(tenant: u32, prompt: usize) -> Request {
        let prompt = vec![TokenId::new(1); prompt];
        let request = Request::new(RequestId::new(1), Time::ZERO, prompt, 4).unwrap();
        request.with_tenant(TenantId::new(tenant))
    }

    /// Asks at a time and charges if taken, as the gate does.
    fn ask(bucket: &mut TokenBucket, request: &Request, now: Time) -> Result<(), Refusal> {
        let pace = Pace::default();
        let load = Load {
            now,
            ..Load::idle(1, &pace)
        };
        bucket.admit(request, &load)?;
        bucket.admitted(request, &load);
        Ok(())
    }

    #[test]
    fn a_burst_is_taken_at_once_and_then_the_rate() {
        let quota = quota(10, Span::from_secs(1), 3);
        let mut bucket = TokenBucket::per_tenant(quota, Cost::Request);
        let mut at = |ms| ask(&mut bucket, &request(1, 1), Time::from_millis(ms));
        assert!(at(5_000).is_ok() && at(5_000).is_ok() && at(5_000).is_ok());
        let refusal = at(5_000).unwrap_err();
        assert_eq!(
            refusal.limit(),
            Limit::TenantRate {
                tenant: TenantId::new(1)
            }
        );
        assert_eq!(refusal.retry_after(), Some(Span::from_millis(100)));
        assert!(at(5_099).is_err());
        assert!(at(5_100).is_ok());
        assert!(at(5_100).is_err());
    }

    #[test]
    fn more_than_the_burst_is_never_taken() {
        let quota = quota(100, Span::from_secs(1), 20);
        let mut bucket = TokenBucket::per_tenant(quota, Cost::Tokens);
        let never = Refusal::Never {
            limit: Limit::RateBurst { cost: 21, max: 20 },
        };
        assert_eq!(ask(&mut bucket, &request(1, 17), Time::ZERO), Err(never));
        assert_eq!(ask(&mut bucket, &request(1, 16), Time::ZERO), Ok(()));
    }

    #[test]
    fn tenants_do_not_share_a_bucket_unless_it_is_global() {
        let one = quota(1, Span::from_secs(1), 1);
        let mut tenants = TokenBucket::per_tenant(one, Cost::Request)
            .with_tenant(TenantId::new(9), quota(1, Span::from_secs(1), 2));
        assert!(ask(&mut tenants, &request(1, 1), Time::ZERO).is_ok());
        assert!(ask(&mut tenants, &request(2, 1), Time::ZERO).is_ok());
        assert!(ask(&mut tenants, &request(2, 1), Time::ZERO).is_err());
        assert!(ask(&mut tenants, &request(9, 1), Time::ZERO).is_ok());
        assert!(ask(&mut tenants, &request(9, 1), Time::ZERO).is_ok());
        let mut global = TokenBucket::global(one, Cost::Request);
        assert!(ask(&mut global, &request(1, 1), Time::ZERO).is_ok());
        let refusal = ask(&mut global, &request(2, 1), Time::ZERO).unwrap_err();
        assert_eq!(refusal.limit(), Limit::GlobalRate);
    }

    #[test]
    fn the_settings_give_each_rate_its_bucket_with_a_burst_of_so_many_seconds() {
        let tenth = Span::from_millis(100);
        let settings = Settings::default().with(&RATE_BURST, Span::from_secs(3));
        let of = |rate, per_s| buckets(&settings.clone().with(rate, per_s)).len();
        assert!(buckets(&settings).is_empty());
        for rate in [
            &REQUESTS_PER_S,
            &TOKENS_PER_S,
            &TENANT_REQUESTS_PER_S,
            &TENANT_TOKENS_PER_S,
        ] {
            assert_eq!((of(rate, 0.0), of(rate, 0.001)), (0, 1));
        }
        // Ten in a second, thirty at once; then one each tenth of a second.
        let ten = settings.with(&TENANT_REQUESTS_PER_S, 10.0);
        let pace = Pace::default();
        let taken_at = |now: Time, buckets: &mut Vec<Box<dyn Admit>>| {
            let load = Load {
                now,
                ..Load::idle(1, &pace)
            };
            let taken = (0..100).take_while(|_| {
                let taken = buckets[0].admit(&request(1, 1), &load).is_ok();
                buckets[0].admitted(&request(1, 1), &load);
                taken
            });
            taken.count()
        };
        assert_eq!(taken_at(Time::ZERO, &mut buckets(&ten)), 30);
        let mut bucket = buckets(&ten);
        for _ in 0..30 {
            bucket[0].admitted(&request(1, 1), &Load::idle(1, &pace));
        }
        assert_eq!(taken_at(Time::ZERO + tenth, &mut bucket), 1);
    }

    #[test]
    fn a_tenant_with_a_rate_of_its_own_has_it_beside_others_without() {
        let tenant = |id, requests_per_s| TenantSettings {
            id: TenantId::new(id),
            requests_per_s,
            ..TenantSettings::default()
        };
        let tenants = vec![tenant(1, Some(0.1)), tenant(2, Some(0.0))];
        let settings = Settings::default().with_tenants(tenants);
        let pace = Pace::default();
        let taken = |settings: &Settings, id| {
            let mut all = buckets(settings);
            let load = Load::idle(1, &pace);
            let taken = (0..50).take_while(|_| {
                let taken = all[0].admit(&request(id, 1), &load).is_ok();
                all[0].admitted(&request(id, 1), &load);
                taken
            });
            taken.count()
        };
        let seen = [1, 2, 3].map(|id| taken(&settings, id));
        assert_eq!(seen, [1, 50, 50], "0 is no limit, and nobody else has one");
        let settings = settings.with(&TENANT_REQUESTS_PER_S, 0.2);
        assert_eq!([1, 2, 3].map(|id| taken(&settings, id)), [1, 50, 2]);
    }

    #[test]
    fn a_refused_request_is_not_charged() {
        let mut bucket = TokenBucket::global(quota(1, Span::from_secs(1), 1), Cost::Request);
        assert!(ask(&mut bucket, &request(1, 1), Time::ZERO).is_ok());
        for ms in 0..1_000 {
            assert!(ask(&mut bucket, &request(1, 1), Time::from_millis(ms)).is_err());
        }
        assert!(ask(&mut bucket, &request(1, 1), Time::from_secs(1)).is_ok());
    }

    #[test]
    fn a_million_tenants_that_are_gone_take_no_memory() {
        let mut bucket = TokenBucket::per_tenant(quota(1, Span::from_secs(1), 1), Cost::Request);
        for tenant in 0..1_000_000 {
            let now = Time::from_millis(u64::from(tenant) * 10);
            assert!(ask(&mut bucket, &request(tenant, 1), now).is_ok());
        }
        // A hundred of them have spent something within the last second.
        assert!(bucket.full_at.len() <= 2 * 101, "{}", bucket.full_at.len());
    }

    proptest! {
        /// What it says is what happens, to the nanosecond, at rates that do not divide a second.
        #[test]
        fn the_time_to_come_back_is_exact(
            units in 1_u64..2_000,
            per_ms in 1_u64..10_000,
            burst in 1_u64..50,
            gaps in prop::collection::vec((0_u64..3_000_000_000, 1_usize..40), 1..60),
        ) {
            let quota = quota(units, Span::from_millis(per_ms), burst);
            let mut bucket = TokenBucket::per_tenant(quota, Cost::PromptTokens);
            let mut now = Time::from_secs(7);
            let mut taken: Vec<(Time, u64)> = Vec::new();
            for (gap, prompt) in gaps {
                now += Span::from_nanos(gap);
                let request = request(1, prompt);
                match ask(&mut bucket, &request, now) {
                    Ok(()) => taken.push((now, prompt as u64)),
                    Err(Refusal::Never { .. }) => prop_assert!(prompt as u64 > burst),
                    Err(refusal) => {
                        let after = refusal.retry_after().unwrap();
                        prop_assert!(!after.is_zero());
                        let early = now + after - Span::from_nanos(1);
                        prop_assert!(ask(&mut bucket, &request, early).is_err());
                        now += after;
                        prop_assert!(ask(&mut bucket, &request, now).is_ok());
                        taken.push((now, prompt as u64));
                    }
                }
            }
            // Over any interval: at most the burst and what the rate gives.
            for (first, &(from, _)) in taken.iter().enumerate() {
                let mut cost = 0;
                for &(to, prompt) in &taken[first..] {
                    cost += prompt;
                    let span = u128::from(to.since(from).as_nanos());
                    let per = u128::from(per_ms) * 1_000_000;
                    let allowed = u128::from(burst) * per + span * u128::from(units);
                    prop_assert!(u128::from(cost) * per <= allowed);
                }
            }
        }
    }
}
