//! A real model: found, loaded with progress, and joined to the edge's idea of a text.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use serve_core::{Backend as _, Sampling, TokenId};
use serve_http::Loaded;
use serve_http::api::Message;
use serve_http::text::{Detokenize, Text, TextError};
use serve_model::config::{Shape, UnknownShape};
use serve_model::cpu::CpuOptions;
use serve_model::hub::{self, HubOptions};
use serve_model::load::{EMBEDDED, LoadOptions, Model, Progress, Source, load};
use serve_model::text::{ChatInputs, ChatTemplate, Detokenizer, TemplateError, Tokenizer};
use serve_sched::settings::{CONTEXT, KV_TOKENS, MAX_BATCH, STEP_TOKENS};

use super::progress::{Meter, mib};
use super::{Assembled, Current, Description, Example, rebuild, running};
use crate::console::Console;
use crate::failure::Failure;
use crate::settings::Cli;

pub(crate) fn assemble(
    cli: &Cli,
    current: &Current,
    console: &Console,
) -> Result<Assembled, Failure> {
    let source = source(cli, console)?;
    let settings = cli.settings();
    let options = LoadOptions {
        chat_template: cli.chat_template.clone(),
        sequences_max: settings.get(&MAX_BATCH).get(),
        step_tokens_max: settings.get(&STEP_TOKENS).get(),
        context_max: settings.get(&CONTEXT).map(|context| context.get()),
        kv_tokens: settings
            .get(&KV_TOKENS)
            .map(|tokens| u64::from(tokens.get())),
        device: cli.device.unwrap_or_default(),
        precision: cli.precision,
        graphs: cli.graphs.unwrap_or(true),
        cpu: CpuOptions {
            quantization: cli.quantize,
            ..CpuOptions::default()
        },
        ..LoadOptions::default()
    };
    let mut meter = Meter::new(console.clone());
    let Model {
        backend,
        tokenizer,
        chat_template,
        generation,
        info,
        warnings,
    } = load(&source, &options, &mut |progress| match progress {
        Progress::Weights { bytes, bytes_total } => meter.show("weights", bytes, bytes_total),
        Progress::Cache { .. } => meter.finish(),
        Progress::Warm { steps, steps_total } => meter.count("steps warmed", steps, steps_total),
    })?;
    drop(meter);
    for warning in &warnings {
        console.line(warning);
    }
    for ignored in &generation.ignored {
        console.line(&format!(
            "generation_config.json: {ignored} is not supported and ignored"
        ));
    }
    // What is built anew after a panic has no part in chats.
    let options = LoadOptions {
        chat_template: None,
        ..options
    };
    let sampling = generation.sampling()?;
    let example = match (&source, &chat_template) {
        (Source::Embedded, _) => {
            Example::Continue("It is a truth universally acknowledged, that a young man")
        }
        (Source::Random(_), _) => Example::Continue("Once upon a time"),
        (_, Some(Ok(_))) => Example::Say("Why is the sky blue?"),
        (_, None | Some(Err(_))) => Example::Continue("Once upon a time"),
    };
    let mut description = Description {
        limits: backend.limits(),
        lines: vec![
            (
                "kind",
                format!(
                    "{}, {} parameters",
                    info.architecture.name(),
                    grouped(info.parameters)
                ),
            ),
            ("device", info.device.clone()),
            (
                "dtype",
                format!("{}, weights in {}", info.dtype, info.weights_dtype()),
            ),
            (
                "memory",
                format!(
                    "weights {}, KV cache {} for {} tokens",
                    mib(info.weights_bytes),
                    mib(info.kv_bytes),
                    grouped(info.kv_tokens)
                ),
            ),
        ],
        example,
        running: Value::Null,
    };
    if let Source::Random(shape) = &source {
        let origin = shape.origin;
        let random = format!("random weights of the shape of {origin}: answers mean nothing");
        description.lines.insert(0, ("weights", random));
    }
    let name = cli.served_model_name.clone();
    let name = name.unwrap_or_else(|| named(&source, cli.model.as_deref(), &info.name));
    description.running = running(&name, &info.device, &description.limits);
    description.running["dtype"] = info.dtype.into();
    description.running["weights_dtype"] = info.weights_dtype().into();
    description.running["parameters"] = info.parameters.into();
    description.running["weights_bytes"] = info.weights_bytes.into();
    description.running["kv_bytes"] = info.kv_bytes.into();
    let text = ModelText {
        tokenizer,
        chat_template,
        stop_tokens: generation.stop.into(),
        sampling,
    };
    Ok(Assembled {
        loaded: Loaded {
            name,
            text: Arc::new(text),
            backend: Box::new(backend),
            policies: current.policies()?,
            rebuild: Some(rebuild(current, move || {
                let model = load(&source, &options, &mut |_| {});
                model
                    .map(|model| model.backend)
                    .map_err(|error| error.to_string())
            })),
        },
        description,
    })
}

