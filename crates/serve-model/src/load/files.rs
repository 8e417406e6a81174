//! The files of a model, opened and checked, with the weights still on disk.

use std::path::Path;

use super::error::LoadError;
use super::options::{EMBEDDED, Source};
use crate::config::{ModelConfig, Shape};
use crate::text::{
    ChatTemplate, GenerationConfig, ModelFileError, TemplateError, Tokenizer, TokenizerConfig,
};
use crate::weights::{Checkpoint, RandomWeights, TensorSource, parameters};

/// The files of a model, which fit each other.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) name: String,
    pub(super) config: ModelConfig,
    pub(super) tokenizer: Tokenizer,
    pub(super) chat_template: Option<Result<ChatTemplate, TemplateError>>,
    pub(super) generation: GenerationConfig,
    pub(super) weights: Box<dyn TensorSource>,
    /// Of the whole checkpoint.
    pub(super) parameters: u64,
    pub(super) warnings: Vec<String>,
}

impl Files {
    /// With the chat template of a file in place of the model's own, if one is given.
    pub(super) fn open(source: &Source, template: Option<&Path>) -> Result<Self, LoadError> {
        match source {
            Source::Embedded => Self::embedded(template),
            Source::Folder(folder) => Self::folder(folder, template),
            Source::Random(shape) => Self::random(shape, template),
        }
    }

    fn folder(folder: &Path, template: Option<&Path>) -> Result<Self, LoadError> {
        if !folder.is_dir() {
            return Err(LoadError::NoFolder {
                path: folder.to_owned(),
            });
        }
        let mut config = ModelConfig::read(&folder.join("config.json"))?;
        let tokenizer = Tokenizer::from_file(&folder.join("tokenizer.json"))?;
        // A path such as `.` has no name of its own.
        let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = absolute.file_name().unwrap_or(folder.as_os_str());
        let chat_template = match template {
            Some(path) => Some(Ok(given(path, &TokenizerConfig::from_dir(folder)?)?)),
            None => match ChatTemplate::from_dir(folder) {
                Err(error @ TemplateError::File(ModelFileError::Read { .. })) => {
                    return Err(error.into());
                }
                // Completions need none.
                found => found.transpose(),
            },
        };
        let generation = GenerationConfig::from_dir(folder, &tokenizer)?;
        let checkpoint = Checkpoint::open(folder)?;
        checkpoint.check(&config)?;
        let warnings = warnings(&tokenizer, &config, chat_template.as_ref());
        let parameters = parameters(&config);
        let tokenizer = tokenizer.with_rows(config.vocab_size);
        // Rows behind the last token are padding: nothing that is drawn could be one of them.
        config.vocab_size = config.vocab_size.min(tokenizer.ids_end());
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            config,
            tokenizer,
            chat_template,
            generation,
            weights: Box::new(checkpoint),
            parameters,
            warnings,
        })
    }

    fn embedded(template: Option<&Path>) -> Result<Self, LoadError> {
        macro_rules! file {
            ($read:ident, $name:literal) => {
                $read!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/models/austen-2m/",
                    $name
                ))
            };
        }
        let text = file!(include_str, "config.json");
        let config = ModelConfig::parse(text)?;
        let tokenizer = Tokenizer::from_bytes(file!(include_bytes, "tokenizer.json"))?;
        let texts = TokenizerConfig::from_json(file!(include_str, "tokenizer_config.json"))?;
        let eos = texts.special_tokens.get("eos_token");
        let checkpoint = Checkpoint::embedded(
            "model.safetensors",
            file!(include_bytes, "model.safetensors"),
        )?;
        checkpoint.check(&config)?;
        Ok(Self {
            name: EMBEDDED.to_owned(),
            chat_template: match template {
                Some(path) => Some(Ok(given(path, &texts)?)),
                None => ChatTemplate::from_config(&texts)?.map(Ok),
            },
            generation: GenerationConfig::from_json(
                Some(file!(include_str, "generation_config.json")),
                Some(text),
                eos.and_then(|token| tokenizer.token_id(token)),
            )?,
            parameters: parameters(&config),
            config,
            tokenizer,
            weights: Box::new(checkpoint),
            warnings: Vec::new(),
        })
    }

    /// The embedded model's texts with other weights.
    fn random(shape: &Shape, template: Option<&Path>) -> Result<Self, LoadError> {
        /// So that every run measures the same weights.
        const SEED: u64 = 1;
        let embedded = Self::embedded(template)?;
        let config = ModelConfig::parse(shape.config)?;
        Ok(Self {
            name: format!("{}{}", Shape::PREFIX, shape.name),
            tokenizer: embedded.tokenizer.with_placeholders(config.vocab_size),
            weights: Box::new(RandomWeights::new(&config, SEED)),
            // Measurements need answers of the length asked for, so nothing ends one early.
            generation: GenerationConfig::default(),
            parameters: parameters(&config),
            config,
            ..embedded
        })
    }
}

/// The template of a file that was given in place of the model's own, whose special tokens it may name.
fn given(path: &Path, config: &TokenizerConfig) -> Result<ChatTemplate, LoadError> {
    ChatTemplate::from_file(path, config).map_err(|cause| LoadError::ChatTemplate {
        path: path.to_owned(),
        cause,
    })
}

/// What is served otherwise than the files ask for, a line each.
fn warnings(
    tokenizer: &Tokenizer,
    config: &ModelConfig,
    chat_template: Option<&Result<ChatTemplate, TemplateError>>,
) -> Vec<String> {
    let mut warnings: Vec<String> = config.warnings.clone();
    if let Some(Err(error)) = chat_template {
        warnings.push(format!("chats are refused: {error}"));
    }
    let (tokens, rows) = (tokenizer.ids_end(), config.vocab_size);
    // Added tokens lie behind the rows of many models. As many others as that are a sign of another model's file;
    // its ids cannot be drawn, and a text that has one is refused, so it is served like any other.
    if tokens > rows {
        warnings.push(format!(
            "the tokenizer has tokens up to {} and the model's vocabulary holds {rows}: a text with one of the \
             others is refused",
            tokens - 1
        ));
    }
    warnings
}
