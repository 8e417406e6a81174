//! Measures prefill and decode of a model on this machine.
//!
//! Prints a table, or with `--json` one object a line: `name`, `value`, `unit`, `model`, and for a step its batch,
//! context, time and floor. Exits with 2 if the model cannot be used. A step is timed by the backend
//! itself, without what is around it.

mod bench;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};
use serve_core::Span;
use serve_model::config::Shape;
use serve_model::cpu::CpuOptions;
use serve_model::decode::DeviceKind;
use serve_model::load::{LoadOptions, ModelInfo, Source, load};
use serve_model::measure::{StepBytes, TimedSteps};
use serve_model::numbers::{Precision, Quantization};

use bench::{DECODE_STEPS_MAX, decode, prefill};

/// Measure prefill and decode of a model: medians, in tokens per second, and how far each decode step is
/// from the memory's own speed.
#[derive(Parser)]
struct Arguments {
    /// A model's folder, `embedded` for the model inside the binary, or `random:SHAPE` for random
    /// weights of a known shape, such as `random:qwen2.5-0.5b`.
    model: PathBuf,
    /// Sequences in a decode step.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4, 16])]
    batches: Vec<u32>,
    /// Tokens of each sequence before the first decode step, and of the prefill.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [128])]
    contexts: Vec<u32>,
    /// Make matrices smaller when they are loaded: q8 or q4 [default: as they are stored].
    #[arg(long)]
    quantize: Option<Quantization>,
    /// Where the model runs: auto, cpu, cuda, webgpu or flex.
    #[arg(long, default_value_t)]
    device: DeviceKind,
    /// On a GPU, the type of weights, activations and cache; on the CPU, what the factors of matrix
    /// products are rounded to: f32, bf16 or, with --quantize, int8 [default: bf16 if a GPU has it; f32 on
    /// the CPU, int8 with --quantize].
    #[arg(long)]
    precision: Option<Precision>,
    /// On a GPU, launch each operation of a decode step instead of replaying a recorded one.
    #[arg(long)]
    no_graphs: bool,
    /// Steps of each kind whose median counts [default: as many as take a second, and at least 9].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    samples: Option<u32>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Print the config.json of a random:SHAPE and measure nothing.
    #[arg(long)]
    print_config: bool,
}

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
    let mut out = std::io::stdout().lock();
    if arguments.print_config {
        let Source::Random(shape) = &source else {
            return Err("--print-config needs random:SHAPE; a folder has its config.json".into());
        };
        return Ok(writeln!(out, "{}", shape.config)?);
    }
    let zero = |list: &[u32]| list.contains(&0) || list.is_empty();
    if zero(&arguments.batches) || zero(&arguments.contexts) {
        return Err("--batches and --contexts take numbers from 1 up".into());
    }
    let most = |list: &[u32]| list.iter().copied().max().unwrap_or(1);
    let (batch_max, context_max) = (most(&arguments.batches), most(&arguments.contexts));
    let defaults = LoadOptions::default();
    let options = LoadOptions {
        sequences_max: defaults.sequences_max.max(batch_max),
        step_tokens_max: defaults.step_tokens_max.max(context_max).max(batch_max),
        context_max: Some(context_max + DECODE_STEPS_MAX + 1),
        cpu: CpuOptions {
            quantization: arguments.quantize,
            ..CpuOptions::default()
        },
        device: arguments.device,
        precision: arguments.precision,
        graphs: !arguments.no_graphs,
        ..defaults
    };
    let begin = Instant::now();
    let model = load(&source, &options, &mut |_| ())?;
    let load_time = Span::from(begin.elapsed());
    let mut report = Report {
        json: arguments.json,
        model: model.info.name.clone(),
        out,
    };
    report.opening(&source, &model.info, load_time)?;
    let bytes = StepBytes::of(
        model.backend.decoder().config(),
        &model.info,
        options.block_size,
    );
    let mut steps = TimedSteps::new(model.backend)?;
    let bandwidth = steps.bandwidth()?;
    if let Some(bandwidth) = bandwidth {
        report.bandwidth(bandwidth)?;
    }
    let samples = arguments.samples.map(|samples| samples as usize);
    for &context in &arguments.contexts {
        let step = prefill(&mut steps, context, samples)?;
        report.step(&format!("prefill_{context}"), context, step, &[], None)?;
        for &batch in &arguments.batches {
            let step = decode(&mut steps, batch, context, samples)?;
            // In the middle of the steps that were measured.
            let middle = context + DECODE_STEPS_MAX / 2;
            let floor = bandwidth.map(|bandwidth| bytes.floor(batch, middle, bandwidth));
            let of = [("batch", batch), ("context", context)];
            report.step(&format!("decode_{batch}"), batch, step, &of, floor)?;
        }
    }
    Ok(())
}

/// Prints what was measured, in either form.
struct Report<W> {
    json: bool,
    model: String,
    out: W,
}

impl<W: Write> Report<W> {
    fn opening(&mut self, source: &Source, info: &ModelInfo, load: Span) -> std::io::Result<()> {
        if self.json {
            let value = info.weights_bytes as f64 / 1e6;
            return self.line(json!({ "name": "weights", "value": value, "unit": "MB" }));
        }
        if let Source::Random(shape) = source {
            writeln!(self.out, "random weights of the shape of {}", shape.origin)?;
        }
        writeln!(
            self.out,
            "{}: {}, {:.1} M parameters kept in {}, computed in {} on {}, loaded in {:.0} ms",
            info.name,
            info.architecture,
            info.parameters as f64 / 1e6,
            info.weights_dtype(),
            info.dtype,
            info.device,
            load.as_millis_f64()
        )
    }

    fn bandwidth(&mut self, bytes_per_s: f64) -> std::io::Result<()> {
        let value = bytes_per_s / 1e9;
        match self.json {
            true => self.line(json!({ "name": "read_bandwidth", "value": value, "unit": "GB/s" })),
            false => writeln!(self.out, "{:<12} {value:>10.1} GB/s", "memory"),
        }
    }

    /// A step that ran `tokens`; `of` says at which batch and context, `floor` what it cannot beat.
    fn step(
        &mut self,
        name: &str,
        tokens: u32,
        step: Span,
        of: &[(&str, u32)],
        floor: Option<Span>,
    ) -> std::io::Result<()> {
        let value = f64::from(tokens) / step.as_secs_f64();
        let millis = step.as_millis_f64();
        let times = floor.map(|floor| step.as_secs_f64() / floor.as_secs_f64());
        if !self.json {
            write!(
                self.out,
                "{name:<12} {value:>10.1} tokens/s {millis:>10.2} ms a step"
            )?;
            return match times {
                Some(times) => writeln!(self.out, " {times:>7.2} x the memory's floor"),
                None => writeln!(self.out),
            };
        }
        let mut line = json!({
            "name": name, "value": value, "unit": "tokens/s", "step_ms": millis,
        });
        for (key, number) in of {
            line[*key] = json!(number);
        }
        if let (Some(floor), Some(times)) = (floor, times) {
            line["floor_ms"] = json!(floor.as_millis_f64());
            line["times_floor"] = json!(times);
        }
        self.line(line)
    }

    fn line(&mut self, mut line: Value) -> std::io::Result<()> {
        line["model"] = json!(self.model);
        writeln!(self.out, "{line}")
    }
}
