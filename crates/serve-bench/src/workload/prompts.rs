//! What is said: words, token ids or lines of a file, alone or as the turns of a conversation.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serve_core::rng::mix2;

use super::draw::{Purpose, draw_length, stream};
use super::files::Files;
use super::trace::Traced;
use super::{Prompt, WorkloadError, words};
use crate::workload::spec::{Endpoint, History, Lengths, PromptSet, RequestShape, Spec};

/// A prompt set, ready to ask.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    pub(super) name: Arc<str>,
    pub(super) share: f64,
    pub(super) think_ms: Option<Lengths>,
    pub(super) is_session: bool,
    set: PromptSet,
    /// Its place among the sets.
    place: u64,
    /// The lines of its file, each with its turns.
    lines: Vec<Vec<Arc<str>>>,
}

/// What is asked in one conversation.
pub(super) struct Asked {
    pub(super) shared: Option<Prompt>,
    pub(super) turns: Vec<Said>,
}

/// What is said in one turn.
pub(super) struct Said {
    pub(super) prompt: Prompt,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens_max: u32,
    pub(super) scripted_answer: Option<Arc<str>>,
}

/// The askers of a specification; for a trace a single one, which says what the trace says.
pub(super) fn askers(spec: &Spec, files: &mut Files) -> Result<Vec<Asker>, WorkloadError> {
    if spec.arrivals.replay().is_some() {
        let mut set = PromptSet::builtin().swap_remove(0);
        set.name = "trace".to_owned();
        return Ok(vec![Asker::new(set, 0, Vec::new())]);
    }
    let sets = spec.prompts.iter().zip(0..);
    let askers = sets.map(|(set, place)| {
        let lines = match &set.file {
            Some(file) => lines(&files.path(file), &files.read(file)?)?,
            None => Vec::new(),
        };
        Ok(Asker::new(set.clone(), place, lines))
    });
    askers.collect()
}

/// The askers of the built-in sets.
pub(super) fn builtin() -> Vec<Asker> {
    let sets = PromptSet::builtin().into_iter().zip(0..);
    sets.map(|(set, place)| Asker::new(set, place, Vec::new()))
        .collect()
}

impl Asker {
    fn new(set: PromptSet, place: u64, lines: Vec<Vec<Arc<str>>>) -> Self {
        let conversation = set.conversation.as_ref();
        Self {
            name: set.name.as_str().into(),
            share: set.share.get(),
            think_ms: conversation.and_then(|turns| turns.think_ms.clone()),
            is_session: conversation.is_some() || lines.iter().any(|line| line.len() > 1),
            set,
            place,
            lines,
        }
    }

    /// How many turns a conversation has.
    pub(super) fn turns(&self, seed: u64, number: u64) -> usize {
        if let Some(line) = self.line(seed, number) {
            return line.len();
        }
        let turns = self
            .set
            .conversation
            .as_ref()
            .and_then(|turns| turns.turns.as_ref());
        let drawn =
            turns.map(|turns| draw_length(turns, &mut stream(seed, Purpose::Turns, number)));
        drawn.map_or(1, |turns| turns.max(1) as usize)
    }

    fn line(&self, seed: u64, number: u64) -> Option<&Vec<Arc<str>>> {
        let count = self.lines.len() as u64;
        let place = || stream(seed, Purpose::Line, number).below(count);
        (count > 0).then(|| &self.lines[place() as usize])
    }

    /// What is asked in a conversation.
    pub(super) fn ask(&self, request: &RequestShape, seed: u64, number: u64) -> Asked {
        let mut inputs = stream(seed, Purpose::InputLength, number);
        let mut outputs = stream(seed, Purpose::OutputLength, number);
        let line = self.line(seed, number);
        let (shared, shared_tokens) = match self.shared(request, seed, number) {
            Some((prompt, tokens)) => (Some(prompt), tokens),
            None => (None, 0),
        };
        let mut said_before = shared_tokens;
        let turns = (0..self.turns(seed, number)).map(|turn| {
            let stream_number = mix2(number, turn as u64);
            let (prompt, tokens) = match (line, &self.set.tokens) {
                (Some(line), _) => {
                    // About four bytes of English make a token.
                    let tokens = u32::try_from(line[turn].len().div_ceil(4)).unwrap_or(u32::MAX);
                    (Prompt::Text(Arc::clone(&line[turn])), tokens)
                }
                (None, lengths) => {
                    let tokens = lengths
                        .as_ref()
                        .map_or(1, |lengths| draw_length(lengths, &mut inputs));
                    (
                        made_up(request, tokens, seed, Purpose::Words, stream_number),
                        tokens,
                    )
                }
            };
            let output_tokens_max = draw_length(&self.set.output_tokens, &mut outputs).max(1);
            let prompt_tokens = said_before.saturating_add(tokens);
            said_before = prompt_tokens.saturating_add(output_tokens_max);
            let scripted = self.is_session && request.history == History::Scripted;
            let answer = || {
                let mut rng = stream(seed, Purpose::AnswerWords, stream_number);
                words::text(output_tokens_max, request.tokens_per_word.get(), &mut rng)
            };
            Said {
                prompt,
                prompt_tokens,
                output_tokens_max,
                scripted_answer: scripted.then(answer),
            }
        });
        Asked {
            turns: turns.collect(),
            shared,
        }
    }

