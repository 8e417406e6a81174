//! Whether two runs may be compared at all: what must be the same, layer by layer of the manifests.
//!
//! The runtime may differ, because that is what a comparison is for; its differences are listed. The
//! rest must not, unless the reader says that it may.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::hex::hex;
use crate::store::manifest::Manifest;

/// Something in which two manifests may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Layer {
    /// A server, an engine in this process, or a simulation.
    Source,
    /// The weights.
    Model,
    /// The server and its settings.
    Runtime,
    /// The machine.
    Hardware,
    /// What was sent.
    Workload,
    /// Warm-up, timeouts, limits, definitions.
    Measurement,
}

impl Layer {
    /// All of them.
    pub(crate) const ALL: [Self; 6] = [
        Self::Source,
        Self::Model,
        Self::Runtime,
        Self::Hardware,
        Self::Workload,
        Self::Measurement,
    ];

    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Model => "model",
            Self::Runtime => "runtime",
            Self::Hardware => "hardware",
            Self::Workload => "workload",
            Self::Measurement => "measurement",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One field in which two manifests differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Difference {
    /// The layer.
    pub layer: Layer,
    /// The field, with the names of what it stands in.
    pub field: String,
    /// What A says; absent where it says nothing.
    pub a: Option<Value>,
    /// What B says.
    pub b: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<Value>| match value {
            Some(Value::String(text)) if text.contains('\n') => "another text".to_owned(),
            Some(value) => value.to_string(),
            None => "absent".to_owned(),
        };
        let (a, b) = (shown(&self.a), shown(&self.b));
        write!(f, "{}: {} is {a} in A and {b} in B", self.layer, self.field)
    }
}

/// Runs that may not be compared.
#[derive(Debug, Error)]
#[error(
    "A and B cannot be compared: {}{}; --allow {} compares them all the same",
    list(.0),
    if .0.len() > 8 { format!("; and {} more", .0.len() - 8) } else { String::new() },
    layers(.0).iter().map(|layer| layer.name()).collect::<Vec<_>>().join(",")
)]
pub(crate) struct Incomparable(pub Vec<Difference>);

fn list(differences: &[Difference]) -> String {
    let shown = differences.iter().take(8).map(Difference::to_string);
    shown.collect::<Vec<_>>().join("; ")
}

/// The layers of differences, each once.
pub(crate) fn layers(differences: &[Difference]) -> Vec<Layer> {
    let mut layers = differences.iter().map(|it| it.layer).collect::<Vec<_>>();
    layers.sort_unstable();
    layers.dedup();
    layers
}

/// Every field in which two manifests differ, but for what differs between any two runs: times,
/// addresses, command lines, hashes of rows, and how busy the client was.
pub(crate) fn differences(a: &Manifest, b: &Manifest) -> Vec<Difference> {
    let mut found = Vec::new();
    for layer in Layer::ALL {
        let (a, b) = (fields(layer, a), fields(layer, b));
        let names = a
            .keys()
            .chain(b.keys().filter(|name| !a.contains_key(*name)));
        for name in names.filter(|name| a.get(*name) != b.get(*name)) {
            found.push(Difference {
                layer,
                field: name.clone(),
                a: a.get(name).cloned(),
                b: b.get(name).cloned(),
            });
        }
    }
    found
}

fn fields(layer: Layer, manifest: &Manifest) -> BTreeMap<String, Value> {
    let value = match layer {
        Layer::Source => serde_json::to_value(manifest.source),
        Layer::Model => serde_json::to_value(&manifest.model),
        Layer::Runtime => serde_json::to_value(&manifest.runtime),
        Layer::Hardware => serde_json::to_value(&manifest.hardware),
        Layer::Workload => Ok(workload(manifest)),
        Layer::Measurement => serde_json::to_value(&manifest.measurement),
    };
    // A name stands for all that stands in it. Numbers are computed from rows by today's
    // definitions, whatever those of the run's own day were called.
    let ignored: &[&str] = match layer {
        Layer::Model => &["described.created"],
        Layer::Runtime => &["url", "command", "config.host", "config.port", "config.log"],
        Layer::Measurement => &["client", "definitions"],
        Layer::Source | Layer::Hardware | Layer::Workload => &[],
    };
    let mut fields = BTreeMap::new();
    flatten("", &value.unwrap_or_default(), &mut fields);
    let is_ignored = |name: &str| {
        let under = |it: &&&str| name == **it || name.starts_with(&format!("{it}."));
        ignored.iter().find(under).is_some()
    };
    fields.retain(|name, _| !is_ignored(name));
    fields
}

/// What was sent, by its hash, and its specification as far as that is TOML.
fn workload(manifest: &Manifest) -> Value {
    let workload = &manifest.workload;
    let spec = workload.spec.parse::<toml::Table>().ok();
    serde_json::json!({
        SENT: format!("{:.12}", workload.requests_sha256),
        "requests": workload.requests,
        "spec": spec,
    })
}

/// The field of the workload that says what was sent.
const SENT: &str = "requests_sha256";

/// Where runs differ in more than their seed; `None` for repeats of the same thing.
pub(crate) fn odd_one_out<'a>(runs: impl IntoIterator<Item = &'a Manifest>) -> Option<Difference> {
    let mut runs = runs.into_iter();
    let first = runs.next()?;
    let differences = runs.flat_map(|other| differences(first, other));
    let of_seed = |it: &Difference| {
        it.layer == Layer::Workload && [SENT, "spec.seed"].contains(&it.field.as_str())
    };
    differences.into_iter().find(|it| !of_seed(it))
}

