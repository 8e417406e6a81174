//! The process itself, under the names that every client library of Prometheus uses for it.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

use super::text::{Kind, Text};

/// Writes memory, CPU time and descriptors; what the system does not tell is left out.
pub(super) fn write(text: &mut Text, started: f64) {
    if let Some(bytes) = resident_bytes() {
        text.gauge(
            "process_resident_memory_bytes",
            "Memory that is in use, in bytes",
            bytes,
        );
    }
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    let help = "CPU time of all threads, in seconds";
    let mut family = text.family(Kind::Counter, "process_cpu_seconds_total", help);
    family.sample(&[], cpu);
    if let Some(files) = open_files() {
        text.gauge("process_open_fds", "File descriptors that are open", files);
    }
    if let Ok((soft, _)) = rlimit::getrlimit(rlimit::Resource::NOFILE) {
        text.gauge("process_max_fds", "File descriptors that may be open", soft);
    }
    let help = "When the server was started, in seconds since 1970";
    text.gauge("process_start_time_seconds", help, format!("{started:.3}"));
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

fn open_files() -> Option<usize> {
    // One of them is the folder's own.
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    Some(count.saturating_sub(1))
}
