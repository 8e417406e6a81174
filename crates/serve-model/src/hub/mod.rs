//! A model's folder from the Hugging Face hub, or from a hub that speaks like it.
//!
//! Files land in the cache that Hugging Face's own tools share and are not downloaded again. Only
//! what is used is fetched: configuration, tokenizer, chat template and safetensors.

mod cache;
mod client;
mod download;
mod error;
mod options;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use download::Progress;
pub use error::{HubError, NetworkError};
pub use options::HubOptions;

use cache::{ModelCache, is_file_name};
use client::is_sha256;
use download::{Remote, Wanted};

use crate::plain_file::{self, VOCABULARY_BYTES_MAX};

const REQUIRED: [&str; 2] = ["config.json", "tokenizer.json"];
const OPTIONAL: [&str; 5] = [
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Makes sure that a model is in the cache and returns its folder.
///
/// `revision` is a branch, a tag or a commit. All files are of one commit, the one that the hub names
/// at the start. Where the hub cannot be reached or fails, and the cache has the whole model at this revision,
/// the cached one is used. `report` hears of every piece that arrives, on the calling thread.
///
/// The token goes to the hub alone, never to another host that it redirects to. A file for which the hub gives a
/// SHA-256 hash, as it does for weights, is kept only if it has it. Blocks, but for no longer than
/// [`HubOptions::patience`] without a byte.
///
/// # Errors
///
/// [`HubError`]: what is missing, refused or unreachable. Failures that may pass are retried as the
/// options say, from where the download stopped.
pub fn fetch(
    repo: &str,
    revision: &str,
    options: &HubOptions,
    report: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, HubError> {
    validate(repo, revision, options)?;
    let cached = Cached {
        repo,
        revision,
        options,
    };
    if options.offline {
        return cached.whole_model();
    }
    let cached_model = cached.whole_model();
    // With a model at hand there is no need to wait for a hub that does not answer.
    let retries = if cached_model.is_ok() {
        0
    } else {
        options.retries
    };
    let remote = Remote::new(options, repo, revision)?;
    let description = match (cached_model, remote.describe(retries)) {
        (Ok(folder), Err(HubError::Network { .. } | HubError::Hub { .. })) => return Ok(folder),
        (_, described) => described?,
    };
    let description: Description = serde_json::from_str(&description)
        .map_err(|error| nonsense(repo, options, &error.to_string()))?;
    if !is_file_name(&description.sha) {
        return Err(nonsense(repo, options, "it names no commit"));
    }
    download(repo, &remote, &description, &cached, report)
}

/// What the hub says of a model.
#[derive(Deserialize)]
struct Description {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

/// What is known of a file that is too large for git.
#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
}

impl Sibling {
    fn wanted(&self) -> Wanted<'_> {
        let sha256 = self.lfs.as_ref().and_then(|lfs| lfs.sha256.as_deref());
        Wanted {
            name: &self.rfilename,
            bytes: self.size,
            sha256: sha256.filter(|sha256| is_sha256(sha256)),
        }
    }
}

impl Description {
    fn has(&self, file: &str) -> bool {
        self.sibling(file).is_some()
    }

    fn sibling(&self, file: &str) -> Option<&Sibling> {
        self.siblings
            .iter()
            .find(|sibling| sibling.rfilename == file)
    }
}

fn download(
    repo: &str,
    remote: &Remote<'_>,
    description: &Description,
    cached: &Cached<'_>,
    report: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, HubError> {
    let folder = cached.folder(&description.sha);
    let mut get = |file: &str| {
        let Some(sibling) = description.sibling(file) else {
            return Err(HubError::MissingFile {
                repo: repo.to_owned(),
                file: file.to_owned(),
            });
        };
        // A file of another length was broken by its writer.
        let fits = |found: std::fs::Metadata| sibling.size.is_none_or(|size| size == found.len());
        if std::fs::metadata(folder.join(file)).is_ok_and(fits) {
            return Ok(());
        }
        remote.download(&description.sha, sibling.wanted(), report)
    };
    // A model without usable weights is refused before anything large is fetched.
    let sharded = !description.has(WEIGHTS) && description.has(INDEX);
    if !sharded && !description.has(WEIGHTS) {
        get(WEIGHTS)?;
    }
    for file in REQUIRED {
        get(file)?;
    }
    for file in OPTIONAL.into_iter().filter(|file| description.has(file)) {
        get(file)?;
    }
    if sharded {
        get(INDEX)?;
        for shard in shards(repo, &folder)? {
            get(&shard)?;
        }
    } else {
        get(WEIGHTS)?;
    }
    cached.remember(&description.sha)?;
    Ok(folder)
}

/// The files that the index of a sharded model names.
fn shards(repo: &str, folder: &Path) -> Result<BTreeSet<String>, HubError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let invalid = |cause: String| HubError::Index {
        repo: repo.to_owned(),
        cause,
    };
    let text = plain_file::read_text(&folder.join(INDEX), VOCABULARY_BYTES_MAX);
    let text = text.map_err(|error| invalid(error.to_string()))?;
    let index: Index = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    match shards.iter().find(|shard| !is_file_name(shard)) {
        Some(shard) => Err(invalid(format!("{shard:?} is no file name"))),
        None if shards.is_empty() => Err(invalid("it names no file".to_owned())),
        None => Ok(shards),
    }
}

/// A model in the cache.
struct Cached<'a> {
    repo: &'a str,
    revision: &'a str,
    options: &'a HubOptions,
}

