//! Whether this machine can run the benchmark: GPU, driver, NVRTC, headers, free memory.
//!
//! [`Facts::collect`] looks once; what the facts mean is decided by pure code, so that every gap has a
//! test and a message that says how to close it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use serve_model::decode::{CUDA_PACKAGES, CudaVersion};
use thiserror::Error;

/// The oldest driver for a CUDA and everything later of the same major version, newest first.
const DRIVERS: [(u32, u32); 3] = [(13, 580), (12, 525), (11, 450)];
/// Headers that the run-time compiler includes, or that those include. The last may lie in `cccl`.
const HEADERS: [&str; 6] = [
    "cuda_runtime.h",
    "cuda_fp16.h",
    "cuda_bf16.h",
    "crt/mma.h",
    "crt/host_config.h",
    "cuda/barrier",
];

/// What was found on the machine.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The first GPU that `nvidia-smi` lists, or what it said instead.
    pub(crate) gpu: Result<Gpu, String>,
    /// Where libnvrtc.so lies.
    pub(crate) nvrtc: Found,
    /// Where libcuda.so.1 lies.
    pub(crate) driver_library: Found,
    /// The folder that holds `include/` with the CUDA headers.
    pub(crate) cuda_path: Option<PathBuf>,
    /// The CUDA that this program is built for, and those beside it with it.
    pub(crate) built_for: CudaVersion,
    /// The processor's name.
    pub(crate) cpu: String,
    /// Threads that can run at once.
    pub(crate) cores: usize,
}

/// One GPU, as `nvidia-smi` describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gpu {
    /// Such as `NVIDIA H200`.
    pub(crate) name: String,
    /// Such as `580.159.03`.
    pub(crate) driver: String,
    /// Memory in all, MiB.
    pub(crate) memory_mib: u64,
    /// Memory that nobody holds, MiB.
    pub(crate) free_mib: u64,
    /// Such as `9.0`.
    pub(crate) compute_capability: String,
}

/// Where a shared library lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Found {
    /// The loader finds it.
    OnLoaderPath,
    /// It is in this folder, where the loader does not look.
    Elsewhere(PathBuf),
    /// Nowhere that was looked at.
    #[default]
    Missing,
}

/// What a machine lacks. Every variant says how to get it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum Missing {
    /// No GPU: nothing can be measured here.
    #[error("no NVIDIA GPU: {0}")]
    Gpu(String),
    /// The driver's library cannot be loaded.
    #[error(
        "the driver's libcuda.so.1 is not on the loader's path; in a container, start it with the GPU passed \
         through (docker run --gpus all)"
    )]
    DriverLibrary,
    /// The driver is older than the CUDA that the programs are built for.
    #[error(
        "driver {found} is older than {least}, which CUDA {built_for} needs, and for that these programs are built; choose \
         another host, or pack again with CUDARC_CUDA_VERSION=12020 (CUDA 12.2, drivers from 535 on)"
    )]
    Driver {
        /// The driver that was found.
        found: String,
        /// The oldest that would do.
        least: u32,
        /// What the programs are built for.
        built_for: CudaVersion,
    },
    /// Kernels are compiled at run time.
    #[error("libnvrtc.so was not found; {CUDA_PACKAGES}")]
    Nvrtc,
    /// The run-time compiler includes them.
    #[error(
        "CUDA headers ({}) were found neither in $CUDA_PATH/include nor in /usr/local/cuda/include; {CUDA_PACKAGES}",
        HEADERS.join(", ")
    )]
    Headers,
    /// Somebody else holds the memory, or the GPU is too small.
    #[error(
        "{free_mib} MiB of GPU memory are free and {needed_mib} are needed; stop what else runs or ask for a smaller model"
    )]
    Memory {
        /// MiB free.
        free_mib: u64,
        /// MiB that the largest model asked for needs.
        needed_mib: u64,
    },
}

