//! The files of a model, opened and checked, with the weights still on disk.

use std::path::Path;

use crate::config::ModelConfig;
use crate::generation::GenerationConfig;
use crate::load::{LoadError, Source};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use crate::tokenizer_config::TokenizerConfig;
use crate::weights::Checkpoint;

/// The files of a model.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) name: String,
    pub(super) config: ModelConfig,
    pub(super) tokenizer: Tokenizer,
    pub(super) chat_template: Option<ChatTemplate>,
    pub(super) generation: GenerationConfig,
    pub(super) checkpoint: Checkpoint,
}

impl Files {
    pub(super) fn open(source: &Source) -> Result<Self, LoadError> {
        match source {
            Source::Embedded => Self::embedded(),
            Source::Folder(folder) => Self::folder(folder),
        }
    }

    fn folder(folder: &Path) -> Result<Self, LoadError> {
        if !folder.is_dir() {
            return Err(LoadError::NoFolder {
                path: folder.to_owned(),
            });
        }
        let config = ModelConfig::read(&folder.join("config.json"))?;
        let tokenizer = Tokenizer::from_file(&folder.join("tokenizer.json"))?;
        // A path such as `.` has no name of its own.
        let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = absolute.file_name().unwrap_or(folder.as_os_str());
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            config,
            chat_template: ChatTemplate::from_dir(folder)?,
            generation: GenerationConfig::from_dir(folder, &tokenizer)?,
            tokenizer,
            checkpoint: Checkpoint::open(folder)?,
        })
    }

    fn embedded() -> Result<Self, LoadError> {
        macro_rules! file {
            ($read:ident, $name:literal) => {
                $read!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/models/austen-2m/",
                    $name
                ))
            };
        }
        let config = file!(include_str, "config.json");
        let tokenizer = Tokenizer::from_bytes(file!(include_bytes, "tokenizer.json"))?;
        let texts = TokenizerConfig::from_json(file!(include_str, "tokenizer_config.json"))?;
        let eos = texts.special_tokens.get("eos_token");
        Ok(Self {
            name: "austen-2m".to_owned(),
            config: ModelConfig::parse(config)?,
            chat_template: ChatTemplate::from_config(&texts)?,
            generation: GenerationConfig::from_json(
                Some(file!(include_str, "generation_config.json")),
                Some(config),
                eos.and_then(|token| tokenizer.token_id(token)),
            )?,
            tokenizer,
            checkpoint: Checkpoint::embedded(
                "model.safetensors",
                file!(include_bytes, "model.safetensors"),
            )?,
        })
    }
}
