//! What this binary is: its version, commit, features, and the instructions that it finds here.

use std::sync::LazyLock;

use serde_json::{Value, json};

const COMMIT: &str = env!("SERVE_COMMIT");

/// What `--version` says after the program's name.
pub(crate) static LINE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} (commit {COMMIT}; features: {}; instructions: {})",
        env!("CARGO_PKG_VERSION"),
        or_none(&features()),
        instructions()
    )
});

/// The same for programs.
pub(crate) fn build() -> Value {
    json!({
        "commit": COMMIT,
        "features": features(),
        "instructions": instructions(),
    })
}

/// The same as labels of a metric.
pub(crate) fn labels() -> Vec<(&'static str, String)> {
    vec![
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("commit", COMMIT.to_owned()),
        ("features", features().join(",")),
        ("instructions", instructions().to_owned()),
    ]
}

fn features() -> Vec<&'static str> {
    let all = [
        ("model", cfg!(feature = "model")),
        ("cuda", cfg!(feature = "cuda")),
        ("webgpu", cfg!(feature = "webgpu")),
    ];
    let on = all.into_iter().filter(|(_, is_on)| *is_on);
    on.map(|(name, _)| name).collect()
}

fn or_none(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    }
}

/// The fastest of this processor's that the kernels on the CPU are compiled for.
#[cfg(feature = "model")]
fn instructions() -> String {
    serve_model::cpu::Instructions::best().to_string()
}

/// Nothing is computed here.
#[cfg(not(feature = "model"))]
fn instructions() -> String {
    "none needed".to_owned()
}
