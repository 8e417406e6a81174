//! Who is whose child, and who listens on a port, as `/proc` tells it. Elsewhere than on Linux nothing is known.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::Pid;

/// The state of a socket that listens, in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// The children of a process that live now.
pub(super) fn children(parent: Pid) -> Vec<Pid> {
    let parents = parents().into_iter();
    let own = parents.filter(|&(_, of)| of == parent.as_raw_pid());
    own.filter_map(|(child, _)| Pid::from_raw(child)).collect()
}

/// Whether it is a process of the family of `ancestor` that listens on a port of this machine, and nobody else.
///
/// # Errors
///
/// Why not, in words.
pub(super) fn listens(ancestor: u32, port: u16) -> Result<(), String> {
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    let sockets = listening(port);
    if sockets.is_empty() {
        return Err(format!("nothing listens on port {port} yet"));
    }
    let held: BTreeSet<u64> = family(ancestor).into_iter().flat_map(sockets_of).collect();
    match sockets.iter().all(|socket| held.contains(socket)) {
        true => Ok(()),
        false => Err(format!("it is another process that listens on port {port}")),
    }
}

fn family(ancestor: u32) -> BTreeSet<i32> {
    let parents = parents();
    let Ok(ancestor) = i32::try_from(ancestor) else {
        return BTreeSet::new();
    };
    let is_of_it = |&process: &i32| {
        let mut at = process;
        // A family is no deeper than there are processes.
        for _ in 0..parents.len() {
            match parents.get(&at) {
                _ if at == ancestor => return true,
                Some(&parent) => at = parent,
                None => return false,
            }
        }
        false
    };
    parents.keys().copied().filter(is_of_it).collect()
}

/// Each process and its parent.
fn parents() -> BTreeMap<i32, i32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parent = |entry: fs::DirEntry| {
        let process: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name before may hold anything, a bracket too.
        let (_, rest) = stat.rsplit_once(')')?;
        let parent = rest.split_ascii_whitespace().nth(1)?;
        Some((process, parent.parse().ok()?))
    };
    processes.filter_map(parent).collect()
}

/// The sockets that listen on a port, by inode.
fn listening(port: u16) -> BTreeSet<u64> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let texts = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok());
    let found = texts.flat_map(|text| {
        text.lines()
            .filter_map(|line| listener(line, port))
            .collect::<Vec<_>>()
    });
    found.collect()
}

fn listener(line: &str, port: u16) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let (_, own) = fields.nth(1)?.rsplit_once(':')?;
    let state = fields.nth(1)?;
    let inode = fields.nth(5)?;
    let is_it = u16::from_str_radix(own, 16) == Ok(port) && state == LISTENING;
    is_it.then(|| inode.parse().ok()).flatten()
}

fn sockets_of(process: i32) -> Vec<u64> {
    let files = fs::read_dir(format!("/proc/{process}/fd"));
    let files = files.into_iter().flatten().flatten();
    let socket = |file: fs::DirEntry| {
        let link = fs::read_link(file.path()).ok()?;
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        inode.parse().ok()
    };
    files.filter_map(socket).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::TcpListener;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_listener_is_known_by_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(listens(std::process::id(), port), Ok(()));
        // Ours is not that of a child.
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let said = listens(child.id(), port).unwrap_err();
        assert!(said.contains("another process"), "{said}");
        let child_id = Pid::from_child(&child);
        assert!(children(rustix::process::getpid()).contains(&child_id));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children(rustix::process::getpid()).contains(&child_id));
        drop(listener);
        let said = listens(std::process::id(), port).unwrap_err();
        assert!(said.contains("nothing listens"), "{said}");
    }
}