    /// The shared beginning of a conversation.
    fn shared(&self, request: &RequestShape, seed: u64, number: u64) -> Option<(Prompt, u32)> {
        let prefix = self.set.prefix?;
        let mut variants = stream(seed, Purpose::PrefixVariant, number);
        let variant = variants.below(u64::from(prefix.variants.get()));
        let tokens = prefix.tokens.get();
        let number = mix2(self.place, variant);
        Some((
            made_up(request, tokens, seed, Purpose::PrefixWords, number),
            tokens,
        ))
    }

    /// What a request of a trace asks. Equal blocks have equal text, so a prefix cache finds in it what
    /// it would have found in the traffic.
    pub(super) fn traced(&self, request: &RequestShape, seed: u64, traced: &Traced) -> Asked {
        let mut left = traced.prompt_tokens;
        let mut parts = Vec::new();
        for block in &traced.blocks {
            let tokens = left.min(traced.block_tokens);
            if tokens > 0 {
                parts.push(made_up(request, tokens, seed, Purpose::BlockWords, *block));
            }
            left -= tokens;
        }
        if left > 0 {
            let number = mix2(traced.due.as_nanos(), u64::from(traced.prompt_tokens));
            parts.push(made_up(request, left, seed, Purpose::Words, number));
        }
        let said = Said {
            prompt: join(parts),
            prompt_tokens: traced.prompt_tokens,
            output_tokens_max: traced.output_tokens,
            scripted_answer: None,
        };
        Asked {
            shared: None,
            turns: vec![said],
        }
    }
}

/// About so many tokens that mean nothing, in the form of the endpoint.
fn made_up(
    request: &RequestShape,
    tokens: u32,
    seed: u64,
    purpose: Purpose,
    number: u64,
) -> Prompt {
    let mut rng = stream(seed, purpose, number);
    match (request.endpoint, request.vocabulary) {
        (Endpoint::TokenIds, Some(range)) => {
            Prompt::Ids(words::ids(tokens, (range.min, range.max), &mut rng))
        }
        _ => Prompt::Text(words::text(tokens, request.tokens_per_word.get(), &mut rng)),
    }
}

fn join(mut parts: Vec<Prompt>) -> Prompt {
    if parts.len() == 1 {
        return parts.swap_remove(0);
    }
    let (mut text, mut ids) = (String::new(), Vec::new());
    for part in &parts {
        match part {
            Prompt::Text(words) => {
                if !text.is_empty() {
                    text.push(' ');
                }
                text.push_str(words);
            }
            Prompt::Ids(part) => ids.extend_from_slice(part),
        }
    }
    match ids.is_empty() {
        true => Prompt::Text(text.into()),
        false => Prompt::Ids(ids.into()),
    }
}

/// The prompts of a JSONL file.
fn lines(path: &Path, text: &str) -> Result<Vec<Vec<Arc<str>>>, WorkloadError> {
    #[derive(Deserialize)]
    struct Line {
        prompt: Option<String>,
        turns: Option<Vec<String>>,
    }
    let filled = (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty());
    let lines = filled.map(|(line, text)| {
        let wrong = |cause: String| WorkloadError::Line {
            file: path.to_owned(),
            line,
            cause,
        };
        let accepted = "accepted is an object with a string `prompt`, or a list of strings `turns`";
        let parsed: Line =
            serde_json::from_str(text).map_err(|error| wrong(format!("{error}; {accepted}")))?;
        let turns = parsed
            .turns
            .or_else(|| parsed.prompt.map(|prompt| vec![prompt]));
        let turns = turns
            .unwrap_or_default()
            .into_iter()
            .map(Arc::from)
            .collect::<Vec<_>>();
        match turns.is_empty() {
            true => Err(wrong(format!("no prompt; {accepted}"))),
            false => Ok(turns),
        }
    });
    let lines = lines.collect::<Result<Vec<_>, _>>()?;
    match lines.is_empty() {
        true => Err(WorkloadError::Empty {
            file: path.to_owned(),
            cause: "no prompt in it".to_owned(),
        }),
        false => Ok(lines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_file_has_prompts_or_turns_and_its_first_bad_line_is_named() {
        let path = Path::new("p.jsonl");
        let good = "{\"prompt\": \"a\", \"id\": 3}\n\n{\"turns\": [\"b\", \"c\"]}\n";
        let read = lines(path, good).unwrap();
        assert_eq!(
            read,
            [vec![Arc::from("a")], vec![Arc::from("b"), Arc::from("c")]]
        );
        let error = |text: &str| lines(path, text).unwrap_err().to_string();
        assert!(error("{\"prompt\": \"a\"}\nhello\n").starts_with("p.jsonl:2: expected"));
        assert!(error("{\"text\": \"a\"}").starts_with("p.jsonl:1: no prompt; accepted"));
        assert_eq!(error("\n"), "p.jsonl: no prompt in it");
    }
}
