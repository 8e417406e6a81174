//! Measures prefill and decode of a model on this machine.
//!
//! Prints a table, or with `--json` one object a line: `name`, `value`, `unit`, `model`. Exits with 2 if the
//! model cannot be used. A step is timed by the backend itself, without what is around it.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serve_core::conformance::{Driver, Run};
use serve_core::rng::Rng;
use serve_core::{Backend, Request, RequestId, Sampled, Span, Time, TokenId};
use serve_core::{BackendError, Limits, StepOutcome, StepPlan};
use serve_model::{DecoderBackend, LoadOptions, Shape, Source, load};

/// Measure prefill and decode of a model: medians, in tokens per second.
#[derive(Parser)]
struct Arguments {
    /// A model's folder, `embedded` for the model inside the binary, or `random:SHAPE` for random
    /// weights of a known shape, such as `random:qwen2.5-0.5b`.
    model: PathBuf,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

const PROMPT_TOKENS: u32 = 128;
const BATCHES: [u32; 3] = [1, 4, 16];
/// Steps are repeated until both are reached.
const SAMPLES_MIN: usize = 9;
const SAMPLED_MIN: Span = Span::from_millis(1_000);
/// No batch is measured at more than this many positions, so that sizes stay comparable.
const DECODE_STEPS_MAX: u32 = 64;

#[expect(clippy::print_stderr, reason = "a command that reports to its user")]
fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let name = arguments.model.to_str().unwrap_or_default();
    let source = match (name, Shape::asked(name)) {
        (_, Some(shape)) => Source::Random(shape?),
        ("embedded", None) => Source::Embedded,
        _ => Source::Folder(arguments.model.clone()),
    };
    let options = LoadOptions {
        context_max: Some(PROMPT_TOKENS + DECODE_STEPS_MAX + 1),
        ..LoadOptions::default()
    };
    let begin = Instant::now();
    let model = load(&source, &options, &mut |_| ())?;
    let load_time = Span::from(begin.elapsed());
    let mut out = std::io::stdout().lock();
    if !arguments.json {
        let info = &model.info;
        if let Source::Random(shape) = &source {
            writeln!(out, "random weights of the shape of {}", shape.origin)?;
        }
        writeln!(
            out,
            "{}: {}, {:.1} M parameters stored in {}, computed in {} on {}, loaded in {:.0} ms",
            info.name,
            info.architecture,
            info.parameters as f64 / 1e6,
            info.stored_dtype,
            info.dtype,
            info.device,
            load_time.as_millis_f64()
        )?;
    }
    let served = model.info.name;
    let mut bench = Bench::new(model.backend)?;
    let mut report = |name: &str, tokens: u32, step: Span| -> std::io::Result<()> {
        let value = f64::from(tokens) / step.as_secs_f64();
        if arguments.json {
            let line = serde_json::json!({
                "name": name, "value": value, "unit": "tokens/s", "model": served,
            });
            writeln!(out, "{line}")
        } else {
            let millis = step.as_millis_f64();
            writeln!(
                out,
                "{name:<12} {value:>10.1} tokens/s {millis:>10.2} ms a step"
            )
        }
    };
    report("prefill_128", PROMPT_TOKENS, bench.prefill()?)?;
    for batch in BATCHES {
        report(&format!("decode_{batch}"), batch, bench.decode(batch)?)?;
    }
    Ok(())
}

/// Remembers how long the last step took.
struct Timed {
    backend: DecoderBackend,
    elapsed: Span,
}

impl Backend for Timed {
    fn limits(&self) -> Limits {
        self.backend.limits()
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        let result = self.backend.execute(plan, outcome);
        self.elapsed = outcome.elapsed;
        result
    }
}

struct Bench {
    driver: Driver<Timed>,
    vocabulary: u64,
    rng: Rng,
    next_id: u64,
}

impl Bench {
    fn new(backend: DecoderBackend) -> Result<Self, Box<dyn Error>> {
        let vocabulary = backend.decoder().config().vocab_size as u64;
        let timed = Timed {
            backend,
            elapsed: Span::ZERO,
        };
        Ok(Self {
            driver: Driver::new(timed, 1)?,
            vocabulary,
            rng: Rng::new(1),
            next_id: 0,
        })
    }

    /// The median step that runs one whole prompt.
    fn prefill(&mut self) -> Result<Span, Box<dyn Error>> {
        let mut times = Vec::new();
        while !enough(&times) {
            let id = self.start()?;
            times.push(self.step(&[id])?);
            self.driver.release(id);
        }
        Ok(median(times))
    }

    /// The median step that runs one position of each of `batch` sequences.
    fn decode(&mut self, batch: u32) -> Result<Span, Box<dyn Error>> {
        let mut times = Vec::new();
        while !enough(&times) {
            let mut ids = Vec::new();
            for _ in 0..batch {
                let id = self.start()?;
                self.step(&[id])?;
                ids.push(id);
            }
            // The first step of a batch meets cold buffers.
            self.step(&ids)?;
            for _ in 1..DECODE_STEPS_MAX {
                times.push(self.step(&ids)?);
                if enough(&times) {
                    break;
                }
            }
            ids.into_iter().for_each(|id| self.driver.release(id));
        }
        Ok(median(times))
    }

    fn start(&mut self) -> Result<RequestId, Box<dyn Error>> {
        let id = RequestId::new(self.next_id);
        self.next_id += 1;
        let token = |_| TokenId::new(self.rng.below(self.vocabulary) as u32);
        let prompt: Vec<TokenId> = (0..PROMPT_TOKENS).map(token).collect();
        let request = Request::new(id, Time::ZERO, prompt, DECODE_STEPS_MAX + 1)?;
        self.driver.start(request);
        Ok(id)
    }

    /// Runs everything that is pending of each request, and tells how long it took.
    fn step(&mut self, ids: &[RequestId]) -> Result<Span, Box<dyn Error>> {
        let run = |&request: &RequestId| Run {
            request,
            tokens: self.driver.pending(request),
        };
        let runs: Vec<Run> = ids.iter().map(run).collect();
        let sampled: &[Sampled] = self.driver.step(&runs)?;
        debug_assert_eq!(sampled.len(), ids.len());
        Ok(self.driver.backend().elapsed)
    }
}

fn enough(times: &[Span]) -> bool {
    times.len() >= SAMPLES_MIN && times.iter().copied().sum::<Span>() >= SAMPLED_MIN
}

fn median(mut times: Vec<Span>) -> Span {
    times.sort_unstable();
    times[times.len() / 2]
}
