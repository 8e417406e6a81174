//! What Linux tells of a process: its memory.

use std::fs;

/// MiB that this process has resident; `None` where the system does not say.
pub fn resident_mib() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1_024.0)
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_that_runs_has_memory() {
        assert!(super::resident_mib().unwrap() > 0.5);
    }
}
