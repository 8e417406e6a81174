//! One file from the hub into the cache, however often the connection breaks.

use std::path::Path;
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use super::error::{Failure, HubError};
use super::options::HubOptions;

/// How far the download of one file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The file.
    pub file: &'a str,
    /// Bytes that are there, those of an earlier attempt included.
    pub bytes_done: u64,
    /// Bytes of the whole file.
    pub bytes_total: u64,
}

const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// A model on the hub, at one revision.
pub(super) struct Remote<'a> {
    options: &'a HubOptions,
    name: &'a str,
    revision: String,
    api: Api,
}

impl<'a> Remote<'a> {
    pub(super) fn new(
        options: &'a HubOptions,
        name: &'a str,
        revision: &str,
    ) -> Result<Self, HubError> {
        let builder = ApiBuilder::from_cache(Cache::new(options.cache_dir.clone()))
            .with_endpoint(options.endpoint.clone())
            .with_token(options.token.clone())
            .with_progress(false)
            // Retries are made here, where a refusal is told from a failure that may pass.
            .with_retries(0);
        let api = builder.build().map_err(|error| HubError::Hub {
            endpoint: options.endpoint.clone(),
            repo: name.to_owned(),
            file: "anything".to_owned(),
            attempts: 0,
            cause: error.to_string(),
        })?;
        Ok(Self {
            options,
            name,
            revision: revision.to_owned(),
            api,
        })
    }

    /// The same model at one commit, so that its files belong together.
    pub(super) fn at(self, commit: &str) -> Self {
        Self {
            revision: commit.to_owned(),
            ..self
        }
    }

    /// The hub's description of the model, as JSON.
    pub(super) fn describe(&self, retries: u32) -> Result<String, HubError> {
        self.patiently("the list of files", retries, || {
            let request = self.repo().info_request().query("blobs", "true");
            let mut response = request.call().map_err(Box::new)?;
            Ok(response.body_mut().read_to_string().map_err(Box::new)?)
        })
    }

    /// Downloads a file of `bytes` bytes, if that is known, or what is left of it.
    pub(super) fn download(
        &self,
        file: &str,
        bytes: Option<u64>,
        report: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), HubError> {
        self.patiently(file, self.options.retries, || {
            let mut relay = Relay::new(file, bytes, report);
            let path = self.repo().download_with_progress(file, &mut relay)?;
            let found = std::fs::metadata(&path)?.len();
            match relay.bytes_total {
                // The connection ended early without an error, or the hub sent the whole file where
                // the rest was asked for.
                Some(total) if total != found => {
                    discard(&path);
                    let text = format!("{found} bytes came of {total}");
                    Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, text).into())
                }
                _ => Ok(()),
            }
        })
    }

    fn repo(&self) -> ApiRepo {
        let name = self.name.to_owned();
        let revision = self.revision.clone();
        let repo = Repo::with_revision(name, RepoType::Model, revision);
        self.api.repo(repo)
    }

    /// Repeats a request, with longer and longer pauses, as long as it fails in a way that may pass.
    fn patiently<T>(
        &self,
        file: &str,
        retries: u32,
        mut request: impl FnMut() -> Result<T, ApiError>,
    ) -> Result<T, HubError> {
        let mut pause = self.options.backoff;
        let mut attempts = 1;
        loop {
            let failure = match request() {
                Ok(answer) => return Ok(answer),
                Err(error) => Failure::of(error),
            };
            let may_pass = matches!(failure, Failure::Passing(_) | Failure::BadPart(_));
            if !may_pass || attempts > retries {
                return Err(self.give_up(failure, file, attempts));
            }
            if let Failure::BadPart(_) = failure {
                self.remove_part(file);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(BACKOFF_MAX);
            attempts += 1;
        }
    }

    /// Removes what an earlier attempt has left of a file, if the hub says where that is.
    fn remove_part(&self, file: &str) {
        let repo = self.repo();
        if let Ok(metadata) = self.api.metadata(&repo.url(file)) {
            let cache = Cache::new(self.options.cache_dir.clone());
            let blob = cache.model(self.name.to_owned()).blob_path(metadata.etag());
            // The next attempt fails in the same way if this one does not work.
            let _ = std::fs::remove_file(blob.with_extension("part"));
        }
    }

    fn give_up(&self, failure: Failure, file: &str, attempts: u32) -> HubError {
        let endpoint = self.options.endpoint.clone();
        let repo = self.name.to_owned();
        let file = file.to_owned();
        match failure {
            Failure::Status(404) => HubError::NotFound {
                repo,
                revision: self.revision.clone(),
                endpoint,
            },
            Failure::Status(status @ (401 | 403)) => HubError::Unauthorised {
                repo,
                endpoint,
                status,
                remedy: self.remedy(),
            },
            Failure::Passing(source @ ApiError::IoError(_)) => HubError::Network {
                endpoint,
                repo,
                file,
                attempts,
                source,
            },
            Failure::Passing(ApiError::RequestError(inner))
                if !matches!(*inner, ureq::Error::StatusCode(_)) =>
            {
                HubError::Network {
                    endpoint,
                    repo,
                    file,
                    attempts,
                    source: ApiError::RequestError(inner),
                }
            }
            Failure::Disk(source) => HubError::Disk {
                cache_dir: self.options.cache_dir.clone(),
                source,
            },
            Failure::Locked(lock) => HubError::Locked { repo, file, lock },
            Failure::Status(status) => HubError::Hub {
                endpoint,
                repo,
                file,
                attempts,
                cause: format!("HTTP {status}"),
            },
            Failure::Passing(error) | Failure::Nonsense(error) | Failure::BadPart(error) => {
                HubError::Hub {
                    endpoint,
                    repo,
                    file,
                    attempts,
                    cause: error.to_string(),
                }
            }
        }
    }

    fn remedy(&self) -> &'static str {
        if self.options.token.is_some() {
            "the token given (HF_TOKEN) does not open it: check the token, and accept the model's \
             terms on its page if it has any"
        } else {
            "set HF_TOKEN to an access token of an account that may read it"
        }
    }
}

/// Removes a file of the cache, both its name and what it points to. What cannot be removed makes the
/// download fail in its own words.
fn discard(path: &Path) {
    let blob = path.canonicalize();
    let _ = std::fs::remove_file(path);
    if let Ok(blob) = blob {
        let _ = std::fs::remove_file(blob);
    }
}

/// Adds up what hf-hub reports.
struct Relay<'a> {
    file: &'a str,
    bytes_done: u64,
    bytes_total: Option<u64>,
    report: &'a mut dyn FnMut(Progress<'_>),
}

impl<'a> Relay<'a> {
    fn new(file: &'a str, bytes: Option<u64>, report: &'a mut dyn FnMut(Progress<'_>)) -> Self {
        Self {
            file,
            bytes_done: 0,
            bytes_total: bytes,
            report,
        }
    }

    fn tell(&mut self) {
        (self.report)(Progress {
            file: self.file,
            bytes_done: self.bytes_done,
            bytes_total: self.bytes_total.unwrap_or(self.bytes_done),
        });
    }
}

impl hf_hub::api::Progress for &mut Relay<'_> {
    fn init(&mut self, size: usize, _: &str) {
        self.bytes_total = Some(size as u64);
        self.bytes_done = 0;
        self.tell();
    }

    fn update(&mut self, size: usize) {
        if size > 0 {
            self.bytes_done += size as u64;
            self.tell();
        }
    }

    fn finish(&mut self) {}
}
