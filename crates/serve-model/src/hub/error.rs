//! Why a model could not be had, and which failures may pass.

use std::io;
use std::path::PathBuf;

use hf_hub::api::sync::ApiError;
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
        source: ApiError,
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

/// What a failed request calls for.
pub(super) enum Failure {
    /// The same request may succeed later.
    Passing(ApiError),
    /// The hub's answer is final.
    Status(u16),
    /// The answer makes no sense.
    Nonsense(ApiError),
    /// The cache cannot be written.
    Disk(io::Error),
    /// Another process holds the lock at this path.
    Locked(PathBuf),
    /// What was downloaded so far does not fit the file; it must go before the next attempt.
    BadPart(ApiError),
}

impl Failure {
    pub(super) fn of(error: ApiError) -> Self {
        match error {
            ApiError::RequestError(inner) => match *inner {
                // What is asked for begins at the end of the file: a part that is whole already, or
                // of another file.
                ureq::Error::StatusCode(416) => Self::BadPart(ApiError::RequestError(inner)),
                ureq::Error::StatusCode(408 | 429 | 500..) => {
                    Self::Passing(ApiError::RequestError(inner))
                }
                ureq::Error::StatusCode(status) => Self::Status(status),
                ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::InvalidProxyUrl => {
                    Self::Nonsense(ApiError::RequestError(inner))
                }
                _ => Self::Passing(ApiError::RequestError(inner)),
            },
            ApiError::IoError(source) if is_disk(&source) => Self::Disk(source),
            ApiError::IoError(_) | ApiError::TooManyRetries(_) => Self::Passing(error),
            ApiError::LockAcquisition(lock) => Self::Locked(lock),
            ApiError::InvalidResume => Self::BadPart(error),
            error => Self::Nonsense(error),
        }
    }
}

/// Whether a failure of copying from the network to a file is the file's.
fn is_disk(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::StorageFull
            | Kind::QuotaExceeded
            | Kind::FileTooLarge
            | Kind::PermissionDenied
            | Kind::ReadOnlyFilesystem
            | Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::NotFound
            | Kind::AlreadyExists
    )
}
