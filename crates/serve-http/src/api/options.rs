//! The parameters that chat and text completions share, read once and checked.

use std::num::{NonZeroU32, NonZeroU64};

use serde_json::Value;
use serve_core::{ALTERNATIVES_MAX, Sampling};

use super::fields::{Fields, wrong_type, wrong_value};
use crate::error::Problem;

/// The longest time limit that a client may ask for: a day.
pub const TIMEOUT_MS_MAX: u64 = 86_400_000;

/// Stop strings in one request at most: the OpenAI API takes 4, and clients of other servers send more.
pub const STOPS_MAX: usize = 16;

/// Bytes of one stop string at most. Each byte of output is compared with each stop string.
pub const STOP_BYTES_MAX: usize = 1_000;

/// What a client says about how its answer is to be made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The model; absent, whatever is served.
    pub model: Option<String>,
    /// Tokens to generate at most; absent, the endpoint's default.
    pub output_tokens_max: Option<NonZeroU32>,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Whether the model's own stop tokens are ignored.
    pub ignore_eos: bool,
    /// Whether the answer comes as server-sent events.
    pub stream: bool,
    /// Where a stream says what it has used.
    pub stream_usage: StreamUsage,
    /// The class to wait in, where no header names it.
    pub class: Option<String>,
    /// Milliseconds that the whole answer may take, where no header says it.
    pub timeout_ms: Option<NonZeroU64>,
    /// Milliseconds that the request may wait before its first step, where no header says it.
    pub queue_timeout_ms: Option<NonZeroU64>,
    /// Whether each token's log-probability is told, and those of how many most likely tokens beside
    /// it.
    pub logprobs: Option<u8>,
    /// What the client sets of the sampling parameters.
    pub sampling: SamplingOptions,
}

/// Where a stream says what it has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamUsage {
    /// In no chunk.
    #[default]
    Nowhere,
    /// In a last chunk of its own (`include_usage`).
    AtTheEnd,
    /// There, and in each chunk what was used so far (`continuous_usage_stats` too, as vLLM has it).
    Everywhere,
}

/// Sampling parameters, each absent where the model's default holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingOptions {
    temperature: Option<f32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    top_k: Option<Option<NonZeroU32>>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<u64>,
}

impl SamplingOptions {
    /// The model's defaults with what the client sets over them, and `seed` where it sets none.
    ///
    /// # Errors
    ///
    /// [`Problem::Sampling`] for a value out of range.
    pub fn over(&self, defaults: &Sampling, seed: u64) -> Result<Sampling, Problem> {
        let mut sampling = defaults.with_seed(self.seed.unwrap_or(seed));
        if let Some(temperature) = self.temperature {
            sampling = sampling.with_temperature(temperature)?;
        }
        if let Some(top_p) = self.top_p {
            sampling = sampling.with_top_p(top_p)?;
        }
        if let Some(min_p) = self.min_p {
            sampling = sampling.with_min_p(min_p)?;
        }
        if let Some(top_k) = self.top_k {
            sampling = sampling.with_top_k(top_k);
        }
        if let Some(penalty) = self.presence_penalty {
            sampling = sampling.with_presence_penalty(penalty)?;
        }
        if let Some(penalty) = self.frequency_penalty {
            sampling = sampling.with_frequency_penalty(penalty)?;
        }
        if let Some(penalty) = self.repetition_penalty {
            sampling = sampling.with_repetition_penalty(penalty)?;
        }
        Ok(sampling)
    }

    fn take(fields: &mut Fields) -> Result<Self, Problem> {
        let keep_all = |top_k: i64| u32::try_from(top_k).ok().and_then(NonZeroU32::new);
        let mut number = |name| {
            let number = fields.number(name)?;
            Ok::<_, Problem>(number.map(|number| number as f32))
        };
        let options = Self {
            temperature: number("temperature")?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            presence_penalty: number("presence_penalty")?,
            frequency_penalty: number("frequency_penalty")?,
            repetition_penalty: number("repetition_penalty")?,
            // -1 and 0 both mean "all" in the field.
            top_k: fields
                .integer("top_k", -1..=i64::from(u32::MAX))?
                .map(keep_all),
            seed: fields
                .integer("seed", i64::MIN..=i64::MAX)?
                .map(i64::cast_unsigned),
        };
        options.over(&Sampling::GREEDY, 0)?;
        Ok(options)
    }
}

impl Options {
    /// Takes the shared parameters out of a request's body.
    ///
    /// # Errors
    ///
    /// A [`Problem`] that names the first parameter that is wrong.
    pub(super) fn take(fields: &mut Fields) -> Result<Self, Problem> {
        let stream = fields.boolean("stream")?.unwrap_or(false);
        Ok(Self {
            model: fields.string("model")?,
            output_tokens_max: output_tokens_max(fields)?,
            stop: stop(fields)?,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            stream,
            stream_usage: stream_usage(fields, stream)?,
            logprobs: None,
            sampling: SamplingOptions::take(fields)?,
            ..Self::addressed(fields)?
        })
    }

