//! How much memory this process may still take.

use std::fs;

/// Bytes that can be allocated without swapping, as the system and the control group of this process
/// see it. `None` where neither can be asked.
pub(crate) fn available_bytes() -> Option<u64> {
    let of_system = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| meminfo_available(&text));
    [of_system, of_control_group()].into_iter().flatten().min()
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn of_control_group() -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse().ok()
    };
    // "max", which is no number, where there is no limit.
    let max = number("memory.max")?;
    let used = number("memory.current")?;
    Some(max.saturating_sub(used))
}

/// A size as a person writes it.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let text = "MemTotal:       24689764 kB\nMemAvailable:   23456 kB\n";
        assert_eq!(meminfo_available(text), Some(23_456 * 1024));
        assert_eq!(meminfo_available("MemTotal: 1 kB"), None);
    }

    #[test]
    fn sizes_read_as_a_person_writes_them() {
        assert_eq!(human(12), "12 B");
        assert_eq!(human(3 << 19), "1.5 MiB");
        assert_eq!(human(5 << 30), "5.0 GiB");
    }
}
