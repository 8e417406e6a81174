//! A model's chat template: messages in, the text that the model was trained on out.
//!
//! The source is the model's own, written for transformers, so it is rendered as transformers does:
//! Jinja2 with `trim_blocks`, `lstrip_blocks`, loop controls and Python's methods and formats (but a
//! tuple is a list, and shows as one). What
//! a message may contain is the template's business; nothing is checked or rewritten here.

mod date;
mod python;

use std::error::Error as _;
use std::io;
use std::path::Path;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};
use thiserror::Error;

use super::tokenizer_config::{
    ModelFileError, NamedTemplate, NamedTemplates, TokenizerConfig, object, read_optional,
};
use crate::plain_file::{self, CONFIG_BYTES_MAX};

/// A compiled chat template, or several of which a request's tools decide.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token` and the other special tokens that a template may name.
    special_tokens: Map<String, Json>,
}

/// What is rendered.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatInputs<'a> {
    /// The conversation: objects with `role`, `content` and what else the template knows.
    pub messages: &'a [Json],
    /// Tools that the model may call, as JSON Schema in OpenAI's form.
    pub tools: Option<&'a [Json]>,
    /// Further variables, such as `enable_thinking`.
    pub variables: Option<&'a Map<String, Json>>,
    /// Whether to end with the tokens that open the assistant's turn.
    pub add_generation_prompt: bool,
    /// What a template that asks for the date is told: seconds since 1970, with the offset of the
    /// time zone to show added.
    pub now_unix_s: i64,
}

/// Why there is no rendered prompt.
#[derive(Debug, Error)]
pub enum TemplateError {
    /// A file of the model's folder could not be read or understood.
    #[error(transparent)]
    File(#[from] ModelFileError),
    /// The source is not Jinja as it is understood here.
    #[error("the chat template {name} has a syntax error in line {line}: {detail}")]
    Syntax {
        /// The template's name, `default` for an unnamed one.
        name: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        detail: String,
    },
    /// The model has named templates and none fits the request.
    #[error("the model has no default chat template; it has {names}")]
    NoDefault {
        /// The templates' names.
        names: String,
    },
    /// The template itself refused the messages.
    #[error("the chat template refused the messages: {message}")]
    Raised {
        /// The template's words.
        message: String,
    },
    /// The template failed on the messages: a missing field, a wrong type.
    #[error("the chat template failed in line {line}: {detail}")]
    Render {
        /// Counted from 1.
        line: usize,
        /// What went wrong.
        detail: String,
    },
    /// A variable would replace one of the template's own.
    #[error(
        "{name} cannot be a template variable; it is one of messages, tools and \
         add_generation_prompt, which are set otherwise"
    )]
    Reserved {
        /// The variable.
        name: String,
    },
}

/// Steps of the template engine at most: a template is a program of the model's, and no conversation needs
/// as many. Eight thousand messages of a hundred steps.
const STEPS_MAX: u64 = 800_000;

/// Stack for one rendering. A value that is nested as deep as the steps allow, some hundred thousand levels,
/// is dropped level by level.
const STACK_BYTES: usize = 32 << 20;

/// Bytes of a rendered prompt at most.
const PROMPT_BYTES_MAX: usize = 16 << 20;

const DEFAULT: &str = "default";
const WITH_TOOLS: &str = "tool_use";
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

impl ChatTemplate {
    /// Finds the template of a model's folder: `chat_template.jinja`, else `chat_template.json`, else
    /// `tokenizer_config.json`. `None` if the model has no template, as most base models.
    ///
    /// # Errors
    ///
    /// [`TemplateError::File`], [`TemplateError::Syntax`] and [`TemplateError::NoDefault`].
    pub fn from_dir(dir: &Path) -> Result<Option<Self>, TemplateError> {
        let config = TokenizerConfig::from_dir(dir)?;
        if let Some(source) = read_optional(dir, "chat_template.jinja")? {
            return Self::new(&NamedTemplates::One(source), &config).map(Some);
        }
        if let Some(json) = read_optional(dir, "chat_template.json")? {
            return Self::new(&template_of_json(&json)?, &config).map(Some);
        }
        Self::from_config(&config)
    }

    /// Takes the template of a `tokenizer_config.json`, if it has one.
    ///
    /// # Errors
    ///
    /// [`TemplateError::Syntax`] and [`TemplateError::NoDefault`].
    pub fn from_config(config: &TokenizerConfig) -> Result<Option<Self>, TemplateError> {
        let templates = config.chat_template.as_ref();
        templates.map(|found| Self::new(found, config)).transpose()
    }

