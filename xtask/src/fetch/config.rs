//! `config.json` and `generation_config.json` from a GGUF's metadata.

use serde_json::{Value, json};

use super::error::ConvertError;
use super::gguf::{self, Gguf};
use super::weights::Dtype;

/// GGUF's architecture names, and Hugging Face's classes.
const ARCHITECTURES: [(&str, &str); 3] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
];

/// The model's architecture, checked to be one that is known here.
pub(crate) fn architecture(gguf: &Gguf) -> Result<&str, ConvertError> {
    let arch = gguf.text("general.architecture")?;
    match ARCHITECTURES.iter().any(|row| row.0 == arch) {
        true => Ok(arch),
        false => Err(ConvertError::Architecture {
            found: arch.to_owned(),
            known: ARCHITECTURES.map(|row| row.0).join(", "),
        }),
    }
}

/// `config.json` in the older key style, which every reader understands.
pub(crate) fn config(
    gguf: &Gguf,
    arch: &str,
    dtype: Dtype,
    tied: bool,
) -> Result<Value, ConvertError> {
    let int = |key: &str| gguf.int(&format!("{arch}.{key}"));
    let float = |key: &str| gguf.float(&format!("{arch}.{key}"));
    let class = ARCHITECTURES.iter().find(|row| row.0 == arch);
    let (hidden, heads) = (int("embedding_length")?, int("attention.head_count")?);
    let mut config = json!({
        "architectures": [class.map(|row| row.1)],
        "model_type": arch,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int("feed_forward_length")?,
        "num_hidden_layers": int("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": int("attention.head_count_kv").unwrap_or(heads),
        "head_dim": int("attention.key_length").unwrap_or(hidden / heads.max(1)),
        "max_position_embeddings": int("context_length")?,
        "rms_norm_eps": shortest(float("attention.layer_norm_rms_epsilon")?),
        "rope_theta": shortest(float("rope.freq_base").unwrap_or(10_000.0)),
        "rope_scaling": null,
        "tie_word_embeddings": tied,
        "vocab_size": gguf.tensor("token_embd.weight")?.shape[0],
        "bos_token_id": token_id(gguf, "bos"),
        "eos_token_id": token_id(gguf, "eos"),
        "pad_token_id": token_id(gguf, "padding"),
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "torch_dtype": dtype.torch_name(),
        "use_cache": true,
    });
    let rest = match arch {
        "llama" => vec![
            ("attention_bias", json!(false)),
            ("mlp_bias", json!(false)),
            ("pretraining_tp", json!(1)),
        ],
        _ => vec![
            ("use_sliding_window", json!(false)),
            ("sliding_window", Value::Null),
        ],
    };
    for (key, value) in rest {
        config[key] = value;
    }
    Ok(config)
}

/// `generation_config.json`: which tokens end a turn.
pub(crate) fn generation_config(gguf: &Gguf, arch: &str) -> Value {
    let (bos, eos) = (token_id(gguf, "bos"), token_id(gguf, "eos"));
    // Qwen's beginning-of-text token is its end-of-text token, and ends a turn too.
    let both = arch != "llama" && bos.is_some() && bos != eos;
    json!({
        "bos_token_id": bos,
        "eos_token_id": if both { json!([eos, bos]) } else { json!(eos) },
        "pad_token_id": token_id(gguf, "padding"),
    })
}

/// The id of a special token, such as `eos`, if the vocabulary has it.
pub(crate) fn token_id(gguf: &Gguf, which: &str) -> Option<u64> {
    match gguf.get(&format!("tokenizer.ggml.{which}_token_id")) {
        Some(gguf::Value::Int(id)) => u64::try_from(*id).ok(),
        _ => None,
    }
}

/// The shortest decimal that reads back as the same `f32`: 1e-6, not 9.999999974752427e-7.
fn shortest(x: f64) -> f64 {
    (x as f32).to_string().parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_float_is_written_as_a_person_wrote_it() {
        assert_eq!(shortest(f64::from(1e-6_f32)), 1e-6);
        assert_eq!(shortest(f64::from(1e6_f32)), 1e6);
        assert_eq!(shortest(f64::from(1e-5_f32)), 1e-5);
    }
}
