//! Checks a model's folder against golden outputs of the reference implementation.
//!
//! Prints a line for each case and `N passed, N failed`. Exits with 1 if a case fails and with 2 if
//! the model or the golden file cannot be used.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde::Deserialize;
use serde_json::Value;
use serve_core::conformance::{Driver, Run};
use serve_core::{Request, RequestId, Time, TokenId};
use serve_model::{
    ChatInputs, ChatTemplate, DecoderBackend, DeviceKind, LoadOptions, Precision, Source,
    Tokenizer, load,
};

/// Check a model's outputs against golden ones.
#[derive(Parser)]
struct Arguments {
    /// The model's folder.
    dir: PathBuf,
    /// The golden file, with `prompts` or `cases`; DIR/golden.json if not given.
    golden: Option<PathBuf>,
    /// Where the model runs: auto, cpu, cuda, webgpu or flex.
    #[arg(long, default_value_t)]
    device: DeviceKind,
    /// On a GPU, the type of weights, activations and cache: f32, or bf16, which no reference was made
    /// with.
    #[arg(long, default_value = "f32")]
    precision: Precision,
}

/// In a file of `cases`, a step whose best logit leads by no more than this may rightly differ.
/// `prompts` are made so that no step is a near-tie.
const MARGIN_MIN: f32 = 0.05;

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command that reports to its user"
)]
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (mut checker, cases) = match open(&arguments) {
        Ok(opened) => opened,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let (mut passed, mut failed) = (0, 0);
    for (index, case) in cases.iter().enumerate() {
        let label = case.label(index);
        match checker.check(index, case) {
            Ok(what) => {
                passed += 1;
                println!("ok      {label}: {what}");
            }
            Err(error) => {
                failed += 1;
                println!("FAILED  {label}: {error}");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

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

#[derive(Deserialize)]
struct Case {
    name: Option<String>,
    messages: Option<Vec<Value>>,
    prompt: Option<String>,
    text: Option<String>,
    #[serde(alias = "prompt_ids")]
    ids: Vec<u32>,
    #[serde(default, alias = "greedy_ids")]
    greedy: Vec<u32>,
    #[serde(default)]
    margins: Vec<f32>,
    #[serde(alias = "first_logits")]
    last_logits: Option<Vec<f32>>,
    all_logits: Option<Vec<Vec<f32>>>,
    first_top20: Option<Vec<(u32, f32)>>,
}

impl Case {
    fn label(&self, index: usize) -> String {
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
    fn input(&self) -> Option<&str> {
        let only_text = self.name.is_none() && self.prompt.is_none();
        self.prompt
            .as_deref()
            .or(self.text.as_deref().filter(|_| only_text))
    }

    fn output(&self) -> Option<&str> {
        self.text.as_deref().filter(|_| self.prompt.is_some())
    }
}

fn open(arguments: &Arguments) -> Result<(Checker, Vec<Case>), Box<dyn Error>> {
    let path = match &arguments.golden {
        Some(path) => path.clone(),
        None => arguments.dir.join("golden.json"),
    };
    let golden = read_golden(&path)?;
    let options = LoadOptions {
        device: arguments.device,
        precision: Some(arguments.precision),
        // A check meets few sizes of steps.
        warm: false,
        sequences_max: 1,
        ..LoadOptions::default()
    };
    let model = load(
        &Source::Folder(arguments.dir.clone()),
        &options,
        &mut |_| (),
    )?;
    let checker = Checker {
        tolerance: match model.info.stored_dtype {
            // CUDA's matrix products in f32 round their factors to TF32, ten bits.
            _ if model.info.device.starts_with("cuda") => 5e-2,
            "f32" => 1e-3,
            _ => 2e-2,
        },
        driver: Driver::new(model.backend, 1)?,
        tokenizer: model.tokenizer,
        template: model.chat_template,
    };
    let mut cases = golden.cases;
    cases.extend(golden.prompts.into_iter().map(|case| Case {
        margins: Vec::new(),
        ..case
    }));
    cases.extend(golden.text);
    cases.extend(golden.chat);
    if cases.is_empty() {
        return Err(format!("{} has neither prompts nor cases", path.display()).into());
    }
    Ok((checker, cases))
}

fn read_golden(path: &Path) -> Result<Golden, Box<dyn Error>> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    Ok(serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"))?)
}

struct Checker {
    driver: Driver<DecoderBackend>,
    tokenizer: std::sync::Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    tolerance: f32,
}

impl Checker {
    /// What agreed, or what did not.
    fn check(&mut self, index: usize, case: &Case) -> Result<String, Box<dyn Error>> {
        let mut agreed = Vec::new();
        if let Some(messages) = &case.messages {
            self.check_rendered(messages, case.prompt.as_deref())?;
            agreed.push("prompt text".to_owned());
        }
        if let Some(text) = case.input() {
            self.check_encoded(text, &case.ids)?;
            agreed.push(format!("{} prompt tokens", case.ids.len()));
        }
        let logits = self.check_logits(case)?;
        if logits > 0 {
            agreed.push(format!("{logits} logits"));
        }
        if !case.greedy.is_empty() {
            agreed.push(self.check_greedy(index, case)?);
        }
        Ok(agreed.join(", "))
    }

    fn check_rendered(
        &self,
        messages: &[Value],
        expected: Option<&str>,
    ) -> Result<(), Box<dyn Error>> {
        let template = self.template.as_ref();
        let template = template.ok_or("the model has no chat template")?;
        let rendered = template.render(&ChatInputs {
            messages,
            tools: None,
            variables: None,
            add_generation_prompt: true,
            now_unix_s: 0,
        })?;
        match expected {
            Some(expected) if expected != rendered => {
                Err(format!("prompt text {rendered:?}, reference {expected:?}").into())
            }
            _ => Ok(()),
        }
    }

    /// With or without the special tokens that the tokenizer adds by itself: golden files hold both.
    fn check_encoded(&self, text: &str, expected: &[u32]) -> Result<(), Box<dyn Error>> {
        let plain = ids(&self.tokenizer.encode(text)?);
        if plain == expected || ids(&self.tokenizer.encode_with_special(text)?) == expected {
            return Ok(());
        }
        Err(format!("prompt tokens {plain:?}, reference {expected:?}").into())
    }

    /// How many logits were compared.
    fn check_logits(&mut self, case: &Case) -> Result<usize, Box<dyn Error>> {
        let wanted = case.last_logits.is_some() || case.first_top20.is_some();
        if !wanted && case.all_logits.is_none() {
            return Ok(0);
        }
        let rows = self.driver.backend().prompt_logits(&tokens(&case.ids))?;
        let mut checked = 0;
        let mut check = |row: &[f32], token: usize, expected: f32| {
            checked += 1;
            let found = row.get(token).copied().unwrap_or(f32::NAN);
            if (found - expected).abs() <= self.tolerance {
                Ok(())
            } else {
                Err(format!(
                    "logit of #{token} is {found}, reference {expected}"
                ))
            }
        };
        let last = rows.last().map_or(&[][..], Vec::as_slice);
        for (token, &expected) in case.last_logits.iter().flatten().enumerate() {
            check(last, token, expected)?;
        }
        for &(token, expected) in case.first_top20.iter().flatten() {
            check(last, token as usize, expected)?;
        }
        for (row, expected) in rows.iter().zip(case.all_logits.iter().flatten()) {
            for (token, &expected) in expected.iter().enumerate() {
                check(row, token, expected)?;
            }
        }
        Ok(checked)
    }

    fn check_greedy(&mut self, index: usize, case: &Case) -> Result<String, Box<dyn Error>> {
        let outputs = case.greedy.len();
        let id = RequestId::new(index as u64);
        let prompt = tokens(&case.ids);
        self.driver
            .start(Request::new(id, Time::ZERO, prompt, outputs as u32)?);
        let step_tokens_max = self.driver.limits().step_tokens_max;
        while self.driver.outputs(id).len() < outputs {
            let pending = self.driver.pending(id);
            self.driver.step(&[Run {
                request: id,
                tokens: pending.min(step_tokens_max),
            }])?;
        }
        let found = self.driver.outputs(id).to_vec();
        self.driver.release(id);
        self.driver.step(&[])?;
        let certain = case.margins.iter().position(|&margin| margin <= MARGIN_MIN);
        let certain = certain.unwrap_or(outputs).min(outputs);
        let text = self.tokenizer.decode(&found, true)?;
        let differing = (0..certain).find(|&step| found[step].get() != case.greedy[step]);
        if let Some(step) = differing {
            return Err(format!(
                "token {step} is {}, reference #{}; text {text:?}",
                found[step], case.greedy[step]
            )
            .into());
        }
        // Some golden texts are the output, others the prompt with it.
        let input = tokens(&case.ids);
        let whole = self.tokenizer.decode(&[input, found].concat(), true)?;
        match case.output() {
            Some(expected) if certain == outputs && expected != text && expected != whole => {
                Err(format!("text {text:?}, reference {expected:?}").into())
            }
            _ if certain == outputs => Ok(format!("{outputs} tokens: {text:?}")),
            _ => Ok(format!(
                "{certain} of {outputs} tokens, then a margin of at most {MARGIN_MIN}: {text:?}"
            )),
        }
    }
}

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId::new).collect()
}

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.get()).collect()
}
