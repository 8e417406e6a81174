//! What a run was: the six things that must be frozen before a number means anything. With the
//! [rows](crate::store::record) beside it, a report can be computed again.
//!
//! It is not a summary: no latency and no count of answers stands in it. Secrets never do: of an API key there
//! is only the name of the environment variable that held it, and a [`CommandLine`] has none.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::store::command::{CommandLine, address};
use crate::store::hardware::Hardware;
use crate::workload::slo::Slo;
use crate::workload::spec::DeliveryLimits;

/// The name of the format.
pub const FORMAT: &str = "serve-bench manifest";

/// The version of the format that this program writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// Where rows come from, the nearest to a user first.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A server was asked over HTTP.
    #[default]
    #[serde(alias = "measured")]
    Http,
    /// An [engine in this process](crate::transport::engine) was asked, under the real clock.
    InProcess,
    /// A simulation (`serve-bench simulate`) computed them in virtual time.
    Simulated,
}

impl Source {
    /// What tables and charts call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::InProcess => "in process",
            Self::Simulated => "simulated",
        }
    }

    /// What has to be said before any number that does not come from a server: one word for it, and
    /// what follows.
    pub const fn warning(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Http => None,
            Self::InProcess => Some((
                "IN PROCESS",
                "the engine was called in this process: no server, no network, no tokenizer",
            )),
            Self::Simulated => Some((
                "SIMULATED",
                "every number here comes from a simulation in virtual time; nothing was measured",
            )),
        }
    }

    /// Whether a server was asked.
    pub(crate) fn is_http(&self) -> bool {
        *self == Self::Http
    }
}

/// What was run, layer by layer.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Whether a server was asked, an engine in this process, or a simulation.
    pub source: Source,
    /// Layer 1: the model.
    pub model: Model,
    /// Layer 2: the server and its settings.
    pub runtime: Runtime,
    /// Layer 3: the machine.
    pub hardware: Hardware,
    /// Layer 4: what was sent.
    pub workload: WorkloadLayer,
    /// Layer 5: how it was measured.
    pub measurement: Measurement,
    /// Layer 6: what came of it, and from which program.
    pub artifact: Artifact,
}

/// Layer 1. What the server says of its model; a server that says nothing more has its name alone.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Model {
    /// The name that requests carry.
    pub name: String,
    /// The revision, or whatever names the exact weights.
    pub revision: Option<String>,
    /// The server's whole entry of `GET /v1/models`.
    pub described: Option<Value>,
}

/// Layer 2.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Runtime {
    /// The server's address; empty where there is none.
    #[serde(deserialize_with = "address")]
    pub url: String,
    /// The `Server` header, or what else names the program.
    pub server: Option<String>,
    /// The version that the server states.
    pub version: Option<String>,
    /// The effective settings: the whole answer to `GET /v1/config`. Absent where there is none.
    pub config: Option<Value>,
    /// The command that started the server, when serve-bench started it.
    pub command: Option<CommandLine>,
}

/// Layer 4.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct WorkloadLayer {
    /// The name of the workload.
    pub name: String,
    /// The whole specification, as TOML. Requests are a pure function of it and of the files in
    /// [`files_sha256`](Self::files_sha256).
    pub spec: String,
    /// Its seed, which also stands in the specification.
    pub seed: u64,
    /// How many requests there are, retries not counted.
    pub requests: u64,
    /// SHA-256 over every request (time, prompt, limits, tenant, class), before any is sent. Equal
    /// hashes: the same work.
    pub requests_sha256: String,
    /// SHA-256 of each file that the specification names.
    #[serde(default)]
    pub files_sha256: BTreeMap<String, String>,
}

/// Layer 5.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Measurement {
    /// What each metric means, by its name.
    pub definitions: BTreeMap<String, String>,
    /// Requests sent before the run and left out of it.
    pub warmup_requests: u64,
    /// Rows that were due before this time are warm-up: they are in the file and not in the numbers.
    pub warmup_ns: u64,
    /// After how long an answer that has not ended has failed.
    pub timeout_ms: u64,
    /// What makes an answer goodput.
    pub slo: Slo,
    /// The same for single classes, where it differs.
    pub slo_by_class: BTreeMap<String, Slo>,
    /// When the load counts as not delivered.
    pub delivery: DeliveryLimits,
    /// How busy the client itself was.
    pub client: Option<ClientLoad>,
}

