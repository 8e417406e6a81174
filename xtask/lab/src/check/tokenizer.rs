//! `cargo xtask check-tokenizer`: a model's tokenizer and chat template against golden cases from the
//! reference implementations.

use std::error::Error;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use serve_core::TokenId;
use serve_model::text::{ChatInputs, ChatTemplate, Detokenizer, Tokenizer};

use super::verdict;
use crate::TaskResult;
use crate::cli::CheckTokenizer;

/// Prints a line for each case and `N passed, N failed`.
pub(crate) fn run(options: &CheckTokenizer) -> TaskResult {
    let cases = load(options)?;
    let checked = cases.list.iter().map(|case| {
        let found = cases.model.check(case).map(|()| String::new());
        (case.name.clone(), found)
    });
    Ok(verdict(checked))
}

struct Cases {
    model: Model,
    list: Vec<Case>,
}

fn load(options: &CheckTokenizer) -> Result<Cases, Box<dyn Error>> {
    let model = Model {
        tokenizer: Tokenizer::from_file(&options.dir.join("tokenizer.json"))?,
        template: ChatTemplate::from_dir(&options.dir)?,
    };
    let file = options.golden.display();
    let text = std::fs::read_to_string(&options.golden)
        .map_err(|error| format!("cannot read {file}: {error}"))?;
    let golden: Value = serde_json::from_str(&text).map_err(|error| format!("{file}: {error}"))?;
    let name = match &options.name {
        Some(name) => name.clone(),
        None => folder_name(&options.dir)?,
    };
    let list = cases(&golden, &name).map_err(|error| format!("{file}: {error}"))?;
    if list.is_empty() {
        return Err(format!("{file} has no tokenizer case for {name}").into());
    }
    Ok(Cases { model, list })
}

fn folder_name(dir: &Path) -> Result<String, Box<dyn Error>> {
    let dir = dir
        .canonicalize()
        .map_err(|error| format!("cannot open {}: {error}", dir.display()))?;
    let name = dir.file_name().unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// One case: a text or a conversation, and what comes of it.
struct Case {
    name: String,
    input: Input,
    expected: Expected,
}

enum Input {
    Text(String),
    Chat(Chat),
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    #[serde(default)]
    kwargs: Map<String, Value>,
}

#[derive(Deserialize)]
struct Expected {
    ids: Vec<u32>,
    decoded: Option<String>,
    decoded_plain: Option<String>,
    prompt: Option<String>,
}

/// Reads the cases of either layout. An entry holds its expectations under the tokenizer's name, or
/// itself where the file is about one tokenizer.
fn cases(golden: &Value, name: &str) -> Result<Vec<Case>, serde_json::Error> {
    let several = golden.get("tokenizers").is_some();
    let mut list = Vec::new();
    for (section, entry) in ["cases", "text", "prompts", "chat"]
        .iter()
        .flat_map(|&section| entries(golden, section).map(move |entry| (section, entry)))
    {
        let expected = if several { &entry[name] } else { entry };
        if expected.get("ids").is_none() {
            continue;
        }
        let input = match entry.get("text").and_then(Value::as_str) {
            Some(text) => Input::Text(text.to_owned()),
            None if entry.get("messages").is_some() => Input::Chat(Chat::deserialize(entry)?),
            None => continue,
        };
        let label = entry.get("name").and_then(Value::as_str);
        let label = label.map_or_else(|| (list.len() + 1).to_string(), str::to_owned);
        list.push(Case {
            name: format!("{section}: {label}"),
            input,
            expected: Expected::deserialize(expected)?,
        });
    }
    Ok(list)
}

fn entries<'a>(golden: &'a Value, section: &str) -> impl Iterator<Item = &'a Value> {
    match golden.get(section) {
        Some(Value::Array(entries)) => entries.as_slice(),
        Some(entry) => std::slice::from_ref(entry),
        None => &[],
    }
    .iter()
}

struct Model {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl Model {
    fn check(&self, case: &Case) -> Result<(), Box<dyn Error>> {
        let expected = &case.expected;
        let ids = match &case.input {
            Input::Text(text) => self.tokenizer.encode(text)?,
            Input::Chat(chat) => {
                let prompt = self.render(chat)?;
                if let Some(golden) = &expected.prompt {
                    same("prompt", golden, &prompt)?;
                }
                self.tokenizer.encode(&prompt)?
            }
        };
        let raw: Vec<u32> = ids.iter().map(|id| id.get()).collect();
        same("ids", &expected.ids, &raw)?;
        let golden = [(&expected.decoded, false), (&expected.decoded_plain, true)];
        for (golden, skip_special) in golden {
            let whole = self.tokenizer.decode(&ids, skip_special)?;
            if let Some(golden) = golden {
                same("decoded", golden, &whole)?;
            }
            let streamed = self.stream(&ids, skip_special);
            same("decoded one by one", &whole, &streamed)?;
        }
        Ok(())
    }

    fn render(&self, chat: &Chat) -> Result<String, Box<dyn Error>> {
        let template = self.template.as_ref().ok_or("the model has no template")?;
        let mut variables = chat.kwargs.clone();
        let prompted = variables.remove("add_generation_prompt");
        Ok(template.render(&ChatInputs {
            messages: &chat.messages,
            tools: chat.tools.as_deref(),
            variables: Some(&variables),
            add_generation_prompt: prompted.is_none_or(|value| value == true),
            now_unix_s: 0,
        })?)
    }

    fn stream(&self, ids: &[TokenId], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new(&self.tokenizer, skip_special);
        let mut text: String = ids.iter().filter_map(|&id| detokenizer.push(id)).collect();
        text.extend(detokenizer.finish());
        text
    }
}

fn same<T: PartialEq + std::fmt::Debug + ?Sized>(
    what: &str,
    expected: &T,
    found: &T,
) -> Result<(), Box<dyn Error>> {
    if expected == found {
        Ok(())
    } else {
        Err(format!("{what}: expected {expected:?}, found {found:?}").into())
    }
}
