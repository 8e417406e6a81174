//! Chat templates: what Jinja2, set up as in transformers, makes of small templates, and what a
//! model's folder may look like.

use serde_json::{Map, Value};
use serve_model::text::{ChatInputs, ChatTemplate, NamedTemplates, TemplateError, TokenizerConfig};

use crate::text::data;

fn compiled(source: &str) -> Result<ChatTemplate, TemplateError> {
    let source = NamedTemplates::One(source.to_owned());
    ChatTemplate::new(&source, &TokenizerConfig::default())
}

fn rendered(source: &str, variables: &Map<String, Value>) -> Result<String, TemplateError> {
    compiled(source)?.render(&ChatInputs {
        variables: Some(variables),
        ..ChatInputs::default()
    })
}

#[test]
fn templates_render_as_in_jinja2() {
    let golden = std::fs::read_to_string(data("jinja_cases.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let variables = golden["variables"].as_object().unwrap();
    let mut wrong = Vec::new();
    for case in golden["cases"].as_array().unwrap() {
        let template = case["template"].as_str().unwrap();
        let result = rendered(template, variables);
        let right = match &result {
            Ok(text) => case["rendered"] == **text,
            Err(TemplateError::Raised { message }) => case["raised"] == **message,
            Err(_) => case["error"] == true,
        };
        if !right {
            wrong.push(format!("{template:?}\n  {case}\n  {result:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A folder that is removed when the test ends.
struct Folder(std::path::PathBuf);

impl Folder {
    fn with(name: &str, files: &[(&str, &str)]) -> Self {
        let dir = std::env::temp_dir().join(format!("serve-model-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (file, text) in files {
            std::fs::write(dir.join(file), text).unwrap();
        }
        Self(dir)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn shown(template: &ChatTemplate, tools: Option<&[Value]>) -> String {
    let inputs = ChatInputs {
        tools,
        ..ChatInputs::default()
    };
    template.render(&inputs).unwrap()
}

#[test]
fn a_template_file_goes_before_the_tokenizer_config() {
    let config = (
        "tokenizer_config.json",
        r#"{"chat_template": "config", "eos_token": "E"}"#,
    );
    let json = (
        "chat_template.json",
        r#"{"chat_template": "json{{ eos_token }}"}"#,
    );
    let jinja = ("chat_template.jinja", "jinja{{ eos_token }}");
    for (files, expected) in [
        (&[config][..], "config"),
        (&[config, json], "jsonE"),
        (&[config, json, jinja], "jinjaE"),
        (&[jinja], "jinja"),
    ] {
        let folder = Folder::with("template-order", files);
        let template = ChatTemplate::from_dir(&folder.0).unwrap().unwrap();
        assert_eq!(shown(&template, None), expected);
    }
    let folder = Folder::with("no-template", &[("tokenizer_config.json", "{}")]);
    assert!(ChatTemplate::from_dir(&folder.0).unwrap().is_none());
}

#[test]
fn an_older_folder_names_its_special_tokens_in_a_map() {
    let template = r#""chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}""#;
    let map = (
        "special_tokens_map.json",
        r#"{"bos_token": "B", "eos_token": {"content": "E", "lstrip": false}, "additional_special_tokens": ["x"]}"#,
    );
    // With what tokenizer_config.json says beside the template.
    for (own, expected) in [
        ("", "BE"),
        (r#""bos_token": null, "pad_token": "P","#, "BEP"),
        // As in transformers, which then reads the map last.
        (r#""eos_token": "other","#, "BE"),
        // A folder of today, whose map is not read.
        (
            r#""eos_token": "other", "added_tokens_decoder": {},"#,
            "other",
        ),
    ] {
        let config = format!("{{{own} {template}}}");
        let files = [("tokenizer_config.json", config.as_str()), map];
        let folder = Folder::with("special-map", &files);
        let template = ChatTemplate::from_dir(&folder.0).unwrap().unwrap();
        assert_eq!(shown(&template, None), expected, "{own}");
    }
    let folder = Folder::with("map-alone", &[map]);
    let config = TokenizerConfig::from_dir(&folder.0).unwrap();
    assert_eq!(config.special_tokens["eos_token"], "E");
    let folder = Folder::with("bad-map", &[("special_tokens_map.json", "[")]);
    let error = TokenizerConfig::from_dir(&folder.0)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("special_tokens_map.json is not valid"),
        "{error}"
    );
}

#[test]
fn tools_choose_among_named_templates() {
    let config = |json: &str| TokenizerConfig::from_json(json).unwrap();
    let both = config(
        r#"{"chat_template": [{"name": "tool_use", "template": "tools"},
                              {"name": "default", "template": "plain"}]}"#,
    );
    let template = ChatTemplate::from_config(&both).unwrap().unwrap();
    assert_eq!(shown(&template, None), "plain");
    assert_eq!(shown(&template, Some(&[])), "tools");
    let one = config(r#"{"chat_template": [{"name": "rag", "template": "x"}]}"#);
    assert_eq!(
        ChatTemplate::from_config(&one).unwrap_err().to_string(),
        "the model has no default chat template; it has rag"
    );
}

#[test]
fn errors_say_where_and_what() {
    let message = |source: &str| match rendered(source, &Map::new()) {
        Ok(text) => panic!("rendered to {text:?}"),
        Err(error) => error.to_string(),
    };
    assert_eq!(
        message("a\n{% if %}"),
        "the chat template default has a syntax error in line 2: unexpected end of block"
    );
    assert_eq!(
        message("{{ raise_exception('Only user and assistant roles') }}"),
        "the chat template refused the messages: Only user and assistant roles"
    );
    let missing = message("\n\n{{ messages[0].content }}");
    assert!(
        missing.starts_with("the chat template failed in line 3: "),
        "{missing}"
    );
    let variables: Map<String, Value> =
        [("messages".to_owned(), Value::Null)].into_iter().collect();
    let reserved = rendered("", &variables).unwrap_err().to_string();
    assert!(
        reserved.starts_with("messages cannot be a template variable"),
        "{reserved}"
    );
}

#[test]
fn a_template_is_told_the_date() {
    let template = compiled("{{ strftime_now('%d %b %Y') }}").unwrap();
    let inputs = ChatInputs {
        now_unix_s: 1_722_000_000,
        ..ChatInputs::default()
    };
    assert_eq!(template.render(&inputs).unwrap(), "26 Jul 2024");
}

#[test]
fn variables_override_special_tokens_and_absent_tools_are_none() {
    let config = TokenizerConfig::from_json(r#"{"bos_token": "<s>"}"#).unwrap();
    let source = "{{ bos_token }} {{ tools is none }} {{ eos_token is defined }}".to_owned();
    let template = ChatTemplate::new(&NamedTemplates::One(source), &config).unwrap();
    assert_eq!(shown(&template, None), "<s> True False");
    let variables: Map<String, Value> =
        [("bos_token".to_owned(), "B".into())].into_iter().collect();
    let inputs = ChatInputs {
        variables: Some(&variables),
        ..ChatInputs::default()
    };
    assert_eq!(template.render(&inputs).unwrap(), "B True False");
}
