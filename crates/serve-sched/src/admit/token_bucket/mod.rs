//! So many requests or tokens in a time, with bursts: for each tenant, or for all together. Charged by
//! use.
//!
//! Rule: the generic cell rate algorithm (ITU-T I.371), which is a token bucket kept as one number:
//! the *theoretical arrival time* at which the bucket will be full again. At a rate of `units` in
//! `per`, with a burst of `b`, a request is taken while at least one unit is left,
//!
//! ```text
//! max(TAT, now) + per / units <= now + b x per / units
//! ```
//!
//! and is charged at once what it may use, `c`: TAT becomes `max(TAT, now) + c x per / units`. That may
//! leave the bucket in debt, which the rate pays off before anybody else is taken. At its end it is
//! settled to what it did use, `u`, as if it had been charged that when it came:
//!
//! ```text
//! TAT = max(TAT - (c - u) x per / units,  now + what was charged after it)
//! ```
//!
//! The second term keeps what the bucket, once full, could not hold anyway. Times are kept in
//! nanoseconds times `units`, so there is no rounding: of the requests taken within any span `s`
//!
//! ```text
//! sum of u  <=  b + s x units / per + (u of the last one) - 1
//! ```
//!
//! which at a unit for each request is `b + s x units / per`. The time to come back is that at which the rate
//! alone has made room, exact to the nanosecond: one nanosecond earlier is refused, then is not,
//! unless somebody else came first. A request that ends in between makes it earlier, never later.
//!
//! Where work is done for a request before it is whole, such as making tokens of its text, the bucket is asked
//! and charged when that work begins ([`Admit::reserve`]), so that the bound holds for the work as well, however
//! many requests come at once and whatever becomes of them: the charge is taken back only where another limit
//! refuses the request for now, or the server gives it up. When the request is whole it is asked again, as if
//! nothing had been set aside for it, and charged as any other.
//!
//! A tenant with nothing in flight whose bucket is full again is forgotten, so memory is bounded by
//! the requests in flight and the tenants whose bucket is not full, twice over.

mod account;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serve_core::{CancelReason, Limit, Refusal, Request, RequestId, Span, TenantId, Time};

pub use account::Quota;

use super::{Admission, Admit, Cause, Ended, Load};
use crate::settings::{Setting, Settings, TenantSettings};
use account::Account;

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
    reads_tenants: true,
    build: |settings| {
        let all = buckets(settings).into_iter();
        all.map(|bucket| Box::new(bucket) as Box<_>).collect()
    },
    by_default: || Box::new(TokenBucket::default()),
};

const REQUESTS_PER_S: Setting<f64> = Setting::rate(
    "requests_per_s",
    "Requests in a second for all together; 0 is no limit",
);

const TOKENS_PER_S: Setting<f64> = Setting::rate(
    "tokens_per_s",
    "Tokens in a second for all together, prompts and answers; 0 is no limit",
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
    "Seconds' worth of its rate that may come at once; it should hold the longest answers of all that one tenant has in flight",
    Span::from_secs(10),
);

/// So many requests or tokens in a time, with bursts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    scope: Scope,
    cost: Cost,
    quota: Quota,
    quotas: BTreeMap<TenantId, Quota>,
    accounts: BTreeMap<TenantId, Account>,
    /// What each request in flight, and each that is being prepared, has been charged.
    charges: BTreeMap<RequestId, Charge>,
    next: u64,
    forget_at: usize,
}

/// What a request costs. One that never started has used nothing, but for work that was done
/// [before it came](Admit::reserve) and that its client did not wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cost {
    /// One unit.
    #[default]
    Request,
    /// A unit for each prompt token, also of those found in a cache.
    PromptTokens,
    /// A unit for each prompt token and for each token generated. Until its end it is charged the
    /// longest answer that it asks for.
    Tokens,
}

/// What one request has been charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Charge {
    /// In the order of charging.
    number: u64,
    units: u64,
    stage: Stage,
}

