//! The policies of the scheduler as settings, and from settings to policies.
//!
//! Every limit is its own setting and 0 turns it off, so that the control condition of an
//! experiment is one setting away.

use std::hash::{BuildHasher, RandomState};
use std::num::{NonZeroU32, NonZeroU64};

use clap::Args;
use clap::builder::{BoolishValueParser, PossibleValuesParser};
use serde::Serialize;
use serve_core::{Class, Span, TenantId};
use serve_sched::admit::{
    Admit, ConcurrencyLimit, Cost, DeadlinePrediction, LatencyBudget, QueueCap, Quota,
    TokenBacklog, TokenBucket,
};
use serve_sched::batch::{BATCHES, Batch, Static, Window};
use serve_sched::kv::KvSettings;
use serve_sched::order::{AgingTiers, FairTenants, ORDERS, Order, ResponseRatio};
use serve_sched::victim::{Preemption, VICTIMS};
use serve_sched::{Named, Policies, UnknownPolicy, by_name};

use crate::cli::Cli;
use crate::tenants::{Tenant, Tenants};
use crate::units::{Rate, Seconds};

/// What the scheduler can be told.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Policies")]
pub(crate) struct PolicySettings {
    /// Which waiting request is next
    #[arg(long, env = "SERVE_ORDER", value_name = "NAME", default_value = "fifo",
          value_parser = names(ORDERS))]
    pub(crate) order: String,

    /// Seconds after which a waiting request goes before all classes; 0 is never; for --order
    /// aging-tiers [default: 2]
    #[arg(long, env = "SERVE_AGE_AFTER", value_name = "SECONDS")]
    pub(crate) age_after: Option<Seconds>,

    /// Seconds after which a waiting request goes before everybody; 0 is never; for --order
    /// response-ratio [default: 60]
    #[arg(long, env = "SERVE_WAIT_MAX", value_name = "SECONDS")]
    pub(crate) wait_max: Option<Seconds>,

    /// What a prompt token costs a tenant; for --order fair-tenants [default: 1]
    #[arg(long, env = "SERVE_INPUT_WEIGHT", value_name = "N")]
    pub(crate) input_weight: Option<u32>,

    /// What an output token costs a tenant; for --order fair-tenants [default: 2]
    #[arg(long, env = "SERVE_OUTPUT_WEIGHT", value_name = "N")]
    pub(crate) output_weight: Option<u32>,

    /// Requests that may wait beside those that run; more are refused; 0 lets any number of any
    /// class wait
    #[arg(long, env = "SERVE_QUEUE_CAP", value_name = "N", default_value_t = 256)]
    pub(crate) queue_cap: u32,

    /// Queue depths from which single classes are refused, such as `free=64`; 0 is no limit of its
    /// own; none counts where --queue-cap is 0
    #[arg(long, env = "SERVE_CLASS_QUEUE_CAP", value_name = "CLASS=N", value_delimiter = ',',
          value_parser = class_depth)]
    pub(crate) class_queue_cap: Vec<ClassDepth>,

    /// Requests in a second for all together; 0 is no limit
    #[arg(
        long,
        env = "SERVE_REQUESTS_PER_S",
        value_name = "RATE",
        default_value = "0"
    )]
    pub(crate) requests_per_s: Rate,

    /// Tokens in a second for all together, prompts and answers at their longest; 0 is no limit
    #[arg(
        long,
        env = "SERVE_TOKENS_PER_S",
        value_name = "RATE",
        default_value = "0"
    )]
    pub(crate) tokens_per_s: Rate,

    /// Requests in a second for each tenant whose keys say nothing else; 0 is no limit
    #[arg(
        long,
        env = "SERVE_TENANT_REQUESTS_PER_S",
        value_name = "RATE",
        default_value = "0"
    )]
    pub(crate) tenant_requests_per_s: Rate,

    /// Tokens in a second for each tenant whose keys say nothing else; 0 is no limit
    #[arg(
        long,
        env = "SERVE_TENANT_TOKENS_PER_S",
        value_name = "RATE",
        default_value = "0"
    )]
    pub(crate) tenant_tokens_per_s: Rate,

    /// Seconds' worth of its rate that may come at once; a request that costs more is never taken
    #[arg(
        long,
        env = "SERVE_RATE_BURST",
        value_name = "SECONDS",
        default_value = "10"
    )]
    pub(crate) rate_burst: Seconds,

    /// Seconds within which every request that is taken is to end, by measurement; 0 is no such
    /// limit
    #[arg(
        long,
        env = "SERVE_LATENCY_BUDGET",
        value_name = "SECONDS",
        default_value = "0"
    )]
    pub(crate) latency_budget: Seconds,

    /// Seconds within which every waiting prompt is to be run, by measurement; 0 is no such limit
    #[arg(
        long,
        env = "SERVE_TOKEN_BACKLOG",
        value_name = "SECONDS",
        default_value = "0"
    )]
    pub(crate) token_backlog: Seconds,

    /// Refuse on arrival what cannot be answered by its deadline, by measurement
    #[arg(long, env = "SERVE_DEADLINE_ADMISSION", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub(crate) deadline_admission: bool,

    /// Seconds that predictions leave before a deadline; for --deadline-admission [default: 0]
    #[arg(long, env = "SERVE_DEADLINE_MARGIN", value_name = "SECONDS")]
    pub(crate) deadline_margin: Option<Seconds>,

    /// Refuse whatever would have to wait
    #[arg(long, env = "SERVE_CONCURRENCY_LIMIT", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub(crate) concurrency_limit: bool,

    /// When a batch forms and who may join it; `static` waits for --max-batch requests
    #[arg(long, env = "SERVE_BATCH", value_name = "NAME", default_value = "continuous",
          value_parser = names(BATCHES))]
    pub(crate) batch: String,

    /// Seconds that the first request of a batch waits for others; for --batch static [default:
    /// 0.01]
    #[arg(long, env = "SERVE_BATCH_WINDOW", value_name = "SECONDS")]
    pub(crate) batch_window: Option<Seconds>,

    /// Lets the window follow the arrivals, from --batch-window up to this many seconds; for
    /// --batch static
    #[arg(long, env = "SERVE_BATCH_WINDOW_MAX", value_name = "SECONDS")]
    pub(crate) batch_window_max: Option<Seconds>,

    /// Who yields
    #[arg(long, env = "SERVE_VICTIM", value_name = "NAME",
          default_value = "newest-of-lowest-class", value_parser = names(VICTIMS))]
    pub(crate) victim: String,

    /// Whether a waiting request makes running ones of a lower class yield
    #[arg(long, env = "SERVE_PREEMPT_BY_CLASS", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub(crate) preempt_by_class: bool,

    /// How often one request yields at most
    #[arg(
        long,
        env = "SERVE_PREEMPTIONS_MAX",
        value_name = "N",
        default_value_t = 3
    )]
    pub(crate) preemptions_max: u32,

    /// KV blocks that a request joining a batch leaves free [default: one in a hundred]
    #[arg(long, env = "SERVE_WATERMARK_BLOCKS", value_name = "N")]
    pub(crate) watermark_blocks: Option<u32>,

    /// Whether the KV of prompts is kept for later ones that begin alike
    #[arg(long, env = "SERVE_PREFIX_CACHE", value_name = "BOOL", default_value = "true",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub(crate) prefix_cache: bool,

    /// Whether tenants share the prefix cache, at the price that one can find out by its first-token
    /// time what another has asked
    #[arg(long, env = "SERVE_PREFIX_SHARED", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub(crate) prefix_shared: bool,
}

