//! The specification of a workload: a TOML file that says what is sent, when, for whom, and what is
//! asked of the answers. `docs/serve-bench.md` is its reference.
//!
//! It holds what a person wrote and has been checked; the requests themselves are made from it by
//! [`workload`](crate::workload).

mod arrivals;
mod delivery;
mod lengths;
mod numbers;
mod people;
mod prompts;

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use arrivals::{Arrivals, Replay, Trace};
pub use delivery::DeliveryLimits;
pub use lengths::Lengths;
pub use numbers::{Positive, Probability};
pub use people::{Cancel, CancelAfter, Class, Retry, Tenant};
pub use prompts::{Endpoint, History, PromptSet, RequestShape, SharedPrefix, Turns, Vocabulary};

use crate::workload::slo::Slo;

/// Requests where neither a number nor a duration is given.
const REQUESTS_DEFAULT: NonZeroU64 = NonZeroU64::new(100).unwrap();

/// A whole workload.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// What to call it in reports.
    #[serde(default = "name_default")]
    pub name: String,
    /// Fixes every request.
    #[serde(default)]
    pub seed: u64,
    /// How many requests to send, retries not counted. Where it is absent, a replay sends its whole
    /// trace, a workload with a `duration_s` what falls into it, and any other 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<NonZeroU64>,
    /// Leaves out what is due after so many seconds. Open loop only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_s: Option<Positive>,
    /// When requests, or conversations, begin.
    pub arrivals: Arrivals,
    /// The form of the HTTP requests.
    #[serde(default)]
    pub request: RequestShape,
    /// What is asked; each conversation draws one set by its share.
    #[serde(default = "PromptSet::builtin")]
    pub prompts: Vec<PromptSet>,
    /// For whom; each conversation draws one by its share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<Tenant>,
    /// Leaves out what is drawn for any other tenant, so that this one sends the same at the same times as beside the
    /// others: the control of what they do to it. `requests` counts those that are left out too. Open loop only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_tenant: Option<String>,
    /// In which class; each conversation draws one by its share, unless its tenant names one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<Class>,
    /// Whether attempts that failed are made again. Absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// What makes an answer goodput.
    #[serde(default, skip_serializing_if = "Slo::is_empty")]
    pub slo: Slo,
    /// How it is measured.
    #[serde(default)]
    pub measure: Measure,
}

fn name_default() -> String {
    "workload".to_owned()
}

/// How a workload is measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Measure {
    /// Requests sent one after another before the run, to warm the server; they have no rows.
    pub warmup_requests: u64,
    /// What is due in the first so many seconds has rows, and no part in the numbers.
    pub warmup_s: f64,
    /// Seconds after which an answer that has not ended has failed.
    pub timeout_s: Positive,
    /// When the load counts as not delivered, and the run as void.
    pub delivery: DeliveryLimits,
}

impl Default for Measure {
    fn default() -> Self {
        Self {
            warmup_requests: 0,
            warmup_s: 0.0,
            timeout_s: Positive::TEN_MINUTES,
            delivery: DeliveryLimits::default(),
        }
    }
}

/// A specification that cannot be used.
#[derive(Debug, Error)]
pub enum SpecError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// It is no TOML, or a key has a value that it does not take.
    #[error("{file}: {cause}")]
    Syntax {
        /// What the specification is called.
        file: String,
        /// Where and what, in the parser's words.
        cause: String,
    },
    /// A key has a value that contradicts another, or that nothing can be sent with.
    #[error("{file}: {key}: {cause}")]
    Value {
        /// What the specification is called.
        file: String,
        /// The path of the key.
        key: String,
        /// What is wrong, and what is accepted.
        cause: String,
    },
}

/// What is wrong with the value of a key.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) key: String,
    pub(crate) cause: String,
}

impl Wrong {
    fn new(key: impl Into<String>, cause: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            cause: cause.into(),
        }
    }
}

impl Spec {
    /// Poisson arrivals, or whatever else, of the built-in prompts.
    pub fn new(arrivals: Arrivals) -> Self {
        Self {
            name: name_default(),
            seed: 0,
            requests: None,
            duration_s: None,
            arrivals,
            request: RequestShape::default(),
            prompts: PromptSet::builtin(),
            tenants: Vec::new(),
            only_tenant: None,
            classes: Vec::new(),
            retry: None,
            slo: Slo::default(),
            measure: Measure::default(),
        }
    }

    /// Judges every answer by these limits, in the place of its own and of those of its classes.
    pub(crate) fn judge_by(&mut self, slo: Slo) {
        self.slo = slo;
        for class in &mut self.classes {
            class.slo = None;
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`SpecError`] names the file and the key, and says what is accepted.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| SpecError::Io {
            file: path.to_owned(),
            source,
        })?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Reads a text that errors call `file`.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn parse(file: &str, text: &str) -> Result<Self, SpecError> {
        let syntax = |cause: String| SpecError::Syntax {
            file: file.to_owned(),
            cause,
        };
        let document =
            toml::Deserializer::parse(text).map_err(|error| syntax(error.to_string()))?;
        let spec: Self = serde_path_to_error::deserialize(document).map_err(|error| {
            let (path, error) = (error.path().to_string(), error.into_inner());
            let line = error
                .span()
                .map(|span| 1 + text[..span.start].matches('\n').count());
            let line = line.map_or_else(String::new, |line| format!("line {line}: "));
            syntax(format!("{line}{path}: {}", error.message()))
        })?;
        spec.check(file)?;
        Ok(spec)
    }

