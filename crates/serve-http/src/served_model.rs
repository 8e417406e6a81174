//! The model that is served, and the walk of a request from a parsed body to a running generation.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use serve_core::{Request, Span, TenantId, Time, TokenId};

use crate::api::{ChatRequest, CompletionRequest, Endpoint, Header, Options, Prompt};
use crate::error::Problem;
use crate::generate::{Generation, Piece};
use crate::metrics::Metrics;
use crate::names::{Name, Names};
use crate::prepare::Preparation;
use crate::prompt_blocks::PromptBlocks;
use crate::secret_ids::SecretIds;
use crate::stop::StopMatcher;
use crate::telemetry::RequestLog;
use crate::terms::Terms;
use crate::text::{Text, TextError};
use crate::worker::{Permit, Reservation, Worker};

/// The model that is served and the thread that runs it.
pub struct ServedModel {
    name: String,
    created: u64,
    text: Arc<dyn Text>,
    worker: Worker,
    names: Arc<Names>,
    metrics: Arc<Metrics>,
    ids: SecretIds,
    preparation: Preparation,
    /// What the access log tells of prompts.
    blocks: Option<PromptBlocks>,
}

impl ServedModel {
    /// `ids` makes ids and default seeds, so that they differ from those of the process before.
    pub(crate) fn new(
        name: String,
        text: Arc<dyn Text>,
        worker: Worker,
        metrics: Arc<Metrics>,
        ids: SecretIds,
        preparation: Preparation,
    ) -> Self {
        Self {
            name,
            created: unix_seconds(),
            text,
            worker,
            names: Arc::default(),
            metrics,
            ids,
            preparation,
            blocks: None,
        }
    }

    /// Has the access log tell hashes of prompts.
    #[must_use]
    pub(crate) fn telling(self, blocks: Option<PromptBlocks>) -> Self {
        Self { blocks, ..self }
    }

    /// The name that clients ask for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When the model began to be served, in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// The inference thread.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The threads for work before the engine.
    pub(crate) fn preparation(&self) -> &Preparation {
        &self.preparation
    }

    /// Tokens that one request can hold, prompt and answer together: the context, or the whole KV
    /// cache where that is smaller.
    pub fn tokens_max(&self) -> u32 {
        let limits = self.worker.limits();
        let cache = u64::from(limits.usable_blocks()) * u64::from(limits.block_size);
        u64::from(limits.context_max).min(cache) as u32
    }

    /// Starts the answer to a chat, which came as `size` bytes of JSON. `held` is kept until its text has become
    /// tokens.
    ///
    /// # Errors
    ///
    /// The [`Problem`] that the client is told instead.
    pub async fn chat(
        &self,
        chat: ChatRequest,
        terms: Terms,
        size: usize,
        held: impl Send + 'static,
    ) -> Result<(Header, Generation), Problem> {
        let arrival = self.worker.now();
        self.check_model(&chat.options)?;
        let permit = self.worker.reserve(terms.tenant)?;
        let ChatRequest {
            messages,
            template_variables,
            options,
        } = chat;
        let bytes = messages.iter().map(|message| message.content.len()).sum();
        self.check_length("messages", bytes)?;
        let written = written_bytes(bytes, messages.len(), &template_variables).min(size);
        let reservation = self.worker.pre_admit(terms.tenant, terms.class, written)?;
        let text = Arc::clone(&self.text);
        let encode = move || text.encode_chat(&messages, &template_variables);
        let (prompt, permit, reservation) = self
            .encoded("messages", size, encode, (permit, reservation), held)
            .await?;
        let rest = u64::from(self.tokens_max()).saturating_sub(prompt.len() as u64);
        let job = Job {
            endpoint: Endpoint::Chat,
            param: "messages",
            arrival,
            permit,
            reservation: Some(reservation),
            prompt,
            output_tokens_default: rest as u32,
            terms,
            measured: true,
        };
        self.start(job, options)
    }

    /// Starts the continuation of a text, which came as `size` bytes of JSON. `held` is kept until the text has
    /// become tokens.
    ///
    /// # Errors
    ///
    /// The [`Problem`] that the client is told instead.
    pub async fn complete(
        &self,
        completion: CompletionRequest,
        terms: Terms,
        size: usize,
        held: impl Send + 'static,
    ) -> Result<(Header, Generation), Problem> {
        /// As in the OpenAI API.
        const OUTPUT_TOKENS_DEFAULT: u64 = 16;

        let arrival = self.worker.now();
        self.check_model(&completion.options)?;
        let permit = self.worker.reserve(terms.tenant)?;
        let (prompt, permit, reservation) = match completion.prompt {
            Prompt::Text(prompt) => {
                let bytes = prompt.len();
                self.check_length("prompt", bytes)?;
                let reservation = self.worker.pre_admit(terms.tenant, terms.class, bytes)?;
                let text = Arc::clone(&self.text);
                let encode = move || text.encode(&prompt);
                let (prompt, permit, reservation) = self
                    .encoded("prompt", size, encode, (permit, reservation), held)
                    .await?;
                (prompt, permit, Some(reservation))
            }
            Prompt::Tokens(tokens) => (self.checked(tokens)?, permit, None),
        };
        let rest = u64::from(self.tokens_max()).saturating_sub(prompt.len() as u64);
        let job = Job {
            endpoint: Endpoint::Completion,
            param: "prompt",
            arrival,
            permit,
            reservation,
            prompt,
            output_tokens_default: OUTPUT_TOKENS_DEFAULT.min(rest) as u32,
            terms,
            measured: true,
        };
        self.start(job, completion.options)
    }

