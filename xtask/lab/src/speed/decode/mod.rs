//! `cargo xtask speed decode`: prefill and decode of a model on this machine.
//!
//! Prints a table, or with `--json` one object a line: `name`, `value`, `unit`, `model`, and for a step its batch,
//! context, time and floor. A step is timed by the backend itself, without what is around it.

mod bench;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use serve_bench::figure::Figure;
use serve_core::Span;
use serve_model::config::Shape;
use serve_model::cpu::CpuOptions;
use serve_model::load::{EMBEDDED, LoadOptions, ModelInfo, Source, load};
use serve_model::measure::{StepBytes, TimedSteps};

use crate::TaskResult;
use crate::cli::SpeedDecode;
use bench::{DECODE_STEPS_MAX, decode, prefill};

/// Loads, measures, prints.
pub(crate) fn run(options: &SpeedDecode) -> TaskResult {
    let name = options.model.to_str().unwrap_or_default();
    let source = match (name, Shape::asked(name)) {
        (_, Some(shape)) => Source::Random(shape?),
        ("embedded" | EMBEDDED, None) => Source::Embedded,
        _ => Source::Folder(options.model.clone()),
    };
    let mut out = std::io::stdout().lock();
    if options.print_config {
        let Source::Random(shape) = &source else {
            return Err("--print-config needs random:SHAPE; a folder has its config.json".into());
        };
        writeln!(out, "{}", shape.config)?;
        return Ok(ExitCode::SUCCESS);
    }
    let most = |list: &[u32]| list.iter().copied().max().unwrap_or(1);
    let (batch_max, context_max) = (most(&options.batches), most(&options.contexts));
    let defaults = LoadOptions::default();
    let load_options = LoadOptions {
        sequences_max: defaults.sequences_max.max(batch_max),
        step_tokens_max: defaults.step_tokens_max.max(context_max).max(batch_max),
        context_max: Some(context_max + DECODE_STEPS_MAX + 1),
        cpu: CpuOptions {
            quantization: options.weights.quantization()?,
            ..CpuOptions::default()
        },
        device: options.weights.device()?,
        precision: options.weights.precision()?,
        graphs: !options.no_graphs,
        tuned_decode: options.tuned_decode,
        ..defaults
    };
    let begin = Instant::now();
    let model = load(&source, &load_options, &mut |_| ())?;
    let load_time = Span::from(begin.elapsed());
    let mut report = Report {
        json: options.json,
        model: model.info.name.clone(),
        out,
    };
    report.opening(&source, &model.info, load_time)?;
    let bytes = StepBytes::of(
        model.backend.decoder().config(),
        &model.info,
        load_options.block_size,
    );
    let mut steps = TimedSteps::new(model.backend)?;
    let bandwidth = steps.bandwidth()?;
    if let Some(bandwidth) = bandwidth {
        report.bandwidth(bandwidth)?;
    }
    let samples = options.samples.map(|samples| samples as usize);
    for &context in &options.contexts {
        let step = prefill(&mut steps, context, samples)?;
        report.step(&format!("prefill_{context}"), context, step, &[], None)?;
        for &batch in &options.batches {
            let step = decode(&mut steps, batch, context, samples)?;
            // In the middle of the steps that were measured.
            let middle = context + DECODE_STEPS_MAX / 2;
            let floor = bandwidth.map(|bandwidth| bytes.floor(batch, middle, bandwidth));
            let of = [("batch", batch), ("context", context)];
            report.step(&format!("decode_{batch}"), batch, step, &of, floor)?;
        }
    }
    Ok(ExitCode::SUCCESS)
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
            return self.line(Figure::new("weights", value, "MB"));
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
            true => self.line(Figure::new("read_bandwidth", value, "GB/s")),
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
        let mut figure = Figure::new(name, value, "tokens/s").with("step_ms", millis);
        for (key, number) in of {
            figure = figure.with(key, *number);
        }
        if let (Some(floor), Some(times)) = (floor, times) {
            figure = figure.with("floor_ms", floor.as_millis_f64());
            figure = figure.with("times_floor", times);
        }
        self.line(figure)
    }

    fn line(&mut self, figure: Figure) -> std::io::Result<()> {
        let figure = figure.with("model", self.model.as_str());
        writeln!(self.out, "{}", figure.line(true))
    }
}
