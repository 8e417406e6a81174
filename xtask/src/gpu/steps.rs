//! What a decode step of each shape launches and reads, as a file that the command writes and a page that is made of it.

use std::fmt::Write as _;

use super::launches::Launch;

/// The file, from the root of the workspace.
pub(super) const FILE: &str = "docs/benchmarks/gpu-launches/steps.txt";
/// The page.
pub(super) const PAGE: &str = "docs/gpu-launches.md";

/// The numbers of sequences whose steps are kept.
pub(super) const ROWS: [u32; 3] = [1, 4, 16];

/// What steps of one shape are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) shape: String,
    pub(super) layers: u32,
    /// Of weights that a step reads, and of keys and values for each position of its contexts: with one layer, with two.
    pub(super) reads: [[u64; 2]; 2],
    /// By the number of sequences and of layers, 1 or 2.
    pub(super) steps: Vec<(u32, u32, Vec<Launch>)>,
}

impl Steps {
    /// As the file has it.
    pub(super) fn write(&self) -> String {
        let mut text = format!("shape {} layers {}\n", self.shape, self.layers);
        for (layers, [weights, position]) in (1..).zip(self.reads) {
            let _ = writeln!(text, "reads {layers} {weights} {position}");
        }
        for (rows, layers, launches) in &self.steps {
            let _ = writeln!(text, "step {rows} {layers}");
            for launch in launches {
                let Launch {
                    kernel,
                    blocks,
                    threads,
                } = launch;
                let _ = writeln!(text, "launch {kernel} {blocks} {threads}");
            }
        }
        text
    }

    /// All shapes of a file.
    #[cfg(test)]
    pub(super) fn read(text: &str) -> Option<Vec<Self>> {
        let mut all: Vec<Self> = Vec::new();
        for line in text.lines() {
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["shape", shape, "layers", layers] => all.push(Self {
                    shape: (*shape).to_owned(),
                    layers: layers.parse().ok()?,
                    reads: [[0; 2]; 2],
                    steps: Vec::new(),
                }),
                ["reads", layers, weights, position] => {
                    let layers: usize = layers.parse().ok()?;
                    let reads = all.last_mut()?.reads.get_mut(layers.checked_sub(1)?)?;
                    *reads = [weights.parse().ok()?, position.parse().ok()?];
                }
                ["step", rows, layers] => {
                    let step = (rows.parse().ok()?, layers.parse().ok()?, Vec::new());
                    all.last_mut()?.steps.push(step);
                }
                ["launch", kernel, blocks, threads] => {
                    let launch = Launch {
                        kernel: (*kernel).to_owned(),
                        blocks: blocks.parse().ok()?,
                        threads: threads.parse().ok()?,
                    };
                    all.last_mut()?.steps.last_mut()?.2.push(launch);
                }
                _ => return None,
            }
        }
        Some(all)
    }

    /// The launches of a step with so many sequences and layers.
    pub(super) fn step(&self, rows: u32, layers: u32) -> &[Launch] {
        let mut steps = self.steps.iter();
        let found = steps.find(|step| (step.0, step.1) == (rows, layers));
        found.map_or(&[], |(_, _, launches)| launches)
    }

    /// Launches of a layer.
    fn of_a_layer(&self, rows: u32) -> usize {
        self.step(rows, 2).len() - self.step(rows, 1).len()
    }

    /// Launches of a step of the whole model.
    pub(super) fn launches(&self, rows: u32) -> usize {
        self.step(rows, 1).len() + (self.layers as usize - 1) * self.of_a_layer(rows)
    }

    /// Bytes of weights that a step reads, and of keys and values for each position of its contexts.
    pub(super) fn bytes(&self) -> [u64; 2] {
        let [one, two] = self.reads;
        let more = u64::from(self.layers) - 1;
        [0, 1].map(|which| one[which] + more * (two[which] - one[which]))
    }
}

const HEAD: &str = "\
# What a decode step launches on a GPU

