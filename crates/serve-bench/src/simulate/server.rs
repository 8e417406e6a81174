//! A pretended server, to be simulated or to be run in this process: device and policies, from
//! settings by the names that `serve` has for them.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde_json::Value;
use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{Backend, Span};
use serve_sched::{Policies, Scheduler};
use thiserror::Error;

use crate::engine::Terms;
use crate::manifest::Runtime;
use crate::servers::Settings;

/// A pretended server. Without settings it is `serve --backend mock`.
#[derive(Clone, Debug)]
pub struct ServerModel {
    /// What it was made from.
    pub settings: Settings,
    policies: serve_sched::Settings,
    /// The names of the classes, the highest first.
    classes: Vec<String>,
    /// How long a request may take in all, if the server has a limit of its own.
    request_timeout: Option<Span>,
    /// How long it may wait, if the server has a limit of its own.
    queue_timeout: Option<Span>,
    step_tokens: u32,
    context: Option<u32>,
    kv_tokens: Option<u32>,
    decode_us: Vec<(u32, f64)>,
    prefill_us: Option<f64>,
    context_us: Option<f64>,
    speed: f64,
    seed: u64,
}

/// A setting that a pretended server cannot have.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ModelError {
    /// A value is none of those that the setting takes.
    #[error("{name}={value}: {cause}")]
    Value {
        /// The setting.
        name: String,
        /// What it was given.
        value: String,
        /// What it takes.
        cause: String,
    },
    /// There is no such setting.
    #[error(
        "a pretended server has no setting {0:?}; it has those of `serve` for the mock, batches, memory and policies"
    )]
    Unknown(String),
    /// The settings contradict each other.
    #[error("{0}")]
    Impossible(String),
}

impl Default for ServerModel {
    fn default() -> Self {
        Self {
            settings: Settings::default(),
            policies: serve_sched::Settings::default(),
            classes: vec!["paid".to_owned(), "free".to_owned()],
            request_timeout: None,
            queue_timeout: None,
            step_tokens: 512,
            context: None,
            kv_tokens: None,
            decode_us: Vec::new(),
            prefill_us: None,
            context_us: None,
            speed: 1.0,
            seed: 0,
        }
    }
}

/// What `serve` has for its edge and its files, and what makes no difference in virtual time.
const WITHOUT_EFFECT: [&str; 26] = [
    "allow_anonymous",
    "backend",
    "bodies_bytes_max",
    "body_bytes_max",
    "body_timeout",
    "capacity_status",
    "config",
    "connections_max",
    "device",
    "drain_timeout",
    "graphs",
    "header_timeout",
    "host",
    "idempotency_bytes_max",
    "idempotency_ttl",
    "keep_alive_timeout",
    "keys",
    "log",
    "model",
    "port",
    "quantize",
    "revision",
    "served_model_name",
    "stalled_after",
    "write_timeout",
    // Read with deadline_admission.
    "deadline_margin",
];

impl ServerModel {
    /// `serve --backend mock` with these settings.
    ///
    /// # Errors
    ///
    /// [`ModelError`] names the setting and what it takes.
    pub fn new(settings: &Settings) -> Result<Self, ModelError> {
        let mut model = Self {
            settings: settings.clone(),
            ..Self::default()
        };
        // Classes first: other settings speak of them.
        let (first, rest): (Vec<_>, Vec<_>) =
            settings.iter().partition(|(name, _)| *name == "classes");
        for (name, value) in first.into_iter().chain(rest) {
            model.set(name, value, settings)?;
        }
        model.scheduler()?;
        Ok(model)
    }

    /// A server of which [`Settings::of`] tells all, also what makes no difference here.
    ///
    /// # Errors
    ///
    /// [`ModelError`] names the setting whose value cannot be had.
    pub fn of_server(settings: &Settings) -> Result<Self, ModelError> {
        let known = settings.iter().filter(|(name, value)| {
            let alone = Settings::default().with(name, *value);
            !matches!(Self::new(&alone), Err(ModelError::Unknown(_)))
        });
        let known = known.map(|(name, value)| Settings::default().with(name, value));
        Self::new(&known.collect())
    }

    /// The pretended device.
    ///
    /// # Errors
    ///
    /// [`ModelError::Impossible`] when its step times are no function of the batch.
    pub fn device(&self) -> Result<Mock, ModelError> {
        let cost = CostModel::default()
            .with_micros(
                self.decode_us.iter().copied(),
                self.prefill_us,
                self.context_us,
            )
            .map_err(|error| ModelError::Impossible(error.to_string()))?;
        let config = MockConfig {
            cost: cost.faster(self.speed),
            seed: self.seed,
            ..MockConfig::default()
        };
        let batch = self.policies.max_batch.get();
        Ok(Mock::new(config.with_room(
            batch,
            self.step_tokens,
            self.context,
            self.kv_tokens,
        )))
    }