/// How far a request is that has been charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Work is done for it, and it is not whole yet.
    Reserved,
    /// It was admitted after such work.
    Prepared,
    /// It was admitted as it came.
    Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Tenant,
    Global,
}

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
            accounts: BTreeMap::new(),
            charges: BTreeMap::new(),
            next: 0,
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

    /// Goes on with the quotas of `to`: what was used of a burst stays used, in units, and is paid off at the
    /// new rate.
    fn refill(&mut self, to: &Self, now: Time) {
        let mut accounts = std::mem::take(&mut self.accounts);
        for (&tenant, account) in &mut accounts {
            account.convert(self.quota_of(tenant), to.quota_of(tenant), now);
        }
        self.accounts = accounts;
        (self.quota, self.quotas) = (to.quota, to.quotas.clone());
    }

    fn charge(&mut self, request: &Request, units: u64, stage: Stage, now: Time) {
        let (tenant, quota) = self.bucket(request);
        let cost = quota.time_for(units);
        let account = self.accounts.entry(tenant).or_default();
        let full_at = account.full_at.max(quota.scale(now));
        account.full_at = full_at.saturating_add(cost);
        account.charged.insert(self.next, cost);
        let charge = Charge {
            number: self.next,
            units,
            stage,
        };
        self.charges.insert(request.id(), charge);
        self.next += 1;
        self.forget_full(now);
    }

    /// A request has used `used` of what it was charged.
    fn settle(&mut self, request: &Request, charge: Charge, used: u64, now: Time) {
        let (tenant, quota) = self.bucket(request);
        self.charges.remove(&request.id());
        if let Some(account) = self.accounts.get_mut(&tenant) {
            let (charged, used) = (quota.time_for(charge.units), quota.time_for(used));
            account.settle(charge.number, charged, used, quota.scale(now));
        }
    }

    /// What a request has been charged that is not whole yet.
    fn reservation(&self, request: &Request) -> Option<Charge> {
        let charge = self.charges.get(&request.id()).copied();
        charge.filter(|charge| charge.stage == Stage::Reserved)
    }

    fn forget_full(&mut self, now: Time) {
        if self.accounts.len() < self.forget_at {
            return;
        }
        let mut accounts = std::mem::take(&mut self.accounts);
        accounts.retain(|&tenant, account| {
            !account.charged.is_empty() || account.full_at > self.quota_of(tenant).scale(now)
        });
        self.forget_at = FORGET_AT_LEAST.max(2 * accounts.len());
        self.accounts = accounts;
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

    fn part(&self) -> u8 {
        let cost = match self.cost {
            Cost::Request => 0,
            Cost::PromptTokens => 1,
            Cost::Tokens => 2,
        };
        match self.scope {
            Scope::Global => cost,
            Scope::Tenant => 3 + cost,
        }
    }

    fn refuses_any_length(&self) -> bool {
        true
    }

    fn change(&mut self, settings: &Settings, now: Time) {
        let part = self.part();
        if let Some(to) = buckets(settings).into_iter().find(|it| it.part() == part) {
            self.refill(&to, now);
        }
    }

    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        let (tenant, quota) = self.bucket(request);
        let Some(account) = self.accounts.get(&tenant) else {
            return Ok(());
        };
        let now = quota.scale(load.now);
        let mut from = quota.room_from(account);
        if let Some(charge) = self.reservation(request).filter(|_| from > now) {
            // What was set aside for it does not stand in its way.
            let mut others = account.clone();
            others.settle(charge.number, quota.time_for(charge.units), 0, now);
            from = quota.room_from(&others);
        }
        if from <= now {
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

    fn reserve(&mut self, request: &Request, tokens: u32, load: &Load<'_>) {
        if !self.charges.contains_key(&request.id()) {
            let units = self.cost.of(tokens, 0);
            self.charge(request, units, Stage::Reserved, load.now);
        }
    }

    fn release(&mut self, request: &Request, tokens: u32, load: &Load<'_>) {
        if let Some(charge) = self.reservation(request) {
            let used = match tokens {
                0 => 0,
                tokens => self.cost.of(tokens, 0),
            };
            self.settle(request, charge, used, load.now);
        }
    }

    fn admitted(&mut self, request: &Request, load: &Load<'_>) {
        let stage = match self.reservation(request) {
            Some(charge) => {
                self.settle(request, charge, 0, load.now);
                Stage::Prepared
            }
            None => Stage::Plain,
        };
        self.charge(request, self.cost.at_most(request), stage, load.now);
    }

    fn ended(&mut self, ended: &Ended<'_>, load: &Load<'_>) {
        if let Some(&charge) = self.charges.get(&ended.request.id()) {
            let used = self.cost.used(ended, charge.stage);
            self.settle(ended.request, charge, used, load.now);
        }
    }
}

/// The buckets that the settings ask for.
fn buckets(settings: &Settings) -> Vec<TokenBucket> {
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
    global.chain(requests).chain(tokens).collect()
}

impl Quota {
    /// So many units in a second, with the burst of the settings; `None` for a rate of 0. Rates are kept
    /// to a thousandth.
    fn of(per_s: f64, settings: &Settings) -> Option<Self> {
        let whole = |number: f64| NonZeroU64::new(number.round() as u64).unwrap_or(NonZeroU64::MIN);
        let (units, per) = (per_s * 1_000.0, Span::from_secs(1_000));
        let burst = per_s * settings.get(&RATE_BURST).as_secs_f64();
        (per_s > 0.0).then(|| Self::new(whole(units), per, whole(burst)))
    }
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

impl Cost {
    /// What the request may use.
    fn at_most(self, request: &Request) -> u64 {
        self.of(request.prompt_tokens(), request.output_tokens_max())
    }

    /// What it did use.
    fn used(self, ended: &Ended<'_>, stage: Stage) -> u64 {
        let usage = ended.usage;
        match (ended.ran, stage) {
            (Some(_), _) => self.of(usage.prompt_tokens, usage.output_tokens),
            (None, Stage::Prepared) if is_its_own(ended.cause) => {
                self.of(ended.request.prompt_tokens(), 0)
            }
            (None, _) => 0,
        }
    }

    fn of(self, prompt_tokens: u32, output_tokens: u32) -> u64 {
        match self {
            Self::Request => 1,
            Self::PromptTokens => u64::from(prompt_tokens),
            Self::Tokens => u64::from(prompt_tokens) + u64::from(output_tokens),
        }
    }
}

/// Whether a request that never started ended by what its client did or asked for.
fn is_its_own(cause: Cause) -> bool {
    match cause {
        Cause::Cancelled(reason) => reason != CancelReason::Drain,
        Cause::Finished | Cause::Failed | Cause::Displaced => false,
    }
}

#[cfg(test)]
mod tests;
