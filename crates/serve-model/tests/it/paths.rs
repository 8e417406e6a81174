//! The same tokens on every path through the kernels: alone, in batches of 1 to 64, in chunks, after
//! preemptions, with shared prefixes.
//!
//! A path is a way of computing: instructions, and what weights and inputs are kept in. A new one is
//! one more row of [`paths`]. As stored, weights give the reference's tokens. Quantised, they give those
//! of a model whose weights are the quantised ones, widened: bit by bit, since nothing but the weights
//! may differ. With inputs that are rounded they give those of the fastest instructions, one prompt alone.

use serve_core::conformance::Driver;
use serve_core::{Request, RequestId, Time, TokenId};
use serve_model::cpu::{CpuOptions, Instructions};
use serve_model::decode::DecoderBackend;
use serve_model::load::{LoadOptions, Source, load};
use serve_model::numbers::{Precision, Quantization};

use crate::fixtures::{Golden, folder, names, options, tokens};
use crate::golden::{finish, id, of};
use crate::widened::Widened;

/// A way of computing.
#[derive(Clone, Copy, Debug)]
struct Path {
    cpu: CpuOptions,
    precision: Precision,
}

/// What weights and inputs are kept in.
const KEPT: [(Option<Quantization>, Precision); 6] = [
    (None, Precision::F32),
    (None, Precision::Bf16),
    (Some(Quantization::Q8), Precision::F32),
    (Some(Quantization::Q4), Precision::F32),
    (Some(Quantization::Q8), Precision::Int8),
    (Some(Quantization::Q4), Precision::Int8),
];

fn paths() -> Vec<Path> {
    let mut all = Vec::new();
    for instructions in Instructions::available() {
        for (quantization, precision) in KEPT {
            let cpu = CpuOptions {
                quantization,
                instructions,
                threads: None,
            };
            all.push(Path { cpu, precision });
        }
    }
    all
}

/// A prompt, and the tokens that have to follow.
struct Case {
    prompt: Vec<TokenId>,
    outputs: Vec<TokenId>,
}

impl Case {
    fn request(&self, id: RequestId) -> Request {
        let outputs = self.outputs.len() as u32;
        Request::new(id, Time::ZERO, self.prompt.clone(), outputs).unwrap()
    }
}

/// A fixture on a path, and what has to come out.
struct Subject {
    label: String,
    driver: Driver<DecoderBackend>,
    cases: Vec<Case>,
}

impl Subject {
    fn new(name: &str, path: Path, change: impl Fn(&mut LoadOptions)) -> Self {
        let mut options = options();
        options.cpu = path.cpu;
        options.precision = Some(path.precision);
        change(&mut options);
        let golden = Golden::of(&folder(name)).prompts;
        let mut cases: Vec<Case> = golden
            .iter()
            .map(|prompt| Case {
                prompt: prompt.tokens(),
                outputs: tokens(&prompt.greedy),
            })
            .collect();
        let source = Source::Folder(folder(name));
        if path.precision != Precision::F32 {
            let mut options = options.clone();
            options.cpu.instructions = Instructions::best();
            alone(&mut driver(&source, &options), &mut cases);
        } else if let Some(quantization) = path.cpu.quantization {
            let widened = Widened::new(name, quantization);
            let mut options = options.clone();
            options.cpu.quantization = None;
            alone(&mut driver(&widened.source(), &options), &mut cases);
        }
        Self {
            label: format!(
                "{name}, {}, {:?}, {:?}",
                path.cpu.instructions, path.cpu.quantization, path.precision
            ),
            driver: driver(&source, &options),
            cases,
        }
    }

    /// Starts a request for the first `outputs` tokens of a case.
    fn start(&mut self, id: RequestId, case: usize) {
        self.driver.start(self.cases[case].request(id));
    }

    /// Checks what a request has so far.
    fn check(&self, id: RequestId, case: usize, outputs: usize, how: &str) {
        let found = self.driver.outputs(id);
        let expected = &self.cases[case].outputs[..outputs];
        assert_eq!(found, expected, "{}, prompt {case}, {how}", self.label);
    }

    fn run(&mut self, requests: &[(RequestId, u32)], chunk_max: u32) {
        finish(&mut self.driver, requests, chunk_max);
    }
}

fn driver(source: &Source, options: &LoadOptions) -> Driver<DecoderBackend> {
    let model = load(source, options, &mut |_| ()).unwrap();
    Driver::new(model.backend, 1).unwrap()
}

/// Replaces the outputs of each case by what comes out where it runs alone, its prompt in one step.
fn alone(driver: &mut Driver<DecoderBackend>, cases: &mut [Case]) {
    for (index, case) in cases.iter_mut().enumerate() {
        let request = case.request(id(index));
        driver.start(request.clone());
        finish(driver, &[of(&request)], u32::MAX);
        case.outputs = driver.outputs(id(index)).to_vec();
        driver.release(id(index));
    }
}

fn on_every_path(check: impl Fn(Subject)) {
    for name in names() {
        for path in paths() {
            check(Subject::new(&name, path, |_| ()));
        }
    }
}

