//! The policies of the scheduler as settings.
//!
//! Every limit is its own setting and 0 turns it off, so that the control condition of an
//! experiment is one setting away.

use clap::Args;
use clap::builder::{BoolishValueParser, PossibleValuesParser};
use serde::Serialize;
use serve_sched::Named;
use serve_sched::batch::BATCHES;
use serve_sched::order::ORDERS;
use serve_sched::victim::VICTIMS;

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

/// The defaults of what belongs to one policy, as the help and the example state them.
const AGE_AFTER: Seconds = Seconds::of_millis(2_000);
const WAIT_MAX: Seconds = Seconds::of_millis(60_000);
const INPUT_WEIGHT: u32 = 1;
const OUTPUT_WEIGHT: u32 = 2;
const BATCH_WINDOW: Seconds = Seconds::of_millis(10);
const DEADLINE_MARGIN: Seconds = Seconds::of_millis(0);

impl PolicySettings {
    /// Fills in the defaults of the policies that are chosen, so that what is shown is what holds.
    /// Only of checked settings: what is filled in must not be taken for what somebody has said.
    pub(crate) fn settle(&mut self) {
        match self.order.as_str() {
            "aging-tiers" => {
                self.age_after.get_or_insert(AGE_AFTER);
            }
            "response-ratio" => {
                self.wait_max.get_or_insert(WAIT_MAX);
            }
            "fair-tenants" => {
                self.input_weight.get_or_insert(INPUT_WEIGHT);
                self.output_weight.get_or_insert(OUTPUT_WEIGHT);
            }
            _ => {}
        }
        if self.batch == "static" {
            self.batch_window.get_or_insert(BATCH_WINDOW);
        }
        if self.deadline_admission {
            self.deadline_margin.get_or_insert(DEADLINE_MARGIN);
        }
    }

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

    /// How long the first request of a static batch waits at least.
    pub(crate) fn window_min(&self) -> Seconds {
        self.batch_window.unwrap_or(BATCH_WINDOW)
    }
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
