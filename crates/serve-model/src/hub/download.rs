//! One file from the hub into the cache, however often the connection breaks, and the file that the hub has.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::cache::{Blob, ModelCache};
use super::client::{Answer, Client};
use super::error::{Failure, HubError, NetworkError};
use super::options::{BACKOFF_MAX, HubOptions, RETRY_AFTER_MAX, SLOW_BYTES};

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

/// What is known of a file before it is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) bytes: Option<u64>,
    pub(super) sha256: Option<&'a str>,
}

/// A model on the hub.
pub(super) struct Remote<'a> {
    options: &'a HubOptions,
    name: &'a str,
    revision: &'a str,
    client: Client,
    cache: ModelCache,
}

impl<'a> Remote<'a> {
    pub(super) fn new(
        options: &'a HubOptions,
        name: &'a str,
        revision: &'a str,
    ) -> Result<Self, HubError> {
        let client = Client::new(options).map_err(|_| HubError::InvalidEndpoint {
            endpoint: options.endpoint.clone(),
        })?;
        Ok(Self {
            options,
            name,
            revision,
            client,
            cache: ModelCache::new(&options.cache_dir, name),
        })
    }

    /// The hub's description of the model, as JSON.
    pub(super) fn describe(&self, retries: u32) -> Result<String, HubError> {
        let (endpoint, name) = (&self.options.endpoint, self.name);
        let revision = self.revision.replace('/', "%2F");
        let url = format!("{endpoint}/api/models/{name}/revision/{revision}?blobs=true");
        self.patiently("the list of files", retries, || self.client.text(&url))
    }

    /// Downloads a file of a commit, or what is left of it.
    pub(super) fn download(
        &self,
        commit: &str,
        wanted: Wanted<'_>,
        report: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), HubError> {
        let (endpoint, name, file) = (&self.options.endpoint, self.name, wanted.name);
        let url = format!("{endpoint}/{name}/resolve/{commit}/{file}");
        self.patiently(file, self.options.retries, || {
            self.attempt(&url, commit, wanted, report)
        })
    }

    fn attempt(
        &self,
        url: &str,
        commit: &str,
        wanted: Wanted<'_>,
        report: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), Failure> {
        let nonsense = |cause: &str| Failure::Nonsense(cause.to_owned());
        let mut answer = self.client.file(url, 0)?;
        let etag = answer.etag.take();
        let etag = etag.ok_or_else(|| nonsense("the hub gives no ETag for it"))?;
        let total = wanted.bytes.or(answer.bytes_total);
        let total = total.ok_or_else(|| nonsense("the hub does not say how long it is"))?;
        if let Some(found) = answer.bytes_total.filter(|found| *found != total) {
            return Err(nonsense(&format!(
                "it has {found} bytes and the list of files says {total}"
            )));
        }
        let sha256 = wanted.sha256.map(str::to_owned).or(answer.sha256.take());
        let blob = self.cache.blob(&etag)?;
        let whole = |found: fs::Metadata| found.len() == total;
        if !fs::metadata(&blob.path).is_ok_and(whole) {
            let mut part = Part::open(&blob, total, sha256)?;
            let mut told = |bytes_done| {
                report(Progress {
                    file: wanted.name,
                    bytes_done,
                    bytes_total: total,
                });
            };
            told(part.done);
            if part.done > 0 && part.done < total {
                answer = match self.client.file(url, part.done) {
                    Err(Failure::Status(416)) => {
                        // It is of another file.
                        part.restart()?;
                        return Err(Failure::BadPart("HTTP 416".to_owned()));
                    }
                    answer => answer?,
                };
                if answer.response.status() == 200 {
                    part.restart()?;
                }
            }
            part.receive(&mut answer, self.options, &mut told)?;
            part.finish(&blob)?;
        }
        let linked = self.cache.link(&blob, commit, wanted.name);
        linked.map_err(Failure::Disk)
    }

