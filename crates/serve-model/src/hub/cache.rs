//! The cache folder, in the layout that Hugging Face's own tools share: contents by their ETag in `blobs`,
//! names in `snapshots/COMMIT` that point to them, and in `refs` the commit of each revision.
//!
//! Every name that comes from a hub is checked here before it becomes a part of a path.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::Failure;

/// One model's part of the cache.
pub(super) struct ModelCache {
    cache_dir: PathBuf,
    name: String,
}

/// How often a lock that another process holds is asked for, a second apart.
const LOCK_TRIES: u32 = 5;

/// Letters of an ETag or commit at most, so that it can be the name of a file.
const NAME_MAX: usize = 128;

impl ModelCache {
    pub(super) fn new(cache_dir: &Path, repo: &str) -> Self {
        Self {
            cache_dir: cache_dir.to_owned(),
            name: format!("models--{}", repo.replace('/', "--")),
        }
    }

    /// The files of a commit.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root().join("snapshots").join(commit)
    }

    /// The commit that a revision was at last.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        let commit = fs::read_to_string(self.root().join("refs").join(revision)).ok()?;
        is_file_name(&commit).then_some(commit)
    }

    /// Notes which commit a revision is, so that it can be found without the hub.
    pub(super) fn remember(&self, revision: &str, commit: &str) -> io::Result<()> {
        let path = self.root().join("refs").join(revision);
        // A revision may be a path itself.
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        fs::write(path, commit)
    }

    /// A place for contents with this ETag, which is held until the place is dropped.
    pub(super) fn blob(&self, etag: &str) -> Result<Blob, Failure> {
        if !is_file_name(etag) {
            let cause = format!("its ETag {etag:.100?} cannot be the name of a file");
            return Err(Failure::Nonsense(cause));
        }
        let blobs = self.root().join("blobs");
        let locks = self.cache_dir.join(".locks").join(&self.name);
        for folder in [&blobs, &locks] {
            fs::create_dir_all(folder).map_err(Failure::Disk)?;
        }
        Ok(Blob {
            path: blobs.join(etag),
            part: blobs.join(format!("{etag}.incomplete")),
            _lock: lock(locks.join(format!("{etag}.lock")))?,
        })
    }

    /// Gives contents a name among the files of a commit.
    pub(super) fn link(&self, blob: &Blob, commit: &str, file: &str) -> io::Result<()> {
        let folder = self.snapshot(commit);
        fs::create_dir_all(&folder)?;
        let link = folder.join(file);
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let name = blob.path.file_name().unwrap_or_default();
        point(&Path::new("../../blobs").join(name), &blob.path, &link)
    }

    fn root(&self) -> PathBuf {
        self.cache_dir.join(&self.name)
    }
}

/// Contents in the cache, or their place.
pub(super) struct Blob {
    pub(super) path: PathBuf,
    /// As much of them as has come.
    pub(super) part: PathBuf,
    _lock: File,
}

/// Whether a name from outside is a plain one, which leads nowhere else.
pub(super) fn is_file_name(name: &str) -> bool {
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.starts_with('.')
        && !name.contains("..")
        && name.chars().all(harmless)
}

/// Locked as Hugging Face's own tools do.
fn lock(path: PathBuf) -> Result<File, Failure> {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(Failure::Disk)?;
    for tried in 1.. {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => return Err(Failure::Disk(error)),
            Err(TryLockError::WouldBlock) if tried == LOCK_TRIES => {
                return Err(Failure::Locked(path));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_secs(1)),
        }
    }
    Ok(file)
}

#[cfg(unix)]
fn point(relative: &Path, _: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, link)
}

/// Symbolic links may need rights that a user does not have.
#[cfg(not(unix))]
fn point(_: &Path, absolute: &Path, link: &Path) -> io::Result<()> {
    fs::hard_link(absolute, link).or_else(|_| fs::copy(absolute, link).map(drop))
}
