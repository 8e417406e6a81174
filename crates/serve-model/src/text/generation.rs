//! When a model stops, and how it samples when nobody says otherwise.
//!
//! Merged from `generation_config.json`, `config.json` and the tokenizer's end-of-sequence token.

use std::num::NonZeroU32;
use std::path::Path;

use serde_json::{Map, Value};
use serve_core::{InvalidSampling, Sampling, TokenId};
use thiserror::Error;

use super::tokenizer::Tokenizer;
use super::tokenizer_config::{ModelFileError, TokenizerConfig, object, read_optional};

/// A model's own defaults for generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a text, ascending.
    pub stop: Vec<TokenId>,
    /// Whether the model's makers sample rather than take the most likely token.
    pub do_sample: bool,
    /// Their temperature.
    pub temperature: Option<f32>,
    /// Their number of most likely tokens to keep; `None` keeps all.
    pub top_k: Option<NonZeroU32>,
    /// Their nucleus.
    pub top_p: Option<f32>,
    /// Their least relative probability.
    pub min_p: Option<f32>,
    /// Their penalty of tokens that were there before; it holds for greedy decoding, too.
    pub repetition_penalty: Option<f32>,
    /// Settings of the file that would change what is generated and that are not applied.
    pub ignored: Vec<String>,
}

