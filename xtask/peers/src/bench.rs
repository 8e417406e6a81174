//! The measurement: the same steps in the same order as `cargo xtask speed decode --samples` takes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::Outcome;
use crate::engine::{Engine, Weights};

/// For which vectors this was compiled; candle's kernels are chosen then.
const VECTORS: &str = if cfg!(target_feature = "avx512vnni") {
    "AVX512 AVX512_VNNI"
} else if cfg!(target_feature = "avx2") {
    "AVX2"
} else {
    "neither AVX2 nor AVX512"
};

/// What is measured.
#[derive(Args)]
pub(crate) struct Options {
    /// A folder that `prepare` has filled.
    folder: PathBuf,
    /// In what the weights are kept.
    #[arg(long, value_enum)]
    weights: Weights,
    /// Sequences in a decode step.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4, 16])]
    batches: Vec<usize>,
    /// Tokens of each sequence before the first decode step, and of the prefill.
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    context: usize,
    /// Steps of each kind; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    samples: usize,
}

/// Measures and prints, one JSON object a line.
pub(crate) fn run(options: &Options) -> Outcome {
    let mut engine = Engine::load(&options.folder, options.weights)?;
    let deviation = deviation(&mut engine, options)?;
    line(&json!({
        "name": "weights", "value": engine.weights_bytes as f64 / 1e6, "unit": "MB",
        "version": format!("candle-transformers {}, {VECTORS}", version()),
    }));
    line(&json!({ "name": "deviation", "value": deviation, "unit": "of the reference" }));
    let mut times = Vec::new();
    for _ in 0..options.samples {
        times.push(prompts(&mut engine, options, 1)?.1);
    }
    step(
        &format!("prefill_{}", options.context),
        options.context,
        times,
    );
    for &batch in &options.batches {
        let (mut tokens, _) = prompts(&mut engine, options, batch)?;
        let mut times = Vec::new();
        for _ in 0..=options.samples {
            let next = tokens.iter().map(|&token| vec![token]).collect::<Vec<_>>();
            let begin = Instant::now();
            tokens = engine.step(&next)?;
            times.push(begin.elapsed());
        }
        // The first meets cold buffers.
        times.remove(0);
        step(&format!("decode_{batch}"), batch, times);
    }
    Ok(())
}

/// Runs `batch` random prompts: what follows each, and how long it took.
fn prompts(engine: &mut Engine, options: &Options, batch: usize) -> Outcome<(Vec<u32>, Duration)> {
    engine.clear();
    let mut rng = SmallRng::seed_from_u64(1);
    // Every shape has more tokens than these.
    let mut prompt = |_| {
        (0..options.context)
            .map(|_| rng.random_range(0..100_000))
            .collect()
    };
    let prompts = (0..batch).map(&mut prompt).collect::<Vec<Vec<u32>>>();
    let begin = Instant::now();
    let tokens = engine.prompts(&prompts)?;
    Ok((tokens, begin.elapsed()))
}

/// How far the logits of the golden prompt are from the reference: the root mean square of the
/// differences, over that of the reference.
fn deviation(engine: &mut Engine, options: &Options) -> Outcome<f64> {
    let golden = std::fs::read_to_string(options.folder.join("golden.json"))?;
    let golden: Value = serde_json::from_str(&golden)?;
    let case = &golden["cases"][0];
    let prompt: Vec<u32> = serde_json::from_value(case["ids"].clone())?;
    let reference: Vec<f64> = serde_json::from_value(case["last_logits"].clone())?;
    let logits = engine.logits(&[prompt])?.remove(0);
    let square = |x: f64| x * x;
    let differences = logits.iter().zip(&reference);
    let differences: f64 = differences.map(|(&x, y)| square(f64::from(x) - y)).sum();
    let reference: f64 = reference.iter().map(|&y| square(y)).sum();
    Ok((differences / reference).sqrt())
}

/// Prints the median of `times`, in which a step ran `tokens`.
fn step(name: &str, tokens: usize, mut times: Vec<Duration>) {
    times.sort_unstable();
    let seconds = times[times.len() / 2].as_secs_f64();
    line(&json!({
        "name": name, "value": tokens as f64 / seconds, "unit": "tokens/s", "step_ms": seconds * 1e3,
    }));
}

fn line(row: &Value) {
    println!("{row}");
}

/// Of candle-transformers, as this crate was built with it.
fn version() -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let after = lock
        .split("name = \"candle-transformers\"\nversion = \"")
        .nth(1);
    after
        .and_then(|rest| rest.split('"').next())
        .unwrap_or("unknown")
}
