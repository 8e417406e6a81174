//! Parts of a workload that must not hide in one percentile: classes, tenants, prompt sets, and short
//! or long in by short or long out. Requests are sorted by what was *asked*, so that one that failed
//! has its place too.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use super::request::Request;

/// A part of the workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Everything.
    All,
    /// The requests of a class.
    Class(String),
    /// The requests of a tenant.
    Tenant(String),
    /// The requests of a prompt set.
    PromptSet(String),
    /// The requests of these lengths.
    Lengths {
        /// The prompt is longer than the cut.
        long_in: bool,
        /// More output tokens were allowed than the cut.
        long_out: bool,
    },
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = |long| if long { "long" } else { "short" };
        match self {
            Self::All => f.write_str("all requests"),
            Self::Class(name) => write!(f, "class {name}"),
            Self::Tenant(name) => write!(f, "tenant {name}"),
            Self::PromptSet(name) => write!(f, "prompts {name}"),
            Self::Lengths { long_in, long_out } => {
                write!(f, "{} in / {} out", length(*long_in), length(*long_out))
            }
        }
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// From how many tokens on a prompt or an answer is long; more than so many are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cuts {
    /// Of the prompt. Unset: the median of all requests.
    pub prompt_tokens: Option<u32>,
    /// Of the allowed output. Unset: the median of all requests.
    pub output_tokens: Option<u32>,
}

impl Cuts {
    /// Sets what is unset to the median of the requests.
    #[must_use]
    pub fn or_medians(self, requests: &[Request<'_>]) -> Self {
        let prompts = requests.iter().filter_map(Request::prompt_tokens);
        let outputs = requests
            .iter()
            .filter_map(|it| it.first().output_tokens_max);
        Self {
            prompt_tokens: self.prompt_tokens.or_else(|| median(prompts.collect())),
            output_tokens: self.output_tokens.or_else(|| median(outputs.collect())),
        }
    }

    fn lengths(self, request: &Request<'_>) -> Option<Key> {
        Some(Key::Lengths {
            long_in: request.prompt_tokens()? > self.prompt_tokens?,
            long_out: request.first().output_tokens_max? > self.output_tokens?,
        })
    }
}

/// Says to which part of its kind a request belongs.
type Kind = fn(&Request<'_>, Cuts) -> Option<Key>;

const KINDS: [Kind; 4] = [
    |request, _| request.first().class.clone().map(Key::Class),
    |request, _| request.first().tenant.clone().map(Key::Tenant),
    |request, _| request.first().prompt_set.clone().map(Key::PromptSet),
    |request, cuts| cuts.lengths(request),
];

/// The parts of a workload with the positions of their requests: everything first, then each kind that
/// splits the workload in two or more. A request that lacks what a kind asks for is in none of its
/// parts.
pub(crate) fn parts(requests: &[Request<'_>], cuts: Cuts) -> Vec<(Key, Vec<u32>)> {
    let positions = |range: std::ops::Range<usize>| range.map(|position| position as u32);
    let mut parts = vec![(Key::All, positions(0..requests.len()).collect())];
    for kind in KINDS {
        let mut found = BTreeMap::<Key, Vec<u32>>::new();
        for (position, request) in positions(0..requests.len()).zip(requests) {
            if let Some(key) = kind(request, cuts) {
                found.entry(key).or_default().push(position);
            }
        }
        if found.len() > 1 {
            parts.extend(found);
        }
    }
    parts
}

/// The lower median.
fn median(mut values: Vec<u32>) -> Option<u32> {
    values.sort_unstable();
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{answer, numbered, refused};
    use crate::store::record::Record;

    fn asked(row: Record, tenant: &str, prompt: u32, output: u32) -> Record {
        Record {
            tenant: Some(tenant.to_owned()),
            class: Some("free".to_owned()),
            prompt_tokens_planned: Some(prompt),
            output_tokens_max: Some(output),
            ..row
        }
    }

    #[test]
    fn what_failed_stands_where_it_was_asked_for() {
        let rows = numbered([
            asked(answer(0, &[5], Some(1)), "a", 10, 20),
            asked(refused(1), "b", 4_000, 20),
            asked(answer(2, &[7], Some(1)), "a", 10, 900),
            answer(3, &[9], Some(1)),
        ]);
        let requests = Request::all(&rows, 0);
        let cuts = Cuts::default().or_medians(&requests);
        assert_eq!(
            (cuts.prompt_tokens, cuts.output_tokens),
            (Some(10), Some(20))
        );
        let parts = parts(&requests, cuts);
        let shown = parts
            .iter()
            .map(|(key, members)| format!("{key}: {members:?}"))
            .collect::<Vec<_>>();
        assert_eq!(
            shown,
            [
                "all requests: [0, 1, 2, 3]",
                "tenant a: [0, 2]",
                "tenant b: [1]",
                "short in / short out: [0]",
                "short in / long out: [2]",
                "long in / short out: [1]",
            ],
            "one class alone splits nothing"
        );
    }
}
