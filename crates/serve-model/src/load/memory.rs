//! How much memory this process may still take.

use std::fs;
use std::path::Path;

/// Bytes that can be allocated without swapping, as the system, the control groups of this process and its own
/// limits (`ulimit -v`, `ulimit -d`) see it. `None` where none of them can be asked.
pub(crate) fn available_bytes() -> Option<u64> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let groups = text("/proc/self/cgroup");
    [
        meminfo_available(&text("/proc/meminfo")),
        of_control_groups(Path::new("/sys/fs/cgroup"), &groups),
        of_limits(&text("/proc/self/limits"), &text("/proc/self/status")),
    ]
    .into_iter()
    .flatten()
    .min()
}

fn meminfo_available(text: &str) -> Option<u64> {
    kib_after(text, "MemAvailable:")
}

/// The bytes that a line such as `VmSize:   123 kB` tells.
fn kib_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What is left below the limits of the groups that `/proc/self/cgroup` names, and of those around them: each
/// bounds all that are inside of it.
fn of_control_groups(mount: &Path, groups: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (mount, files) = match controllers {
            "" => (mount.to_owned(), &UNIFIED),
            "memory" => (mount.join("memory"), &OLDER),
            _ => return None,
        };
        // A path that is not there, or leads out, is one outside of this container, whose own group is the mount.
        let inside = if path.contains("..") { "" } else { path };
        let group = Path::new(inside.trim_start_matches('/'));
        let around = group.ancestors().map(|group| mount.join(group));
        around.filter_map(|folder| files.left(&folder)).min()
    };
    groups.lines().filter_map(of_line).min()
}

/// The files of a control group, by its version.
struct GroupFiles {
    max: &'static str,
    used: &'static str,
    /// The part of `used`, in `memory.stat`, that is given back when it is needed: files that were read.
    cached: &'static str,
}

const UNIFIED: GroupFiles = GroupFiles {
    max: "memory.max",
    used: "memory.current",
    cached: "inactive_file ",
};

const OLDER: GroupFiles = GroupFiles {
    max: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: "total_inactive_file ",
};

impl GroupFiles {
    fn left(&self, folder: &Path) -> Option<u64> {
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        // "max", which is no number, where there is no limit.
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        let max = number(self.max)?;
        let stat = text("memory.stat").unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix(self.cached));
        let cached: u64 = cached.and_then(|n| n.parse().ok()).unwrap_or_default();
        let used = number(self.used)?.saturating_sub(cached);
        Some(max.saturating_sub(used))
    }
}

/// What the process may still take of its address space and of its data, by `/proc/self/limits` and
/// `/proc/self/status`.
fn of_limits(limits: &str, status: &str) -> Option<u64> {
    let kinds = [
        ("Max address space", "VmSize:"),
        ("Max data size", "VmData:"),
    ];
    let left = |(limit, used): (&str, &str)| {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
        // "unlimited" is no number.
        let max: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(max.saturating_sub(kib_after(status, used)?))
    };
    kinds.into_iter().filter_map(left).min()
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
    fn the_narrowest_control_group_around_this_process_counts() {
        let mount = std::env::temp_dir().join(format!("serve-model-groups-{}", std::process::id()));
        let write = |folder: &str, max: &str, used: u64, cached: u64| {
            let folder = mount.join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("memory.max"), format!("{max}\n")).unwrap();
            fs::write(folder.join("memory.current"), format!("{used}\n")).unwrap();
            let stat = format!("anon 1\ninactive_file {cached}\nactive_file 7\n");
            fs::write(folder.join("memory.stat"), stat).unwrap();
        };
        let left = |groups: &str| of_control_groups(&mount, groups);
        write("system.slice", "5000", 1_000, 0);
        write("system.slice/serve.service", "max", 900, 0);
        let own = "0::/system.slice/serve.service\n";
        assert_eq!(left(own), Some(4_000));
        write("system.slice/serve.service", "2000", 900, 300);
        assert_eq!(left(own), Some(1_400));
        // More than it has, as after a limit was lowered.
        write("system.slice/serve.service", "100", 900, 0);
        assert_eq!(left(own), Some(0));
        assert_eq!(left("0::/user.slice\n"), None);
        write("", "77", 0, 0);
        assert_eq!(left("0::/\n"), Some(77));
        assert_eq!(left("0::/../../elsewhere\n"), Some(77));

        let older = mount.join("memory/docker/1");
        fs::create_dir_all(&older).unwrap();
        fs::write(older.join("memory.limit_in_bytes"), "60\n").unwrap();
        fs::write(older.join("memory.usage_in_bytes"), "50\n").unwrap();
        fs::write(older.join("memory.stat"), "total_inactive_file 20\n").unwrap();
        assert_eq!(left("9:memory:/docker/1\n4:cpu:/docker/1\n"), Some(30));
        fs::remove_dir_all(&mount).unwrap();
    }

    #[test]
    fn the_processs_own_limits_count() {
        let limits = |address: &str, data: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max data size             {data}            unlimited            bytes     \n\
                 Max address space         {address}            unlimited            bytes     \n"
            )
        };
        let status = "Name:\tserve\nVmSize:\t    100 kB\nVmData:\t     40 kB\n";
        let left = |address: &str, data: &str| of_limits(&limits(address, data), status);
        assert_eq!(left("unlimited", "unlimited"), None);
        assert_eq!(left("204800", "unlimited"), Some(100 * 1024));
        assert_eq!(left("204800", "51200"), Some(10 * 1024));
        assert_eq!(left("1", "unlimited"), Some(0));
    }

    #[test]
    fn sizes_read_as_a_person_writes_them() {
        assert_eq!(human(12), "12 B");
        assert_eq!(human(3 << 19), "1.5 MiB");
        assert_eq!(human(5 << 30), "5.0 GiB");
    }
}