/// How busy the client was while it measured. A busy client stamps late.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct ClientLoad {
    /// Processor time that the client used, as a share of one core.
    pub cpu_cores: f64,
    /// How late the client's own clockwork woke up, 99th percentile, in milliseconds: about as much may
    /// be added to any time that it noted.
    pub wake_lag_p99_ms: f64,
}

/// Layer 6.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Artifact {
    /// The version of serve-bench.
    pub bench_version: String,
    /// The commit that it was built from, with `-dirty` if the tree had changes; absent outside a
    /// repository.
    pub bench_commit: Option<String>,
    /// The command line, without what is secret in it.
    pub command: CommandLine,
    /// When the run's clock started, RFC 3339 in UTC.
    pub started: String,
    /// When the last attempt had ended.
    pub ended: String,
    /// Whether the run was stopped before its time.
    pub interrupted: bool,
    /// Rows in the file.
    pub rows: u64,
    /// SHA-256 of the file of rows.
    pub rows_sha256: String,
}

/// A manifest that cannot be read or written.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The file cannot be read or written.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{}: no manifest: {cause}", file.display())]
    Shape {
        /// The file.
        file: PathBuf,
        /// What is wrong, with the path of the field.
        cause: String,
    },
}

impl Manifest {
    /// Of rows without a manifest: it knows nothing.
    pub fn unknown() -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            source: Source::Http,
            model: Model::default(),
            runtime: Runtime::default(),
            hardware: Hardware::default(),
            workload: WorkloadLayer::default(),
            measurement: Measurement::default(),
            artifact: Artifact::default(),
        }
    }

    /// Reads a manifest.
    ///
    /// # Errors
    ///
    /// [`ManifestError`] names the file, and the field that is wrong.
    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        let file = || path.to_owned();
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| ManifestError::Io {
            file: file(),
            source,
        })?;
        let shape = |cause: String| ManifestError::Shape {
            file: file(),
            cause,
        };
        let value: Value = serde_json::from_str(&text).map_err(|error| shape(error.to_string()))?;
        let named = (value["format"].as_str(), value["version"].as_u64());
        if named != (Some(FORMAT), Some(u64::from(VERSION))) {
            let cause = format!("accepted is \"format\": \"{FORMAT}\" with \"version\": {VERSION}");
            return Err(shape(cause));
        }
        serde_path_to_error::deserialize(value).map_err(|error| shape(error.to_string()))
    }

    /// Writes it, for people to read as well.
    ///
    /// # Errors
    ///
    /// [`ManifestError::Io`] names the file.
    pub fn write(&self, path: &Path) -> Result<(), ManifestError> {
        let error = |source| ManifestError::Io {
            file: path.to_owned(),
            source,
        };
        let mut text = serde_json::to_string_pretty(self).map_err(|cause| error(cause.into()))?;
        text.push('\n');
        std::fs::write(path, text).map_err(error)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Manifest {
        Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            source: Source::Http,
            model: Model {
                name: "austen-2m".to_owned(),
                ..Model::default()
            },
            runtime: Runtime {
                url: "http://127.0.0.1:8000".to_owned(),
                config: Some(serde_json::json!({"max_batch": 8})),
                ..Runtime::default()
            },
            hardware: Hardware::default(),
            workload: WorkloadLayer {
                name: "chat".to_owned(),
                spec: "seed = 1\n".to_owned(),
                seed: 1,
                requests: 2,
                requests_sha256: "00".to_owned(),
                files_sha256: BTreeMap::new(),
            },
            measurement: Measurement::default(),
            artifact: Artifact::default(),
        }
    }

    #[test]
    fn a_manifest_survives_its_file_and_a_wrong_one_is_named() {
        let path = std::env::temp_dir().join(format!("manifest-{}.json", std::process::id()));
        let manifest = example();
        manifest.write(&path).unwrap();
        assert_eq!(Manifest::read(&path).unwrap(), manifest);

        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"seed\": 1", "\"seed\": \"one\"")).unwrap();
        let error = Manifest::read(&path).unwrap_err().to_string();
        assert!(error.contains("no manifest: workload.seed: "), "{error}");
        std::fs::write(&path, text.replace("\"version\": 1", "\"version\": 7")).unwrap();
        let error = Manifest::read(&path).unwrap_err().to_string();
        assert!(error.contains("accepted is \"format\""), "{error}");
        std::fs::remove_file(path).unwrap();
    }
}