    /// Refuses a text that cannot fit before any work is done on it.
    fn check_length(&self, param: &'static str, bytes: usize) -> Result<(), Problem> {
        let tokens = self.tokens_max();
        match self.text.bytes_max(tokens) {
            Some(max) if bytes > max => Err(Problem::TextLength {
                param,
                bytes,
                max,
                tokens,
            }),
            _ => Ok(()),
        }
    }

    /// Turns a text that came in so many bytes into tokens. A client that leaves meanwhile takes neither permit
    /// nor reservation nor `held` along: they belong to the work, until it ends.
    async fn encoded(
        &self,
        param: &'static str,
        size: usize,
        encode: impl FnOnce() -> Result<Vec<TokenId>, TextError> + Send + 'static,
        (permit, mut reservation): (Permit, Reservation),
        held: impl Send + 'static,
    ) -> Result<(Vec<TokenId>, Permit, Reservation), Problem> {
        let work = move || {
            reservation.begins();
            let tokens = encode();
            if let Ok(tokens) = &tokens {
                reservation.came_to(tokens.len());
            }
            drop(held);
            (tokens, permit, reservation)
        };
        let failed = |error: TextError| Problem::Encoding {
            param,
            cause: error.to_string(),
        };
        let done = match self.text.encodes_at_once(size) {
            true => Ok(work()),
            false => self.preparation.run(size, work).await,
        };
        let Ok((tokens, permit, reservation)) = done else {
            return Err(failed(TextError::Tokenizer {
                cause: "it panicked".to_owned(),
            }));
        };
        Ok((tokens.map_err(failed)?, permit, reservation))
    }

    fn start(&self, job: Job, options: Options) -> Result<(Header, Generation), Problem> {
        let output_tokens_max = self.output_tokens_max(&job, &options)?;
        let reserved = job.reservation.as_ref().and_then(Reservation::id);
        let id = reserved.unwrap_or_else(|| self.worker.next_id());
        let unique = self.ids.of(id.get());
        let sampling = options.sampling.over(&self.text.sampling(), unique)?;
        let Terms {
            tenant,
            class,
            timeout,
            queue_timeout,
            request_name,
        } = job.terms;
        // A message is a text of its own.
        let detokenizer = self.text.detokenizer(match job.endpoint {
            Endpoint::Chat => &[],
            Endpoint::Completion => &job.prompt,
        });
        let blocks = self.blocks.as_ref();
        let blocks = blocks.map(|blocks| blocks.tell(&job.prompt));
        let deadline = timeout.map(|timeout| job.arrival + timeout);
        let mut request = Request::new(id, job.arrival, job.prompt, output_tokens_max)?
            .with_tenant(tenant)
            .with_class(class)
            .with_deadline(deadline)
            .with_start_by(queue_timeout.map(|timeout| job.arrival + timeout))
            .with_sampling(sampling)
            .with_logprobs(options.logprobs)?;
        let markup = |stop: &String| self.text.markup(stop);
        let marks: Vec<TokenId> = options.stop.iter().filter_map(markup).collect();
        let own = match options.ignore_eos {
            true => &Arc::default(),
            false => self.text.stop_tokens(),
        };
        request = match marks.is_empty() {
            true => request.with_stop_tokens(Arc::clone(own)),
            false => request.with_stop_tokens([&marks, &**own].concat()),
        };
        let header = Header {
            id: match job.endpoint {
                Endpoint::Chat => format!("chatcmpl-{unique:016x}"),
                Endpoint::Completion => format!("cmpl-{unique:016x}"),
            },
            endpoint: job.endpoint,
            created: unix_seconds(),
            model: self.name.clone(),
        };
        let prompt_tokens = request.prompt_tokens();
        let taken = self.worker.submit(job.permit, request);
        if let Some(reservation) = job.reservation {
            reservation.submitted(&taken);
        }
        let ticket = taken?;
        let mut log = RequestLog::new(header.id.clone(), job.arrival, Some(prompt_tokens));
        log.blocks = blocks;
        log.output_tokens_max = output_tokens_max;
        log.deadline = deadline;
        if job.measured {
            log.metrics = self.metrics.of(class).map(Arc::clone);
        }
        let names = [Some(header.id.clone()), request_name]
            .into_iter()
            .flatten();
        let names = names.map(|name| Name { tenant, name }).collect();
        let mut generation = Generation::new(
            ticket,
            Names::enter(&self.names, names, id),
            detokenizer,
            StopMatcher::new(options.stop),
            prompt_tokens,
            log,
        );
        if options.logprobs.is_some() {
            generation.tell_logprobs(Arc::clone(&self.text));
        }
        Ok((header, generation))
    }

