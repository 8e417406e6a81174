//! The process between this server and an engine that it starts: the same program in another role. It does
//! nothing but see that nothing of the engine outlives the server.
//!
//! ```text
//! serve --pipe--> monitor --> stage, which becomes the engine --> whatever the engine starts
//! ```
//!
//! - The server holds the other end of the monitor's stdin. When the server ends, in whatever way, `kill -9` included,
//!   the pipe closes, and the monitor kills the engine and all that has come of it.
//! - The engine is a process group of its own, which is killed as one; the monitor adopts what leaves the group
//!   (`PR_SET_CHILD_SUBREAPER`), and kills that one by one.
//! - The stage asks for SIGKILL when the monitor dies (`PR_SET_PDEATHSIG`), and then becomes the engine.
//!
//! Both roles are ways of starting this program, as none of this can be done between fork and exec without `unsafe`.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::processes;

/// The first argument of the monitor, and of the stage before the engine.
pub(super) const MONITOR: &str = "__engine-monitor";
const STAGE: &str = "__engine-stage";

/// What the server writes to have the engine end by itself.
pub(super) const END: u8 = b'e';

/// The exit code of a command that cannot be run, as in a shell.
const NO_COMMAND: i32 = 127;

/// Plays its role if the program has been started for one, and returns the exit code then.
pub fn engine_role(mut arguments: impl Iterator<Item = OsString>) -> Option<i32> {
    let role = arguments.nth(1)?;
    let command: Vec<OsString> = arguments.collect();
    match role.to_str()? {
        MONITOR => Some(monitor(&command)),
        STAGE => Some(stage(&command)),
        _ => None,
    }
}

/// A command line that starts `command` behind a monitor.
pub(super) fn monitored(command: &[String]) -> io::Result<Command> {
    let mut monitor = own_program()?;
    monitor.arg(MONITOR).args(command);
    // A Ctrl-C on the terminal is for the server, which ends the engine in its own time.
    monitor.process_group(0).stdin(Stdio::piped());
    // An engine may be this very program, and these are not meant for it; the engine's key is among them.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SERVE_") {
            monitor.env_remove(name);
        }
    }
    Ok(monitor)
}

/// This program, also where its file has been replaced by another version since it was started.
fn own_program() -> io::Result<Command> {
    let path = match cfg!(target_os = "linux") {
        true => "/proc/self/exe".into(),
        false => std::env::current_exe()?,
    };
    let mut program = Command::new(path);
    program.arg0("serve");
    Ok(program)
}

fn monitor(command: &[OsString]) -> i32 {
    let own = rustix::process::getpid();
    // Without it, what has left the group is the system's; all else holds.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(own));
    // Who ends a whole group or control group means the server, which ends the engine in its own time. An engine
    // does not inherit this.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
    let mut engine = match start(command) {
        Ok(engine) => engine,
        Err(error) => return told(command, &error),
    };
    let group = Pid::from_child(&engine);
    thread::spawn(move || obey(group));
    let code = engine.wait().map_or(1, |status| {
        let by_signal = status.signal().map(|signal| 128 + signal);
        status.code().or(by_signal).unwrap_or(1)
    });
    // Its leader is gone: nobody of the rest is of use to anybody.
    let _ = kill_process_group(group, Signal::KILL);
    bury(own);
    code
}

fn start(command: &[OsString]) -> io::Result<Child> {
    own_program()?
        .arg(STAGE)
        .args(command)
        .process_group(0)
        .stdin(Stdio::null())
        .spawn()
}

/// Does what the server says: ends the engine when told to, kills it when the server is gone.
fn obey(group: Pid) {
    let mut word = [0];
    loop {
        match io::stdin().read(&mut word) {
            Ok(1) if word[0] == END => {
                let _ = kill_process_group(group, Signal::TERM);
            }
            Ok(1) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    let _ = kill_process_group(group, Signal::KILL);
}

/// Kills what the engine has left behind, until nothing is left. What one of them leaves behind comes here too.
fn bury(own: Pid) {
    loop {
        for orphan in processes::children(own) {
            let _ = kill_process(orphan, Signal::KILL);
        }
        // Nobody left to wait for is an error.
        if rustix::process::wait(WaitOptions::empty()).is_err() {
            return;
        }
    }
}

fn stage(command: &[OsString]) -> i32 {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let Some((program, arguments)) = command.split_first() else {
        return NO_COMMAND;
    };
    // It returns only if it fails.
    let error = Command::new(program).args(arguments).exec();
    told(command, &error)
}

#[expect(
    clippy::print_stderr,
    reason = "the server logs what the engine writes to stderr"
)]
fn told(command: &[OsString], error: &io::Error) -> i32 {
    let program = command.first().map(|program| program.to_string_lossy());
    eprintln!("{} cannot be run: {error}", program.unwrap_or_default());
    NO_COMMAND
}