    /// A scheduler for that device.
    ///
    /// # Errors
    ///
    /// [`ModelError::Impossible`] when nothing could ever run.
    pub fn scheduler(&self) -> Result<Scheduler, ModelError> {
        let impossible = |error: &dyn Display| ModelError::Impossible(error.to_string());
        let policies: Policies = self
            .policies
            .policies()
            .map_err(|error| impossible(&error))?;
        Scheduler::new(self.device()?.limits(), policies).map_err(|error| impossible(&error))
    }

    /// What it knows of those who ask.
    pub fn terms(&self) -> Terms {
        Terms {
            classes: self.classes.clone(),
            request_timeout: self.request_timeout,
            queue_timeout: self.queue_timeout,
            ..Terms::default()
        }
    }

    /// Layer 2 of a manifest: its settings.
    pub fn runtime(&self) -> Runtime {
        let settings = self.settings.iter();
        let settings = settings.map(|(name, value)| (name.to_owned(), Value::from(value)));
        Runtime {
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            config: Some(Value::Object(settings.collect())),
            ..Runtime::default()
        }
    }

    fn set(&mut self, name: &str, value: &str, all: &Settings) -> Result<(), ModelError> {
        let of = Given { name, value };
        let policies = &mut self.policies;
        match name {
            "max_batch" => policies.max_batch = of.number()?,
            "step_tokens" => self.step_tokens = of.number::<NonZeroU32>()?.get(),
            "context" => self.context = Some(of.number::<NonZeroU32>()?.get()),
            "kv_tokens" => self.kv_tokens = Some(of.number::<NonZeroU32>()?.get()),
            "mock_speed" => self.speed = of.above_zero()?,
            "mock_seed" => self.seed = of.number()?,
            "mock_decode_us" => self.decode_us = of.pairs()?,
            "mock_prefill_us" => self.prefill_us = Some(of.amount()?),
            "mock_context_us" => self.context_us = Some(of.amount()?),
            "classes" => self.classes = of.list(),
            "request_timeout" => self.request_timeout = of.limit()?,
            "queue_timeout" => self.queue_timeout = of.limit()?,
            "order" => value.clone_into(&mut policies.order),
            "age_after" => policies.age_after = of.seconds()?,
            "wait_max" => policies.wait_max = of.seconds()?,
            "input_weight" => policies.input_weight = of.number()?,
            "output_weight" => policies.output_weight = of.number()?,
            "queue_cap" => policies.queue_cap = of.number()?,
            "class_queue_cap" => {
                let pairs: Vec<(String, u32)> = of.pairs()?;
                let terms = self.terms();
                let classes = pairs.into_iter().map(|(class, depth)| {
                    let unknown = || of.wrong(&format!("classes are {}", self.classes.join(", ")));
                    Ok((terms.class(&class).ok_or_else(unknown)?, depth))
                });
                self.policies.class_queue_caps = classes.collect::<Result<_, ModelError>>()?;
            }
            "requests_per_s" => policies.requests_per_s = of.amount()?,
            "tokens_per_s" => policies.tokens_per_s = of.amount()?,
            "tenant_requests_per_s" => policies.tenant_requests_per_s = of.amount()?,
            "tenant_tokens_per_s" => policies.tenant_tokens_per_s = of.amount()?,
            "rate_burst" => policies.rate_burst = of.seconds()?,
            "latency_budget" => policies.latency_budget = of.seconds()?,
            "token_backlog" => policies.token_backlog = of.seconds()?,
            "deadline_admission" => {
                let margin = all.get("deadline_margin").unwrap_or("0");
                let margin = Given {
                    name: "deadline_margin",
                    value: margin,
                }
                .seconds()?;
                policies.deadline_margin = of.boolean()?.then_some(margin);
            }
            "concurrency_limit" => policies.concurrency_limit = of.boolean()?,
            "batch" => value.clone_into(&mut policies.batch),
            "batch_window" => policies.batch_window = of.seconds()?,
            "batch_window_max" => policies.batch_window_max = Some(of.seconds()?),
            "victim" => value.clone_into(&mut policies.victim),
            "preempt_by_class" => policies.preemption.by_class = of.boolean()?,
            "preemptions_max" => policies.preemption.times_max = of.number()?,
            "watermark_blocks" => policies.kv.watermark_blocks = Some(of.number()?),
            "prefix_cache" => policies.kv.reuse_prefixes = of.boolean()?,
            "prefix_shared" => policies.kv.isolate_tenants = !of.boolean()?,
            _ if WITHOUT_EFFECT.contains(&name) => {}
            _ => return Err(ModelError::Unknown(name.to_owned())),
        }
        Ok(())
    }
}

