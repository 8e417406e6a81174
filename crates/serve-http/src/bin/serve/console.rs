//! What a person reads on the terminal, and what a log shipper reads: the banner, progress, errors and
//! the log.
//!
//! Nobody here writes to stdout or stderr by himself. A pipe whose reader stalls blocks who writes to it,
//! and one whose reader has gone fails him; so threads of their own write, lines wait for them up to a
//! bound, and what does not fit or cannot be written is lost and counted. Nothing else happens.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serve_http::LinesLost;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

/// Lines that wait to be written at most.
const LINES_MAX: usize = 4_096;

/// Bytes of a line at most, so that what waits is bounded: 32 MiB. A longer one is cut.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Where messages go.
#[derive(Clone, Debug)]
pub(crate) struct Console {
    stdout: NonBlocking,
    stderr: NonBlocking,
    /// Lines that the system would not take.
    refused: Arc<AtomicU64>,
    /// Whether a line must be an object, as those of the log are.
    json: Arc<AtomicBool>,
}

/// Writes what still waits when it is dropped, if that takes no longer than about a second.
pub(crate) struct Flush {
    _stdout: WorkerGuard,
    _stderr: WorkerGuard,
}

impl Console {
    /// Starts the threads that write.
    ///
    /// # Errors
    ///
    /// Where stdout or stderr is closed.
    pub(crate) fn start() -> io::Result<(Self, Flush)> {
        let refused = Arc::new(AtomicU64::new(0));
        // Files of their own: a thread that is stuck in a write holds the lock of `io::stderr`.
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let (stdout, stdout_guard) = writer("stdout", stdout, &refused);
        let (stderr, stderr_guard) = writer("stderr", stderr, &refused);
        let console = Self {
            stdout,
            stderr,
            refused,
            json: Arc::default(),
        };
        let flush = Flush {
            _stdout: stdout_guard,
            _stderr: stderr_guard,
        };
        Ok((console, flush))
    }

    /// From now on all lines are written through the log, because a program reads them as objects.
    pub(crate) fn speak_json(&self) {
        self.json.store(true, Ordering::Relaxed);
    }

    /// One line of progress.
    pub(crate) fn line(&self, text: &str) {
        match self.json.load(Ordering::Relaxed) {
            true => tracing::info!("{text}"),
            false => self.tell(&format!("serve: {text}\n")),
        }
    }

    pub(crate) fn error(&self, error: &dyn Display) {
        match self.json.load(Ordering::Relaxed) {
            true => tracing::error!("{error}"),
            false => self.tell(&format!("serve: error: {error}\n")),
        }
    }

    /// What a program that has started this may read.
    pub(crate) fn print(&self, text: &str) {
        // It only puts the text into the queue and cannot fail.
        let _ = self.stdout.clone().write_all(text.as_bytes());
    }

    fn tell(&self, text: &str) {
        let _ = self.stderr.clone().write_all(text.as_bytes());
    }

    /// The writer of log lines.
    pub(crate) fn log(&self) -> Cut {
        Cut(self.clone())
    }

    /// Whether a person reads stderr.
    pub(crate) fn is_terminal() -> bool {
        io::stderr().is_terminal()
    }

    /// Tells of panics here as well: the usual way waits for a reader that may be stuck.
    pub(crate) fn report_panics(&self) {
        let console = self.clone();
        panic::set_hook(Box::new(move |panic| {
            let backtrace = std::backtrace::Backtrace::capture();
            let thread = std::thread::current();
            let thread = thread.name().unwrap_or("a thread").to_owned();
            console.error(&format!("{thread} {panic}\n{backtrace}"));
        }));
    }

    /// How many lines were lost, now and later.
    pub(crate) fn lines_lost(&self) -> LinesLost {
        let Self {
            stdout,
            stderr,
            refused,
            ..
        } = self;
        let dropped = [stdout.error_counter(), stderr.error_counter()];
        let refused = Arc::clone(refused);
        LinesLost::new(move || {
            let dropped = dropped.iter().map(|counter| counter.dropped_lines() as u64);
            dropped.sum::<u64>() + refused.load(Ordering::Relaxed)
        })
    }
}

fn writer(name: &str, file: File, refused: &Arc<AtomicU64>) -> (NonBlocking, WorkerGuard) {
    let file = Tolerant {
        file,
        refused: Arc::clone(refused),
    };
    NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES_MAX)
        .thread_name(name)
        .finish(file)
}

/// A file that takes everything: what it cannot write is counted.
struct Tolerant {
    file: File,
    refused: Arc<AtomicU64>,
}

impl Write for Tolerant {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.file.write_all(text).is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer of lines that cuts long ones, or loses them where half a line is none.
pub(crate) struct Cut(Console);

impl Write for Cut {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let Console {
            stderr,
            refused,
            json,
            ..
        } = &mut self.0;
        if text.len() <= LINE_BYTES_MAX {
            return stderr.write(text);
        }
        if json.load(Ordering::Relaxed) {
            // Half an object is none.
            refused.fetch_add(1, Ordering::Relaxed);
            return Ok(text.len());
        }
        let mut line = text[..LINE_BYTES_MAX].to_vec();
        line.extend_from_slice(b"...\n");
        stderr.write_all(&line)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that nothing can be written to stands for a full disk.
    #[test]
    fn what_cannot_be_written_is_counted_and_no_error() {
        let refused = Arc::new(AtomicU64::new(0));
        let file = File::options().write(true).open("/dev/full").unwrap();
        let (mut writer, guard) = writer("test", file, &refused);
        for _ in 0..3 {
            writer.write_all(b"a line\n").unwrap();
        }
        drop(guard);
        assert_eq!(refused.load(Ordering::Relaxed), 3);
    }

    /// A line of a megabyte, as it is written, and how many lines were lost.
    fn long_line(json: bool) -> (Vec<u8>, u64) {
        let name = format!("serve-console-{}-{json}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::create(&path).unwrap();
        let refused = Arc::default();
        let (stderr, guard) = writer("test", file, &refused);
        let console = Console {
            stdout: stderr.clone(),
            stderr,
            refused: Arc::clone(&refused),
            json: Arc::new(json.into()),
        };
        console.log().write_all(&vec![b'x'; 1 << 20]).unwrap();
        drop(guard);
        let written = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (written, refused.load(Ordering::Relaxed))
    }

    #[test]
    fn a_line_without_an_end_is_cut() {
        let (written, lost) = long_line(false);
        assert_eq!((written.len(), lost), (LINE_BYTES_MAX + 4, 0));
        assert!(written.ends_with(b"x...\n"));
    }

    #[test]
    fn half_an_object_is_not_written() {
        assert_eq!(long_line(true), (Vec::new(), 1));
    }
}
