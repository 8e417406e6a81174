//! What is sent and when: a pure function of a [`Spec`] and the files that it names.
//!
//! Each thing that is drawn (gaps, lengths, words, tenants, ..) has a random stream of its own, and
//! all but the gaps one for each conversation. So the same seed sends the same prompts at any rate, and
//! another tenant's share changes nobody's words. It does not know how requests are sent.

mod arrivals;
mod draw;
mod files;
mod people;
mod prompts;
pub(crate) mod slo;
pub mod spec;
pub mod trace;
mod words;

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serve_core::Span;
use serve_core::rng::mix2;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::hex::hex;
use crate::workload::spec::{Arrivals, Spec};
use draw::{Purpose, draw_length, stream};
use files::Files;
use people::People;
use prompts::Asker;
use trace::Traced;

/// A prompt, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// Text.
    Text(#[serde(serialize_with = "plain")] Arc<str>),
    /// Token ids.
    Ids(#[serde(serialize_with = "plain")] Arc<[u32]>),
}

/// What is shared, as if it were not.
fn plain<T: Serialize + ?Sized, S: Serializer>(
    shared: &Arc<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    shared.as_ref().serialize(serializer)
}

/// The same for what may be absent.
#[expect(clippy::ref_option, reason = "the signature that serde calls")]
fn plain_option<S: Serializer>(
    shared: &Option<Arc<str>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    shared.as_deref().serialize(serializer)
}

/// A time, as whole nanoseconds.
#[expect(clippy::ref_option, reason = "the signature that serde calls")]
fn nanos<S: Serializer>(due: &Option<Span>, serializer: S) -> Result<S::Ok, S::Error> {
    due.map(Span::as_nanos).serialize(serializer)
}

/// When the client hangs up on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HangUp {
    /// So long after the send.
    AfterNanos(u64),
    /// When so many tokens are there, or chunks where tokens are not counted.
    AfterTokens(u32),
}

/// One request of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// Its place in the workload, from 0.
    pub index: u64,
    /// What is said in this turn.
    pub prompt: Prompt,
    /// Tokens in the whole prompt, with what was said before, as planned.
    pub prompt_tokens: u32,
    /// Tokens that the answer may have.
    pub output_tokens_max: u32,
    /// The seed of the server's sampling.
    pub seed: u64,
    /// Whether and when the client hangs up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang_up: Option<HangUp>,
    /// How long the reader thinks before this turn; for the first turn of a closed loop's conversation,
    /// before the conversation.
    pub think_ns: u64,
    /// What later turns carry as the answer to this one, where the server's answer does not matter.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "plain_option"
    )]
    pub scripted_answer: Option<Arc<str>>,
}

/// Requests that follow one another: most often one, or the turns of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conversation {
    /// Its number, from 0.
    pub number: u64,
    /// When it begins, counted from the start of the run; absent in a closed loop, where it begins
    /// when a client is free.
    #[serde(
        rename = "due_ns",
        skip_serializing_if = "Option::is_none",
        serialize_with = "nanos"
    )]
    pub due: Option<Span>,
    /// The prompt set.
    #[serde(serialize_with = "plain")]
    pub prompt_set: Arc<str>,
    /// For whom: a place in the specification's list of tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<usize>,
    /// In which class: a place in the specification's list of classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<usize>,
    /// A beginning that it shares with others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<Prompt>,
    /// The requests, at least one.
    pub turns: Vec<Planned>,
    /// Whether it can have more than one turn.
    pub is_session: bool,
}

/// A workload that cannot be made.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// A file cannot be read.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A line of a file is not what it should be.
    #[error("{}:{line}: {cause}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what is accepted.
        cause: String,
    },
    /// A file has nothing to send.
    #[error("{}: {cause}", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
        /// What was looked for.
        cause: String,
    },
    /// Nothing falls into the duration.
    #[error(
        "no request is due within the duration_s of {0} s; accepted is a longer one, or a higher rate"
    )]
    NothingDue(f64),
    /// Nothing is drawn for the one tenant whose requests are sent.
    #[error(
        "nothing is asked for tenant {0:?}, the only_tenant; accepted is more requests, or a larger share"
    )]
    NothingAsked(String),
}