/// Random weights if asked for; a folder if there is one of that name; else, if it can be one, a name on the hub.
fn source(cli: &Cli, console: &Console) -> Result<Source, Failure> {
    let Some(model) = &cli.model else {
        return Ok(Source::Embedded);
    };
    if let Some(shape) = Shape::asked(model) {
        return random(cli, shape);
    }
    let is_folder = Path::new(model).is_dir();
    if !is_folder && model == EMBEDDED && cli.revision.is_none() {
        return Ok(Source::Embedded);
    }
    if model.to_ascii_lowercase().ends_with(".gguf") {
        return Err(Failure::Model(format!(
            "{model}: GGUF is not read; a folder in the Hugging Face layout (config.json, tokenizer.json \
             and safetensors) or ORG/NAME on the hub is"
        )));
    }
    if is_folder || !is_hub_name(model) {
        if !is_folder {
            return Err(Failure::Model(format!(
                "there is no folder {model}; a model is a folder in the Hugging Face layout, ORG/NAME on \
                 the hub, random:SHAPE, or {EMBEDDED}, which is part of the binary"
            )));
        }
        if cli.revision.is_some() {
            return Err(Failure::Usage {
                setting: "--revision".to_owned(),
                cause: format!("it belongs to a model on the hub, and --model {model} is a path"),
            });
        }
        return Ok(Source::Folder(model.into()));
    }
    let options = HubOptions::from_env()?;
    let revision = cli.revision.as_deref().unwrap_or("main");
    console.line(&format!(
        "there is no folder {model} here; fetching {model} ({revision}) from {}",
        options.endpoint
    ));
    let mut meter = Meter::new(console.clone());
    let folder = hub::fetch(model, revision, &options, &mut |progress| {
        meter.show(progress.file, progress.bytes_done, progress.bytes_total);
    })?;
    meter.finish();
    Ok(Source::Folder(folder))
}

fn random(cli: &Cli, shape: Result<Shape, UnknownShape>) -> Result<Source, Failure> {
    let usage = |setting: &str, cause: String| Failure::Usage {
        setting: setting.to_owned(),
        cause,
    };
    let shape = shape.map_err(|error| usage("--model", error.to_string()))?;
    if cli.revision.is_some() {
        let cause = "it belongs to a model on the hub, and random weights are made here";
        return Err(usage("--revision", cause.to_owned()));
    }
    if cli.served_model_name.is_some() {
        let cause = "random weights keep their own name, so that nobody takes them for a model";
        return Err(usage("--served-model-name", cause.to_owned()));
    }
    Ok(Source::Random(shape))
}

/// `ORG/NAME` and nothing that only a path can be.
fn is_hub_name(model: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
    };
    match model.split_once('/') {
        Some((org, name)) => is_part(org) && is_part(name),
        None => false,
    }
}

/// The name that clients ask for: the hub's where it came from there, else the folder's.
fn named(source: &Source, asked: Option<&str>, own: &str) -> String {
    match (source, asked) {
        (Source::Folder(folder), Some(asked)) if !folder.ends_with(asked) => asked.to_owned(),
        _ => own.to_owned(),
    }
}

/// A model's tokenizer and template as the edge wants them.
struct ModelText {
    tokenizer: Arc<Tokenizer>,
    chat_template: Option<Result<ChatTemplate, TemplateError>>,
    stop_tokens: Arc<[TokenId]>,
    sampling: Sampling,
}

impl ModelText {
    fn tokens(
        result: Result<Vec<TokenId>, serve_model::text::TokenizerError>,
    ) -> Result<Vec<TokenId>, TextError> {
        result.map_err(|error| TextError::Tokenizer {
            cause: error.to_string(),
        })
    }
}

impl Text for ModelText {
    fn encode(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        Self::tokens(self.tokenizer.encode_with_special(text))
    }