/// A class and the queue depth from which it is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ClassDepth {
    pub(crate) class: String,
    pub(crate) depth: u32,
}

fn class_depth(text: &str) -> Result<ClassDepth, String> {
    let pair = text.split_once('=');
    let pair = pair.and_then(|(class, depth)| Some((class.trim(), depth.trim().parse().ok()?)));
    match pair {
        Some((class, depth)) if !class.is_empty() => Ok(ClassDepth {
            class: class.to_owned(),
            depth,
        }),
        _ => Err("CLASS=N, such as free=64".to_owned()),
    }
}

fn names<T: ?Sized>(family: &'static [Named<T>]) -> PossibleValuesParser {
    PossibleValuesParser::new(family.iter().map(|policy| policy.name))
}

impl PolicySettings {
    /// Settings that would change nothing, with what each of them needs.
    pub(crate) fn contradictions(&self) -> [(&'static str, bool, &'static str); 8] {
        let order = |name| self.order != name;
        let is_static = self.batch == "static";
        [
            (
                "--age-after",
                self.age_after.is_some() && order("aging-tiers"),
                "it needs --order aging-tiers",
            ),
            (
                "--wait-max",
                self.wait_max.is_some() && order("response-ratio"),
                "it needs --order response-ratio",
            ),
            (
                "--input-weight",
                self.input_weight.is_some() && order("fair-tenants"),
                "it needs --order fair-tenants",
            ),
            (
                "--output-weight",
                self.output_weight.is_some() && order("fair-tenants"),
                "it needs --order fair-tenants",
            ),
            (
                "--deadline-margin",
                self.deadline_margin.is_some() && !self.deadline_admission,
                "it needs --deadline-admission",
            ),
            (
                "--batch-window",
                self.batch_window.is_some() && !is_static,
                "it needs --batch static",
            ),
            (
                "--batch-window-max",
                self.batch_window_max.is_some() && !is_static,
                "it needs --batch static",
            ),
            (
                "--batch-window-max",
                self.batch_window_max
                    .is_some_and(|max| max < self.window_min()),
                "it must not be below --batch-window",
            ),
        ]
    }