    /// Takes what is said to the server and not to the model: the class and the time limits.
    pub(crate) fn addressed(fields: &mut Fields) -> Result<Self, Problem> {
        Ok(Self {
            class: fields.string("request_class")?,
            timeout_ms: timeout_ms(fields, "timeout_ms")?,
            queue_timeout_ms: timeout_ms(fields, "queue_timeout_ms")?,
            ..Self::default()
        })
    }

    /// Takes what a chat says of log-probabilities: whether it wants them, and of how many
    /// alternatives.
    pub(super) fn take_chat_logprobs(&mut self, fields: &mut Fields) -> Result<(), Problem> {
        let wanted = fields.boolean("logprobs")?.unwrap_or(false);
        let alternatives = alternatives(fields, "top_logprobs")?.unwrap_or(0);
        if alternatives > 0 && !wanted {
            return Err(Problem::Conflict {
                param: "top_logprobs",
                other: "logprobs",
                cause: "it is allowed only where logprobs is true",
            });
        }
        self.logprobs = wanted.then_some(alternatives);
        Ok(())
    }

    /// Takes what a completion says of log-probabilities: of how many alternatives it wants them.
    pub(super) fn take_completion_logprobs(&mut self, fields: &mut Fields) -> Result<(), Problem> {
        self.logprobs = alternatives(fields, "logprobs")?;
        Ok(())
    }
}

fn alternatives(fields: &mut Fields, name: &str) -> Result<Option<u8>, Problem> {
    let alternatives = fields.integer(name, 0..=i64::from(ALTERNATIVES_MAX))?;
    Ok(alternatives.and_then(|alternatives| u8::try_from(alternatives).ok()))
}

/// `max_completion_tokens` is the newer name of `max_tokens`; clients send one, the other or both.
fn output_tokens_max(fields: &mut Fields) -> Result<Option<NonZeroU32>, Problem> {
    let mut read = |name| {
        let limit = fields.integer(name, 1..=i64::from(u32::MAX))?;
        let fits = limit.and_then(|limit| u32::try_from(limit).ok());
        Ok::<_, Problem>(fits.and_then(NonZeroU32::new))
    };
    match (read("max_tokens")?, read("max_completion_tokens")?) {
        (Some(older), Some(newer)) if older != newer => Err(Problem::Conflict {
            param: "max_tokens",
            other: "max_completion_tokens",
            cause: "they are two names of one limit",
        }),
        (older, newer) => Ok(newer.or(older)),
    }
}

fn timeout_ms(fields: &mut Fields, name: &str) -> Result<Option<NonZeroU64>, Problem> {
    let millis = fields.integer(name, 1..=TIMEOUT_MS_MAX.cast_signed())?;
    Ok(millis.map(i64::cast_unsigned).and_then(NonZeroU64::new))
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Problem> {
    const ACCEPTED: &str = "a string or an array of up to 16 strings";
    let param = fields.path("stop");
    let given = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![Value::String(text)],
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong_type(&param, ACCEPTED, &other)),
    };
    if given.len() > STOPS_MAX {
        return Err(Problem::Value {
            param,
            accepted: ACCEPTED.to_owned(),
            given: format!("{} of them", given.len()),
        });
    }
    let read = |(index, item)| match item {
        Value::String(text) if (1..=STOP_BYTES_MAX).contains(&text.len()) => Ok(text),
        Value::String(text) => Err(Problem::Value {
            param: format!("{param}[{index}]"),
            accepted: format!("a string of 1 to {STOP_BYTES_MAX} bytes"),
            given: format!("one of {}", text.len()),
        }),
        other => Err(wrong_type(&format!("{param}[{index}]"), "a string", &other)),
    };
    given.into_iter().enumerate().map(read).collect()
}

fn stream_usage(fields: &mut Fields, stream: bool) -> Result<StreamUsage, Problem> {
    let Some(options) = fields.take("stream_options") else {
        return Ok(StreamUsage::Nowhere);
    };
    if !stream {
        return Err(Problem::Conflict {
            param: "stream_options",
            other: "stream",
            cause: "it is allowed only where stream is true",
        });
    }
    let mut options = Fields::of_value(options, "stream_options".to_owned())?;
    let include = options.boolean("include_usage")?.unwrap_or(false);
    let continuous = options.boolean("continuous_usage_stats")?.unwrap_or(false);
    if options.boolean("include_obfuscation")? == Some(true) {
        let param = options.path("include_obfuscation");
        return Err(wrong_value(&param, "false", &Value::Bool(true)));
    }
    options.finish()?;
    Ok(match (include, continuous) {
        (false, _) => StreamUsage::Nowhere,
        (true, false) => StreamUsage::AtTheEnd,
        (true, true) => StreamUsage::Everywhere,
    })
}