    fn encode_chat(
        &self,
        messages: &[Message],
        variables: &Map<String, Value>,
    ) -> Result<Vec<TokenId>, TextError> {
        let refused = |error: &TemplateError| TextError::Template {
            cause: error.to_string(),
        };
        let template = self.chat_template.as_ref().ok_or(TextError::NoTemplate)?;
        let template = template.as_ref().map_err(refused)?;
        let as_json = |message: &Message| match &message.name {
            None => json!({"role": message.role.name(), "content": message.content}),
            Some(name) => {
                json!({"role": message.role.name(), "content": message.content, "name": name})
            }
        };
        let messages: Vec<Value> = messages.iter().map(as_json).collect();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let inputs = ChatInputs {
            messages: &messages,
            tools: None,
            variables: Some(variables),
            add_generation_prompt: true,
            now_unix_s: since.map_or(0, |since| since.as_secs().cast_signed()),
        };
        let prompt = template.render(&inputs).map_err(|error| refused(&error))?;
        Self::tokens(self.tokenizer.encode(&prompt))
    }

    fn bytes_max(&self, tokens: u32) -> Option<usize> {
        self.tokenizer.text_bytes_max(tokens)
    }

    fn detokenizer(&self, prompt: &[TokenId]) -> Box<dyn Detokenize> {
        Box::new(ModelDetokenizer(Some(Detokenizer::after(
            &self.tokenizer,
            true,
            prompt,
        ))))
    }

    fn bytes(&self, token: TokenId) -> Vec<u8> {
        self.tokenizer.bytes(token)
    }

    fn vocabulary(&self) -> u32 {
        u32::try_from(self.tokenizer.ids_end()).unwrap_or(u32::MAX)
    }

    fn markup(&self, spelling: &str) -> Option<TokenId> {
        let token = self.tokenizer.token_id(spelling);
        token.filter(|&token| self.tokenizer.is_special(token))
    }

    fn stop_tokens(&self) -> &Arc<[TokenId]> {
        &self.stop_tokens
    }

    fn sampling(&self) -> Sampling {
        self.sampling
    }
}

/// Gone once the text is finished.
struct ModelDetokenizer(Option<Detokenizer>);

impl Detokenize for ModelDetokenizer {
    fn push(&mut self, token: TokenId, out: &mut String) {
        if let Some(text) = self.0.as_mut().and_then(|inner| inner.push(token)) {
            out.push_str(&text);
        }
    }

    fn finish(&mut self, out: &mut String) {
        if let Some(text) = self.0.take().and_then(Detokenizer::finish) {
            out.push_str(&text);
        }
    }
}

/// `1969088` as `1,969,088`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_not_taken_for_a_name_on_the_hub() {
        assert!(is_hub_name("Qwen/Qwen2.5-0.5B-Instruct"));
        for path in [
            "./model",
            "../a/b",
            "/models/a",
            "model",
            "a/b/c",
            "a/",
            "~/x",
        ] {
            assert!(!is_hub_name(path), "{path}");
        }
    }

    #[test]
    fn a_model_is_named_as_it_was_asked_for() {
        let folder = |path: &str| Source::Folder(path.into());
        let cached = folder("/cache/models--Org--Name/snapshots/abc");
        assert_eq!(named(&cached, Some("Org/Name"), "abc"), "Org/Name");
        assert_eq!(
            named(&folder("/models/tiny"), Some("/models/tiny"), "tiny"),
            "tiny"
        );
        assert_eq!(named(&Source::Embedded, None, "austen-2m"), "austen-2m");
    }

    #[test]
    fn random_weights_are_asked_for_by_shape_and_keep_their_name() {
        use clap::Parser as _;
        let asked = |arguments: &[&str]| {
            let cli = Cli::try_parse_from([&["serve", "--model"], arguments].concat()).unwrap();
            source(&cli, &Console::start().unwrap().0)
        };
        let random = asked(&["random:qwen2.5-0.5b"]).unwrap();
        assert!(matches!(random, Source::Random(shape) if shape.name == "qwen2.5-0.5b"));
        let own = "random:qwen2.5-0.5b";
        assert_eq!(named(&random, Some(own), own), own);
        let refusals: [(&[&str], &str); 3] = [
            (
                &["random:gpt"],
                "--model: there is no shape \"gpt\"; random weights are made for qwen2.5-0.5b,",
            ),
            (&[own, "--revision", "main"], "--revision: it belongs to"),
            (
                &[own, "--served-model-name", "qwen"],
                "--served-model-name: random weights keep their own name",
            ),
        ];
        for (arguments, part) in refusals {
            let message = asked(arguments).unwrap_err().to_string();
            assert!(message.starts_with(part), "{message}");
        }
    }

    #[test]
    fn numbers_are_grouped_by_threes() {
        let shown = [7, 1_000, 1_969_088].map(grouped);
        assert_eq!(shown, ["7", "1,000", "1,969,088"]);
    }
}
