//! Why a model could not be had, and which failures may pass.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// Why a model could not be had.
#[derive(Debug, Error)]
pub enum HubError {
    /// Not the name of a model.
    #[error(
        "{repo:?} is not the name of a model; it must be ORG/NAME, of letters, digits, '.', '_' and '-'"
    )]
    InvalidRepo {
        /// What was given.
        repo: String,
    },
    /// Not the name of a branch, tag or commit.
    #[error("{revision:?} is not a revision; it must be a branch, a tag or a commit, such as main")]
    InvalidRevision {
        /// What was given.
        revision: String,
    },
    /// Not the address of a hub.
    #[error("{endpoint:?} is not a hub's address; HF_ENDPOINT must be http://HOST or https://HOST")]
    InvalidEndpoint {
        /// What was given.
        endpoint: String,
    },
    /// Nothing says where the cache is.
    #[error("there is no place for the model cache; set HF_HOME, HF_HUB_CACHE or HOME")]
    NoCache,
    /// The hub does not have it.
    #[error("{repo} (revision {revision}) was not found at {endpoint}")]
    NotFound {
        /// The model.
        repo: String,
        /// The revision.
        revision: String,
        /// The hub.
        endpoint: String,
    },
    /// The hub does not give it to this user.
    #[error(
        "{endpoint} does not give out {repo} (HTTP {status}): it does not exist, or is private or \
         gated; {remedy}"
    )]
    Unauthorised {
        /// The model.
        repo: String,
        /// The hub.
        endpoint: String,
        /// 401 or 403.
        status: u16,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The model lacks a file that is needed.
    #[error("{repo} has no {file}, which is needed")]
    MissingFile {
        /// The model.
        repo: String,
        /// The file.
        file: String,
    },
    /// The list of shards cannot be used.
    #[error("{repo}: model.safetensors.index.json is not valid: {cause}")]
    Index {
        /// The model.
        repo: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The network may not be used and the cache does not have the whole model.
    #[error(
        "HF_HUB_OFFLINE is set and {} has no {missing} of {repo} (revision {revision})",
        cache_dir.display()
    )]
    Offline {
        /// The model.
        repo: String,
        /// The revision.
        revision: String,
        /// The cache.
        cache_dir: PathBuf,
        /// The first file that is missing.
        missing: String,
    },
    /// The hub could not be reached, or broke off, each time.
    #[error(
        "{endpoint} could not be reached for {file} of {repo} (attempts: {attempts}): {source}"
    )]
    Network {
        /// The hub.
        endpoint: String,
        /// The model.
        repo: String,
        /// What was asked for.
        file: String,
        /// How often.
        attempts: u32,
        /// The last failure.
        source: NetworkError,
    },
    /// The hub answered with an error each time, or with what makes no sense.
    #[error("{endpoint} failed on {file} of {repo} (attempts: {attempts}): {cause}")]
    Hub {
        /// The hub.
        endpoint: String,
        /// The model.
        repo: String,
        /// What was asked for.
        file: String,
        /// How often.
        attempts: u32,
        /// What it answered.
        cause: String,
    },
    /// The cache could not be written.
    #[error("cannot write to the model cache {}: {source}", cache_dir.display())]
    Disk {
        /// The cache.
        cache_dir: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process is downloading the same file.
    #[error("another process is downloading {file} of {repo} (it holds {})", lock.display())]
    Locked {
        /// The model.
        repo: String,
        /// The file.
        file: String,
        /// The lock.
        lock: PathBuf,
    },
}

/// What went wrong on the way from a hub.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// There was no answer.
    #[error(transparent)]
    NoAnswer(Box<ureq::Error>),
    /// The answer broke off.
    #[error("the answer broke off: {0}")]
    Broken(io::Error),
    /// The answer ended early without an error.
    #[error("{found} bytes came of {total}")]
    Short {
        /// Bytes that are there.
        found: u64,
        /// Bytes of the whole file.
        total: u64,
    },
    /// The answer would hardly end.
    #[error("fewer than {bytes} bytes came in {} s", patience.as_secs_f64())]
    Slow {
        /// Bytes that should have come.
        bytes: u64,
        /// The time.
        patience: Duration,
    },
}

impl NetworkError {
    pub(super) fn of(error: ureq::Error) -> Self {
        Self::NoAnswer(Box::new(error))
    }
}

/// What a failed request calls for.
pub(super) enum Failure {
    /// The same request may succeed later.
    Network(NetworkError),
    /// The same: the hub asks for patience or has an error of its own.
    Busy {
        status: u16,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// The hub's answer is final.
    Status(u16),
    /// The answer makes no sense.
    Nonsense(String),
    /// The cache cannot be written.
    Disk(io::Error),
    /// Another process holds the lock at this path.
    Locked(PathBuf),
    /// What was downloaded is not the file; it has been removed.
    BadPart(String),
}

impl Failure {
    /// What a status and its header `Retry-After` call for. A date in it is not read: then the pause is the
    /// client's own.
    pub(super) fn of_status(status: u16, retry_after: Option<&str>) -> Self {
        let seconds = retry_after.and_then(|text| text.trim().parse().ok());
        match status {
            408 | 429 | 500.. => Self::Busy {
                status,
                retry_after: seconds.map(Duration::from_secs),
            },
            status => Self::Status(status),
        }
    }

    pub(super) fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Network(_) | Self::Busy { .. } | Self::BadPart(_)
        )
    }
}

impl From<NetworkError> for Failure {
    fn from(error: NetworkError) -> Self {
        Self::Network(error)
    }
}