    fn window_min(&self) -> Seconds {
        self.batch_window.unwrap_or(Seconds::of_millis(10))
    }
}

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
        "aging-tiers" => Ok(Box::new(match settings.age_after {
            None => AgingTiers::default(),
            Some(age_after) => AgingTiers::new(age_after.span()),
        })),
        "response-ratio" => Ok(Box::new(match settings.wait_max {
            None => ResponseRatio::default(),
            Some(wait_max) => ResponseRatio::new(wait_max.span()),
        })),
        "fair-tenants" => {
            let weights = (settings.input_weight, settings.output_weight);
            let fair = FairTenants::new(weights.0.unwrap_or(1), weights.1.unwrap_or(2));
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
impl PolicySettings {
    /// One line for each family, as the banner shows them.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut limits = vec![match self.queue_cap {
            0 => "any number waiting".to_owned(),
            cap => format!("at most {cap} waiting"),
        }];
        let by_class = self.class_queue_cap.iter();
        limits.extend(by_class.map(|of| format!("{} from {} on refused", of.class, of.depth)));
        let rates = [
            (self.requests_per_s, "requests/s"),
            (self.tokens_per_s, "tokens/s"),
            (self.tenant_requests_per_s, "requests/s a tenant"),
            (self.tenant_tokens_per_s, "tokens/s a tenant"),
        ];
        let rates = rates.into_iter().filter(|(rate, _)| rate.get() > 0.0);
        limits.extend(rates.map(|(rate, what)| format!("{} {what}", rate.get())));
        let targets = [
            (self.latency_budget, "latency budget"),
            (self.token_backlog, "token backlog"),
        ];
        let targets = targets.into_iter().filter(|(target, _)| target.get() > 0.0);
        limits.extend(targets.map(|(target, what)| format!("{what} {}", target.span())));
        if self.deadline_admission {
            limits.push("deadlines that can be met".to_owned());
        }
        if self.concurrency_limit {
            limits.push("nobody waits".to_owned());
        }
        let cache = if self.prefix_cache {
            "kept"
        } else {
            "not kept"
        };
        let by_class = if self.preempt_by_class {
            ", to higher classes too"
        } else {
            ""
        };
        vec![
            ("admission", limits.join(", ")),
            (
                "policies",
                format!(
                    "order {}, batch {}, {} yields{by_class}, prefixes {cache}",
                    self.order, self.batch, self.victim
                ),
            ),
        ]
    }
}
