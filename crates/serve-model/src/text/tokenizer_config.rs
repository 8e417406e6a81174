//! What is used of `tokenizer_config.json`: the names of special tokens, and a chat template.
//!
//! The vocabulary itself is in `tokenizer.json`. Folders written before `added_tokens_decoder` was put into
//! `tokenizer_config.json` may name their special tokens in `special_tokens_map.json`, too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::plain_file::{self, CONFIG_BYTES_MAX};

/// The parts of `tokenizer_config.json` that are used. The default is an empty file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenizerConfig {
    /// Special tokens by their role: `bos_token`, `eos_token`, `unk_token`, `pad_token` and so on.
    pub special_tokens: BTreeMap<String, String>,
    /// The chat template, or several by name.
    pub chat_template: Option<NamedTemplates>,
}

/// One template, or several by name (`default`, `tool_use`, ..).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum NamedTemplates {
    /// One for all purposes.
    One(String),
    /// Several, of which a request's tools decide.
    Many(Vec<NamedTemplate>),
}

/// A template and its name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NamedTemplate {
    /// What it is for.
    pub name: String,
    /// Its Jinja source.
    pub template: String,
}

/// A JSON file of a model's folder that could not be used.
#[derive(Debug, Error)]
pub enum ModelFileError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file is not JSON, or not of the expected shape.
    #[error("{file} is not valid: {source}")]
    Format {
        /// The file.
        file: &'static str,
        /// Where it stops making sense.
        source: serde_json::Error,
    },
    /// A field holds something else than it should.
    #[error("{file}: {field} must be {accepted}, not {found}")]
    Field {
        /// The file.
        file: &'static str,
        /// The field.
        field: String,
        /// What it may be.
        accepted: &'static str,
        /// What it is.
        found: String,
    },
}

const FILE: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";

impl TokenizerConfig {
    /// Reads the files of a model's folder, each of which may be missing. As in transformers, the tokens of
    /// `special_tokens_map.json` go first, and that file is not read where `tokenizer_config.json` has
    /// `added_tokens_decoder`.
    ///
    /// # Errors
    ///
    /// [`ModelFileError`], if a file is there and cannot be used.
    pub fn from_dir(dir: &Path) -> Result<Self, ModelFileError> {
        let own = read_optional(dir, FILE)?;
        let map = read_optional(dir, MAP)?;
        let fields = own.map_or_else(|| Ok(Map::new()), |json| object(FILE, &json))?;
        let mut config = Self::of(&fields)?;
        if let (None, Some(json)) = (fields.get("added_tokens_decoder"), map) {
            config.special_tokens.extend(tokens(&object(MAP, &json)?));
        }
        Ok(config)
    }

    /// Reads the contents of `tokenizer_config.json`.
    ///
    /// # Errors
    ///
    /// [`ModelFileError::Format`] and [`ModelFileError::Field`].
    pub fn from_json(json: &str) -> Result<Self, ModelFileError> {
        Self::of(&object(FILE, json)?)
    }

    fn of(fields: &Map<String, Value>) -> Result<Self, ModelFileError> {
        let chat_template = match fields.get("chat_template") {
            None | Some(Value::Null) => None,
            Some(value) => {
                Some(
                    NamedTemplates::deserialize(value).map_err(|_| ModelFileError::Field {
                        file: FILE,
                        field: "chat_template".to_owned(),
                        accepted: "a string or a list of objects with name and template",
                        found: value.to_string(),
                    })?,
                )
            }
        };
        Ok(Self {
            special_tokens: tokens(fields).collect(),
            chat_template,
        })
    }
}

/// The special tokens that a file names, by their role.
fn tokens(fields: &Map<String, Value>) -> impl Iterator<Item = (String, String)> {
    let roles = fields.iter().filter(|(name, _)| name.ends_with("_token"));
    roles.filter_map(|(name, value)| Some((name.clone(), token_text(value)?.to_owned())))
}

/// A token is written as its text or as an object that holds it; anything else, as in
/// `add_bos_token: true`, is not a token.
fn token_text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Object(token) => token.get("content")?.as_str(),
        _ => None,
    }
}

pub(crate) fn read_optional(dir: &Path, file: &str) -> Result<Option<String>, ModelFileError> {
    let path = dir.join(file);
    match plain_file::read_text(&path, CONFIG_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ModelFileError::Read { path, source }),
    }
}

pub(crate) fn object(file: &'static str, json: &str) -> Result<Map<String, Value>, ModelFileError> {
    serde_json::from_str(json).map_err(|source| ModelFileError::Format { file, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_in_both_spellings() {
        let config = TokenizerConfig::from_json(
            r#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>",
                "pad_token": null, "add_bos_token": true, "chat_template": "x"}"#,
        )
        .unwrap();
        let tokens: Vec<_> = config.special_tokens.iter().collect();
        assert_eq!(
            tokens,
            [
                (&"bos_token".to_owned(), &"<s>".to_owned()),
                (&"eos_token".to_owned(), &"</s>".to_owned())
            ]
        );
        assert_eq!(
            config.chat_template,
            Some(NamedTemplates::One("x".to_owned()))
        );
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let message = |json| TokenizerConfig::from_json(json).unwrap_err().to_string();
        assert!(message("{").starts_with("tokenizer_config.json is not valid: EOF"));
        assert_eq!(
            message(r#"{"chat_template": 3}"#),
            "tokenizer_config.json: chat_template must be a string or a list of objects with name \
             and template, not 3"
        );
    }
}