    /// Takes the template of a file, in Jinja. `config` lends the special tokens.
    ///
    /// # Errors
    ///
    /// [`TemplateError::File`] and [`TemplateError::Syntax`].
    pub fn from_file(path: &Path, config: &TokenizerConfig) -> Result<Self, TemplateError> {
        let source = plain_file::read_text(path, CONFIG_BYTES_MAX);
        let source = source.map_err(|source| ModelFileError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::new(&NamedTemplates::One(source), config)
    }

    /// Compiles templates. `config` lends the special tokens.
    ///
    /// # Errors
    ///
    /// [`TemplateError::Syntax`], and [`TemplateError::NoDefault`] if there are several templates and
    /// none of them is called `default`.
    pub fn new(
        templates: &NamedTemplates,
        config: &TokenizerConfig,
    ) -> Result<Self, TemplateError> {
        let mut environment = environment();
        let mut add = |name: &str, source: &str| {
            environment
                .add_template_owned(name.to_owned(), without_generation_tags(source))
                .map_err(|error| syntax_error(name, &error))
        };
        match templates {
            NamedTemplates::One(source) => add(DEFAULT, source)?,
            NamedTemplates::Many(list) => {
                for NamedTemplate { name, template } in list {
                    add(name, template)?;
                }
                if !list.iter().any(|template| template.name == DEFAULT) {
                    let names: Vec<&str> = list.iter().map(|named| named.name.as_str()).collect();
                    return Err(TemplateError::NoDefault {
                        names: names.join(", "),
                    });
                }
            }
        }
        let tokens = config.special_tokens.iter();
        let special_tokens = tokens.map(|(name, token)| (name.clone(), token.as_str().into()));
        Ok(Self {
            environment,
            special_tokens: special_tokens.collect(),
        })
    }

    /// Renders a conversation to the prompt that the model continues.
    ///
    /// # Errors
    ///
    /// [`TemplateError::Raised`] if the template refuses the messages, [`TemplateError::Render`] if it
    /// fails on them, takes more than 800,000 steps or writes more than 16 MiB, and [`TemplateError::Reserved`].
    pub fn render(&self, inputs: &ChatInputs<'_>) -> Result<String, TemplateError> {
        stacker::grow(STACK_BYTES, || self.render_here(inputs))
    }

    /// Renders on the present stack.
    fn render_here(&self, inputs: &ChatInputs<'_>) -> Result<String, TemplateError> {
        let variables = inputs.variables.into_iter().flatten();
        if let Some((name, _)) = variables
            .clone()
            .find(|(name, _)| RESERVED.contains(&name.as_str()))
        {
            return Err(TemplateError::Reserved { name: name.clone() });
        }
        let now_unix_s = inputs.now_unix_s;
        let strftime = move |format: &str| date::strftime(now_unix_s, format);
        let own = [
            ("messages", Value::from_serialize(inputs.messages)),
            // A template may ask whether there are tools or documents: none is not undefined.
            ("tools", Value::from_serialize(inputs.tools)),
            ("documents", Value::from(())),
            (
                "add_generation_prompt",
                Value::from(inputs.add_generation_prompt),
            ),
            ("strftime_now", Value::from_function(strftime)),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value));
        let given = self.special_tokens.iter().chain(variables);
        let given = given.map(|(name, value)| (name.clone(), Value::from_serialize(value)));
        let context: Value = own.into_iter().chain(given).collect();

        let name = match inputs.tools {
            Some(_) if self.environment.get_template(WITH_TOOLS).is_ok() => WITH_TOOLS,
            _ => DEFAULT,
        };
        let mut prompt = Bounded(Vec::new());
        let template = self.environment.get_template(name);
        let template = template.map_err(|error| render_error(&error))?;
        template
            .render_captured_to(context, &mut prompt)
            .map_err(|error| render_error(&error))?;
        Ok(String::from_utf8_lossy(&prompt.0).into_owned())
    }
}

/// The prompt that is being written.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.0.len() + text.len() > PROMPT_BYTES_MAX {
            return Err(io::Error::other("the prompt is longer than 16 MiB"));
        }
        self.0.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The environment that transformers renders in.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(STEPS_MAX));
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, _, value| python::write_str(out, value));
    environment.set_unknown_method_callback(python::method);
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("string", python::to_str);
    for name in ["e", "escape"] {
        environment.add_filter(name, python::escape);
    }
    for name in ["length", "count"] {
        environment.add_filter(name, python::len);
    }
    environment.add_test("sequence", python::is_sequence);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("dict", |pairs: Kwargs| {
        let names = pairs
            .args()
            .map(|name| Ok((name, pairs.get::<Value>(name)?)));
        names.collect::<Result<Value, Error>>()
    });
    environment
}

