//! One case after another, on a model that has been loaded.

use std::error::Error;
use std::sync::Arc;

use serde_json::Value;
use serve_core::conformance::{Driver, Failure, Run};
use serve_core::{Request, RequestId, Time, TokenId};
use serve_model::decode::DecoderBackend;
use serve_model::load::Model;
use serve_model::measure::{Tolerance, spread};
use serve_model::text::{ChatInputs, ChatTemplate, TemplateError, Tokenizer};

use super::golden::Case;

/// Where a case has margins, a step whose best logit leads by no more than this may rightly differ.
const MARGIN_MIN: f32 = 0.05;

pub(crate) struct Checker {
    driver: Driver<DecoderBackend>,
    tokenizer: Arc<Tokenizer>,
    template: Option<Result<ChatTemplate, TemplateError>>,
    tolerance: Tolerance,
}

impl Checker {
    pub(crate) fn new(model: Model) -> Result<Self, Failure> {
        Ok(Self {
            tolerance: Tolerance::of(&model.info),
            driver: Driver::new(model.backend, 1)?,
            tokenizer: model.tokenizer,
            template: model.chat_template,
        })
    }

    /// What agreed, or what did not.
    pub(crate) fn check(&mut self, index: usize, case: &Case) -> Result<String, Box<dyn Error>> {
        let mut agreed = Vec::new();
        if let Some(messages) = &case.messages {
            self.check_rendered(messages, case.prompt.as_deref())?;
            agreed.push("prompt text".to_owned());
        }
        if let Some(text) = case.input() {
            self.check_encoded(text, &case.ids)?;
            agreed.push(format!("{} prompt tokens", case.ids.len()));
        }
        agreed.extend(self.check_logits(case)?);
        if !case.greedy.is_empty() {
            agreed.push(match self.tolerance {
                Tolerance::Each(_) => self.check_greedy(index, case)?,
                Tolerance::Share(share) => self.check_choices(index, case, 2.0 * share)?,
            });
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
        let template = template.as_ref().map_err(TemplateError::to_string)?;
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

    /// How many logits were compared and how near they are, if any are known.
    fn check_logits(&mut self, case: &Case) -> Result<Option<String>, Box<dyn Error>> {
        let known = case.logits();
        if known.is_empty() {
            return Ok(None);
        }
        let rows = self.driver.backend().prompt_logits(&tokens(&case.ids))?;
        let (mut count, mut worst) = (0, 0.0_f64);
        for (index, logits) in known {
            count += logits.len();
            let row = rows.get(index).map_or(&[][..], Vec::as_slice);
            worst = worst.max(self.tolerance.check(row, logits.into_iter())?);
        }
        Ok(Some(match self.tolerance {
            Tolerance::Each(_) => format!("{count} logits"),
            Tolerance::Share(_) => format!("{count} logits within {worst:.3} of their spread"),
        }))
    }

    /// The tokens that the decoder itself goes on with, step by step.
    fn generate(&mut self, index: usize, case: &Case) -> Result<Vec<TokenId>, Box<dyn Error>> {
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
        Ok(found)
    }

    /// Generates as the reference did.
    fn check_greedy(&mut self, index: usize, case: &Case) -> Result<String, Box<dyn Error>> {
        let outputs = case.greedy.len();
        let found = self.generate(index, case)?;
        let is_near_tie = |&margin: &f32| margin <= MARGIN_MIN && !case.is_certain;
        let certain = case.margins.iter().position(is_near_tie);
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

    /// What would be chosen after each part of the reference's own text: one choice that differs must
    /// not make all that follow differ. The reference's token may be behind the best by `behind_max` of
    /// the logits' spread, and where factors are rounded and weights are not, no more than that may the
    /// reference's own lead have been.
    ///
    /// Then what is chosen step by step, up to the first choice that differs, which has to be as near.
    fn check_choices(
        &mut self,
        index: usize,
        case: &Case,
        behind_max: f64,
    ) -> Result<String, Box<dyn Error>> {
        let outputs = case.greedy.len();
        let text = [case.ids.as_slice(), &case.greedy[..outputs - 1]].concat();
        let rows = self.driver.backend().prompt_logits(&tokens(&text))?;
        let rows = &rows[case.ids.len() - 1..];
        let is_rounding = [Tolerance::TF32, Tolerance::BF16].contains(&self.tolerance);
        let (mut same, mut worst) = (0, 0.0_f64);
        for (step, (row, &token)) in rows.iter().zip(&case.greedy).enumerate() {
            let behind = behind(row, token);
            let lead = case.margins.get(step);
            let lead = lead.filter(|_| behind > 0.0 && is_rounding);
            let lead = lead.map_or(0.0, |&lead| f64::from(lead) / spread(row));
            for (what, share) in [("is behind by", behind), ("of the reference led by", lead)] {
                if share.is_nan() || share > behind_max {
                    return Err(format!(
                        "token {step}: the reference's #{token} {what} {share:.3} of the logits' spread, and rounding \
                         accounts for {behind_max}: a fault"
                    )
                    .into());
                }
            }
            same += u32::from(behind == 0.0);
            worst = worst.max(behind);
        }
        let found = self.generate(index, case)?;
        let parted = (0..outputs).find(|&step| found[step].get() != case.greedy[step]);
        if let Some(step) = parted {
            let (token, behind) = (found[step], behind(&rows[step], found[step].get()));
            if behind.is_nan() || behind > behind_max {
                return Err(format!(
                    "token {step}, generated step by step, is {token}, which the same text as a whole has behind by \
                     {behind:.3} of the logits' spread; rounding accounts for {behind_max}: a fault"
                )
                .into());
            }
        }
        let alike = match parted {
            None => "generated alike".to_owned(),
            Some(step) => format!("generated alike up to a near-tie at token {step}"),
        };
        Ok(format!(
            "{same} of {outputs} tokens, the others' behind by {worst:.3} of the spread at most, which is rounding; {alike}"
        ))
    }
}

/// How far a token's logit is behind the best, as a share of the logits' spread.
fn behind(row: &[f32], token: u32) -> f64 {
    let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let chosen = row.get(token as usize).copied().unwrap_or(f32::NAN);
    f64::from(best - chosen) / spread(row)
}

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId::new).collect()
}

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.get()).collect()
}