    /// The file's text again, with every default written out.
    ///
    /// # Errors
    ///
    /// [`SpecError::Syntax`] where TOML has no form for a value, such as a null in `extra`.
    pub fn to_toml(&self) -> Result<String, SpecError> {
        let cause = |error: toml::ser::Error| SpecError::Syntax {
            file: self.name.clone(),
            cause: error.to_string(),
        };
        toml::to_string(self).map_err(cause)
    }

    /// Checks what no single key shows.
    ///
    /// # Errors
    ///
    /// [`SpecError::Value`] names the first key that is wrong.
    pub fn check(&self, file: &str) -> Result<(), SpecError> {
        self.wrong().map_or(Ok(()), |wrong| {
            Err(SpecError::Value {
                file: file.to_owned(),
                key: wrong.key,
                cause: wrong.cause,
            })
        })
    }

    fn wrong(&self) -> Option<Wrong> {
        if self.duration_s.is_some() && matches!(self.arrivals, Arrivals::Closed { .. }) {
            let cause = "a closed loop has no schedule to cut off; give requests instead";
            return Some(Wrong::new("duration_s", cause));
        }
        if !(self.measure.warmup_s >= 0.0 && self.measure.warmup_s.is_finite()) {
            let cause = format!(
                "{} is no time; accepted is 0 or more",
                self.measure.warmup_s
            );
            return Some(Wrong::new("measure.warmup_s", cause));
        }
        let empty = "at least one set is needed; leave it out for the built-in ones";
        if self.prompts.is_empty() {
            return Some(Wrong::new("prompts", empty));
        }
        self.arrivals
            .wrong()
            .or_else(|| numbered("prompts", &self.prompts, |set| set.wrong(&self.request)))
            .or_else(|| numbered("classes", &self.classes, Class::wrong))
            .or_else(|| unique("prompts", self.prompts.iter().map(|set| &set.name)))
            .or_else(|| unique("tenants", self.tenants.iter().map(|tenant| &tenant.name)))
            .or_else(|| unique("classes", self.classes.iter().map(|class| &class.name)))
            .or_else(|| self.unknown_class())
            .or_else(|| self.unknown_tenant())
            .or_else(|| self.uncounted())
            .or_else(|| self.request.wrong())
    }

    fn unknown_class(&self) -> Option<Wrong> {
        let known = self.classes.iter().map(|class| class.name.as_str());
        let known = known.collect::<Vec<_>>();
        let named = |tenant: &Tenant| {
            let class = tenant
                .class
                .as_deref()
                .filter(|class| !known.contains(class))?;
            let cause = format!("{class:?} is no class; accepted is one of {known:?}");
            Some(Wrong::new("class", cause))
        };
        numbered("tenants", &self.tenants, named)
    }

    fn unknown_tenant(&self) -> Option<Wrong> {
        let only = self.only_tenant.as_deref()?;
        let wrong = |cause: String| Some(Wrong::new("only_tenant", cause));
        let mut known = self.tenants.iter().map(|tenant| tenant.name.as_str());
        if !known.any(|name| name == only) {
            return wrong(format!(
                "{only:?} is no tenant; accepted is one of [[tenants]]"
            ));
        }
        let closed = self.arrivals.clients().is_some();
        closed.then(|| {
            let cause =
                "in a closed loop what is left out would bring the rest forward; give an open one";
            Wrong::new("only_tenant", cause)
        })
    }

    /// Tokens that nobody sees before the answer is whole cannot be counted by its reader.
    fn uncounted(&self) -> Option<Wrong> {
        let counts = |class: &Class| {
            let after = class.cancel.as_ref()?.after()?;
            let cause = "an answer that is not streamed (request.stream = false) comes whole; give after_ms";
            let tokens = matches!(after, CancelAfter::Tokens(_));
            tokens.then(|| Wrong::new("cancel.after_tokens", cause))
        };
        match self.request.stream {
            true => None,
            false => numbered("classes", &self.classes, counts),
        }
    }

    /// How many requests there may be at most, where that does not depend on a trace's length.
    pub fn requests_max(&self) -> Option<NonZeroU64> {
        match (self.requests, self.duration_s, &self.arrivals) {
            (None, None, arrivals) if arrivals.replay().is_some() => None,
            (None, Some(_), _) => None,
            (requests, ..) => Some(requests.unwrap_or(REQUESTS_DEFAULT)),
        }
    }
}