/// What a template says through `raise_exception`, carried as the cause of the engine's error.
#[derive(Debug, Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

fn template_of_json(json: &str) -> Result<NamedTemplates, ModelFileError> {
    const FILE: &str = "chat_template.json";
    let found = object(FILE, json)?.remove("chat_template");
    match found {
        Some(Json::String(source)) => Ok(NamedTemplates::One(source)),
        found => Err(ModelFileError::Field {
            file: FILE,
            field: "chat_template".to_owned(),
            accepted: "a string",
            found: found.unwrap_or_default().to_string(),
        }),
    }
}

/// Replaces transformers' `{% generation %}` blocks, which mark the assistant's words for training,
/// by a block that always renders.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let name = tag
            .trim_matches(|c: char| matches!(c, '{' | '}' | '%' | '-' | '+') || c.is_whitespace());
        match name {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn syntax_error(name: &str, error: &Error) -> TemplateError {
    TemplateError::Syntax {
        name: name.to_owned(),
        line: error.line().unwrap_or_default(),
        detail: error
            .detail()
            .map_or_else(|| error.to_string(), str::to_owned),
    }
}

fn render_error(error: &Error) -> TemplateError {
    let mut cause = error.source();
    while let Some(source) = cause {
        if let Some(Raised(message)) = source.downcast_ref() {
            return TemplateError::Raised {
                message: message.clone(),
            };
        }
        cause = source.source();
    }
    let kind = match error.kind() {
        ErrorKind::OutOfFuel => {
            return TemplateError::Render {
                line: error.line().unwrap_or_default(),
                detail: format!("it takes more than {STEPS_MAX} steps"),
            };
        }
        kind => kind,
    };
    TemplateError::Render {
        line: error.line().unwrap_or_default(),
        detail: error
            .detail()
            .map_or_else(|| kind.to_string(), |detail| format!("{kind}: {detail}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_a_block_that_renders() {
        assert_eq!(
            without_generation_tags("a{%- generation -%} b {% endgeneration %}{% if generation %}"),
            "a{%- if true -%} b {% endif %}{% if generation %}"
        );
        assert_eq!(without_generation_tags("{% generation"), "{% if true");
    }

    fn rendered(source: &str) -> Result<String, String> {
        let templates = NamedTemplates::One(source.to_owned());
        let template = ChatTemplate::new(&templates, &TokenizerConfig::default()).unwrap();
        let messages = [serde_json::json!({"role": "user", "content": "hi"})];
        let inputs = ChatInputs {
            messages: &messages,
            ..ChatInputs::default()
        };
        // Half of the stack is enough.
        let rendered = stacker::grow(STACK_BYTES / 2, || template.render_here(&inputs));
        assert_eq!(
            rendered.as_ref().map_err(ToString::to_string),
            template
                .render(&inputs)
                .as_ref()
                .map_err(ToString::to_string)
        );
        rendered.map_err(|error| error.to_string())
    }

    /// A template is a program of somebody else's. On a small stack, as a server's threads have.
    #[test]
    fn a_template_without_an_end_or_a_bottom_is_ended() {
        let nest = "{% set ns = namespace(x=[]) %}{% for i in range(80000) %}{% set ns.x = [ns.x] %}{% endfor %}";
        let table = [
            ("{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}".to_owned(), "more than 800000 steps"),
            ("{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}".to_owned(), "recursion"),
            (format!("{nest}{{{{ ns.x }}}}"), "more than 200 deep"),
            (format!("{nest}{{{{ ns.x|tojson }}}}"), "more than 200 deep"),
            (format!("{nest}{{{{ ns.x|string }}}}"), "more than 200 deep"),
            ("{% set s = 'x' * 1000000 %}{% for i in range(99) %}{{ s }}{% endfor %}".to_owned(), "line"),
        ];
        for (source, says) in table {
            let small = std::thread::Builder::new().stack_size(256 << 10);
            let told = source.clone();
            let result = small
                .spawn(move || rendered(&told))
                .unwrap()
                .join()
                .unwrap();
            let message = result.unwrap_err();
            assert!(message.contains(says), "{source}: {message}");
        }
        // Never shown, only dropped, compared and joined.
        for rest in [
            "",
            "{{ ns.x == 1 }}",
            "{% if ns.x %}{% endif %}",
            "{{ ns.x|length }}",
        ] {
            assert!(rendered(&format!("{nest}{rest}")).is_ok(), "{rest}");
        }
    }
}