Made by `cargo xtask gpu-compile --write`, which compiles every kernel with the real NVRTC and records every decode step on a
driver that runs nothing; without `--write` it compares. A recorded step is replayed as a whole, so that each launch costs
what the GPU needs from one kernel to the next. A GPU whose multiprocessors outnumber the blocks of a launch (58 on an L4,
132 on an H200) idles in part while it runs: products have twice as many blocks as either has multiprocessors, for every
shape; of the other kernels the table shows which do not. Contexts are of 1,024 tokens.

| shape | launches a step | of them a layer | weights read, MB | keys and values read, KB a token |
|---|---|---|---|---|
";

/// The page about all shapes.
pub(super) fn page(all: &[Steps]) -> String {
    let mut text = HEAD.to_owned();
    for steps in all {
        let [weights, position] = steps.bytes();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.1} | {:.1} |",
            steps.shape,
            steps.launches(1),
            steps.of_a_layer(1),
            weights as f64 / 1e6,
            position as f64 / 1e3
        );
    }
    for steps in all {
        let _ = write!(
            text,
            "\n## {}\n\nOne layer and what is around it:\n\n\
             | kernel | blocks with 1 sequence | with 4 | with 16 | threads of a block |\n|---|---|---|---|---|\n",
            steps.shape
        );
        for (index, first) in steps.step(ROWS[0], 1).iter().enumerate() {
            let blocks = ROWS.map(|rows| {
                let launch = steps.step(rows, 1).get(index);
                launch.map_or_else(String::new, |launch| launch.blocks.to_string())
            });
            let [one, four, sixteen] = blocks;
            let Launch {
                kernel, threads, ..
            } = first;
            let _ = writeln!(
                text,
                "| {kernel} | {one} | {four} | {sixteen} | {threads} |"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: &str = include_str!("../../../docs/benchmarks/gpu-launches/steps.txt");

    /// Multiprocessors.
    const H200: u32 = 132;
    const L4: u32 = 58;

    #[test]
    fn the_page_is_made_of_the_file() {
        let all = Steps::read(WRITTEN).unwrap();
        let names: Vec<_> = all.iter().map(|steps| &*steps.shape).collect();
        assert_eq!(names, ["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"]);
        assert!(
            page(&all) == include_str!("../../../docs/gpu-launches.md"),
            "{PAGE}: cargo xtask gpu-compile --write"
        );
        let again: String = all.iter().map(Steps::write).collect();
        assert_eq!(again, WRITTEN);
    }

    #[test]
    fn products_have_twice_the_blocks_that_a_gpu_has_multiprocessors() {
        for steps in Steps::read(WRITTEN).unwrap() {
            for rows in ROWS {
                let step = steps.step(rows, 1);
                let products: Vec<_> = step
                    .iter()
                    .filter(|launch| launch.kernel.starts_with("product_"))
                    .collect();
                // Of queries, keys and values; output; gate and up; down; head.
                assert_eq!(products.len(), 5, "{}: {step:?}", steps.shape);
                for launch in products {
                    assert!(
                        launch.blocks >= 2 * H200.max(L4),
                        "{}: {launch:?}",
                        steps.shape
                    );
                }
                // Nothing of a decode step is tuned.
                assert!(step.iter().all(|launch| !launch.kernel.contains("matmul")));
                assert!(steps.of_a_layer(rows) <= 10, "{}", steps.shape);
            }
        }
    }

    #[test]
    fn a_layer_is_what_two_have_more_than_one() {
        let text = "shape s layers 24\nreads 1 30000000 1000\nreads 2 40000000 2000\n\
            step 1 1\nlaunch embed 1 256\nlaunch product 7 128\n\
            step 1 2\nlaunch embed 1 256\nlaunch product 7 128\nlaunch product 7 128\n";
        let [steps] = Steps::read(text).unwrap().try_into().unwrap();
        assert_eq!(steps.write(), text);
        assert_eq!((steps.launches(1), steps.of_a_layer(1)), (25, 1));
        assert_eq!(steps.bytes(), [260_000_000, 24_000]);
        assert_eq!(Steps::read("launch embed 1 256\n"), None);
    }
}