/// What is sent and when, ready to be drawn.
#[derive(Clone, Debug)]
pub struct Workload {
    spec: Arc<Spec>,
    trace: Option<Arc<[Traced]>>,
    askers: Arc<[Asker]>,
    people: People,
    /// Those that are drawn.
    drawn: u64,
    /// Those of them that are sent.
    requests: u64,
    files: Arc<BTreeMap<String, String>>,
}

impl Workload {
    /// Reads the files that a specification names, from `folder`.
    ///
    /// # Errors
    ///
    /// [`WorkloadError`] names the file and the line.
    pub fn new(spec: Spec, folder: &Path) -> Result<Self, WorkloadError> {
        let mut files = Files::new(folder);
        let mut spec = spec;
        files.resolve(&mut spec)?;
        let trace = trace::read(&spec, &mut files)?.map(Arc::from);
        let askers = prompts::askers(&spec, &mut files)?;
        let mut workload = Self {
            people: People::new(&spec),
            drawn: 0,
            requests: 0,
            files: Arc::new(files.sha256()),
            spec: Arc::new(spec),
            trace,
            askers: askers.into(),
        };
        workload.drawn = workload.count();
        workload.requests = match workload.spec.only_tenant {
            None => workload.drawn,
            Some(_) => workload.plan().map(|it| it.turns.len() as u64).sum(),
        };
        match (workload.requests, workload.spec.duration_s) {
            (0, Some(duration)) if workload.drawn == 0 => {
                Err(WorkloadError::NothingDue(duration.get()))
            }
            (0, _) => {
                let tenant = workload.spec.only_tenant.clone();
                Err(WorkloadError::NothingAsked(tenant.unwrap_or_default()))
            }
            _ => Ok(workload),
        }
    }

    /// The specification, with file columns replaced by their values.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// How many requests there are.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// SHA-256 of each file that was read, by its name in the specification.
    pub fn files_sha256(&self) -> &BTreeMap<String, String> {
        &self.files
    }

    /// The conversations in the order of their schedule. Lazy: a long workload takes no memory.
    pub fn plan(&self) -> impl Iterator<Item = Conversation> + Send + use<> {
        let workload = self.clone();
        let mut left = self.drawn;
        let mut drawn = 0;
        let mut sent = 0;
        let conversations = self.times().zip(0..).map_while(move |(due, number)| {
            let turns_max = usize::try_from(left).unwrap_or(usize::MAX);
            if turns_max == 0 {
                return None;
            }
            let mut conversation = workload.conversation(number, due, drawn, turns_max);
            let turns = conversation.turns.len() as u64;
            left -= turns.min(left);
            drawn += turns;
            let is_sent = workload.people.is_sent(conversation.tenant);
            for turn in conversation.turns.iter_mut().filter(|_| is_sent) {
                turn.index = sent;
                sent += 1;
            }
            Some(is_sent.then_some(conversation))
        });
        conversations.flatten()
    }