    /// Cancels the live requests of `tenant` that are called `name`, by the id of the answer or by
    /// `x-request-id`. Returns how many.
    ///
    /// # Errors
    ///
    /// [`Problem::RequestNotFound`] when there is none.
    pub fn cancel(&self, tenant: TenantId, name: &str) -> Result<usize, Problem> {
        let found = self.names.find(&Name {
            tenant,
            name: name.to_owned(),
        });
        if found.is_empty() {
            return Err(Problem::RequestNotFound {
                id: name.chars().take(128).collect(),
            });
        }
        for &id in &found {
            self.worker.cancel(id);
        }
        Ok(found.len())
    }

    /// Whether there has been work for `patience` and no step has ended.
    pub fn is_stalled(&self, patience: Duration) -> bool {
        self.worker.without_progress() > Span::from(patience)
    }

    fn check_model(&self, options: &Options) -> Result<(), Problem> {
        match &options.model {
            Some(asked) if *asked != self.name => Err(Problem::ModelNotFound {
                asked: asked.clone(),
                served: self.name.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn checked(&self, tokens: Vec<TokenId>) -> Result<Vec<TokenId>, Problem> {
        let vocabulary = self.text.vocabulary();
        match tokens.iter().position(|token| token.get() >= vocabulary) {
            None => Ok(tokens),
            Some(index) => Err(Problem::Value {
                param: format!("prompt[{index}]"),
                accepted: format!("a token id below {vocabulary}"),
                given: tokens[index].get().to_string(),
            }),
        }
    }

    /// How many tokens may be generated, if prompt and answer fit together.
    fn output_tokens_max(&self, job: &Job, options: &Options) -> Result<u32, Problem> {
        let (prompt, max) = (job.prompt.len() as u64, u64::from(self.tokens_max()));
        if prompt == 0 {
            return Err(Problem::Value {
                param: job.param.to_owned(),
                accepted: "text of at least one token".to_owned(),
                given: "text of none".to_owned(),
            });
        }
        let too_long = |param, output| Problem::ContextLength {
            param,
            prompt,
            output,
            max,
        };
        let asked = options.output_tokens_max.map(std::num::NonZeroU32::get);
        match asked {
            _ if prompt >= max => Err(too_long(job.param, u64::from(asked.unwrap_or(1)))),
            Some(asked) if prompt + u64::from(asked) > max => {
                Err(too_long("max_tokens", u64::from(asked)))
            }
            Some(asked) => Ok(asked),
            None => Ok(job.output_tokens_default),
        }
    }

    /// Sends one short request through everything that a client's request goes through.
    pub(crate) async fn warm_up(&self) -> Result<(), Problem> {
        let options = Options {
            output_tokens_max: std::num::NonZeroU32::new(2.min(self.tokens_max() / 2)),
            ignore_eos: true,
            ..Options::default()
        };
        let job = Job {
            endpoint: Endpoint::Completion,
            param: "prompt",
            arrival: self.worker.now(),
            permit: self.worker.reserve(TenantId::default())?,
            reservation: None,
            prompt: vec![TokenId::new(0)],
            output_tokens_default: 1,
            terms: Terms::default(),
            measured: false,
        };
        let (_, mut generation) = self.start(job, options)?;
        while let Some(piece) = generation.next().await {
            if let Piece::End { .. } = piece? {
                return Ok(());
            }
        }
        Err(Problem::EngineStopped)
    }
}

/// What a template writes around one message, its role included, in tokens at most: the templates in use write
/// five to ten.
const MARKS_MAX: usize = 16;

/// What a chat is taken for until it is encoded, in tokens at most: a token is a byte of text or more. A template may
/// write its variables as often as it likes; then all that came counts.
fn written_bytes(text: usize, messages: usize, variables: &Map<String, Value>) -> usize {
    match variables.is_empty() {
        true => text.saturating_add(MARKS_MAX.saturating_mul(messages + 1)),
        false => usize::MAX,
    }
}

/// A request between its tokens and its submission.
struct Job {
    endpoint: Endpoint,
    /// The parameter that the prompt came from.
    param: &'static str,
    arrival: Time,
    permit: Permit,
    /// Of a prompt that was a text.
    reservation: Option<Reservation>,
    prompt: Vec<TokenId>,
    output_tokens_default: u32,
    terms: Terms,
    /// Whether its waits are a client's.
    measured: bool,
}

fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
