//! `cargo xtask speed cpu`: how near decoding and prefill on the CPU come to what this machine can do: steps
//! beside the time in which memory can be read, prefill beside a plain matrix product.
//!
//! Everything is measured in turn, round by round, so that what else the machine does falls on all alike.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use serve_bench::analysis::median as middle;
use serve_bench::figure::Figure;
use serve_core::{RequestId, Span};
use serve_model::config::{ModelConfig, Shape};
use serve_model::cpu::{CpuOptions, Instructions, ReadSpeed};
use serve_model::decode::DeviceKind;
use serve_model::load::{LoadOptions, Source, load};
use serve_model::measure::{StepBytes, TimedSteps, median};
use serve_model::numbers::{Precision, Quantization};

use crate::TaskResult;
use crate::cli::SpeedCpu;
use crate::typed::typed;

const PROMPT_TOKENS: u32 = 128;
const BATCHES: [u32; 3] = [1, 4, 16];
/// Decode steps of each batch in a round; the last counts, since the first meets cold caches.
const STEPS: u32 = 2;
/// As stored, and made smaller.
const WEIGHTS: [Option<Quantization>; 3] = [None, Some(Quantization::Q8), Some(Quantization::Q4)];

/// Measures and prints.
pub(crate) fn run(options: &SpeedCpu) -> TaskResult {
    let shape: Shape = typed("SHAPE", &options.shape)?;
    let mut models = Vec::new();
    for quantization in WEIGHTS {
        for &precision in Precision::with(quantization) {
            models.push(Measured::load(
                shape,
                options.rounds,
                quantization,
                precision,
            )?);
        }
    }
    let threads = rayon::current_num_threads();
    let bytes = models
        .iter()
        .map(|model| model.bytes.weights)
        .max()
        .unwrap_or(0);
    let mut memory = ReadSpeed::new(bytes as usize, Instructions::best(), threads);
    let mut product = Product::new(&models[0].config);
    let (mut reads, mut products) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        products.push(product.measure()?);
        for model in &mut models {
            reads.push(memory.measure());
            model.round()?;
        }
    }
    let machine = Machine {
        bytes_per_s: middle(reads).unwrap_or(f64::NAN),
        flops_per_s: middle(products).unwrap_or(f64::NAN),
    };
    let mut out = std::io::stdout().lock();
    if options.json {
        for model in models {
            model.print_json(&machine, &mut out)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "random weights of the shape of {}; {threads} threads, {}",
        shape.origin,
        Instructions::best()
    )?;
    writeln!(
        out,
        "memory is read at {:.1} GB/s; f32 matrix products run at {:.0} GFLOP/s",
        machine.bytes_per_s / 1e9,
        machine.flops_per_s / 1e9
    )?;
    writeln!(
        out,
        "medians of {} rounds; the floor of a step is the time in which its weights and KV are read; \
         factors are what those of matrix products are rounded to",
        options.rounds
    )?;
    writeln!(
        out,
        "\n{:<22} {:<7} {:>9} {:>9} {:>16} {:>16} {:>16} {:>18}",
        "weights", "factors", "MB", "floor", "batch 1", "batch 4", "batch 16", "prefill of 128"
    )?;
    for model in models {
        model.print_row(&machine, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the machine can do.
struct Machine {
    bytes_per_s: f64,
    flops_per_s: f64,
}

/// A model and what has been measured of it.
struct Measured {
    name: String,
    precision: Precision,
    config: ModelConfig,
    bytes: StepBytes,
    steps: TimedSteps,
    /// The requests of the largest batch, which go on from round to round. Smaller batches are the
    /// first of them.
    requests: Vec<RequestId>,
    outputs_max: u32,
    decode: [Vec<Span>; BATCHES.len()],
    prefill: Vec<Span>,
}

impl Measured {
    fn load(
        shape: Shape,
        rounds: u32,
        quantization: Option<Quantization>,
        precision: Precision,
    ) -> Result<Self, Box<dyn Error>> {
        let outputs_max = BATCHES.len() as u32 * STEPS * rounds + 1;
        let context = PROMPT_TOKENS + outputs_max;
        let requests_max = BATCHES[BATCHES.len() - 1] + 1;
        let options = LoadOptions {
            context_max: Some(context),
            kv_tokens: Some(u64::from(requests_max * context.next_multiple_of(16))),
            cpu: CpuOptions {
                quantization,
                ..CpuOptions::default()
            },
            device: DeviceKind::Cpu,
            precision: Some(precision),
            ..LoadOptions::default()
        };
        let model = load(&Source::Random(shape), &options, &mut |_| ())?;
        let config = model.backend.decoder().config().clone();
        let bytes = StepBytes::of(&config, &model.info, options.block_size);
        let name = model.info.weights_dtype();
        let mut steps = TimedSteps::new(model.backend)?;
        let mut requests = Vec::new();
        for _ in 1..requests_max {
            let id = steps.start(PROMPT_TOKENS, outputs_max)?;
            steps.run(&[id])?;
            requests.push(id);
        }
        Ok(Self {
            name,
            precision,
            config,
            bytes,
            steps,
            requests,
            outputs_max,
            decode: Default::default(),
            prefill: Vec::new(),
        })
    }

    /// One prompt, and some decode steps of each batch.
    fn round(&mut self) -> Result<(), Box<dyn Error>> {
        let id = self.steps.start(PROMPT_TOKENS, 1)?;
        self.prefill.push(self.steps.run(&[id])?);
        self.steps.release(id);
        for (batch, times) in BATCHES.into_iter().zip(&mut self.decode) {
            let ids = &self.requests[..batch as usize];
            for _ in 1..STEPS {
                self.steps.run(ids)?;
            }
            times.push(self.steps.run(ids)?);
        }
        Ok(())
    }

    /// The least time of a decode step in the middle of all rounds, in seconds.
    fn floor(&self, batch: u32, machine: &Machine) -> f64 {
        let context = PROMPT_TOKENS + self.outputs_max / 2;
        let floor = self.bytes.floor(batch, context, machine.bytes_per_s);
        floor.as_secs_f64()
    }

    /// Multiplications and additions of a prompt's products.
    fn prompt_flops(&self) -> f64 {
        let config = &self.config;
        let attention = config.query_size() * 2 + config.kv_size() * 2;
        let weights = config.hidden_size * (attention + 3 * config.intermediate_size);
        2.0 * f64::from(PROMPT_TOKENS) * (weights * config.layers) as f64
    }

    fn print_row(self, machine: &Machine, out: &mut impl Write) -> std::io::Result<()> {
        let floor = self.floor(1, machine);
        let share = self.prompt_flops() / machine.flops_per_s;
        let (name, bytes) = (self.name, self.bytes.weights as f64 / 1e6);
        let factors = self.precision.name();
        write!(
            out,
            "{name:<22} {factors:<7} {bytes:>9.0} {:>6.1} ms",
            floor * 1e3
        )?;
        let decode = self.decode.map(|times| median(times).as_secs_f64());
        for (index, step) in decode.into_iter().enumerate() {
            let (ratio, of) = match index {
                0 => (step / floor, "floor"),
                _ => (step / decode[0], "b1"),
            };
            let cell = format!("{:.1} ms {ratio:.2}x {of}", step * 1e3);
            write!(out, " {cell:>16}")?;
        }
        let prefill = median(self.prefill).as_secs_f64();
        let cell = format!(
            "{:.0} ms {:.0}% gemm",
            prefill * 1e3,
            share / prefill * 100.0
        );
        writeln!(out, " {cell:>18}")
    }

    fn print_json(self, machine: &Machine, out: &mut impl Write) -> std::io::Result<()> {
        let floor = self.floor(1, machine);
        let share = self.prompt_flops() / machine.flops_per_s;
        let decode = self.decode.map(|times| median(times).as_secs_f64());
        let prefill = median(self.prefill).as_secs_f64();
        let rows = [
            ("read_speed", machine.bytes_per_s / 1e9, "GB/s"),
            ("gemm", machine.flops_per_s / 1e9, "GFLOP/s"),
            ("floor_1", floor * 1e3, "ms"),
            ("decode_1", decode[0] * 1e3, "ms"),
            ("decode_4", decode[1] * 1e3, "ms"),
            ("decode_16", decode[2] * 1e3, "ms"),
            ("prefill_128", prefill * 1e3, "ms"),
            ("decode_1_of_floor", decode[0] / floor, "x"),
            ("decode_16_of_1", decode[2] / decode[0], "x"),
            ("prefill_of_gemm", share / prefill * 100.0, "%"),
        ];
        for (name, value, unit) in rows {
            let figure = Figure::new(name, value, unit).with("weights", self.name.as_str());
            let figure = figure.with("factors", self.precision.name());
            writeln!(out, "{}", figure.line(true))?;
        }
        Ok(())
    }
}

/// A product of f32 matrices as large as those of a prompt, by the `gemm` crate through Burn.
struct Product {
    x: Tensor<2>,
    /// `[inputs, outputs]`, and the other way round.
    weights: [Tensor<2>; 2],
    flops: f64,
}

impl Product {
    fn new(config: &ModelConfig) -> Self {
        let device = Device::flex();
        let (rows, inputs, outputs) = (
            PROMPT_TOKENS as usize,
            config.hidden_size,
            config.intermediate_size,
        );
        let tensor = |rows: usize, columns: usize| {
            let number = |index: usize| (index % 97) as f32 / 97.0 - 0.5;
            let data = (0..rows * columns).map(number).collect::<Vec<f32>>();
            Tensor::<2>::from_data(TensorData::new(data, [rows, columns]), &device)
        };
        Self {
            x: tensor(rows, inputs),
            weights: [tensor(inputs, outputs), tensor(outputs, inputs)],
            flops: 2.0 * (rows * inputs * outputs) as f64,
        }
    }

    /// Operations in a second, of the faster layout of the weights.
    fn measure(&mut self) -> Result<f64, Box<dyn Error>> {
        let [plain, other] = &self.weights;
        let mut best = 0.0_f64;
        for weights in [plain.clone(), other.clone().transpose()] {
            for _ in 0..2 {
                let begin = Instant::now();
                let out = self.x.clone().matmul(weights.clone());
                out.try_into_data().map_err(|e| format!("{e:?}"))?;
                best = best.max(self.flops / begin.elapsed().as_secs_f64());
            }
        }
        Ok(best)
    }
}