    /// SHA-256 over every request, to tell whether two runs were asked to do the same work.
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        for conversation in self.plan() {
            // Plain structs of text and numbers always have a JSON form.
            let line = serde_json::to_vec(&conversation).unwrap_or_default();
            hash.update(&line);
            hash.update(b"\n");
        }
        hex(&hash.finalize())
    }

    /// So many requests of the same kinds, one after another and none cancelled, to warm a server.
    pub(crate) fn warm_up(&self, requests: u64) -> Option<Self> {
        let requests = NonZeroU64::new(requests)?;
        let mut spec = (*self.spec).clone();
        spec.seed = mix2(spec.seed, Purpose::WarmUp as u64);
        spec.arrivals = Arrivals::Closed {
            clients: NonZeroU32::MIN,
            think_ms: None,
        };
        (spec.requests, spec.duration_s, spec.retry) = (Some(requests), None, None);
        spec.only_tenant = None;
        for class in &mut spec.classes {
            (class.cancel, class.deadline_ms, class.retry) = (None, None, None);
        }
        let askers = match &self.trace {
            Some(_) => prompts::builtin().into(),
            None => Arc::clone(&self.askers),
        };
        Some(Self {
            people: People::new(&spec),
            spec: Arc::new(spec),
            trace: None,
            askers,
            drawn: requests.get(),
            requests: requests.get(),
            ..self.clone()
        })
    }

    /// When conversations begin; in a closed loop, nobody knows.
    fn times(&self) -> impl Iterator<Item = Option<Span>> + Send + use<> {
        let open = arrivals::times(&self.spec, self.trace.clone());
        let until = self.spec.duration_s.map(|duration| duration.secs());
        let closed = self
            .spec
            .arrivals
            .clients()
            .map(|_| std::iter::repeat(None));
        let open = open.take_while(move |due| until.is_none_or(|until| *due < until));
        closed.into_iter().flatten().chain(open.map(Some))
    }

    /// Requests that the specification asks for and the schedule has.
    fn count(&self) -> u64 {
        if let (Some(requests), None, None) =
            (self.spec.requests_max(), self.spec.duration_s, &self.trace)
        {
            return requests.get();
        }
        let max = self.spec.requests.map_or(u64::MAX, Into::into);
        let mut count = 0;
        for (number, _) in (0..).zip(self.times()) {
            if count >= max {
                return max;
            }
            count += self.asker(number).turns(self.spec.seed, number) as u64;
        }
        count.min(max)
    }

    fn asker(&self, number: u64) -> &Asker {
        match &self.trace {
            Some(_) => &self.askers[0],
            None => people::pick(
                &self.askers,
                |asker| asker.share,
                &mut stream(self.spec.seed, Purpose::PromptSet, number),
            ),
        }
    }

    fn conversation(
        &self,
        number: u64,
        due: Option<Span>,
        index: u64,
        turns_max: usize,
    ) -> Conversation {
        let seed = self.spec.seed;
        let asker = self.asker(number);
        let asked = match &self.trace {
            Some(trace) => asker.traced(&self.spec.request, seed, &trace[number as usize]),
            None => asker.ask(&self.spec.request, seed, number),
        };
        let (tenant, class) = self.people.draw(seed, number);
        let mut cancels = stream(seed, Purpose::Cancel, number);
        let mut thinking = stream(seed, Purpose::Think, number);
        let cancel = class.and_then(|class| self.spec.classes[class].cancel.as_ref());
        let turns = asked
            .turns
            .into_iter()
            .take(turns_max)
            .enumerate()
            .map(|(turn, said)| {
                let think = match (turn, &self.spec.arrivals) {
                    (0, Arrivals::Closed { think_ms, .. }) => think_ms.as_ref(),
                    (0, _) => None,
                    _ => asker.think_ms.as_ref(),
                };
                let think_ms = think.map_or(0, |think| draw_length(think, &mut thinking));
                Planned {
                    index: index + turn as u64,
                    prompt: said.prompt,
                    prompt_tokens: said.prompt_tokens,
                    output_tokens_max: said.output_tokens_max,
                    // Servers differ in the range that they take; all take 31 bits.
                    seed: stream(seed, Purpose::Sampling, index + turn as u64).next_u64() >> 33,
                    hang_up: cancel.and_then(|cancel| people::hang_up(cancel, &mut cancels)),
                    think_ns: u64::from(think_ms) * 1_000_000,
                    scripted_answer: said.scripted_answer,
                }
            });
        Conversation {
            number,
            due,
            prompt_set: Arc::clone(&asker.name),
            tenant,
            class,
            shared: asked.shared,
            turns: turns.collect(),
            is_session: asker.is_session,
        }
    }
}

#[cfg(test)]
mod tests;
