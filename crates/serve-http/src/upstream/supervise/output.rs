//! What an engine writes, as lines of this server's log. It is read whatever comes: an engine whose pipe is full
//! stands still.

use std::io::Read;
use std::thread;

use tracing::info;

/// Bytes of one line at most; a longer one is cut into several.
const LINE_BYTES_MAX: usize = 4 << 10;

/// Reads a pipe to its end on a thread of its own.
///
/// # Errors
///
/// Where the system refuses a thread.
pub(super) fn log(name: &str, mut pipe: impl Read + Send + 'static) -> std::io::Result<()> {
    let read = move || {
        let mut lines = Lines::default();
        let mut buffer = vec![0; 16 << 10];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => lines.take_in(
                    &buffer[..read],
                    |line| info!(target: "engine", "engine: {line}"),
                ),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        lines.end(|line| info!(target: "engine", "engine: {line}"));
    };
    let thread = thread::Builder::new().name(format!("engine {name}"));
    thread.spawn(read).map(drop)
}

/// Bytes as lines. A progress bar that goes back to the beginning of its line is lines too.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn take_in(&mut self, bytes: &[u8], mut line: impl FnMut(&str)) {
        for &byte in bytes {
            if byte == b'\n' || byte == b'\r' {
                self.end(&mut line);
                continue;
            }
            self.0.push(byte);
            if self.0.len() == LINE_BYTES_MAX {
                self.end(&mut line);
            }
        }
    }

    /// What has no end yet is a line.
    fn end(&mut self, mut line: impl FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.0);
        let text = text.trim_end();
        if !text.is_empty() {
            line(text);
        }
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_same_however_they_come_and_none_is_without_bounds() {
        let text = format!(
            "one\r\ntwo\n\n 50%\r100%\r{}\nlast",
            "x".repeat(2 * LINE_BYTES_MAX)
        );
        let lines = |size: usize| {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            for part in text.as_bytes().chunks(size) {
                lines.take_in(part, |line| seen.push(line.to_owned()));
            }
            lines.end(|line| seen.push(line.to_owned()));
            seen
        };
        let long = "x".repeat(LINE_BYTES_MAX);
        assert_eq!(
            lines(usize::MAX),
            ["one", "two", " 50%", "100%", &long, &long, "last"]
        );
        for size in [1, 2, 7, 4_096] {
            assert_eq!(lines(size), lines(usize::MAX));
        }
    }
}
