//! The cases of a golden file, in the two layouts that there are.

use std::error::Error;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// Either layout: `prompts` of token ids and perhaps one `chat` and some `text`, or `cases`.
#[derive(Deserialize)]
struct Golden {
    #[serde(default)]
    cases: Vec<Case>,
    #[serde(default)]
    prompts: Vec<Case>,
    #[serde(default)]
    text: Vec<Case>,
    chat: Option<Case>,
}

/// What went in and what came out of the reference.
#[derive(Deserialize)]
pub(crate) struct Case {
    name: Option<String>,
    pub(crate) messages: Option<Vec<Value>>,
    pub(crate) prompt: Option<String>,
    text: Option<String>,
    #[serde(alias = "prompt_ids")]
    pub(crate) ids: Vec<u32>,
    #[serde(default, alias = "greedy_ids")]
    pub(crate) greedy: Vec<u32>,
    /// By how much the best logit leads in each step.
    #[serde(default)]
    pub(crate) margins: Vec<f32>,
    /// Whether the case is made so that no step is a near-tie for what computes in f32.
    #[serde(skip)]
    pub(crate) is_certain: bool,
    #[serde(alias = "first_logits")]
    last_logits: Option<Vec<f32>>,
    all_logits: Option<Vec<Vec<f32>>>,
    first_top20: Option<Vec<(u32, f32)>>,
}

/// All cases of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<Case>, Box<dyn Error>> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    let golden: Golden = serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"))?;
    let mut cases = golden.cases;
    cases.extend(golden.prompts.into_iter().map(|case| Case {
        is_certain: true,
        ..case
    }));
    cases.extend(golden.text);
    cases.extend(golden.chat);
    match cases.is_empty() {
        true => Err(format!("{name} has neither prompts nor cases").into()),
        false => Ok(cases),
    }
}

impl Case {
    pub(crate) fn label(&self, index: usize) -> String {
        let question = || {
            let last = self.messages.as_ref()?.last()?;
            Some(last.get("content")?.as_str()?.to_owned())
        };
        let name = question().or_else(|| self.name.clone());
        let name = name.or_else(|| self.prompt.clone());
        let name = name.or_else(|| self.text.clone());
        format!("{} {:?}", index + 1, name.unwrap_or_default())
    }

    /// The text before tokenisation. In a case with outputs, `text` is what came out, unless there
    /// is nothing else that could have gone in.
    pub(crate) fn input(&self) -> Option<&str> {
        let only_text = self.name.is_none() && self.prompt.is_none();
        self.prompt
            .as_deref()
            .or(self.text.as_deref().filter(|_| only_text))
    }

    pub(crate) fn output(&self) -> Option<&str> {
        self.text.as_deref().filter(|_| self.prompt.is_some())
    }

    /// The known logits: after which position of the prompt, and of which tokens.
    pub(crate) fn logits(&self) -> Vec<(usize, Vec<(usize, f32)>)> {
        let last = self.ids.len().saturating_sub(1);
        let row = |logits: &Vec<f32>| logits.iter().copied().enumerate().collect();
        let top = |logits: &Vec<(u32, f32)>| {
            let pair = |&(token, logit): &(u32, f32)| (token as usize, logit);
            logits.iter().map(pair).collect()
        };
        let mut rows: Vec<(usize, Vec<(usize, f32)>)> = Vec::new();
        rows.extend(self.last_logits.as_ref().map(|logits| (last, row(logits))));
        rows.extend(self.first_top20.as_ref().map(|logits| (last, top(logits))));
        rows.extend(self.all_logits.iter().flatten().map(row).enumerate());
        rows
    }
}
