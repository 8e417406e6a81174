//! The files of a model's folder: plain files of a bounded size, or refused by name.
//!
//! A folder may come from a stranger. A pipe would be waited for, a device read without end, and a text
//! file of any length held in memory, so none of them is opened or read.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use thiserror::Error;

/// Bytes of a JSON file or of a chat template at most. The largest in use, which list thousands of added
/// tokens, have one or two million.
pub const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Bytes of `tokenizer.json`, and of the index of a sharded checkpoint, at most. The largest vocabularies in
/// use take some 35 million.
pub const VOCABULARY_BYTES_MAX: u64 = 128 << 20;

/// Why a file is not read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
enum Refused {
    /// Nothing that ends is behind such a name.
    #[error("it is {0}; a file is needed")]
    Special(&'static str),
    /// A text that no model has.
    #[error("it has {found} bytes; at most {max} are read")]
    TooLarge { found: u64, max: u64 },
    /// It has no end, whatever its length is said to be.
    #[error("it has more than {max} bytes; no more are read")]
    Endless { max: u64 },
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        Self::new(io::ErrorKind::InvalidData, refused)
    }
}

/// Opens a plain file, and says how many bytes it has.
///
/// # Errors
///
/// The system's, and one that says what the file is where it is a folder, pipe, socket or device.
pub(crate) fn open(path: &Path) -> io::Result<(File, u64)> {
    // Asked before it is opened: that alone waits for a pipe's other end, and moves a tape.
    plain(&std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    plain(&metadata)?;
    Ok((file, metadata.len()))
}

/// The text of a plain file of at most `max` bytes, without a byte order mark.
///
/// # Errors
///
/// As [`open`], and where it is longer or no UTF-8.
pub(crate) fn read_text(path: &Path, max: u64) -> io::Result<String> {
    let (file, found) = open(path)?;
    if found > max {
        return Err(Refused::TooLarge { found, max }.into());
    }
    let mut text = String::new();
    // A file that grows meanwhile, or whose length the system does not know.
    file.take(max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > max {
        return Err(Refused::Endless { max }.into());
    }
    match text.strip_prefix('\u{feff}') {
        Some(rest) => Ok(rest.to_owned()),
        None => Ok(text),
    }
}

fn plain(metadata: &Metadata) -> Result<(), Refused> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(Refused::Special(kind(metadata))),
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        let found = metadata.file_type();
        let kinds = [
            (found.is_fifo(), "a pipe (FIFO)"),
            (found.is_socket(), "a socket"),
            (found.is_char_device(), "a character device"),
            (found.is_block_device(), "a block device"),
        ];
        if let Some((_, name)) = kinds.into_iter().find(|(is, _)| *is) {
            return name;
        }
    }
    match metadata.is_dir() {
        true => "a folder",
        false => "no plain file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("serve-model-plain-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_text_is_read_up_to_its_bound_and_without_its_mark() {
        let path = scratch("text");
        std::fs::write(&path, "\u{feff}{}").unwrap();
        let whole = read_text(&path, 5);
        let cut = read_text(&path, 4);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(whole.unwrap(), "{}");
        assert_eq!(
            cut.unwrap_err().to_string(),
            "it has 5 bytes; at most 4 are read"
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_no_plain_file_is_named_and_not_opened() {
        let message = |path: &Path| read_text(path, 9).unwrap_err().to_string();
        assert_eq!(
            message(Path::new("/dev/zero")),
            "it is a character device; a file is needed"
        );
        assert_eq!(
            message(&std::env::temp_dir()),
            "it is a folder; a file is needed"
        );
        let path = scratch("socket");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let found = message(&path);
        drop(socket);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found, "it is a socket; a file is needed");
        // A plain file, whose length the system gives as 0.
        assert_eq!(
            message(Path::new("/proc/self/status")),
            "it has more than 9 bytes; no more are read"
        );
    }
}
