//! What Linux tells of a process: its memory and its processor time.

use std::fs;
use std::time::Duration;

/// Ticks of a second in which `/proc` counts processor time; the same on every Linux.
const TICKS_PER_S: u64 = 100;

/// MiB that this process has resident; `None` where the system does not say.
pub(crate) fn resident_mib() -> Option<f64> {
    status_mib(std::process::id(), "VmRSS:")
}

/// The most MiB that a process has ever had resident, also of files; `None` where the system does not say.
pub(crate) fn peak_resident_mib(pid: u32) -> Option<f64> {
    status_mib(pid, "VmHWM:")
}

/// A field of a process's status that is a size; `None` where the system does not say.
pub(crate) fn status_mib(pid: u32, field: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1_024.0)
}

/// Processor time that all threads of a process have used, its own and the kernel's for it; `None`
/// where the system does not say.
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may hold anything, also spaces and brackets.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 1_000 / TICKS_PER_S))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_runs_has_memory() {
        let resident = resident_mib().unwrap();
        assert!(resident > 0.5);
        assert!(peak_resident_mib(std::process::id()).unwrap() >= resident);
    }

    #[test]
    fn work_is_counted() {
        let pid = std::process::id();
        let before = cpu_time(pid).unwrap();
        let mut sum = 0_u64;
        while cpu_time(pid).unwrap() < before + Duration::from_millis(50) {
            sum = std::hint::black_box((0..100_000).fold(sum, u64::wrapping_add));
        }
    }
}
