//! The files that a specification names: found, read once, hashed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::WorkloadError;
use crate::hex::hex;
use crate::workload::spec::{Arrivals, Lengths, Spec};

/// Files below the folder of the specification.
pub(super) struct Files {
    folder: PathBuf,
    sha256: BTreeMap<String, String>,
}

impl Files {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            sha256: BTreeMap::new(),
        }
    }

    /// Where a file lies.
    pub(super) fn path(&self, name: &Path) -> PathBuf {
        self.folder.join(name)
    }

    /// The text of a file.
    pub(super) fn read(&mut self, name: &Path) -> Result<String, WorkloadError> {
        let path = self.path(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let sha256 = hex(&Sha256::digest(text.as_bytes()));
                self.sha256.insert(name.display().to_string(), sha256);
                Ok(text)
            }
            Err(source) => Err(WorkloadError::Io { file: path, source }),
        }
    }

    /// The hash of each file that was read.
    pub(super) fn sha256(self) -> BTreeMap<String, String> {
        self.sha256
    }

    /// Replaces every column of a file by its values.
    pub(super) fn resolve(&mut self, spec: &mut Spec) -> Result<(), WorkloadError> {
        let mut all = Vec::new();
        if let Arrivals::Closed { think_ms, .. } = &mut spec.arrivals {
            all.extend(think_ms);
        }
        for set in &mut spec.prompts {
            all.extend(&mut set.tokens);
            all.push(&mut set.output_tokens);
            let turns = set.conversation.iter_mut();
            all.extend(
                turns
                    .flat_map(|turns| [&mut turns.turns, &mut turns.think_ms])
                    .flatten(),
            );
        }
        for cancel in spec
            .classes
            .iter_mut()
            .filter_map(|class| class.cancel.as_mut())
        {
            all.extend(cancel.after_ms.iter_mut().chain(&mut cancel.after_tokens));
        }
        for lengths in all {
            if let Lengths::EmpiricalCsv { file, column } = lengths {
                *lengths = Lengths::Empirical(self.column(&file.clone(), &column.clone())?);
            }
        }
        Ok(())
    }

    /// The numbers in a column of a CSV file.
    fn column(&mut self, file: &Path, column: &str) -> Result<Vec<u32>, WorkloadError> {
        let text = self.read(file)?;
        let path = self.path(file);
        let mut lines = (1..).zip(text.lines());
        let header = lines.next().map_or("", |(_, header)| header);
        let names = header.split(',').map(str::trim).collect::<Vec<_>>();
        let place = names
            .iter()
            .position(|name| *name == column)
            .ok_or_else(|| {
                let cause = format!("no column {column:?}; accepted is one of {names:?}");
                WorkloadError::Line {
                    file: path.clone(),
                    line: 1,
                    cause,
                }
            })?;
        let filled = lines.filter(|(_, line)| !line.trim().is_empty());
        let values = filled.map(|(line, text)| {
            let cell = text.split(',').nth(place).unwrap_or_default().trim();
            cell.parse::<u32>()
                .ok()
                .filter(|value| *value > 0)
                .ok_or_else(|| {
                    let cause = format!("{column} is {cell:?}; accepted is a whole number from 1");
                    WorkloadError::Line {
                        file: path.clone(),
                        line,
                        cause,
                    }
                })
        });
        let values = values.collect::<Result<Vec<_>, _>>()?;
        match values.is_empty() {
            true => Err(WorkloadError::Empty {
                file: path,
                cause: format!("no value of {column:?}"),
            }),
            false => Ok(values),
        }
    }
}

/// Whether the specification has been resolved: nothing is drawn from a file any more.
#[cfg(test)]
pub(super) fn is_resolved(spec: &Spec) -> bool {
    let cancels = spec
        .classes
        .iter()
        .filter_map(|class| class.cancel.as_ref()?.after());
    let cancels = cancels.map(|after| match after {
        crate::workload::spec::CancelAfter::Millis(lengths)
        | crate::workload::spec::CancelAfter::Tokens(lengths) => lengths,
    });
    let sets = spec
        .prompts
        .iter()
        .flat_map(|set| set.tokens.iter().chain([&set.output_tokens]));
    sets.chain(cancels)
        .all(|lengths| !matches!(lengths, Lengths::EmpiricalCsv { .. }))
}
