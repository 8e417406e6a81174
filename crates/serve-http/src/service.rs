//! The server's state, from an open port without a model to a drained one, and the walk of a
//! request from a parsed body to a running generation.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serve_core::rng::mix2;
use serve_core::{Backend, Request, Span, TenantId, Time, TokenId};
use serve_sched::Policies;
use thiserror::Error;
use tracing::{info, warn};

use crate::api::{ChatRequest, CompletionRequest, Endpoint, Header, Options, Prompt};
use crate::error::Problem;
use crate::generate::{Generation, Piece};
use crate::idempotency::Answers;
use crate::lifecycle::{Lifecycle, State};
use crate::names::{Name, Names};
use crate::settings::Settings;
use crate::stop::StopMatcher;
use crate::telemetry::RequestLog;
use crate::terms::Terms;
use crate::text::{Text, TextError};
use crate::worker::{Place, Rebuild, Worker, WorkerError};

/// A model, ready to be served.
pub struct Loaded {
    /// The name that clients ask for.
    pub name: String,
    /// Text to tokens and back.
    pub text: Arc<dyn Text>,
    /// The device.
    pub backend: Box<dyn Backend + Send>,
    /// What decides.
    pub policies: Policies,
    /// Makes both anew after a panic; without it a panic is the end.
    pub rebuild: Option<Rebuild>,
}

/// Why a loaded model is not served.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The inference thread could not be started.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The first request did not come back.
    #[error("the warm-up request failed: {0}")]
    WarmUp(Problem),
    /// A model is being served already.
    #[error("a model is served already")]
    Twice,
    /// The server was told to stop while the model was loading.
    #[error("the server is {0}")]
    TooLate(State),
}

/// The server's state, shared by all handlers.
pub struct Service {
    settings: Settings,
    lifecycle: Arc<Lifecycle>,
    serving: OnceLock<Serving>,
    answers: Arc<Answers>,
    /// Makes ids and default seeds differ from those of the process before.
    boot: u64,
}

/// The model that is served and the thread that runs it.
pub struct Serving {
    name: String,
    created: u64,
    text: Arc<dyn Text>,
    worker: Worker,
    names: Arc<Names>,
    boot: u64,
}

