//! One GGUF file in, one Hugging Face folder out.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::config::{architecture, config, generation_config};
use super::error::ConvertError;
use super::gguf::Gguf;
use super::tokenizer::{Family, tokenizer, tokenizer_config};
use super::weights::{Dtype, write_weights};

/// What was written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// The model's class, such as `Qwen2ForCausalLM`.
    pub(crate) class: String,
    /// How many layers it has.
    pub(crate) layers: u64,
    /// Whether input and output embeddings are one tensor.
    pub(crate) tied: bool,
    /// The size of `model.safetensors`.
    pub(crate) bytes: u64,
}

/// Writes `config.json`, `generation_config.json`, `model.safetensors`, `tokenizer.json`,
/// `tokenizer_config.json` and, if the file holds one, `chat_template.jinja` into `out`.
///
/// The weights come first and under a temporary name, so that an interrupted run leaves no folder
/// that looks whole.
pub(crate) fn convert(source: &Path, out: &Path, dtype: Dtype) -> Result<Written, ConvertError> {
    let gguf = Gguf::open(source)?;
    let arch = architecture(&gguf)?;
    let family = Family::of(&gguf)?;
    fs::create_dir_all(out).map_err(|source| ConvertError::write(out, source))?;

    let weights = out.join("model.safetensors");
    let partial = out.join("model.safetensors.partial");
    let tied = write_weights(&gguf, arch, &partial, dtype)?;
    let rename = fs::rename(&partial, &weights).and_then(|()| fs::metadata(&weights));
    let bytes = rename
        .map_err(|source| ConvertError::write(&weights, source))?
        .len();

    let config = config(&gguf, arch, dtype, tied)?;
    let tokenizer_config = tokenizer_config(&gguf, arch, family)?;
    let write = |name: &str, text: String| {
        let path = out.join(name);
        fs::write(&path, text).map_err(|source| ConvertError::write(&path, source))
    };
    write("config.json", format!("{config:#}\n"))?;
    write(
        "generation_config.json",
        format!("{:#}\n", generation_config(&gguf, arch)),
    )?;
    write("tokenizer.json", format!("{}\n", tokenizer(&gguf, family)?))?;
    write("tokenizer_config.json", format!("{tokenizer_config:#}\n"))?;
    if let Value::String(template) = &tokenizer_config["chat_template"] {
        write("chat_template.jinja", template.clone())?;
    }
    Ok(Written {
        class: config["architectures"][0]
            .as_str()
            .unwrap_or(arch)
            .to_owned(),
        layers: config["num_hidden_layers"].as_u64().unwrap_or(0),
        tied,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{GgufWriter, TempDir};
    use super::*;

    fn qwen() -> GgufWriter {
        let mut writer = GgufWriter::default();
        writer.text("general.architecture", "qwen2");
        writer
            .int("qwen2.embedding_length", 4)
            .int("qwen2.attention.head_count", 2);
        writer
            .int("qwen2.feed_forward_length", 8)
            .int("qwen2.block_count", 3);
        writer
            .int("qwen2.context_length", 64)
            .float("qwen2.rope.freq_base", 1e6);
        writer.float("qwen2.attention.layer_norm_rms_epsilon", 1e-6);
        writer
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "qwen2");
        writer.texts(
            "tokenizer.ggml.tokens",
            &["a", "<|im_end|>", "<|endoftext|>"],
        );
        writer
            .ints("tokenizer.ggml.token_type", &[1, 3, 3])
            .texts("tokenizer.ggml.merges", &[]);
        writer
            .int("tokenizer.ggml.eos_token_id", 1)
            .int("tokenizer.ggml.bos_token_id", 2);
        writer.text("tokenizer.chat_template", "{{ messages }}");
        writer.f32_tensor("token_embd.weight", &[3, 4], &[0.5; 12]);
        writer
    }

    #[test]
    fn a_folder_holds_every_file_of_a_hugging_face_model() {
        let dir = TempDir::new("folder");
        let source = dir.path().join("a.gguf");
        std::fs::write(&source, qwen().bytes()).unwrap();
        let written = convert(&source, dir.path(), Dtype::Bf16).unwrap();
        assert_eq!(
            (written.class.as_str(), written.layers),
            ("Qwen2ForCausalLM", 3)
        );
        assert!(written.tied);

        let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let json = |name: &str| serde_json::from_str::<Value>(&text(name)).unwrap();
        let config = json("config.json");
        assert_eq!(config["rope_theta"], 1e6);
        assert_eq!(config["rms_norm_eps"], 1e-6);
        assert_eq!(config["num_key_value_heads"], 2);
        assert_eq!(config["head_dim"], 2);
        assert_eq!(config["vocab_size"], 3);
        assert_eq!(config["torch_dtype"], "bfloat16");
        assert_eq!(
            json("generation_config.json")["eos_token_id"],
            serde_json::json!([1, 2])
        );
        assert_eq!(json("tokenizer_config.json")["eos_token"], "<|im_end|>");
        assert_eq!(json("tokenizer.json")["normalizer"]["type"], "NFC");
        assert_eq!(text("chat_template.jinja"), "{{ messages }}");
        assert!(!dir.path().join("model.safetensors.partial").exists());
    }

    #[test]
    fn an_architecture_that_is_not_known_is_refused_before_anything_is_written() {
        let dir = TempDir::new("folder-arch");
        let source = dir.path().join("a.gguf");
        let mut writer = GgufWriter::default();
        writer.text("general.architecture", "mamba");
        std::fs::write(&source, writer.bytes()).unwrap();
        let out = dir.path().join("out");
        let message = convert(&source, &out, Dtype::F32).unwrap_err().to_string();
        assert_eq!(
            message,
            "architecture mamba is not supported; llama, qwen2, qwen3 are"
        );
        assert!(!out.exists());
    }
}
