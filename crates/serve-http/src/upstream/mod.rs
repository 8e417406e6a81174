//! An engine of somebody else's behind this server's gate: any server with an OpenAI-compatible API.
//!
//! Who is let in, in which order, and how many are with the engine at once is decided here, by the same policies
//! that serve the own engine, and by a limit that is measured. What is generated is the engine's: a request passes
//! as it is but for what has to be edited (`request`), and an answer comes back as it is made (`call`, `events`, `answer`).

mod answer;
mod call;
mod client;
mod delivery;
mod engine;
mod events;
mod members;
mod readiness;
mod request;
mod supervise;

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serve_core::{CancelReason, Span, TenantId};
use serve_sched::Dispatcher;
use serve_sched::adapter::{Ask, AsyncDispatcher};
use serve_sched::settings::{Change, ChangeError};
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::access::Access;
use crate::api::Endpoint;
use crate::error::Problem;
use crate::lifecycle::Lifecycle;
use crate::metrics::{Metrics, UpstreamFigures};
use crate::names::{Name, Names};
use crate::prepare::Preparation;
use crate::telemetry::RequestLog;
use crate::terms::Terms;
use answer::Rewriter;
use call::{Call, problem_of};
use client::Client;
pub use client::{InvalidKey, InvalidUrl, UpstreamKey, UpstreamUrl};
pub(crate) use delivery::{Answer, events};
use engine::{Engine, Outgoing};
use readiness::{GivenUp, Model, Prober};
pub(crate) use request::Asked;
use supervise::Supervisor;
pub use supervise::{EngineCommand, InvalidCommand, engine_role};

/// Parts of an answer that wait for a client that reads slowly; then the engine waits.
const PARTS_MAX: usize = 16;

/// What an engine behind the gate is.
#[derive(Clone, Debug)]
pub struct UpstreamSettings {
    /// Where it is.
    pub place: UpstreamPlace,
    /// The key that it wants.
    pub key: Option<UpstreamKey>,
    /// What it calls its model; absent, the first that it lists.
    pub model: Option<String>,
    /// What clients call it; absent, what the engine calls it.
    pub served_model_name: Option<String>,
    /// Whether the answer to a cancelled request is read to its end, for an engine that fails when its client leaves.
    pub finish_cancelled: bool,
}

/// Where an engine behind the gate is.
#[derive(Clone, Debug)]
pub enum UpstreamPlace {
    /// It runs there.
    At(UpstreamUrl),
    /// It is started here, watched, and ended with the server.
    Started(EngineCommand),
}

/// An engine of somebody else's, behind the gate.
pub struct Upstream {
    engine: Engine,
    prober: Prober,
    supervisor: Option<Supervisor>,
    served: Option<String>,
    /// Known when the engine has served.
    model: OnceLock<Model>,
    created: u64,
    names: Arc<Names>,
    /// For bodies that take long to read.
    preparation: Preparation,
}