/// Generation settings that cannot be used.
#[derive(Debug, Error)]
pub enum GenerationError {
    /// A file could not be read or understood.
    #[error(transparent)]
    File(#[from] ModelFileError),
    /// A sampling parameter is out of range.
    #[error("generation_config.json: {0}")]
    Sampling(#[from] InvalidSampling),
}

const FILE: &str = "generation_config.json";
const MODEL_FILE: &str = "config.json";

/// Settings of transformers that change the result, each with the value that changes nothing.
const NEUTRAL: [(&str, f64); 5] = [
    ("typical_p", 1.0),
    ("no_repeat_ngram_size", 0.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("num_beams", 1.0),
];

impl GenerationConfig {
    /// Reads the files of a model's folder, each of which may be missing.
    ///
    /// # Errors
    ///
    /// [`GenerationError`], naming the file and the field.
    pub fn from_dir(dir: &Path, tokenizer: &Tokenizer) -> Result<Self, GenerationError> {
        let tokens = TokenizerConfig::from_dir(dir)?.special_tokens;
        let eos = tokens.get("eos_token");
        Self::from_json(
            read_optional(dir, FILE)?.as_deref(),
            read_optional(dir, MODEL_FILE)?.as_deref(),
            eos.and_then(|token| tokenizer.token_id(token)),
        )
    }

    /// Merges the contents of `generation_config.json` and `config.json`.
    ///
    /// The stop tokens are those of the first, or of the second if the first names none, and the
    /// tokenizer's end of sequence in any case.
    ///
    /// # Errors
    ///
    /// [`GenerationError`], naming the file and the field.
    pub fn from_json(
        generation: Option<&str>,
        model: Option<&str>,
        tokenizer_eos: Option<TokenId>,
    ) -> Result<Self, GenerationError> {
        let fields = Fields::parse(FILE, generation)?;
        let mut stop = fields.token_ids("eos_token_id")?;
        if stop.is_empty() {
            stop = Fields::parse(MODEL_FILE, model)?.token_ids("eos_token_id")?;
        }
        stop.extend(tokenizer_eos);
        stop.sort_unstable();
        stop.dedup();
        let config = Self {
            stop,
            do_sample: fields.boolean("do_sample")?,
            temperature: fields.number("temperature")?,
            top_k: fields.count("top_k")?,
            top_p: fields.number("top_p")?,
            min_p: fields.number("min_p")?,
            repetition_penalty: fields.number("repetition_penalty")?,
            ignored: fields.ignored(),
        };
        // Out of range is an error at start, not at the first request.
        config.sampled()?;
        Ok(config)
    }

    /// How to sample a request that asks for nothing: greedy unless the model's makers sample.
    ///
    /// # Errors
    ///
    /// [`InvalidSampling`], if a public field was set out of range.
    pub fn sampling(&self) -> Result<Sampling, InvalidSampling> {
        if self.do_sample {
            self.sampled()
        } else {
            self.penalised()
        }
    }

    fn penalised(&self) -> Result<Sampling, InvalidSampling> {
        Sampling::GREEDY.with_repetition_penalty(self.repetition_penalty.unwrap_or(1.0))
    }

    fn sampled(&self) -> Result<Sampling, InvalidSampling> {
        self.penalised()?
            .with_temperature(self.temperature.unwrap_or(1.0))?
            .with_top_k(self.top_k)
            .with_top_p(self.top_p.unwrap_or(1.0))?
            .with_min_p(self.min_p.unwrap_or(0.0))
    }
}

/// The fields of one file; a null is a field that is not there.
struct Fields {
    file: &'static str,
    fields: Map<String, Value>,
}

impl Fields {
    fn parse(file: &'static str, json: Option<&str>) -> Result<Self, ModelFileError> {
        let fields = json.map_or_else(|| Ok(Map::new()), |json| object(file, json))?;
        Ok(Self { file, fields })
    }

    /// A field's value through `read`, which answers `None` to what is not `accepted`.
    fn read<T>(
        &self,
        field: &str,
        accepted: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ModelFileError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(found) => read(found).map(Some).ok_or_else(|| ModelFileError::Field {
                file: self.file,
                field: field.to_owned(),
                accepted,
                found: found.to_string(),
            }),
        }
    }

    fn token_ids(&self, field: &str) -> Result<Vec<TokenId>, ModelFileError> {
        let one = |value: &Value| u32::try_from(value.as_u64()?).ok().map(TokenId::new);
        let ids = self.read(field, "a token id or a list of them", |value| match value {
            Value::Array(ids) => ids.iter().map(one).collect(),
            id => Some(vec![one(id)?]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    fn boolean(&self, field: &str) -> Result<bool, ModelFileError> {
        Ok(self
            .read(field, "true or false", Value::as_bool)?
            .unwrap_or_default())
    }

    fn number(&self, field: &str) -> Result<Option<f32>, ModelFileError> {
        self.read(field, "a number", |value| value.as_f64().map(|x| x as f32))
    }

    /// A count of which 0 and -1 mean all.
    fn count(&self, field: &str) -> Result<Option<NonZeroU32>, ModelFileError> {
        let count = self.read(field, "a whole number from 0, or -1", |value| {
            match value.as_i64() {
                Some(-1) => Some(0),
                _ => u32::try_from(value.as_u64()?).ok(),
            }
        })?;
        Ok(count.and_then(NonZeroU32::new))
    }

    fn ignored(&self) -> Vec<String> {
        let changes = |(name, neutral): &(&str, f64)| {
            let value = self.fields.get(*name).and_then(Value::as_f64);
            value.filter(|value| value != neutral)
        };
        let found = |setting: &(&str, f64)| {
            changes(setting).map(|value| format!("{} = {value}", setting.0))
        };
        NEUTRAL.iter().filter_map(found).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(generation: &str, model: &str, eos: Option<u32>) -> GenerationConfig {
        GenerationConfig::from_json(Some(generation), Some(model), eos.map(TokenId::new)).unwrap()
    }

    fn stops(config: &GenerationConfig) -> Vec<u32> {
        config.stop.iter().map(|token| token.get()).collect()
    }

    #[test]
    fn stop_tokens_are_numbers_or_lists_and_the_generation_config_goes_first() {
        let model = r#"{"eos_token_id": 7}"#;
        assert_eq!(stops(&merged(r#"{"eos_token_id": 3}"#, model, None)), [3]);
        assert_eq!(
            stops(&merged(r#"{"eos_token_id": [9, 3, 9]}"#, model, Some(5))),
            [3, 5, 9]
        );
        assert_eq!(stops(&merged("{}", model, Some(7))), [7]);
        assert_eq!(
            stops(&merged("{}", r#"{"eos_token_id": [1, 2]}"#, None)),
            [1, 2]
        );
        assert!(
            merged(r#"{"eos_token_id": null}"#, "{}", None)
                .stop
                .is_empty()
        );
    }

    #[test]
    fn a_model_whose_makers_do_not_sample_is_greedy() {
        let greedy = merged(
            r#"{"temperature": 0.6, "repetition_penalty": 1.1}"#,
            "{}",
            None,
        );
        let greedy = greedy.sampling().unwrap();
        assert!(greedy.is_greedy());
        // As in transformers, where a penalty does not need sampling.
        assert_eq!(greedy.repetition_penalty(), 1.1);
        let sampled = merged(
            r#"{"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20}"#,
            "{}",
            None,
        );
        let sampling = sampled.sampling().unwrap();
        assert_eq!(
            (sampling.temperature(), sampling.top_p(), sampling.top_k()),
            (0.7, 0.8, NonZeroU32::new(20))
        );
    }

    #[test]
    fn no_top_k_is_written_in_three_ways() {
        for top_k in ["0", "-1", "null"] {
            let json = format!(r#"{{"do_sample": true, "top_k": {top_k}}}"#);
            assert_eq!(merged(&json, "{}", None).top_k, None, "{top_k}");
        }
    }

    #[test]
    fn what_is_not_applied_is_said() {
        let config = merged(
            r#"{"no_repeat_ngram_size": 3, "typical_p": 1.0, "num_beams": 4}"#,
            "{}",
            None,
        );
        assert_eq!(
            config.ignored,
            ["no_repeat_ngram_size = 3", "num_beams = 4"]
        );
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let message = |json: &str| {
            let error = GenerationConfig::from_json(Some(json), None, None).unwrap_err();
            error.to_string()
        };
        assert_eq!(
            message(r#"{"eos_token_id": [1, -1]}"#),
            "generation_config.json: eos_token_id must be a token id or a list of them, not [1,-1]"
        );
        assert_eq!(
            message(r#"{"do_sample": "yes"}"#),
            "generation_config.json: do_sample must be true or false, not \"yes\""
        );
        assert_eq!(
            message(r#"{"repetition_penalty": 0}"#),
            "generation_config.json: repetition_penalty must be a finite number above 0, not 0"
        );
        assert_eq!(
            message(r#"{"top_k": -2}"#),
            "generation_config.json: top_k must be a whole number from 0, or -1, not -2"
        );
        assert_eq!(
            message(r#"{"top_p": 1.5}"#),
            "generation_config.json: top_p must be more than 0 and at most 1, not 1.5"
        );
        assert!(message("[]").starts_with("generation_config.json is not valid: "));
        let model = GenerationConfig::from_json(None, Some(r#"{"eos_token_id": "x"}"#), None);
        assert_eq!(
            model.unwrap_err().to_string(),
            "config.json: eos_token_id must be a token id or a list of them, not \"x\""
        );
    }
}
