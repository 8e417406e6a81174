//! The folder of a run: `rows.jsonl` and `manifest.json`, and what is made from them.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::hex::hex;
use crate::store::manifest::{Manifest, ManifestError};
use crate::store::record::{self, ReadError, Record, RowWriter};

/// A folder that holds a run, or will.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder(PathBuf);

/// A run that was read whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What it was.
    pub manifest: Manifest,
    /// What happened.
    pub records: Vec<Record>,
}

impl Run {
    /// Rows of which nothing else is known: no warm-up, no limits, no workload.
    pub fn of_rows(records: Vec<Record>) -> Self {
        Self {
            manifest: Manifest::unknown(),
            records,
        }
    }
}

/// A folder that cannot be used.
#[derive(Debug, Error)]
pub enum FolderError {
    /// It cannot be made, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// It holds a run, which is never written over.
    #[error("{} holds a run already; name another folder, or remove that one", .0.display())]
    Taken(PathBuf),
    /// The rows were changed after the manifest was written, or belong to another run.
    #[error("{} has the hash {found}, and its manifest says {expected}: these are not the rows of that run", path.display())]
    OtherRows {
        /// The file of rows.
        path: PathBuf,
        /// What the manifest says.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// There is no run where one was looked for.
    #[error("{} holds no run; accepted is a folder with rows.jsonl and manifest.json, or one of such folders", .0.display())]
    NoRun(PathBuf),
    /// The rows cannot be read.
    #[error(transparent)]
    Rows(#[from] ReadError),
    /// The manifest cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl RunFolder {
    /// The folder of a run that exists or does not yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The run in a folder, or else those in the folders directly below it, `2` before `10`.
    ///
    /// # Errors
    ///
    /// [`FolderError::NoRun`] when there is none, [`FolderError::Io`] when the folder cannot be read.
    pub fn all_in(path: &Path) -> Result<Vec<Self>, FolderError> {
        let itself = Self::at(path);
        if itself.holds_run() {
            return Ok(vec![itself]);
        }
        let below = folders_in(path)?.into_iter().map(Self);
        let runs = below.filter(Self::holds_run).collect::<Vec<_>>();
        match runs.is_empty() {
            true => Err(FolderError::NoRun(path.to_owned())),
            false => Ok(runs),
        }
    }

    /// Whether there is a run, by its manifest.
    pub fn holds_run(&self) -> bool {
        self.manifest().is_file()
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file of rows.
    pub fn rows(&self) -> PathBuf {
        self.0.join("rows.jsonl")
    }

    /// The manifest.
    pub fn manifest(&self) -> PathBuf {
        self.0.join("manifest.json")
    }

    /// What the server's metrics said during the run, if they were asked.
    pub fn timeline(&self) -> PathBuf {
        self.0.join("timeline.jsonl")
    }

    /// The times as histograms, to be added to those of other runs.
    pub fn histograms(&self) -> PathBuf {
        self.0.join("histograms.hlog")
    }

    /// The report.
    pub fn report(&self) -> PathBuf {
        self.0.join("report.html")
    }

    /// Makes the folder and opens its file of rows.
    ///
    /// # Errors
    ///
    /// [`FolderError::Taken`] when there are rows or a manifest in it, [`FolderError::Io`] when it
    /// cannot be made.
    pub fn create(&self) -> Result<RowWriter<BufWriter<File>>, FolderError> {
        if self.rows().exists() || self.manifest().exists() {
            return Err(FolderError::Taken(self.0.clone()));
        }
        std::fs::create_dir_all(&self.0).map_err(|source| io_error(&self.0, source))?;
        let rows = self.rows();
        let file = File::create(&rows).map_err(|source| io_error(&rows, source))?;
        RowWriter::new(BufWriter::new(file)).map_err(|source| io_error(&rows, source))
    }

    /// Reads a whole run and checks that the rows are those of the manifest.
    ///
    /// # Errors
    ///
    /// [`FolderError`] names the file that is missing, wrong or another run's.
    pub fn open(&self) -> Result<Run, FolderError> {
        let manifest = Manifest::read(&self.manifest())?;
        let rows = self.rows();
        let found = sha256(&rows).map_err(|source| io_error(&rows, source))?;
        let expected = &manifest.artifact.rows_sha256;
        if found != *expected {
            let expected = expected.clone();
            return Err(FolderError::OtherRows {
                path: rows,
                expected,
                found,
            });
        }
        let records = record::read(&rows)?;
        Ok(Run { manifest, records })
    }
}

/// The folders in a folder, with numbers in their names in the order of numbers.
///
/// # Errors
///
/// [`FolderError::Io`] when it cannot be read.
pub fn folders_in(path: &Path) -> Result<Vec<PathBuf>, FolderError> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|source| io_error(path, source))? {
        let entry = entry.map_err(|source| io_error(path, source))?.path();
        if entry.is_dir() {
            folders.push(entry);
        }
    }
    let name = |folder: &PathBuf| {
        folder
            .file_name()
            .map(|name| natural(&name.to_string_lossy()))
    };
    folders.sort_by_key(name);
    Ok(folders)
}

/// The words and numbers of a name, in turn.
fn natural(name: &str) -> Vec<(String, u64)> {
    let is_digit = |letter: &char| letter.is_ascii_digit();
    let letters = name.chars().collect::<Vec<_>>();
    let runs = letters.chunk_by(|a, b| is_digit(a) == is_digit(b));
    let runs = runs.map(|run| {
        let text = run.iter().collect::<String>();
        // What is no number, or too large a one, is a word.
        text.parse()
            .map_or_else(|_| (text.clone(), 0), |number| (String::new(), number))
    });
    runs.collect()
}

fn io_error(path: &Path, source: io::Error) -> FolderError {
    FolderError::Io {
        path: path.to_owned(),
        source,
    }
}

/// The SHA-256 of a file, in hexadecimal.
///
/// # Errors
///
/// What the operating system says.
pub fn sha256(path: &Path) -> io::Result<String> {
    let mut file = BufReader::new(File::open(path)?);
    let (mut hash, mut buffer) = (Sha256::new(), [0; 16_384]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::manifest::tests::example;

    #[test]
    fn numbers_in_names_count() {
        let mut names = ["rate-10", "rate-2", "a", "rate-2.5", "10", "9"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["9", "10", "a", "rate-2", "rate-2.5", "rate-10"]);
    }

    #[test]
    fn a_run_is_read_back_and_never_written_over_or_mixed_up() {
        let path = std::env::temp_dir().join(format!("run-folder-{}", std::process::id()));
        let folder = RunFolder::at(&path);
        let mut rows = folder.create().unwrap();
        rows.write(&Record::not_sent(0, 5)).unwrap();
        let mut manifest = example();
        (manifest.artifact.rows, manifest.artifact.rows_sha256) = rows.finish().unwrap();
        manifest.write(&folder.manifest()).unwrap();

        let run = folder.open().unwrap();
        assert_eq!(run.manifest, manifest);
        assert_eq!(run.records, [Record::not_sent(0, 5)]);
        assert!(matches!(folder.create(), Err(FolderError::Taken(_))));

        let text = std::fs::read_to_string(folder.rows()).unwrap();
        std::fs::write(folder.rows(), text.replace("5", "6")).unwrap();
        assert!(matches!(folder.open(), Err(FolderError::OtherRows { .. })));
        std::fs::remove_dir_all(path).unwrap();
    }
}
