//! Where things are: this program and those that were built with it, what is kept between runs, the repository.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Something is not where cargo puts it.
#[derive(Debug, Error)]
pub(crate) enum NoPlace {
    /// The system does not say where this program is.
    #[error("this program does not know where it is: {0}")]
    Own(#[from] io::Error),
    /// It was not built.
    #[error("{} holds no {name}; `cargo xtask` builds it before it starts this program", folder.display())]
    Absent {
        /// The program.
        name: &'static str,
        /// Where it should be.
        folder: PathBuf,
    },
}

/// This program.
pub(crate) fn own() -> Result<PathBuf, NoPlace> {
    Ok(env::current_exe()?)
}

/// The folder of this program.
pub(crate) fn own_folder() -> Result<PathBuf, NoPlace> {
    let own = own()?;
    Ok(own.parent().unwrap_or(Path::new(".")).to_owned())
}

/// A program beside this one.
pub(crate) fn beside(name: &'static str) -> Result<PathBuf, NoPlace> {
    let folder = own_folder()?;
    let program = folder.join(name);
    match program.is_file() {
        true => Ok(program),
        false => Err(NoPlace::Absent { name, folder }),
    }
}

/// The target folder, in which downloads, environments and results are kept: cargo puts this program into
/// the folder of its profile there.
pub(crate) fn target() -> Result<PathBuf, NoPlace> {
    let folder = own_folder()?;
    Ok(folder.parent().unwrap_or(Path::new(".")).to_owned())
}

/// The repository that this program was built from.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
