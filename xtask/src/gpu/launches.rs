//! What the driver that stands in says of a run: what each recording launched, and what it had to refuse.

use std::collections::BTreeSet;

/// A launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    /// Without what tells apart kernels of one name.
    pub(super) kernel: String,
    pub(super) blocks: u32,
    /// Of a block.
    pub(super) threads: u32,
}

/// What a run recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recorded {
    /// The launches of each recording that came to its end.
    pub(super) steps: Vec<Vec<Launch>>,
    /// The files of the PTX of whatever was launched, recorded or not, without CubeCL's own probes.
    pub(super) modules: BTreeSet<String>,
    /// What was refused, and recordings that were spoilt.
    pub(super) refused: Vec<String>,
}

impl Recorded {
    /// Reads a log.
    pub(super) fn read(log: &str) -> Self {
        let mut recorded = Self::default();
        let mut step = Vec::new();
        for line in log.lines() {
            if line == "recording begins" {
                step.clear();
            } else if let Some(launch) = line.strip_prefix("launch ") {
                let (is_recorded, launch) = match launch.strip_prefix("recorded ") {
                    Some(launch) => (true, launch),
                    None => (false, launch),
                };
                match read(launch) {
                    Some((launch, _)) if is_probe(&launch.kernel) => {}
                    Some((launch, module)) => {
                        recorded.modules.insert(module);
                        step.extend(is_recorded.then_some(launch));
                    }
                    None => recorded.refused.push(format!("unreadable: {line}")),
                }
            } else if line.starts_with("recording ends") && !line.ends_with("invalid") {
                recorded.steps.push(std::mem::take(&mut step));
            } else if line.starts_with("recording ends") || line.starts_with("refused") {
                recorded.refused.push(line.to_owned());
            }
        }
        recorded
    }
}

/// How fast a GPU is, CubeCL measures with kernels of its own.
fn is_probe(kernel: &str) -> bool {
    ["_throughput_", "launch_overhead_", "prime_buffer_"]
        .iter()
        .any(|probe| kernel.contains(probe))
}

/// `NAME@FILE blocks X Y Z threads X Y Z shared N`
fn read(line: &str) -> Option<(Launch, String)> {
    let words = line.split(' ').collect::<Vec<_>>();
    let [kernel, "blocks", bx, by, bz, "threads", tx, ty, tz, ..] = words.as_slice() else {
        return None;
    };
    let product = |words: [&str; 3]| -> Option<u32> {
        let [x, y, z] = words.map(|word| word.parse::<u32>().ok());
        Some(x? * y? * z?)
    };
    let (name, module) = kernel.split_once('@')?;
    // CubeCL ends a name with a hash of what the kernel was compiled for.
    let is_hash = |end: &str| end.len() == 8 && end.bytes().all(|byte| byte.is_ascii_hexdigit());
    let kernel = match name.rsplit_once('_') {
        Some((kernel, end)) if is_hash(end) => kernel,
        _ => name,
    };
    let launch = Launch {
        kernel: kernel.to_owned(),
        blocks: product([bx, by, bz])?,
        threads: product([tx, ty, tz])?,
    };
    Some((launch, module.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "cuMemAlloc 1024\n\
        launch launch_overhead_i_i32_n_1_657edc59@00007.ptx blocks 1 1 1 threads 1 1 1 shared 0\n\
        launch draw_e_bf16_0011aabb@00009.ptx blocks 2 1 1 threads 512 1 1 shared 0\n\
        recording begins\n\
        launch recorded embed_e_bf16_6d75be14@00000.ptx blocks 2 1 1 threads 256 1 1 shared 0\n\
        recorded embed\n\
        launch recorded attend@00003.ptx blocks 3 2 2 threads 64 2 1 shared 1024\n\
        recording ends: 2 nodes\n\
        recording begins\n\
        refused during a recording: cuMemAlloc\n\
        recording ends: 0 nodes, invalid\n";

    #[test]
    fn recordings_have_their_launches_and_refusals_are_told() {
        let recorded = Recorded::read(LOG);
        assert_eq!(recorded.steps.len(), 1);
        let launch = |kernel: &str, blocks, threads| Launch {
            kernel: kernel.to_owned(),
            blocks,
            threads,
        };
        let expected = [launch("embed_e_bf16", 2, 256), launch("attend", 12, 128)];
        assert_eq!(recorded.steps[0], expected);
        assert_eq!(recorded.refused.len(), 2);
        let modules: Vec<_> = recorded.modules.into_iter().collect();
        assert_eq!(modules, ["00000.ptx", "00003.ptx", "00009.ptx"]);
    }
}
