//! The folder of a benchmark: one file for each stage that ended, so that a run can be resumed; rows and
//! manifest of all of them.
//!
//! ```text
//! manifest.json      what was run, on what, with which programs
//! rows.jsonl         every number: stage, name, value, unit, model
//! report.md          the same, to read
//! stages/NAME.json   how a stage ended, with its rows
//! stages/NAME.log    what its programs printed
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use serve_bench::figure::Figure;
use thiserror::Error;

/// How a stage ended.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// Everything in it was done.
    Passed,
    /// Everything in it was done, and what came of it must not be quoted without the cause.
    Reserved,
    /// The budget ended within it; what was measured is kept, and the rest is for another run.
    Unfinished,
    /// Something went wrong.
    Failed,
    /// It cannot be done here, which is no fault: the peer is not installed.
    Absent,
}

impl Status {
    /// Whether another run has nothing to add.
    pub(crate) fn is_done(self) -> bool {
        matches!(self, Self::Passed | Self::Reserved | Self::Absent)
    }
}

/// What is kept of a stage.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Record {
    /// How it ended.
    pub(crate) status: Status,
    /// Why it did not simply pass.
    pub(crate) cause: Option<String>,
    /// How long it took.
    pub(crate) seconds: f64,
    /// What it measured.
    pub(crate) rows: Vec<Figure>,
}

/// The folder cannot be used.
#[derive(Debug, Error)]
pub(crate) enum FolderError {
    /// The file system says no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A file of an earlier run cannot be read.
    #[error("{}: {source}; delete it to run its stage again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The parser's answer.
        source: serde_json::Error,
    },
    /// Numbers of two runs would be mixed.
    #[error(
        "{} holds a run whose {key} is {found}, and {asked} is asked for; resume with the same options or \
         choose another --out", path.display()
    )]
    Other {
        /// The folder.
        path: PathBuf,
        /// The first part of the plan that differs.
        key: String,
        /// What the folder says, as JSON.
        found: String,
        /// What is asked for, as JSON.
        asked: String,
    },
}

/// A benchmark's folder.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Makes the folder, or opens that of an earlier run of the same plan. `manifest` has what
    /// identifies the run under `plan`.
    pub(crate) fn open(root: &Path, manifest: &Value) -> Result<Self, FolderError> {
        let folder = Self {
            root: root.to_owned(),
        };
        let stages = root.join("stages");
        fs::create_dir_all(&stages).map_err(io_error(&stages))?;
        let path = root.join("manifest.json");
        if let Some(earlier) = folder.read::<Value>(&path)? {
            let asked = manifest["plan"].as_object().into_iter().flatten();
            let differs = asked
                .into_iter()
                .find(|(key, asked)| earlier["plan"][*key] != **asked);
            if let Some((key, asked)) = differs {
                return Err(FolderError::Other {
                    path: root.to_owned(),
                    key: key.clone(),
                    found: earlier["plan"][key].to_string(),
                    asked: asked.to_string(),
                });
            }
            return Ok(folder);
        }
        folder.write(&path, &format!("{manifest:#}\n"))?;
        Ok(folder)
    }

    /// Where a stage's own files go.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// What an earlier run, or this one, keeps of a stage.
    pub(crate) fn record(&self, stage: &str) -> Result<Option<Record>, FolderError> {
        self.read(&self.record_path(stage))
    }

    /// Keeps what a stage came to. It is whole or not there: it takes its name when it is written.
    pub(crate) fn keep(&self, stage: &str, record: &Record) -> Result<(), FolderError> {
        self.write(&self.record_path(stage), &format!("{:#}\n", json!(record)))
    }

    /// Writes the rows of all stages, in the given order.
    pub(crate) fn write_rows(&self, stages: &[&str]) -> Result<(), FolderError> {
        let mut text = String::new();
        for stage in stages {
            for row in self
                .record(stage)?
                .map_or_else(Vec::new, |record| record.rows)
            {
                let mut line = json!({ "stage": stage });
                if let (Some(line), Value::Object(row)) = (line.as_object_mut(), json!(row)) {
                    line.extend(row);
                }
                text.push_str(&format!("{line}\n"));
            }
        }
        self.write(&self.path("rows.jsonl"), &text)
    }

    /// Writes a file of the folder.
    pub(crate) fn write(&self, path: &Path, text: &str) -> Result<(), FolderError> {
        let partial = path.with_extension("partial");
        fs::write(&partial, text).map_err(io_error(&partial))?;
        fs::rename(&partial, path).map_err(io_error(path))
    }

    fn record_path(&self, stage: &str) -> PathBuf {
        self.root.join("stages").join(format!("{stage}.json"))
    }

    fn read<T: serde::de::DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, FolderError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(path)(error)),
        };
        let value = serde_json::from_str(&text).map_err(|source| FolderError::Damaged {
            path: path.to_owned(),
            source,
        })?;
        Ok(Some(value))
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> FolderError + use<> {
    let path = path.to_owned();
    move |source| FolderError::Io { path, source }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A folder that is gone at the end of the test.
    pub(in crate::gpu_bench) struct Scratch(pub(in crate::gpu_bench) PathBuf);

    impl Scratch {
        pub(in crate::gpu_bench) fn new(name: &str) -> Self {
            let name = format!("gpu-bench-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_record_survives_and_rows_of_all_stages_are_one_file() {
        let scratch = Scratch::new("record");
        let folder = Folder::open(&scratch.0, &json!({"plan": {}})).unwrap();
        assert_eq!(folder.record("steps").unwrap(), None);
        let record = Record {
            status: Status::Passed,
            cause: None,
            seconds: 2.0,
            rows: vec![Figure::new("a", 1.0, "ms"), Figure::new("b", 2.0, "ms")],
        };
        folder.keep("steps", &record).unwrap();
        assert_eq!(folder.record("steps").unwrap(), Some(record));
        folder.write_rows(&["request", "steps"]).unwrap();
        let text = fs::read_to_string(scratch.0.join("rows.jsonl")).unwrap();
        let first = "{\"stage\":\"steps\",\"name\":\"a\",\"value\":1.0,\"unit\":\"ms\"}";
        assert_eq!(text.lines().next(), Some(first));
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn another_plan_is_refused_and_the_same_one_resumed() {
        let scratch = Scratch::new("plan");
        let plan = |models: &str| json!({"plan": {"device": "cuda", "models": models}});
        Folder::open(&scratch.0, &plan("a")).unwrap();
        Folder::open(&scratch.0, &plan("a")).unwrap();
        let error = Folder::open(&scratch.0, &plan("b"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("models is \"a\", and \"b\" is asked for"),
            "{error}"
        );
    }

    #[test]
    fn a_damaged_record_names_its_file() {
        let scratch = Scratch::new("damaged");
        let folder = Folder::open(&scratch.0, &json!({"plan": {}})).unwrap();
        fs::write(scratch.0.join("stages/steps.json"), "{").unwrap();
        let error = folder.record("steps").unwrap_err().to_string();
        assert!(
            error.contains("steps.json") && error.contains("delete it"),
            "{error}"
        );
    }
}