impl Service {
    /// A server without a model: every path answers, none serves.
    pub fn new(settings: Settings) -> Arc<Self> {
        let (ttl, bytes_max) = (settings.idempotency_ttl, settings.idempotency_bytes_max);
        Arc::new(Self {
            answers: Answers::new(Span::from(ttl), bytes_max),
            settings,
            lifecycle: Arc::default(),
            serving: OnceLock::new(),
            boot: RandomState::new().hash_one(0),
        })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The answers of idempotency keys.
    pub(crate) fn answers(&self) -> &Arc<Answers> {
        &self.answers
    }

    /// Where the server is in its life.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Starts the inference thread on a loaded model, runs a first request through the whole path,
    /// and then takes requests. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`LaunchError`], after which nothing is served.
    pub async fn launch(&self, loaded: Loaded) -> Result<(), LaunchError> {
        if !self.lifecycle.advance(State::Warming) {
            let state = self.lifecycle.state();
            return Err(match state {
                State::Warming | State::Rebuilding | State::Ready => LaunchError::Twice,
                _ => LaunchError::TooLate(state),
            });
        }
        let worker = Worker::start(
            loaded.backend,
            loaded.policies,
            self.settings.queue_cap,
            loaded.rebuild,
            Arc::clone(&self.lifecycle),
        )?;
        let serving = Serving {
            name: loaded.name,
            created: unix_seconds(),
            text: loaded.text,
            worker,
            names: Arc::default(),
            boot: self.boot,
        };
        serving.warm_up().await.map_err(LaunchError::WarmUp)?;
        self.serving.set(serving).map_err(|_| LaunchError::Twice)?;
        if self.lifecycle.advance(State::Ready) {
            Ok(())
        } else {
            Err(LaunchError::TooLate(self.lifecycle.state()))
        }
    }

    /// The model, if requests are taken now.
    ///
    /// # Errors
    ///
    /// [`Problem::NotReady`] with the state that the server is in.
    pub fn serving(&self) -> Result<&Serving, Problem> {
        match (self.lifecycle.state(), self.serving.get()) {
            (State::Ready, Some(serving)) => Ok(serving),
            (state, _) => Err(Problem::NotReady(state)),
        }
    }

    /// The model, if accepted requests can still be running.
    ///
    /// # Errors
    ///
    /// [`Problem::NotReady`] with the state that the server is in.
    pub fn running(&self) -> Result<&Serving, Problem> {
        match (self.lifecycle.state(), self.serving.get()) {
            (State::Ready | State::Draining, Some(serving)) => Ok(serving),
            (state, _) => Err(Problem::NotReady(state)),
        }
    }

    /// The model, in whatever state the server is: for looking at it when it has stopped.
    pub fn launched(&self) -> Option<&Serving> {
        self.serving.get()
    }

    /// Whether the server is ready, has work, and has ended no step for longer than the settings
    /// allow.
    pub fn is_stalled(&self) -> bool {
        let patience = self.settings.stalled_after;
        let serving = self.serving();
        serving.is_ok_and(|serving| serving.is_stalled(patience))
    }

    /// Takes no more requests, lets the accepted ones finish for as long as the settings allow,
    /// then calls off the rest. Returns how many that were, once the engine has let go of them.
    pub async fn drain(&self) -> usize {
        self.lifecycle.advance(State::Draining);
        let Some(serving) = self.serving.get() else {
            return 0;
        };
        let worker = &serving.worker;
        worker.drain();
        info!(live = worker.live(), "draining");
        let patience = self.settings.drain_timeout;
        if tokio::time::timeout(patience, worker.idle()).await.is_ok() {
            return 0;
        }
        let cut = worker.cancel_all();
        warn!(cancelled = cut, "the drain timeout has passed");
        // Bounded, because a device that hangs must not keep the process from ending.
        let _ = tokio::time::timeout(Duration::from_secs(5), worker.idle()).await;
        cut
    }
}

impl Serving {
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

    /// Tokens that one request can hold, prompt and answer together: the context, or the whole KV
    /// cache where that is smaller.
    pub fn tokens_max(&self) -> u32 {
        let limits = self.worker.limits();
        let cache = u64::from(limits.usable_blocks()) * u64::from(limits.block_size);
        u64::from(limits.context_max).min(cache) as u32
    }

    /// Starts the answer to a chat.
    ///
    /// # Errors
    ///
    /// The [`Problem`] that the client is told instead.
    pub async fn chat(
        &self,
        chat: ChatRequest,
        terms: Terms,
    ) -> Result<(Header, Generation), Problem> {
        let arrival = self.worker.now();
        self.check_model(&chat.options)?;
        let place = self.worker.reserve()?;
        let ChatRequest {
            messages,
            template_variables,
            options,
        } = chat;
        let length = messages.iter().map(|message| message.content.len()).sum();
        let text = Arc::clone(&self.text);
        let encode = move || text.encode_chat(&messages, &template_variables);
        let prompt = encoded("messages", length, encode).await?;
        let rest = u64::from(self.tokens_max()).saturating_sub(prompt.len() as u64);
        let job = Job {
            endpoint: Endpoint::Chat,
            param: "messages",
            arrival,
            place,
            prompt,
            output_tokens_default: rest as u32,
            terms,
        };
        self.start(job, options).await
    }

