//! What steps of the shapes that we name launch on CUDA, for `cargo xtask gpu-compile`, which reads it from the log of the
//! driver that stands in. On a GPU it shows that all of it is recorded.

#![expect(
    clippy::print_stdout,
    reason = "what a step reads is this test's answer"
)]

use serve_model::config::Shape;
use serve_model::decode::DeviceKind;
use serve_model::load::{LoadError, LoadOptions, Source, load};
use serve_model::measure::StepBytes;

/// The shape with so many layers alone, of which each is like the other.
fn cut(shape: Shape, layers: u32) -> Shape {
    let mut config: serde_json::Value = serde_json::from_str(shape.config).unwrap();
    config["num_hidden_layers"] = layers.into();
    Shape {
        config: config.to_string().leak(),
        ..shape
    }
}

/// Runs and records every size of a step with one layer, then with two, and says what a step reads.
fn records(name: &str) {
    let shape = Shape::asked(&format!("random:{name}")).unwrap().unwrap();
    for layers in [1, 2] {
        let options = LoadOptions {
            device: DeviceKind::Cuda,
            sequences_max: 16,
            // No more than decode steps have: larger ones take minutes of tuning.
            step_tokens_max: 16,
            context_max: Some(1_024),
            ..LoadOptions::default()
        };
        let source = Source::Random(cut(shape, layers));
        let model = match load(&source, &options, &mut |_| ()) {
            Err(LoadError::Device(missing)) => return println!("skipped: {missing}"),
            model => model.unwrap(),
        };
        let info = &model.info;
        let device = &info.device;
        assert!(device.contains("decode steps recorded"), "{device}");
        let config = model.backend.decoder().config();
        let bytes = StepBytes::of(config, info, options.block_size);
        let (weights, position) = (bytes.weights, bytes.kv_per_token);
        println!("reads {layers} {weights} {position}");
    }
}

#[test]
#[ignore = "compiles for a model of real size"]
fn cuda_records_qwen2_5_0_5b() {
    records("qwen2.5-0.5b");
}

#[test]
#[ignore = "compiles for a model of real size"]
fn cuda_records_qwen2_5_1_5b() {
    records("qwen2.5-1.5b");
}

#[test]
#[ignore = "compiles for a model of real size"]
fn cuda_records_qwen2_5_7b() {
    records("qwen2.5-7b");
}