    /// Repeats a request, with longer and longer pauses, as long as it fails in a way that may pass.
    fn patiently<T>(
        &self,
        file: &str,
        retries: u32,
        mut request: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, HubError> {
        let mut pause = self.options.backoff;
        let mut attempts = 1;
        loop {
            let failure = match request() {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if !failure.may_pass() || attempts > retries {
                return Err(self.give_up(failure, file, attempts));
            }
            std::thread::sleep(pause_after(&failure, pause));
            pause = (pause * 2).min(BACKOFF_MAX);
            attempts += 1;
        }
    }

    fn give_up(&self, failure: Failure, file: &str, attempts: u32) -> HubError {
        let endpoint = self.options.endpoint.clone();
        let repo = self.name.to_owned();
        let file = file.to_owned();
        let failed = |cause| HubError::Hub {
            endpoint: endpoint.clone(),
            repo: repo.clone(),
            file: file.clone(),
            attempts,
            cause,
        };
        match failure {
            Failure::Status(404) => HubError::NotFound {
                repo,
                revision: self.revision.to_owned(),
                endpoint,
            },
            Failure::Status(status @ (401 | 403)) => HubError::Unauthorised {
                repo,
                endpoint,
                status,
                remedy: self.remedy(),
            },
            Failure::Network(source) => HubError::Network {
                endpoint,
                repo,
                file,
                attempts,
                source,
            },
            Failure::Disk(source) => HubError::Disk {
                cache_dir: self.options.cache_dir.clone(),
                source,
            },
            Failure::Locked(lock) => HubError::Locked { repo, file, lock },
            Failure::Status(status) | Failure::Busy { status, .. } => {
                failed(format!("HTTP {status}"))
            }
            Failure::Nonsense(cause) | Failure::BadPart(cause) => failed(cause),
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

/// How long to wait after a failure: as long as the hub asks for, within reason, and no less than `backoff`.
fn pause_after(failure: &Failure, backoff: Duration) -> Duration {
    match failure {
        Failure::Busy {
            retry_after: Some(asked),
            ..
        } => backoff.max(*asked).min(RETRY_AFTER_MAX.max(backoff)),
        _ => backoff,
    }
}

/// The part of a file that has come, and its hash so far.
struct Part {
    file: File,
    done: u64,
    total: u64,
    hash: Sha256,
    /// The hub's own hash of the file.
    sha256: Option<String>,
}

impl Part {
    /// Goes on with what an earlier attempt has left, if that can be a part of this file.
    fn open(blob: &Blob, total: u64, sha256: Option<String>) -> Result<Self, Failure> {
        let options = File::options().read(true).append(true).create(true).clone();
        let mut file = options.open(&blob.part).map_err(Failure::Disk)?;
        let left = file.metadata().map_err(Failure::Disk)?.len();
        // A whole one without a hash may be of another file.
        let fits = left < total || (left == total && sha256.is_some());
        let (mut hash, mut done) = (Sha256::new(), 0);
        if fits {
            let mut buffer = vec![0; BUFFER_BYTES];
            loop {
                match file.read(&mut buffer).map_err(Failure::Disk)? {
                    0 => break,
                    read => hash.update(&buffer[..read]),
                }
            }
            done = left;
        } else {
            file.set_len(0).map_err(Failure::Disk)?;
        }
        Ok(Self {
            file,
            done,
            total,
            hash,
            sha256,
        })
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.file.set_len(0).map_err(Failure::Disk)?;
        self.hash = Sha256::new();
        self.done = 0;
        Ok(())
    }

    /// Appends what comes, up to the end of the file. `told` hears how much is there.
    fn receive(
        &mut self,
        answer: &mut Answer,
        options: &HubOptions,
        told: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        let mut body = answer.response.body_mut().as_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        let (mut since, mut bytes) = (Instant::now(), 0);
        while self.done < self.total {
            let left = usize::try_from(self.total - self.done).unwrap_or(usize::MAX);
            let room = &mut buffer[..left.min(BUFFER_BYTES)];
            let read = body.read(room).map_err(NetworkError::Broken)?;
            if read == 0 {
                return Err(Failure::Network(NetworkError::Short {
                    found: self.done,
                    total: self.total,
                }));
            }
            self.file.write_all(&room[..read]).map_err(Failure::Disk)?;
            self.hash.update(&room[..read]);
            self.done += read as u64;
            told(self.done);
            bytes += read as u64;
            if since.elapsed() >= options.patience {
                if bytes < SLOW_BYTES {
                    return Err(Failure::Network(NetworkError::Slow {
                        bytes: SLOW_BYTES,
                        patience: options.patience,
                    }));
                }
                (since, bytes) = (Instant::now(), 0);
            }
        }
        Ok(())
    }

    /// Makes contents of the part, if they are what the hub says they are.
    fn finish(self, blob: &Blob) -> Result<(), Failure> {
        let found: String = self
            .hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        match self.sha256 {
            Some(sha256) if sha256 != found => {
                fs::remove_file(&blob.part).map_err(Failure::Disk)?;
                Err(Failure::BadPart(format!(
                    "what came has the SHA-256 hash {found} and the hub says {sha256}"
                )))
            }
            _ => fs::rename(&blob.part, &blob.path).map_err(Failure::Disk),
        }
    }
}

const BUFFER_BYTES: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_is_left_alone_as_long_as_it_asks_and_not_for_ever() {
        let backoff = Duration::from_secs(2);
        let pause = |status, header| pause_after(&Failure::of_status(status, header), backoff);
        for (status, header, seconds) in [
            (429, Some("30"), 30),
            (503, Some(" 7 "), 7),
            // Its own pause is longer, the header says nothing, or nothing that ends.
            (429, Some("1"), 2),
            (429, Some("0"), 2),
            (429, None, 2),
            (429, Some("-5"), 2),
            (429, Some("soon"), 2),
            (429, Some("Wed, 21 Oct 2015 07:28:00 GMT"), 2),
            (429, Some("86400"), 300),
            (429, Some("18446744073709551615"), 300),
            // Final: nothing is waited for.
            (404, Some("30"), 2),
        ] {
            let expected = Duration::from_secs(seconds);
            assert_eq!(pause(status, header), expected, "{status} {header:?}");
        }
    }
}