/// What sets each of some runs apart from the others, its load left aside, such as `max_batch 8`: the fields that
/// differ, without those that only follow from others. A field that the runs' own names have comes first: it is the one
/// that somebody set. Equal for runs that differ in their load alone.
pub(crate) fn apart_from_load(runs: &[(&str, &Manifest)]) -> Vec<String> {
    let said = runs.iter().map(|(_, run)| {
        let layers = Layer::ALL.into_iter();
        let fields = layers.flat_map(|layer| {
            let fields = fields(layer, run).into_iter();
            let fields = fields.filter(move |(field, _)| !is_load(layer, field));
            fields.map(move |(field, value)| ((layer, field), value))
        });
        fields.collect::<BTreeMap<_, _>>()
    });
    let said = said.collect::<Vec<_>>();
    let last = |field: &str| field.rsplit('.').next().unwrap_or(field).to_owned();
    let names = said
        .iter()
        .flat_map(BTreeMap::keys)
        .collect::<BTreeSet<_>>();
    let mut names = names.into_iter().collect::<Vec<_>>();
    names.sort_by_key(|(_, field)| !runs.iter().any(|(name, _)| name.contains(&last(field))));
    let mut apart = vec![String::new(); runs.len()];
    for name in names {
        let values = said.iter().map(|said| said.get(name));
        let finer = values.zip(&apart).map(|(value, so_far)| {
            let field = last(&name.1);
            let value = value.map_or_else(|| "unset".to_owned(), shown);
            let comma = if so_far.is_empty() { "" } else { ", " };
            format!("{so_far}{comma}{field} {value}")
        });
        let finer = finer.collect::<Vec<_>>();
        let parts = |names: &[String]| names.iter().collect::<BTreeSet<_>>().len();
        if parts(&finer) > parts(&apart) {
            apart = finer;
        }
    }
    apart
}

/// A value as a part of a name.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(24) {
        Some((at, _)) => format!("{}.. {:.4}", &text[..at], hex(&Sha256::digest(&text))),
        None => text,
    }
}

/// Whether a field is a part of the load, or follows from it.
fn is_load(layer: Layer, field: &str) -> bool {
    let of_load = [
        SENT,
        "requests",
        "spec.seed",
        "spec.requests",
        "spec.duration_s",
    ];
    let rate = ["rate_per_s", "clients"]
        .iter()
        .any(|it| field.ends_with(it));
    layer == Layer::Workload
        && (of_load.contains(&field) || field.starts_with("spec.arrivals.") && rate)
}

/// Objects to `a.b.c`; lists are compared whole.
fn flatten(prefix: &str, value: &Value, out: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let name = match prefix {
                    "" => name.clone(),
                    prefix => format!("{prefix}.{name}"),
                };
                flatten(&name, value, out);
            }
        }
        Value::Null => {}
        value => {
            let name = if prefix.is_empty() {
                "all of it"
            } else {
                prefix
            };
            out.insert(name.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::manifest::Source;
    use crate::store::manifest::tests::example;

    #[test]
    fn what_differs_is_named_with_its_layer() {
        let (a, mut b) = (example(), example());
        assert!(differences(&a, &b).is_empty());
        b.runtime.config = Some(serde_json::json!({"max_batch": 1}));
        b.runtime.url = "http://127.0.0.1:9".to_owned();
        let words = ("TTFT".to_owned(), "other words".to_owned());
        b.measurement.definitions.extend([words]);
        b.measurement
            .definitions
            .insert("TTFT".to_owned(), "other words".to_owned());
        b.artifact.started = "later".to_owned();
        let found = differences(&a, &b);
        assert_eq!(layers(&found), [Layer::Runtime]);
        let shown = found[0].to_string();
        assert_eq!(shown, "runtime: config.max_batch is 8 in A and 1 in B");
        b.source = Source::Simulated;
        b.workload.requests_sha256 = "other".to_owned();
        b.measurement.warmup_ns = 5;
        let expected = [
            Layer::Source,
            Layer::Runtime,
            Layer::Workload,
            Layer::Measurement,
        ];
        assert_eq!(layers(&differences(&a, &b)), expected);
    }

    #[test]
    fn a_seed_apart_are_repeats_and_a_rate_apart_are_not() {
        let (a, mut b) = (example(), example());
        b.workload.spec = "seed = 2\n".to_owned();
        b.workload.requests_sha256 = "other".to_owned();
        assert_eq!(odd_one_out([&a, &b]), None);
        b.workload.spec = "seed = 2\n[arrivals.poisson]\nrate_per_s = 2.0\n".to_owned();
        let odd = odd_one_out([&a, &b]).unwrap().to_string();
        let expected = "workload: spec.arrivals.poisson.rate_per_s is absent in A and 2.0 in B";
        assert_eq!(odd, expected);
    }

    #[test]
    fn the_refusal_says_what_would_allow_it() {
        let (a, mut b) = (example(), example());
        b.model.name = "other".to_owned();
        let message = Incomparable(differences(&a, &b)).to_string();
        assert!(
            message.contains("model: name is \"austen-2m\" in A and \"other\" in B"),
            "{message}"
        );
        assert!(
            message.ends_with("--allow model compares them all the same"),
            "{message}"
        );
    }
}
