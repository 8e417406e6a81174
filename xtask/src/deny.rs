//! What the workspace depends on, held against `deny.toml` by cargo-deny. It is not a dependency of this program: where
//! it is not installed, or has no database to look into, a check is skipped, and says what it lacks.

use std::fmt;
use std::path::PathBuf;

use crate::cargo::{self, NoCargo};

/// What of `deny.toml` is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Licences, where crates come from, and which are there in two versions.
    Rules,
    /// Known holes, and crates that nobody maintains, as far as the database on this disk knows.
    Advisories,
}

/// What a check lacks on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacks {
    /// The program.
    CargoDeny,
    /// The database of RustSec, which comes from GitHub.
    Database,
}

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CargoDeny => "cargo-deny is not installed (cargo install cargo-deny --locked)",
            Self::Database => "there is no advisory database on this disk (cargo deny fetch db)",
        })
    }
}

impl Check {
    /// The command line. Neither check asks for anything but crates that are missing here.
    pub(crate) const fn args(self) -> &'static [&'static str] {
        match self {
            Self::Rules => &["deny", "--locked", "check", "licenses", "sources", "bans"],
            Self::Advisories => &["deny", "--frozen", "check", "advisories"],
        }
    }

    /// What is missing for it, if anything is.
    pub(crate) fn lacks(self) -> Option<Lacks> {
        let version = cargo::command(&["deny", "--version"]).output();
        if !version.is_ok_and(|output| output.status.success()) {
            return Some(Lacks::CargoDeny);
        }
        let database = databases().is_some_and(|folder| {
            let entries = std::fs::read_dir(folder);
            entries.is_ok_and(|mut entries| {
                entries.any(|entry| entry.is_ok_and(|it| it.path().is_dir()))
            })
        });
        (self == Self::Advisories && !database).then_some(Lacks::Database)
    }

    /// Runs it; whether it passed.
    pub(crate) fn run(self) -> Result<bool, NoCargo> {
        Ok(cargo::status(&mut cargo::command(self.args()))?.success())
    }
}

/// Where cargo-deny keeps databases.
fn databases() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")))?;
    Some(home.join("advisory-dbs"))
}