/// The first thing that is wrong in a list, under its place: `prompts[1].tokens`.
fn numbered<T>(key: &str, list: &[T], wrong: impl Fn(&T) -> Option<Wrong>) -> Option<Wrong> {
    let mut found = list.iter().enumerate().filter_map(|(index, item)| {
        let wrong = wrong(item)?;
        Some(Wrong::new(
            format!("{key}[{index}].{}", wrong.key),
            wrong.cause,
        ))
    });
    found.next()
}

/// Rows name sets, tenants and classes, so names must tell them apart.
fn unique<'a>(key: &str, names: impl Iterator<Item = &'a String>) -> Option<Wrong> {
    let mut seen = BTreeSet::new();
    let mut twice = names.enumerate().filter(|(_, name)| !seen.insert(*name));
    let (index, name) = twice.next()?;
    let cause = format!("{name:?} is taken; each needs a name of its own");
    Some(Wrong::new(format!("{key}[{index}].name"), cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Spec::parse("w.toml", text).unwrap_err().to_string()
    }

    const HEAD: &str = "[arrivals.poisson]\nrate_per_s = 2\n";

    #[test]
    fn the_least_specification_is_two_lines() {
        let spec = Spec::parse("w.toml", HEAD).unwrap();
        assert_eq!(spec.requests_max().map(NonZeroU64::get), Some(100));
        assert_eq!(spec.prompts, PromptSet::builtin());
        let again = Spec::parse("again", &spec.to_toml().unwrap()).unwrap();
        assert_eq!(again, spec);
    }

    #[test]
    fn errors_name_the_key_and_what_is_accepted() {
        for (text, parts) in [
            ("", &["missing field `arrivals`"][..]),
            ("x = [", &["w.toml"]),
            (
                "[arrivals.poison]\nrate_per_s = 1",
                &[
                    "line 1",
                    "unknown variant `poison`",
                    "`poisson`",
                    "`mooncake`",
                ],
            ),
            (
                "[arrivals.poisson]\nrate_per_s = 0",
                &["line 2", "arrivals.poisson.rate_per_s", "positive number"],
            ),
            (
                "[arrivals.poisson]\nrate = 1",
                &["arrivals.poisson", "rate, available keys: rate_per_s"],
            ),
            (
                "requests = 0\n[arrivals.poisson]\nrate_per_s = 1",
                &["line 1", "requests", "nonzero"],
            ),
            (
                "duration_s = 3\n[arrivals.closed]\nclients = 1",
                &["duration_s", "give requests instead"],
            ),
            (
                "only_tenant = \"b\"\n[arrivals.poisson]\nrate_per_s = 1\n[[tenants]]\nname = \"a\"",
                &["only_tenant", "\"b\" is no tenant"],
            ),
            (
                "only_tenant = \"a\"\n[arrivals.closed]\nclients = 1\n[[tenants]]\nname = \"a\"",
                &["only_tenant", "give an open one"],
            ),
        ] {
            let error = error(text);
            assert!(
                parts.iter().all(|part| error.contains(part)),
                "{text}\n{error}"
            );
        }
        for (rest, parts) in [
            (
                "[[prompts]]\nname = \"a\"\ntokens = { uniform = { min = 9, max = 3 } }\noutput_tokens = { fixed = 1 }",
                &["prompts[0].tokens.uniform", "min"][..],
            ),
            (
                "[[prompts]]\nname = \"a\"\noutput_tokens = { fixed = 1 }",
                &["prompts[0].tokens", "file"],
            ),
            (
                "[[prompts]]\nname = \"a\"\ntokens = { fixed = 0 }\noutput_tokens = { fixed = 1 }",
                &["prompts[0].tokens", "1"],
            ),
            (
                "[[tenants]]\nname = \"a\"\n[[tenants]]\nname = \"a\"",
                &["tenants[1].name", "taken"],
            ),
            (
                "[[tenants]]\nname = \"a\"\nclass = \"gold\"",
                &["tenants[0].class", "no class"],
            ),
            (
                "[[classes]]\nname = \"a\"\ncancel = { probability = 2, after_ms = { fixed = 1 } }",
                &["classes[0].cancel.probability", "0 to 1"],
            ),
            (
                "[[classes]]\nname = \"a\"\ncancel = { probability = 0.5 }",
                &["classes[0].cancel", "after_tokens"],
            ),
            (
                "[request]\nstream = false\n[[classes]]\nname = \"a\"\n\
                 cancel = { probability = 0.5, after_tokens = { fixed = 1 } }",
                &["classes[0].cancel.after_tokens", "request.stream = false"],
            ),
            (
                "[slo]\nttft_ms = -1",
                &["slo.ttft_ms", "positive number of milliseconds"],
            ),
            (
                "[measure]\nwarmup_s = -1",
                &["measure.warmup_s", "0 or more"],
            ),
            (
                "[request]\nendpoint = \"token_ids\"",
                &["request.vocabulary", "min"],
            ),
        ] {
            let error = error(&format!("{HEAD}{rest}"));
            assert!(
                parts.iter().all(|part| error.contains(part)),
                "{rest}\n{error}"
            );
        }
    }
}