impl Facts {
    /// Looks at this machine. Reads files and runs `nvidia-smi` and `ldconfig`, nothing else.
    pub(crate) fn collect() -> Self {
        let loader = loader_path();
        Self {
            gpu: query_gpu(),
            nvrtc: find_library("libnvrtc.so", &loader),
            driver_library: find_library("libcuda.so", &loader),
            cuda_path: find_headers(),
            built_for: CudaVersion::built_for(),
            cpu: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Everything that is missing for models that need `needed_mib` of GPU memory, the most telling
    /// first. Without a GPU, only that is said.
    pub(crate) fn missing(&self, needed_mib: u64) -> Vec<Missing> {
        let gpu = match &self.gpu {
            Ok(gpu) => gpu,
            Err(cause) => return vec![Missing::Gpu(cause.clone())],
        };
        let mut missing = Vec::new();
        let major = gpu
            .driver
            .split('.')
            .next()
            .and_then(|part| part.parse().ok());
        let built_for = self.built_for;
        let least = DRIVERS.iter().find(|(cuda, _)| *cuda <= built_for.major);
        let least = least.map_or(0, |(_, driver)| *driver);
        if major.is_some_and(|major: u32| major < least) {
            missing.push(Missing::Driver {
                found: gpu.driver.clone(),
                least,
                built_for,
            });
        }
        if self.driver_library == Found::Missing {
            missing.push(Missing::DriverLibrary);
        }
        if self.nvrtc == Found::Missing {
            missing.push(Missing::Nvrtc);
        }
        if self.cuda_path.is_none() {
            missing.push(Missing::Headers);
        }
        if gpu.free_mib < needed_mib {
            let free_mib = gpu.free_mib;
            missing.push(Missing::Memory {
                free_mib,
                needed_mib,
            });
        }
        missing
    }

    /// Variables that let a child find what lies where the loader or the compiler does not look.
    pub(crate) fn environment(&self, present: Option<OsString>) -> Vec<(&'static str, OsString)> {
        let mut variables = Vec::new();
        let elsewhere = [&self.nvrtc, &self.driver_library].into_iter();
        let folders = elsewhere.filter_map(|found| match found {
            Found::Elsewhere(folder) => Some(folder.clone()),
            Found::OnLoaderPath | Found::Missing => None,
        });
        let mut folders: Vec<PathBuf> = folders.collect();
        if !folders.is_empty() {
            folders.extend(std::env::split_paths(&present.unwrap_or_default()));
            // Fails only for a folder with a colon in its name, which the loader could not be told either.
            if let Ok(path) = std::env::join_paths(folders) {
                variables.push(("LD_LIBRARY_PATH", path));
            }
        }
        if let Some(path) = &self.cuda_path {
            variables.push(("CUDA_PATH", path.clone().into()));
        }
        variables
    }

    /// The hardware layer of the manifest.
    pub(crate) fn describe(&self) -> Value {
        let gpu = self.gpu.as_ref().ok().map(|gpu| {
            json!({
                "name": gpu.name, "driver": gpu.driver, "memory_mib": gpu.memory_mib,
                "free_mib": gpu.free_mib, "compute_capability": gpu.compute_capability,
            })
        });
        json!({ "gpu": gpu, "cpu": self.cpu, "cores": self.cores })
    }
}

fn query_gpu() -> Result<Gpu, String> {
    let fields = "--query-gpu=name,driver_version,memory.total,memory.free,compute_cap";
    let mut command = Command::new("nvidia-smi");
    let output = command
        .args([fields, "--format=csv,noheader,nounits"])
        .output();
    let output = output.map_err(|error| format!("nvidia-smi cannot be started ({error})"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let said = if text.trim().is_empty() { stderr } else { text };
        return Err(format!("nvidia-smi says: {}", said.trim()));
    }
    parse_gpu(&text).ok_or_else(|| format!("nvidia-smi lists none: {:?}", text.trim()))
}

/// The first line of `name, driver, MiB in all, MiB free, compute capability`.
fn parse_gpu(csv: &str) -> Option<Gpu> {
    let mut fields = csv.lines().next()?.split(',').map(str::trim);
    Some(Gpu {
        name: fields.next()?.to_owned(),
        driver: fields.next()?.to_owned(),
        memory_mib: fields.next()?.parse().ok()?,
        free_mib: fields.next()?.parse().ok()?,
        compute_capability: fields.next()?.to_owned(),
    })
}

/// Folders in which the loader looks, those of its cache included.
fn loader_path() -> Vec<PathBuf> {
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&variable).collect();
    if let Ok(output) = Command::new("ldconfig").arg("-p").output() {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let files = text.lines().filter_map(|line| line.split_once("=> "));
        let parents = files.filter_map(|(_, file)| Path::new(file.trim()).parent());
        folders.extend(parents.map(Path::to_owned));
    }
    folders.sort_unstable();
    folders.dedup();
    folders
}

fn find_library(name: &str, loader: &[PathBuf]) -> Found {
    if loader.iter().any(|folder| holds(folder, name)) {
        return Found::OnLoaderPath;
    }
    let usual = ["/usr/local/cuda/lib64", "/usr/local/nvidia/lib64"].map(PathBuf::from);
    let set = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    // A toolkit has the one, packages of PyPI have the other.
    let set = set
        .into_iter()
        .flat_map(|path| [path.join("lib64"), path.join("lib")]);
    let found = set.chain(usual).find(|folder| holds(folder, name));
    found.map_or(Found::Missing, Found::Elsewhere)
}

/// Whether a folder holds the library under its plain or a versioned name.
fn holds(folder: &Path, library: &str) -> bool {
    let Ok(entries) = folder.read_dir() else {
        return false;
    };
    let names = entries
        .filter_map(Result::ok)
        .map(|entry| entry.file_name());
    names.into_iter().any(|name| {
        let name = name.to_string_lossy();
        name.strip_prefix(library)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

fn find_headers() -> Option<PathBuf> {
    let set = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    let mut candidates = set.into_iter().chain([PathBuf::from("/usr/local/cuda")]);
    candidates.find(|path| holds_headers(&path.join("include")))
}

fn holds_headers(include: &Path) -> bool {
    let there = |header: &str| {
        let in_cccl = include.join("cccl").join(header);
        include.join(header).exists() || in_cccl.exists()
    };
    HEADERS.iter().all(|header| there(header))
}

fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = line.map(|line| line.trim_start_matches([' ', '\t', ':']).to_owned());
    name.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Facts {
        Facts {
            gpu: Ok(parse_gpu("NVIDIA H200, 580.159.03, 143771, 143000, 9.0\n").unwrap()),
            nvrtc: Found::OnLoaderPath,
            driver_library: Found::OnLoaderPath,
            cuda_path: Some("/usr/local/cuda".into()),
            built_for: CudaVersion::of_number(13_000),
            cpu: "a processor".to_owned(),
            cores: 16,
        }
    }

    #[test]
    fn a_whole_machine_lacks_nothing() {
        assert_eq!(whole().missing(20_000), []);
    }

    #[test]
    fn without_a_gpu_only_that_is_said() {
        let facts = Facts {
            gpu: Err("nvidia-smi cannot be started (not found)".to_owned()),
            nvrtc: Found::Missing,
            cuda_path: None,
            ..whole()
        };
        let missing = facts.missing(0);
        assert!(matches!(missing[..], [Missing::Gpu(_)]), "{missing:?}");
    }

    #[test]
    fn each_gap_is_named_once() {
        let mut facts = Facts {
            nvrtc: Found::Missing,
            driver_library: Found::Missing,
            cuda_path: None,
            ..whole()
        };
        let gpu = facts.gpu.as_mut().unwrap();
        gpu.driver = "535.1".to_owned();
        gpu.free_mib = 10;
        let expected = [
            Missing::Driver {
                found: "535.1".to_owned(),
                least: 580,
                built_for: CudaVersion::of_number(13_000),
            },
            Missing::DriverLibrary,
            Missing::Nvrtc,
            Missing::Headers,
            Missing::Memory {
                free_mib: 10,
                needed_mib: 20,
            },
        ];
        assert_eq!(facts.missing(20), expected);
    }

    /// What a driver has to be follows from what was built, so that building for an older CUDA helps.
    #[test]
    fn the_driver_has_to_do_for_what_the_programs_are_built_for() {
        let lacks = |driver: &str, number| {
            let mut facts = whole();
            facts.built_for = CudaVersion::of_number(number);
            facts.gpu.as_mut().unwrap().driver = driver.to_owned();
            !facts.missing(0).is_empty()
        };
        assert!(lacks("570.148", 13_000) && !lacks("570.148", 12_020));
        assert!(!lacks("580.65", 13_000) && !lacks("590.1", 13_010));
        assert!(!lacks("535.216", 12_020) && lacks("470.82", 12_020));
    }

    #[test]
    fn every_header_has_to_be_there_and_what_is_missing_is_told_with_its_packages() {
        let include = std::env::temp_dir().join(format!("gpu-headers-{}", std::process::id()));
        for header in HEADERS {
            assert!(!holds_headers(&include), "without {header}");
            // As a package of PyPI lays them out.
            let inner = if header.starts_with("cuda/") {
                "cccl"
            } else {
                ""
            };
            let path = include.join(inner).join(header);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        assert!(holds_headers(&include));
        std::fs::remove_dir_all(&include).unwrap();
        for missing in [Missing::Nvrtc, Missing::Headers] {
            let message = missing.to_string();
            assert!(message.contains("'nvidia-cuda-nvrtc==13.0.*'"), "{message}");
        }
    }

    #[test]
    fn libraries_beside_the_loader_path_are_handed_to_the_children() {
        let facts = Facts {
            nvrtc: Found::Elsewhere("/opt/cuda/lib64".into()),
            ..whole()
        };
        let expected = [
            ("LD_LIBRARY_PATH", "/opt/cuda/lib64:/usr/lib/x".into()),
            ("CUDA_PATH", "/usr/local/cuda".into()),
        ];
        assert_eq!(facts.environment(Some("/usr/lib/x".into())), expected);
        assert_eq!(whole().environment(None).len(), 1);
    }

    #[test]
    fn a_library_is_found_under_a_versioned_name_and_not_under_a_longer_one() {
        let folder = std::env::temp_dir().join(format!("gpu-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libnvrtc.so.13"), "").unwrap();
        std::fs::write(folder.join("libcudart.so"), "").unwrap();
        assert!(holds(&folder, "libnvrtc.so"));
        assert!(!holds(&folder, "libcuda.so"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
