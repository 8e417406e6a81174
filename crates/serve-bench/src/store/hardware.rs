//! The machine that a run is made on: processor, memory, GPUs. Whatever the operating system does not
//! say is absent; nothing is guessed.

use std::fmt;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine that the client runs on. For a server on a loopback address it is the server's too.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Hardware {
    /// Operating system and architecture, such as `linux x86_64`.
    pub system: String,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The processor's name.
    pub cpu: Option<String>,
    /// Cores that this process may use.
    pub cores: Option<usize>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// What `nvidia-smi` lists.
    pub gpus: Vec<Gpu>,
    /// Whether the server has a loopback address, so that all of this is true of it as well.
    pub server_is_local: bool,
}

/// A GPU.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Its memory, in the words of `nvidia-smi`.
    pub memory: String,
    /// The driver's version.
    pub driver: String,
    /// The limit on its power, in the words of `nvidia-smi`.
    pub power_limit: String,
}

impl Hardware {
    /// Asks the operating system. `server_is_local`: whether the server runs here as well.
    pub fn of_this_machine(server_is_local: bool) -> Self {
        let read = |path| std::fs::read_to_string(path).ok();
        Self {
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            cpu: read("/proc/cpuinfo").and_then(|text| field(&text, "model name")),
            cores: std::thread::available_parallelism().ok().map(Into::into),
            memory_bytes: read("/proc/meminfo").and_then(|text| memory_bytes(&text)),
            gpus: gpus(),
            server_is_local,
        }
    }
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cpu.as_deref().unwrap_or("an unknown processor"))?;
        if let Some(cores) = self.cores {
            write!(f, ", {cores} cores")?;
        }
        if let Some(bytes) = self.memory_bytes {
            write!(f, ", {:.0} GiB", bytes as f64 / f64::from(1 << 30))?;
        }
        for gpu in &self.gpus {
            write!(f, ", {} ({}, driver {})", gpu.name, gpu.memory, gpu.driver)?;
        }
        write!(f, ", {}", self.system)
    }
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = pairs.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let total = field(meminfo, "MemTotal")?;
    let kib = total.strip_suffix(" kB")?.trim().parse::<u64>().ok()?;
    Some(kib * 1_024)
}

fn gpus() -> Vec<Gpu> {
    let query = "--query-gpu=name,memory.total,driver_version,power.limit";
    let output = Command::new("nvidia-smi")
        .args([query, "--format=csv,noheader"])
        .output();
    match output {
        Ok(output) if output.status.success() => {
            parse_gpus(&String::from_utf8_lossy(&output.stdout))
        }
        _ => Vec::new(), // no such program, or no such device
    }
}

fn parse_gpus(text: &str) -> Vec<Gpu> {
    let gpus = text.lines().filter_map(|line| {
        let mut parts = line.split(',').map(|part| part.trim().to_owned());
        Some(Gpu {
            name: parts.next().filter(|name| !name.is_empty())?,
            memory: parts.next()?,
            driver: parts.next()?,
            power_limit: parts.next()?,
        })
    });
    gpus.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_understood() {
        let cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: other\n";
        assert_eq!(field(cpuinfo, "model name").as_deref(), Some("AMD EPYC"));
        assert_eq!(memory_bytes("MemTotal:       24 kB\n"), Some(24_576));
        assert_eq!(memory_bytes("MemFree: 24 kB\n"), None);
        let gpus = parse_gpus("NVIDIA L4, 23034 MiB, 550.54.14, 72.00 W\n\nbroken\n");
        assert_eq!(gpus.len(), 1);
        assert_eq!(
            (gpus[0].name.as_str(), gpus[0].driver.as_str()),
            ("NVIDIA L4", "550.54.14")
        );
    }

    #[test]
    fn this_machine_has_a_core() {
        let hardware = Hardware::of_this_machine(true);
        assert!(hardware.cores > Some(0));
        assert!(hardware.system.contains(std::env::consts::ARCH));
    }
}