impl Upstream {
    /// An engine in front of which `dispatcher` decides. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// Where the system has no port for an engine that is to be started here, or gives no thread.
    pub fn new(settings: UpstreamSettings, dispatcher: Dispatcher) -> io::Result<Self> {
        let (url, supervisor) = match settings.place {
            UpstreamPlace::At(url) => (url, None),
            UpstreamPlace::Started(command) => {
                let supervisor = Supervisor::new(command)?;
                (UpstreamUrl::local(supervisor.port()), Some(supervisor))
            }
        };
        let client = Client::new(url, settings.key);
        let engine = Engine::new(client, dispatcher, settings.finish_cancelled);
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self {
            prober: Prober::new(engine.clone(), settings.model, supervisor.clone()),
            supervisor,
            engine,
            served: settings.served_model_name,
            model: OnceLock::new(),
            created: since.map_or(0, |since| since.as_secs()),
            names: Arc::default(),
            preparation: Preparation::start()?,
        })
    }

    /// Ends an engine that was started here. Returns when nothing of it is left.
    pub async fn end(&self) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.end().await;
        }
    }

    /// The threads for bodies that take long to read.
    pub(crate) fn preparation(&self) -> &Preparation {
        &self.preparation
    }

    /// Starts the engine, if it is to be started here.
    pub(crate) fn begin(&self) {
        if let Some(supervisor) = &self.supervisor {
            let (engine, answers) = (self.engine.clone(), self.engine.clone());
            let ended = move || {
                engine.counts().restarted();
                engine.suspect();
            };
            let run = supervisor
                .clone()
                .run(move || answers.counts().answered(), ended);
            tokio::spawn(run);
        }
    }

    /// What clients call its model; nothing as long as that is not known.
    pub fn name(&self) -> &str {
        let model = || self.model.get().map(|model| model.name.as_str());
        self.served.as_deref().or_else(model).unwrap_or_default()
    }

    /// What the engine calls its model.
    pub fn model(&self) -> &str {
        self.model.get().map_or("", |model| &model.name)
    }

    /// Where the engine is.
    pub fn url(&self) -> &UpstreamUrl {
        self.engine.client().url()
    }

    /// The gate in front of it.
    pub fn gate(&self) -> &AsyncDispatcher {
        self.engine.gate()
    }

    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    /// Tokens that one request can hold, if the engine says so.
    pub(crate) fn context(&self) -> Option<u32> {
        self.model.get().and_then(|model| model.context)
    }

    /// Waits until the engine serves for the first time. Returns whether it does: one that is started here can be
    /// given up.
    pub(crate) async fn serves(&self) -> bool {
        match self.prober.serves().await {
            // The first name stays: clients know it.
            Ok(model) => self.model.set(model).is_ok(),
            Err(GivenUp) => false,
        }
    }

    /// Watches an engine that serves.
    pub(crate) async fn watch(&self, lifecycle: &Lifecycle) {
        self.prober.watch(lifecycle).await;
    }

    pub(crate) fn figures(&self) -> UpstreamFigures<'_> {
        UpstreamFigures {
            stats: self.gate().stats(),
            counts: self.engine.counts(),
            is_supervised: self.supervisor.is_some(),
        }
    }

    pub(crate) fn is_stalled(&self, patience: Duration) -> bool {
        self.engine.without_progress() > Span::from(patience)
    }

    pub(crate) fn change(&self, change: &Change) -> Result<(), ChangeError> {
        self.gate().change(change)
    }

    /// Reads the body of a request.
    ///
    /// # Errors
    ///
    /// As [`Asked::read`].
    pub(crate) fn read(&self, endpoint: Endpoint, body: &[u8]) -> Result<Asked, Problem> {
        Asked::read(endpoint, body, self.name(), self.model())
    }

    /// Cancels the live requests of `tenant` that are called `name`. Returns how many.
    ///
    /// # Errors
    ///
    /// [`Problem::RequestNotFound`] when there is none.
    pub(crate) fn cancel(&self, tenant: TenantId, name: &str) -> Result<usize, Problem> {
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
            self.gate().cancel(id, CancelReason::Client);
        }
        Ok(found.len())
    }

    /// Waits for the request's turn, sends it, and returns what there is of its answer when that begins.
    /// `held` is kept until it has been sent.
    ///
    /// # Errors
    ///
    /// The [`Problem`] that the client is told instead.
    pub(crate) async fn ask(
        &self,
        asked: Asked,
        terms: Terms,
        held: impl Send + 'static,
        metrics: &Arc<Metrics>,
        access: Option<Access>,
    ) -> Result<Answer, Problem> {
        let arrival = self.engine.now();
        let tenant = terms.tenant;
        let ask = Ask::new(asked.prompt_tokens(), asked.output_tokens_max())
            .with_tenant(tenant)
            .with_class(terms.class)
            .with_patience(terms.timeout)
            .with_start_within(terms.queue_timeout);
        let mut admission = self.gate().admit(ask);
        let id = admission.arrive().map_err(problem_of)?;
        let mut log = RequestLog::new(String::new(), arrival, None);
        log.metrics = metrics.of(terms.class).map(Arc::clone);
        log.deadline = terms.timeout.map(|timeout| arrival + timeout);
        log.output_tokens_max = asked.output_tokens_max();
        log.access = access;
        let own = terms.request_name.iter().cloned();
        let own = own.map(|name| Name { tenant, name }).collect();
        let named = Names::enter(&self.names, own, id);
        let permit = match admission.await {
            Ok(permit) => permit,
            Err(rejection) => {
                let problem = problem_of(rejection);
                log.ended(self.engine.now(), None);
                log.outcome = problem.kind().code;
                return Err(problem);
            }
        };
        log.started(self.engine.now());
        self.engine.begins();
        let (parts, answer) = mpsc::channel(PARTS_MAX);
        let call = Call {
            engine: self.engine.clone(),
            permit,
            log,
            rewriter: Rewriter::new(self.name(), asked.wants_usage),
            is_stream: asked.options.stream,
            names: Arc::clone(&self.names),
            known_as: None,
            tenant,
            parts,
        };
        let sending = self.engine.clone().send(Outgoing {
            path: path(asked.endpoint),
            headers: headers(terms.request_name.as_deref()),
            body: asked.body,
            deadline: terms.timeout.map(|timeout| arrival + timeout),
        });
        let sending = Box::pin(async move {
            let sent = sending.await;
            drop(held);
            sent
        });
        let run = async move {
            call.run(sending).await;
            drop(named);
        };
        tokio::spawn(run.in_current_span());
        Answer::begun(answer).await
    }
}

fn path(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Chat => "/v1/chat/completions",
        Endpoint::Completion => "/v1/completions",
    }
}

/// What an engine is told of a request beside its body.
fn headers(name: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(name) = name.and_then(|name| HeaderValue::try_from(name).ok()) {
        headers.insert(HeaderName::from_static("x-request-id"), name);
    }
    headers
}
