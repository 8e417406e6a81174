//! Policies from plain names and numbers, as a server's settings state them. The server and the
//! simulation that predicts it build their policies here, so that the same settings mean the same.
//!
//! It reads no text: parsing, defaults of flags and contradictions belong to whoever reads the
//! settings. Library users who know their policies fill in [`Policies`] themselves.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use serve_core::{Class, Span, TenantId};

use crate::admit::{
    Admit, ConcurrencyLimit, Cost, DeadlinePrediction, FirstTokenBudget, LatencyBudget, QueueCap,
    Quota, TokenBucket,
};
use crate::batch::{BATCHES, Batch, Static, Window};
use crate::budget::FirstCome;
use crate::config::Policies;
use crate::kv::KvSettings;
use crate::named::{UnknownPolicy, by_name};
use crate::order::{GroupId, Members, Order, OrderSettings};
use crate::victim::{Preemption, VICTIMS};

/// What decides, in names and numbers. Zero turns a limit off. A parameter of a policy that is not
/// chosen does nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Sequences in one step at most, which is what a static batch waits for.
    pub max_batch: NonZeroU32,
    /// Which waiting request is next, by name, as [`OrderSettings::order`] reads it.
    pub order: String,
    /// After which wait an aging order lets a request go before all classes; zero is never.
    pub age_after: Span,
    /// After which wait the response-ratio order lets a request go before everybody; zero is never.
    pub wait_max: Span,
    /// What a prompt token costs a tenant under the fair order.
    pub input_weight: u32,
    /// What an output token costs a tenant under the fair order.
    pub output_weight: u32,
    /// Requests that may wait; zero lets any number of any class wait.
    pub queue_cap: u32,
    /// Queue depths from which single classes are refused; zero is no limit of its own.
    pub class_queue_caps: Vec<(Class, u32)>,
    /// Whether whatever would have to wait is refused.
    pub concurrency_limit: bool,
    /// Requests in a second for all together.
    pub requests_per_s: f64,
    /// Tokens in a second for all together.
    pub tokens_per_s: f64,
    /// Requests in a second for each tenant of which [`tenants`](Self::tenants) says nothing else.
    pub tenant_requests_per_s: f64,
    /// Tokens in a second for each such tenant.
    pub tenant_tokens_per_s: f64,
    /// How much of a rate may come at once.
    pub rate_burst: Span,
    /// Refuse what cannot be in time, leaving so much before its deadline; absent is off.
    pub deadline_margin: Option<Span>,
    /// Within which time every request that is taken is to have its first token.
    pub first_token_budget: Span,
    /// Within which time every request that is taken is to end.
    pub latency_budget: Span,
    /// When a batch forms and who may join it, by name.
    pub batch: String,
    /// How long a static batch waits for more.
    pub batch_window: Span,
    /// Up to what the window follows the arrivals; absent, it is fixed.
    pub batch_window_max: Option<Span>,
    /// Who yields, by name.
    pub victim: String,
    /// When and how often somebody yields.
    pub preemption: Preemption,
    /// How the KV cache is used.
    pub kv: KvSettings,
    /// Tenants of whom something is said.
    pub tenants: Vec<TenantSettings>,
    /// Shares of groups under a fair order, where others have one of 1.
    pub groups: Vec<(GroupId, NonZeroU32)>,
}

/// What is said of one tenant; what is absent is as for everybody.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantSettings {
    /// Which one.
    pub id: TenantId,
    /// Its share under a fair order, where others have one of 1: among all, or in its group.
    pub weight: Option<NonZeroU32>,
    /// The group that it belongs to; absent, it is one by itself.
    pub group: Option<GroupId>,
    /// Its requests in a second; zero is no limit.
    pub requests_per_s: Option<f64>,
    /// Its tokens in a second; zero is no limit.
    pub tokens_per_s: Option<f64>,
}