#[test]
fn alone_and_together() {
    on_every_path(|mut subject| {
        let outputs = subject.cases[0].outputs.len() as u32;
        let count = subject.cases.len();
        for case in 0..count {
            subject.start(id(case), case);
            subject.run(&[(id(case), outputs)], u32::MAX);
            subject.check(id(case), case, outputs as usize, "alone");
            subject.driver.release(id(case));
        }
        let all: Vec<_> = (0..count).map(|case| (id(count + case), outputs)).collect();
        for (case, &(request, _)) in all.iter().enumerate() {
            subject.start(request, case);
        }
        // Steps that mix parts of prompts with single positions.
        subject.run(&all, 16);
        for (case, &(request, _)) in all.iter().enumerate() {
            subject.check(request, case, outputs as usize, "together");
        }
    });
}

/// Batches of different prompts, so that a request has other neighbours each time.
fn batches(subject: &mut Subject, sizes: impl Iterator<Item = usize>) {
    /// The short prompts: of 1, 5 and 17 tokens.
    const CASES: usize = 3;
    const OUTPUTS: u32 = 3;
    let mut next = 0;
    for size in sizes {
        let all: Vec<_> = (next..next + size).map(|i| (id(i), OUTPUTS)).collect();
        next += size;
        for (place, &(request, _)) in all.iter().enumerate() {
            subject.start(request, (size + place) % CASES);
        }
        subject.run(&all, 7);
        for (place, &(request, _)) in all.iter().enumerate() {
            let how = format!("one of {size}");
            subject.check(request, (size + place) % CASES, OUTPUTS as usize, &how);
            subject.driver.release(request);
        }
    }
}

fn many(options: &mut LoadOptions) {
    options.sequences_max = 64;
    options.kv_tokens = Some(64 * 64);
}

#[test]
fn in_batches_of_every_size_to_64() {
    let best = Path {
        cpu: CpuOptions::default(),
        precision: Precision::F32,
    };
    for name in names() {
        batches(&mut Subject::new(&name, best, many), 1..=64);
    }
}

#[test]
fn in_batches_around_every_tile_on_every_path() {
    const SIZES: [usize; 12] = [2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 64];
    for name in names() {
        for path in paths() {
            batches(&mut Subject::new(&name, path, many), SIZES.into_iter());
        }
    }
}

#[test]
fn in_chunks_of_any_size() {
    const OUTPUTS: u32 = 2;
    for name in names() {
        for path in paths() {
            let mut subject = Subject::new(&name, path, |_| ());
            // As stored, with the fastest instructions.
            let all_sizes = path.cpu == CpuOptions::default();
            let mut next = 0;
            for case in 0..subject.cases.len() {
                let length = subject.cases[case].prompt.len() as u32;
                let sizes = (1..=length).filter(|&size| all_sizes || size < 34 && size % 5 == 1);
                for chunk_max in sizes {
                    let request = id(next);
                    next += 1;
                    subject.start(request, case);
                    subject.run(&[(request, OUTPUTS)], chunk_max);
                    let how = format!("in chunks of {chunk_max}");
                    subject.check(request, case, OUTPUTS as usize, &how);
                    subject.driver.release(request);
                }
            }
        }
    }
}

#[test]
fn with_a_shared_prefix() {
    on_every_path(|mut subject| {
        // The longest: 200 tokens, which are 25 blocks of 8.
        let case = subject.cases.len() - 1;
        let outputs = subject.cases[case].outputs.len() as u32;
        assert_eq!(subject.cases[case].prompt.len(), 200);
        subject.start(id(0), case);
        subject.run(&[(id(0), 1)], u32::MAX);
        // From one shared block to all but the last.
        for blocks in [1, 2, 12, 24] {
            let request = id(blocks as usize);
            subject.start(request, case);
            let shared = subject.driver.share(id(0), request, blocks * 8);
            shared.unwrap();
            assert_eq!(subject.driver.pending(request), 200 - blocks * 8);
            subject.run(&[(request, outputs)], 64);
            let how = format!("{blocks} shared blocks");
            subject.check(request, case, outputs as usize, &how);
        }
    });
}

#[test]
fn after_preemptions() {
    on_every_path(|mut subject| {
        for case in 0..subject.cases.len() {
            subject.start(id(case), case);
            for (outputs, chunk_max) in [(1, 512), (7, 512), (8, 5), (20, 16), (32, 1)] {
                subject.run(&[(id(case), outputs)], chunk_max);
                subject.driver.preempt(id(case));
            }
            subject.check(id(case), case, 32, "preempted");
            subject.driver.release(id(case));
        }
    });
}

/// Rounding makes much of a last bit that differs, so none does. Without it the portable version rounds
/// products before it adds them, and differs in the last bits.
#[test]
fn every_processor_gives_the_same_logits() {
    for name in names() {
        for (quantization, precision) in KEPT {
            let logits = |&instructions: &Instructions| {
                let mut options = options();
                options.cpu.quantization = quantization;
                options.cpu.instructions = instructions;
                options.precision = Some(precision);
                let source = Source::Folder(folder(&name));
                let mut backend = load(&source, &options, &mut |_| ()).unwrap().backend;
                let prompt = Golden::of(&folder(&name)).prompt("chat").tokens();
                backend.prompt_logits(&prompt).unwrap()
            };
            let skipped = usize::from(precision == Precision::F32);
            let all = &Instructions::available()[skipped..];
            let all: Vec<_> = all.iter().map(logits).collect();
            let same = all.windows(2).all(|pair| pair[0] == pair[1]);
            assert!(same, "{name}, {quantization:?}, {precision:?}");
        }
    }
}
