//! From settings to the policies of a scheduler.

use std::hash::{BuildHasher, RandomState};
use std::num::{NonZeroU32, NonZeroU64};

use serve_core::{Class, Span, TenantId};
use serve_sched::admit::{
    Admit, ConcurrencyLimit, Cost, DeadlinePrediction, LatencyBudget, QueueCap, Quota,
    TokenBacklog, TokenBucket,
};
use serve_sched::batch::{BATCHES, Batch, Static, Window};
use serve_sched::kv::KvSettings;
use serve_sched::order::{AgingTiers, FairTenants, ORDERS, Order, ResponseRatio};
use serve_sched::victim::{Preemption, VICTIMS};
use serve_sched::{Policies, UnknownPolicy, by_name};

use crate::cli::Cli;
use crate::policy::{AGE_AFTER, INPUT_WEIGHT, OUTPUT_WEIGHT, PolicySettings, WAIT_MAX};
use crate::tenants::{Tenant, Tenants};
use crate::units::{Rate, Seconds};

/// The policies that the settings ask for.
///
/// # Errors
///
/// [`UnknownPolicy`]; the settings have been checked, so only a family that has changed since.
pub(crate) fn policies(cli: &Cli, tenants: &Tenants) -> Result<Policies, UnknownPolicy> {
    let settings = &cli.policy;
    Ok(Policies {
        admit: admission(cli, tenants),
        order: order(settings, tenants)?,
        batch: batch(cli)?,
        victim: by_name(VICTIMS, &settings.victim)?,
        preemption: Preemption {
            times_max: settings.preemptions_max,
            by_class: settings.preempt_by_class,
        },
        kv: KvSettings {
            reuse_prefixes: settings.prefix_cache,
            isolate_tenants: !settings.prefix_shared,
            watermark_blocks: settings.watermark_blocks,
            hash_key: secret(),
        },
    })
}

/// Cheap and certain limits first, predictions last: the first that refuses names the reason.
fn admission(cli: &Cli, tenants: &Tenants) -> Vec<Box<dyn Admit>> {
    let settings = &cli.policy;
    let mut admit: Vec<Box<dyn Admit>> = Vec::new();
    if settings.queue_cap > 0 {
        let total = QueueCap::new(settings.queue_cap);
        let cap = settings
            .class_queue_cap
            .iter()
            .fold(total, |cap, of_class| {
                let rank = cli.class_rank(&of_class.class).unwrap_or_default();
                cap.with_class(class_of(rank), of_class.depth)
            });
        admit.push(Box::new(cap));
    }
    if settings.concurrency_limit {
        admit.push(Box::new(ConcurrencyLimit));
    }
    let burst = settings.rate_burst;
    let global = [
        (settings.requests_per_s, Cost::Request),
        (settings.tokens_per_s, Cost::Tokens),
    ];
    for (rate, cost) in global {
        if let Some(quota) = quota(rate, burst) {
            admit.push(Box::new(TokenBucket::global(quota, cost)));
        }
    }
    let requests = |tenant: &Tenant| tenant.requests_per_s;
    let tokens = |tenant: &Tenant| tenant.tokens_per_s;
    admit.extend(buckets(
        settings.tenant_requests_per_s,
        Cost::Request,
        requests,
        burst,
        tenants,
    ));
    admit.extend(buckets(
        settings.tenant_tokens_per_s,
        Cost::Tokens,
        tokens,
        burst,
        tenants,
    ));
    if settings.deadline_admission {
        let margin = settings.deadline_margin.map_or(Span::ZERO, Seconds::span);
        admit.push(Box::new(DeadlinePrediction::new(margin)));
    }
    if let Some(target) = settings.token_backlog.if_on() {
        admit.push(Box::new(TokenBacklog::new(target.span())));
    }
    if let Some(target) = settings.latency_budget.if_on() {
        admit.push(Box::new(LatencyBudget::new(target.span())));
    }
    admit
}

/// A bucket for each tenant, if any tenant has a limit.
fn buckets(
    usual: Rate,
    cost: Cost,
    of_tenant: impl Fn(&Tenant) -> Option<Rate>,
    burst: Seconds,
    tenants: &Tenants,
) -> Option<Box<dyn Admit>> {
    let quotas = || {
        let rate = |tenant| of_tenant(tenant).unwrap_or(usual);
        tenants
            .list
            .iter()
            .map(move |tenant| (tenant.id, quota(rate(tenant), burst)))
    };
    let anonymous = quota(usual, burst);
    if anonymous.is_none() && quotas().all(|(_, quota)| quota.is_none()) {
        return None;
    }
    let usual = TokenBucket::per_tenant(anonymous.unwrap_or(UNLIMITED), cost);
    let with = |bucket: TokenBucket, (id, quota): (TenantId, Option<Quota>)| {
        bucket.with_tenant(id, quota.unwrap_or(UNLIMITED))
    };
    Some(Box::new(quotas().fold(usual, with)))
}

/// More than anybody can use.
const UNLIMITED: Quota = Quota::new(NonZeroU64::MAX, Span::from_nanos(1), NonZeroU64::MAX);

/// `None` for a rate of 0. Rates are kept to a thousandth.
fn quota(rate: Rate, burst: Seconds) -> Option<Quota> {
    let whole = |number: f64| NonZeroU64::new(number.round() as u64).unwrap_or(NonZeroU64::MIN);
    let (units, per) = (rate.get() * 1_000.0, Span::from_secs(1_000));
    (rate.get() > 0.0).then(|| Quota::new(whole(units), per, whole(rate.get() * burst.get())))
}

fn order(settings: &PolicySettings, tenants: &Tenants) -> Result<Box<dyn Order>, UnknownPolicy> {
    match settings.order.as_str() {
        "aging-tiers" => {
            let age_after = settings.age_after.unwrap_or(AGE_AFTER);
            Ok(Box::new(AgingTiers::new(age_after.span())))
        }
        "response-ratio" => {
            let wait_max = settings.wait_max.unwrap_or(WAIT_MAX);
            Ok(Box::new(ResponseRatio::new(wait_max.span())))
        }
        "fair-tenants" => {
            let weights = (settings.input_weight, settings.output_weight);
            let fair = FairTenants::new(
                weights.0.unwrap_or(INPUT_WEIGHT),
                weights.1.unwrap_or(OUTPUT_WEIGHT),
            );
            let shares = tenants.list.iter();
            Ok(Box::new(shares.fold(fair, |fair, tenant| {
                fair.with_share(tenant.id, tenant.weight.unwrap_or(NonZeroU32::MIN))
            })))
        }
        name => by_name(ORDERS, name),
    }
}

fn batch(cli: &Cli) -> Result<Box<dyn Batch>, UnknownPolicy> {
    let settings = &cli.policy;
    match settings.batch.as_str() {
        "static" => {
            let min = settings.window_min().span();
            let window = match settings.batch_window_max {
                None => Window::Fixed(min),
                Some(max) => Window::Observed {
                    min,
                    max: max.span(),
                },
            };
            Ok(Box::new(Static::new(cli.max_batch.get(), window)))
        }
        name => by_name(BATCHES, name),
    }
}

fn class_of(rank: usize) -> Class {
    Class::new(u8::try_from(rank).unwrap_or(u8::MAX))
}

/// Another one in each process, so that nobody can craft prompts that collide in the prefix cache.
fn secret() -> u128 {
    let half = |salt: u8| u128::from(RandomState::new().hash_one(salt));
    half(0) << 64 | half(1)
}