impl Default for Settings {
    /// What `serve` does without settings: first come, first served, behind a queue cap, in
    /// continuous batches of at most 16.
    fn default() -> Self {
        Self {
            max_batch: NonZeroU32::MIN.saturating_add(15),
            order: "fifo".to_owned(),
            age_after: Span::from_secs(2),
            wait_max: Span::from_secs(60),
            input_weight: 1,
            output_weight: 2,
            queue_cap: 256,
            class_queue_caps: Vec::new(),
            concurrency_limit: false,
            requests_per_s: 0.0,
            tokens_per_s: 0.0,
            tenant_requests_per_s: 0.0,
            tenant_tokens_per_s: 0.0,
            rate_burst: Span::from_secs(10),
            deadline_margin: None,
            first_token_budget: Span::ZERO,
            latency_budget: Span::ZERO,
            batch: "continuous".to_owned(),
            batch_window: Span::from_millis(10),
            batch_window_max: None,
            victim: "newest-of-lowest-class".to_owned(),
            preemption: Preemption::default(),
            kv: KvSettings::default(),
            tenants: Vec::new(),
            groups: Vec::new(),
        }
    }
}

impl Settings {
    /// The policies that the settings ask for.
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`], with the names that exist.
    pub fn policies(&self) -> Result<Policies, UnknownPolicy> {
        Ok(Policies {
            admit: self.admission(),
            order: self.order()?,
            batch: self.batch()?,
            budget: Box::new(FirstCome),
            victim: by_name(VICTIMS, &self.victim)?,
            preemption: self.preemption,
            kv: self.kv,
        })
    }

    /// Cheap and certain limits first, predictions last: the first that refuses names the reason.
    fn admission(&self) -> Vec<Box<dyn Admit>> {
        let mut admit: Vec<Box<dyn Admit>> = Vec::new();
        if self.queue_cap > 0 {
            let total = QueueCap::new(self.queue_cap);
            let classes = self.class_queue_caps.iter();
            let cap = classes.fold(total, |cap, &(class, depth)| cap.with_class(class, depth));
            admit.push(Box::new(cap));
        }
        if self.concurrency_limit {
            admit.push(Box::new(ConcurrencyLimit));
        }
        let global = [
            (self.requests_per_s, Cost::Request),
            (self.tokens_per_s, Cost::Tokens),
        ];
        for (per_s, cost) in global {
            if let Some(quota) = self.quota(per_s) {
                admit.push(Box::new(TokenBucket::global(quota, cost)));
            }
        }
        let requests = |tenant: &TenantSettings| tenant.requests_per_s;
        let tokens = |tenant: &TenantSettings| tenant.tokens_per_s;
        admit.extend(self.buckets(self.tenant_requests_per_s, Cost::Request, requests));
        admit.extend(self.buckets(self.tenant_tokens_per_s, Cost::Tokens, tokens));
        if let Some(margin) = self.deadline_margin {
            admit.push(Box::new(DeadlinePrediction::new(margin)));
        }
        if !self.first_token_budget.is_zero() {
            admit.push(Box::new(FirstTokenBudget::new(self.first_token_budget)));
        }
        if !self.latency_budget.is_zero() {
            admit.push(Box::new(LatencyBudget::new(self.latency_budget)));
        }
        admit
    }

    /// A bucket for each tenant, if any tenant has a limit.
    fn buckets(
        &self,
        usual_per_s: f64,
        cost: Cost,
        of_tenant: impl Fn(&TenantSettings) -> Option<f64>,
    ) -> Option<Box<dyn Admit>> {
        let quotas = || {
            let per_s = |tenant| of_tenant(tenant).unwrap_or(usual_per_s);
            let tenants = self.tenants.iter();
            tenants.map(move |tenant| (tenant.id, self.quota(per_s(tenant))))
        };
        let usual = self.quota(usual_per_s);
        if usual.is_none() && quotas().all(|(_, quota)| quota.is_none()) {
            return None;
        }
        let usual = TokenBucket::per_tenant(usual.unwrap_or(UNLIMITED), cost);
        let with = |bucket: TokenBucket, (id, quota): (TenantId, Option<Quota>)| {
            bucket.with_tenant(id, quota.unwrap_or(UNLIMITED))
        };
        Some(Box::new(quotas().fold(usual, with)))
    }

    /// `None` for a rate of 0. Rates are kept to a thousandth.
    fn quota(&self, per_s: f64) -> Option<Quota> {
        let whole = |number: f64| NonZeroU64::new(number.round() as u64).unwrap_or(NonZeroU64::MIN);
        let (units, per) = (per_s * 1_000.0, Span::from_secs(1_000));
        let burst = per_s * self.rate_burst.as_secs_f64();
        (per_s > 0.0).then(|| Quota::new(whole(units), per, whole(burst)))
    }

    fn order(&self) -> Result<Box<dyn Order>, UnknownPolicy> {
        self.order_settings().order(&self.order)
    }

    /// What the settings say of orders.
    fn order_settings(&self) -> OrderSettings {
        let shares = self.tenants.iter().fold(Members::new(), |members, tenant| {
            let share = tenant.weight.unwrap_or(NonZeroU32::MIN);
            let members = members.with_share(tenant.id, share);
            match tenant.group {
                Some(group) => members.with_group(tenant.id, group),
                None => members,
            }
        });
        let groups = self.groups.iter();
        let members = groups.fold(shares, |members, &(group, share)| {
            members.with_group_share(group, share)
        });
        OrderSettings {
            age_after: self.age_after,
            wait_max: self.wait_max,
            input_weight: self.input_weight,
            output_weight: self.output_weight,
            members: Arc::new(members),
        }
    }

    fn batch(&self) -> Result<Box<dyn Batch>, UnknownPolicy> {
        let window = match self.batch_window_max {
            None => Window::Fixed(self.batch_window),
            Some(max) => Window::Observed {
                min: self.batch_window,
                max,
            },
        };
        match self.batch.as_str() {
            "static" => Ok(Box::new(Static::new(self.max_batch.get(), window))),
            name => by_name(BATCHES, name),
        }
    }
}

/// More than anybody can use.
const UNLIMITED: Quota = Quota::new(NonZeroU64::MAX, Span::from_nanos(1), NonZeroU64::MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::ORDERS;

    fn admits(settings: &Settings) -> Vec<&'static str> {
        let policies = settings.policies().unwrap();
        policies.admit.iter().map(|policy| policy.name()).collect()
    }

    #[test]
    fn every_limit_is_off_at_zero_and_asked_in_a_fixed_order() {
        let off = Settings {
            queue_cap: 0,
            ..Settings::default()
        };
        assert!(admits(&off).is_empty());
        assert_eq!(admits(&Settings::default()), ["queue-cap"]);
        let all = Settings {
            concurrency_limit: true,
            tokens_per_s: 5.0,
            deadline_margin: Some(Span::ZERO),
            first_token_budget: Span::from_secs(1),
            latency_budget: Span::from_secs(1),
            tenants: vec![TenantSettings {
                requests_per_s: Some(1.0),
                ..TenantSettings::default()
            }],
            ..Settings::default()
        };
        let names = [
            "queue-cap",
            "concurrency-limit",
            "token-bucket",
            "token-bucket",
            "deadline-prediction",
            "first-token-budget",
            "latency-budget",
        ];
        assert_eq!(admits(&all), names);
    }

    #[test]
    fn policies_are_found_by_name() {
        let named = |order: &str, batch: &str| {
            let settings = Settings {
                order: order.to_owned(),
                batch: batch.to_owned(),
                ..Settings::default()
            };
            let policies = settings.policies()?;
            Ok::<_, UnknownPolicy>((policies.order.name().to_owned(), policies.batch.name()))
        };
        for order in ORDERS {
            assert_eq!(
                named(order.name, "static"),
                Ok((order.name.to_owned(), "static"))
            );
        }
        assert!(named("lifo", "static").is_err());
        assert!(named("fifo", "dynamic").is_err());
    }
}
