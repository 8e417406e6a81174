//! What the servers of a matrix said of themselves, kept beside the runs, so that a matrix which goes
//! on does not start them again to ask.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::MatrixError;
use crate::experiments::servers::{Difference, Effective, ServerSettings};

/// A pair of conditions and the one setting in which their servers differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Proof {
    /// The pair.
    pub pair: String,
    /// The setting, as both servers state it.
    pub difference: Difference,
}

/// What the measurement of a pair should have shown and did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NotShown {
    /// What should have been.
    pub what: String,
    /// What was.
    pub seen: String,
}

/// Settings asked for, and those that a server with them had.
#[derive(Debug)]
pub(super) struct Proofs {
    path: PathBuf,
    known: BTreeMap<ServerSettings, Effective>,
}

#[derive(Deserialize, Serialize)]
struct Line {
    asked: ServerSettings,
    effective: Effective,
}

impl Proofs {
    pub(super) fn read(out: &Path) -> Result<Self, MatrixError> {
        let path = out.join("proofs.jsonl");
        let text = match fs::read_to_string(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.map_err(|cause| failed(&path, cause))?,
        };
        let lines = text.lines().map(serde_json::from_str::<Line>);
        let known = lines.map(|line| line.map(|line| (line.asked, line.effective)));
        let known = known.collect::<Result<_, _>>();
        Ok(Self {
            known: known.map_err(|cause| failed(&path, cause.into()))?,
            path,
        })
    }

    pub(super) fn known(&self, asked: &ServerSettings) -> Option<Effective> {
        self.known.get(asked).cloned()
    }

    pub(super) fn keep(
        &mut self,
        asked: &ServerSettings,
        has: &Effective,
    ) -> Result<(), MatrixError> {
        self.known.insert(asked.clone(), has.clone());
        let lines = self.known.iter().map(|(asked, effective)| {
            let line = Line {
                asked: asked.clone(),
                effective: effective.clone(),
            };
            Ok(serde_json::to_string(&line)? + "\n")
        });
        let text = lines.collect::<io::Result<String>>();
        let written = text.and_then(|text| fs::write(&self.path, text));
        written.map_err(|cause| failed(&self.path, cause))
    }
}

fn failed(path: &Path, cause: io::Error) -> MatrixError {
    MatrixError::Proofs {
        path: path.to_owned(),
        cause,
    }
}
