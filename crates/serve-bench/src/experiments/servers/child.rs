//! A process that is started for a measurement. It is killed when this is dropped, so that nothing which fails leaves
//! one behind. What it prints and what is read of that is up to its owner.

use std::io;
use std::process::{self, ChildStderr, ChildStdout, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// How often its end is looked for.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// A process that was started here.
#[derive(Debug)]
pub struct Child(process::Child);

impl Child {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// When the system does not.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// What it prints, where the command says that it is piped; once.
    pub fn output(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.0.stdout.take(), self.0.stderr.take())
    }

    /// Sends it a signal. One that has ended by itself gets none, and that is no fault.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// How it ended; `None` while it runs.
    ///
    /// # Errors
    ///
    /// When the system does not say.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Waits for its end; `None` when it still runs after `patience`.
    ///
    /// # Errors
    ///
    /// When the system does not say how it ended.
    pub fn wait(&mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let begin = Instant::now();
        loop {
            let ended = self.ended()?;
            if ended.is_some() || begin.elapsed() >= patience {
                return Ok(ended);
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only for one that has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The base address, `http://HOST:PORT`, in a line that a server prints.
pub fn address_in(line: &str) -> Option<&str> {
    let start = line.find("http://")?;
    let host = &line[start + "http://".len()..];
    let end = host.find(|c: char| !c.is_ascii_alphanumeric() && !".:[]-".contains(c));
    let host = host[..end.unwrap_or(host.len())].trim_end_matches(['.', ':']);
    let (_, port) = host.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    Some(&line[start..start + "http://".len() + host.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Child {
        Child::start(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn the_address_is_found_in_prose_and_in_a_command() {
        let address = Some("http://127.0.0.1:4312");
        assert_eq!(address_in("listening on http://127.0.0.1:4312"), address);
        assert_eq!(
            address_in("try: curl http://127.0.0.1:4312/v1/models -s"),
            address
        );
        assert_eq!(address_in("ready at http://127.0.0.1:4312."), address);
        assert_eq!(address_in("at http://[::1]:80/v1"), Some("http://[::1]:80"));
        assert_eq!(
            address_in("see https://example.org and http://example.org/x"),
            None
        );
    }

    #[test]
    fn an_end_is_told_once_it_is_there_and_again() {
        let mut child = shell("exit 3");
        let ended = child.wait(LONG).unwrap().unwrap();
        assert_eq!(ended.code(), Some(3));
        assert_eq!(child.ended().unwrap(), Some(ended));
        child.signal(Signal::TERM);
    }

    #[test]
    fn one_that_does_not_end_is_still_there_and_reacts_to_a_signal() {
        let mut child = shell("exec sleep 600");
        assert_eq!(child.wait(Duration::ZERO).unwrap(), None);
        child.signal(Signal::TERM);
        assert!(!child.wait(LONG).unwrap().unwrap().success());
    }

    #[test]
    fn a_dropped_one_has_gone() {
        let child = shell("exec sleep 600");
        let pid = Pid::from_raw(i32::try_from(child.pid()).unwrap()).unwrap();
        drop(child);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