/// A setting and the text of its value.
#[derive(Clone, Copy)]
struct Given<'a> {
    name: &'a str,
    value: &'a str,
}

impl Given<'_> {
    fn wrong(&self, accepted: &str) -> ModelError {
        ModelError::Value {
            name: self.name.to_owned(),
            value: self.value.to_owned(),
            cause: format!("accepted is {accepted}"),
        }
    }

    fn number<T: FromStr>(&self) -> Result<T, ModelError> {
        let number = self.value.parse();
        number.map_err(|_| self.wrong("a whole number"))
    }

    fn amount(&self) -> Result<f64, ModelError> {
        let amount = self
            .value
            .parse()
            .ok()
            .filter(|amount| (0.0..1e12).contains(amount));
        amount.ok_or_else(|| self.wrong("a number from 0 up"))
    }

    fn above_zero(&self) -> Result<f64, ModelError> {
        let factor = self.value.parse().ok().filter(|factor| *factor > 0.0);
        factor.ok_or_else(|| self.wrong("a number above 0, or inf"))
    }

    fn seconds(&self) -> Result<Span, ModelError> {
        self.amount().map(Span::from_secs_f64)
    }

    /// A time; 0 is none.
    fn limit(&self) -> Result<Option<Span>, ModelError> {
        Ok(Some(self.seconds()?).filter(|limit| !limit.is_zero()))
    }

    fn boolean(&self) -> Result<bool, ModelError> {
        self.value.parse().map_err(|_| self.wrong("true or false"))
    }

    fn list(&self) -> Vec<String> {
        let items = self.value.split(',').filter(|item| !item.is_empty());
        items.map(|item| item.trim().to_owned()).collect()
    }

    fn pairs<A: FromStr, B: FromStr>(&self) -> Result<Vec<(A, B)>, ModelError> {
        let pair = |item: String| {
            let (left, right) = item.split_once('=')?;
            Some((left.trim().parse().ok()?, right.trim().parse().ok()?))
        };
        let pairs = self.list().into_iter().map(pair);
        pairs
            .collect::<Option<_>>()
            .ok_or_else(|| self.wrong("pairs such as 16=17760,32=20000"))
    }
}

#[cfg(test)]
mod tests {
    use serve_core::Class;
    use serve_core::mock::StepLoad;

    use super::*;

    fn model(all: &[&str]) -> Result<ServerModel, ModelError> {
        let settings = all.iter().map(|text| text.parse::<Settings>().unwrap());
        ServerModel::new(&settings.collect())
    }

    #[test]
    fn settings_are_those_of_the_server() {
        let model = model(&[
            "max_batch=4",
            "batch=static",
            "batch_window=0.02",
            "order=aging-tiers",
            "age_after=1.5",
            "classes=gold,tin",
            "class_queue_cap=tin=3",
            "kv_tokens=160",
            "deadline_admission=true",
            "deadline_margin=0.5",
            "mock_decode_us=1=100,4=200.5",
            "mock_prefill_us=2",
            "mock_speed=2",
            "log=warn",
            "port=8000",
        ]);
        let model = model.unwrap();
        assert_eq!(model.policies.batch_window, Span::from_millis(20));
        assert_eq!(model.policies.class_queue_caps, [(Class::new(1), 3)]);
        assert_eq!(model.policies.deadline_margin, Some(Span::from_millis(500)));
        assert_eq!(model.terms().class("tin"), Some(Class::new(1)));
        assert_eq!(model.terms().class("paid"), None);
        let device = model.device().unwrap();
        assert_eq!(device.limits().usable_blocks(), 10);
        let load = StepLoad {
            segments: 4,
            prefill_tokens: 10,
            context_tokens: 0,
        };
        assert_eq!(
            device.config().cost.step(&load),
            Span::from_nanos((200_500 + 20_000) / 2)
        );
    }

    #[test]
    fn what_cannot_be_is_named_with_what_is_accepted() {
        for (text, part) in [
            ("batsch=static", "has no setting \"batsch\""),
            (
                "batch=statik",
                "known are continuous, one-at-a-time, static",
            ),
            ("max_batch=0", "max_batch=0: accepted is a whole number"),
            (
                "age_after=soon",
                "age_after=soon: accepted is a number from 0 up",
            ),
            ("prefix_cache=yes", "accepted is true or false"),
            ("class_queue_cap=gold=1", "classes are paid, free"),
            ("mock_decode_us=2=5,1=3", "does not increase"),
        ] {
            let message = model(&[text]).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