    /// Starts the continuation of a text.
    ///
    /// # Errors
    ///
    /// The [`Problem`] that the client is told instead.
    pub async fn complete(
        &self,
        completion: CompletionRequest,
        terms: Terms,
    ) -> Result<(Header, Generation), Problem> {
        /// As in the OpenAI API.
        const OUTPUT_TOKENS_DEFAULT: u64 = 16;

        let arrival = self.worker.now();
        self.check_model(&completion.options)?;
        let place = self.worker.reserve()?;
        let prompt = match completion.prompt {
            Prompt::Text(prompt) => {
                let text = Arc::clone(&self.text);
                encoded("prompt", prompt.len(), move || text.encode(&prompt)).await?
            }
            Prompt::Tokens(tokens) => self.checked(tokens)?,
        };
        let rest = u64::from(self.tokens_max()).saturating_sub(prompt.len() as u64);
        let job = Job {
            endpoint: Endpoint::Completion,
            param: "prompt",
            arrival,
            place,
            prompt,
            output_tokens_default: OUTPUT_TOKENS_DEFAULT.min(rest) as u32,
            terms,
        };
        self.start(job, completion.options).await
    }

    async fn start(&self, job: Job, options: Options) -> Result<(Header, Generation), Problem> {
        let output_tokens_max = self.output_tokens_max(&job, &options)?;
        let id = self.worker.next_id();
        let unique = mix2(self.boot, id.get());
        let sampling = options.sampling.over(&self.text.sampling(), unique)?;
        let Terms {
            tenant,
            class,
            timeout,
            request_name,
        } = job.terms;
        let mut request = Request::new(id, job.arrival, job.prompt, output_tokens_max)?
            .with_tenant(tenant)
            .with_class(class)
            .with_deadline(timeout.map(|timeout| job.arrival + timeout))
            .with_sampling(sampling);
        if !options.ignore_eos {
            request = request.with_stop_tokens(Arc::clone(self.text.stop_tokens()));
        }
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
        let log = RequestLog::new(header.id.clone(), job.arrival, prompt_tokens);
        let names = [Some(header.id.clone()), request_name]
            .into_iter()
            .flatten();
        let names = names.map(|name| Name { tenant, name }).collect();
        let named = Names::enter(&self.names, names, id);
        let ticket = self.worker.submit(job.place, request)?;
        let mut generation = Generation::new(
            ticket,
            named,
            self.text.detokenizer(),
            StopMatcher::new(options.stop),
            prompt_tokens,
            log,
        );
        generation.accepted().await?;
        Ok((header, generation))
    }

    /// Calls off the live requests of `tenant` that are called `name`, by the id of the answer or by
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
    async fn warm_up(&self) -> Result<(), Problem> {
        let options = Options {
            output_tokens_max: std::num::NonZeroU32::new(2.min(self.tokens_max() / 2)),
            ignore_eos: true,
            ..Options::default()
        };
        let job = Job {
            endpoint: Endpoint::Completion,
            param: "prompt",
            arrival: self.worker.now(),
            place: self.worker.reserve()?,
            prompt: vec![TokenId::new(0)],
            output_tokens_default: 1,
            terms: Terms::default(),
        };
        let (_, mut generation) = self.start(job, options).await?;
        while let Some(piece) = generation.next().await {
            if let Piece::End { .. } = piece? {
                return Ok(());
            }
        }
        Err(Problem::EngineStopped)
    }
}

/// A request between its tokens and its submission.
struct Job {
    endpoint: Endpoint,
    /// The parameter that the prompt came from.
    param: &'static str,
    arrival: Time,
    place: Place,
    prompt: Vec<TokenId>,
    output_tokens_default: u32,
    terms: Terms,
}

/// Runs `encode`, on another thread where the text is long: a tokenizer takes about a microsecond
/// for a word, and meanwhile this thread's other streams would stand still.
async fn encoded(
    param: &'static str,
    bytes: usize,
    encode: impl FnOnce() -> Result<Vec<TokenId>, TextError> + Send + 'static,
) -> Result<Vec<TokenId>, Problem> {
    const INLINE_BYTES_MAX: usize = 4 << 10;

    let result = if bytes <= INLINE_BYTES_MAX {
        encode()
    } else {
        // A panic of the tokenizer is the only way for the task not to come back.
        match tokio::task::spawn_blocking(encode).await {
            Ok(result) => result,
            Err(error) => Err(TextError::Tokenizer {
                cause: error.to_string(),
            }),
        }
    };
    result.map_err(|error| Problem::Encoding {
        param,
        cause: error.to_string(),
    })
}

fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