impl Cached<'_> {
    fn cache(&self) -> ModelCache {
        ModelCache::new(&self.options.cache_dir, self.repo)
    }

    fn folder(&self, commit: &str) -> PathBuf {
        self.cache().snapshot(commit)
    }

    /// Notes which commit the revision is, so that it can be found without the hub.
    fn remember(&self, commit: &str) -> Result<(), HubError> {
        let noted = self.cache().remember(self.revision, commit);
        noted.map_err(|source| HubError::Disk {
            cache_dir: self.options.cache_dir.clone(),
            source,
        })
    }

    /// The folder of the revision's commit, if all that is needed is there.
    fn whole_model(&self) -> Result<PathBuf, HubError> {
        let commit = self.cache().commit(self.revision);
        let commit = commit.ok_or_else(|| self.missing(REQUIRED[0]))?;
        let folder = self.folder(&commit);
        let absent = |file: &&str| !folder.join(file).exists();
        if let Some(file) = REQUIRED.iter().copied().find(absent) {
            return Err(self.missing(file));
        }
        if folder.join(WEIGHTS).exists() {
            return Ok(folder);
        }
        if !folder.join(INDEX).exists() {
            return Err(self.missing(WEIGHTS));
        }
        let shards = shards(self.repo, &folder)?;
        match shards.iter().map(String::as_str).find(absent) {
            Some(file) => Err(self.missing(file)),
            None => Ok(folder),
        }
    }

    fn missing(&self, file: &str) -> HubError {
        HubError::Offline {
            repo: self.repo.to_owned(),
            revision: self.revision.to_owned(),
            cache_dir: self.options.cache_dir.clone(),
            missing: file.to_owned(),
        }
    }
}

/// Names become parts of paths and addresses, so only harmless ones are let through.
fn validate(repo: &str, revision: &str, options: &HubOptions) -> Result<(), HubError> {
    let parts = repo.split_once('/');
    if !parts.is_some_and(|(organisation, name)| is_file_name(organisation) && is_file_name(name)) {
        return Err(HubError::InvalidRepo {
            repo: repo.to_owned(),
        });
    }
    if !revision.split('/').all(is_file_name) {
        return Err(HubError::InvalidRevision {
            revision: revision.to_owned(),
        });
    }
    let host = options.endpoint.strip_prefix("http://");
    let host = host.or_else(|| options.endpoint.strip_prefix("https://"));
    if !host.is_some_and(|host| !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic())) {
        return Err(HubError::InvalidEndpoint {
            endpoint: options.endpoint.clone(),
        });
    }
    Ok(())
}

fn nonsense(repo: &str, options: &HubOptions, cause: &str) -> HubError {
    HubError::Hub {
        endpoint: options.endpoint.clone(),
        repo: repo.to_owned(),
        file: "the list of files".to_owned(),
        attempts: 1,
        cause: cause.to_owned(),
    }
}
