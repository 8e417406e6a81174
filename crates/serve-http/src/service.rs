//! The server's state, from an open port without a model to a drained one.

use std::io;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use serde_json::Value;
use serve_core::{Backend, CancelReason, Span};
use serve_sched::Policies;
use serve_sched::settings::{Change, ChangeError};
use thiserror::Error;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::auth::Keys;
use crate::body::Bodies;
use crate::error::Problem;
use crate::idempotency::Answers;
use crate::lifecycle::{Lifecycle, State};
use crate::metrics::{Metrics, Served, Snapshot};
use crate::prepare::Preparation;
use crate::prompt_blocks::PromptBlocks;
use crate::secret_ids::SecretIds;
use crate::served_model::ServedModel;
use crate::settings::EdgeSettings;
use crate::text::Text;
use crate::upstream::Upstream;
use crate::worker::{Rebuild, Worker, WorkerError};

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
    /// The operating system gave no thread for reading and encoding texts.
    #[error("the threads that encode texts could not be started: {0}")]
    Preparation(io::Error),
    /// The first request did not come back.
    #[error("the warm-up request failed: {0}")]
    WarmUp(Problem),
    /// A model is being served already.
    #[error("a model is served already")]
    Twice,
    /// An engine of somebody else's ended too often before it served.
    #[error("the engine has ended too often, and is given up; the log has its words")]
    GivenUp,
    /// The server was told to stop while the model was loading.
    #[error("the server is {0}")]
    TooLate(State),
}

/// What can be read again while the server runs.
#[derive(Debug)]
pub(crate) struct Access {
    /// Who is let in.
    pub(crate) keys: Keys,
    /// What `GET /v1/config` shows.
    pub(crate) shown: Value,
}

/// Why other settings do not hold. The old ones go on.
#[derive(Debug, Error)]
pub enum ReloadError {
    /// No engine is there to take them: none yet, none any more, or the next one is being built.
    #[error("the server is {0}; try again when it is ready")]
    NotReady(State),
    /// The scheduler cannot take them.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// The server's state, shared by all handlers.
pub struct Service {
    settings: EdgeSettings,
    access: RwLock<Arc<Access>>,
    lifecycle: Arc<Lifecycle>,
    serving: OnceLock<ServedModel>,
    /// In place of an engine of its own.
    upstream: OnceLock<Arc<Upstream>>,
    answers: Arc<Answers>,
    metrics: Arc<Metrics>,
    bodies: Bodies,
    ids: SecretIds,
    /// What `GET /v1/config` shows of what runs.
    running: OnceLock<Value>,
    /// Since when it has been about to go.
    left: OnceLock<Instant>,
}

/// The name of a ready server that has work and ends no step.
pub(crate) const STALLED: &str = "stalled";

impl Service {
    /// A server without a model: every path answers, none serves.
    pub fn new(settings: EdgeSettings) -> Arc<Self> {
        let access = Access {
            keys: settings.keys.clone(),
            shown: settings.shown.clone(),
        };
        let (ttl, bytes_max) = (settings.idempotency_ttl, settings.idempotency_bytes_max);
        let metrics = Metrics::new(&settings);
        Arc::new(Self {
            answers: Answers::new(Span::from(ttl), bytes_max),
            access: RwLock::new(Arc::new(access)),
            bodies: Bodies::new(settings.connections),
            settings,
            lifecycle: Arc::default(),
            serving: OnceLock::new(),
            upstream: OnceLock::new(),
            metrics,
            ids: SecretIds::default(),
            running: OnceLock::new(),
            left: OnceLock::new(),
        })
    }

    /// Who is let in, and what is shown of the settings, at this moment.
    pub(crate) fn access(&self) -> Arc<Access> {
        // Nothing panics while it is locked.
        let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&access)
    }

    /// Goes on with other settings of the scheduler, other keys, and something else to show, without losing
    /// a request; or with none of them.
    ///
    /// # Errors
    ///
    /// [`ReloadError`]; then nothing has changed.
    pub fn reload(&self, change: &Change, keys: Keys, shown: Value) -> Result<(), ReloadError> {
        let not_ready = || ReloadError::NotReady(self.lifecycle.state());
        match self.upstream() {
            Some(upstream) => upstream.change(change)?,
            None => {
                let serving = self.running().map_err(|_| not_ready())?;
                serving.worker().change(change).ok_or_else(not_ready)??;
            }
        }
        let mut access = self.access.write().unwrap_or_else(PoisonError::into_inner);
        *access = Arc::new(Access { keys, shown });
        Ok(())
    }

    /// Has `GET /v1/config` show what settings and model have come to, under `running`. The first description
    /// stays.
    pub fn describe(&self, running: Value) {
        let _ = self.running.set(running);
    }

    /// What it has been described as.
    pub(crate) fn described(&self) -> Option<&Value> {
        self.running.get()
    }

    /// The settings of the start.
    pub fn settings(&self) -> &EdgeSettings {
        &self.settings
    }

    /// The answers of idempotency keys.
    pub(crate) fn answers(&self) -> &Arc<Answers> {
        &self.answers
    }

    /// The bodies that are being read.
    pub(crate) fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// What is counted and measured.
    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// What only this knows of the metrics.
    pub(crate) fn snapshot(&self) -> Snapshot<'_> {
        let names = State::ALL.map(State::name);
        Snapshot {
            served: self.serving.get().map(|serving| Served {
                model: serving.name().to_owned(),
                limits: serving.worker().limits(),
                stats: serving.worker().stats(),
                oldest: serving.worker().oldest_waits(),
            }),
            upstream: self.upstream().map(|upstream| upstream.figures()),
            state: match self.is_stalled() {
                true => STALLED,
                false => self.lifecycle.state().name(),
            },
            log_lines_lost: self.settings.log_lines_lost.count(),
            states: names.into_iter().chain([STALLED]).collect(),
        }
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
        self.warm()?;
        let worker = Worker::start(
            loaded.backend,
            loaded.policies,
            self.settings.queue_cap,
            loaded.rebuild,
            Arc::clone(&self.lifecycle),
            Arc::clone(&self.metrics),
        )?;
        let preparation = Preparation::start().map_err(LaunchError::Preparation)?;
        let metrics = Arc::clone(&self.metrics);
        let serving = ServedModel::new(
            loaded.name,
            loaded.text,
            worker,
            metrics,
            self.ids.clone(),
            preparation,
        );
        let serving = serving.telling(self.settings.log_prompt_blocks.map(PromptBlocks::of));
        serving.warm_up().await.map_err(LaunchError::WarmUp)?;
        serving.worker().forget_pace();
        self.serving.set(serving).map_err(|_| LaunchError::Twice)?;
        if self.lifecycle.advance(State::Ready) {
            Ok(())
        } else {
            Err(LaunchError::TooLate(self.lifecycle.state()))
        }
    }

    /// Waits until an engine of somebody else's serves, however long that takes, and then takes requests for it. Must be
    /// called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`LaunchError`], after which nothing is served.
    pub async fn attach(&self, upstream: Arc<Upstream>) -> Result<(), LaunchError> {
        self.warm()?;
        let attached = Arc::clone(&upstream);
        self.upstream
            .set(attached)
            .map_err(|_| LaunchError::Twice)?;
        upstream.begin();
        let served = tokio::select! {
            served = upstream.serves() => served,
            state = self.lifecycle.reached(State::Draining) => {
                return Err(LaunchError::TooLate(state));
            }
        };
        if !served {
            return Err(LaunchError::GivenUp);
        }
        if !self.lifecycle.advance(State::Ready) {
            return Err(LaunchError::TooLate(self.lifecycle.state()));
        }
        let lifecycle = Arc::clone(&self.lifecycle);
        tokio::spawn(async move { upstream.watch(&lifecycle).await });
        Ok(())
    }

    fn warm(&self) -> Result<(), LaunchError> {
        if self.lifecycle.advance(State::Warming) {
            return Ok(());
        }
        let state = self.lifecycle.state();
        Err(match state {
            State::Warming | State::Rebuilding | State::Ready => LaunchError::Twice,
            _ => LaunchError::TooLate(state),
        })
    }

    /// The engine of somebody else's, in whatever state the server is.
    pub(crate) fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.upstream.get()
    }

    /// Whether requests are taken now.
    ///
    /// # Errors
    ///
    /// [`Problem::NotReady`] with the state that the server is in.
    pub(crate) fn takes_requests(&self) -> Result<(), Problem> {
        match self.lifecycle.state() {
            State::Ready | State::LameDuck => Ok(()),
            state => Err(Problem::NotReady(state)),
        }
    }

    /// The model, if requests are taken now.
    ///
    /// # Errors
    ///
    /// [`Problem::NotReady`] with the state that the server is in.
    pub fn serving(&self) -> Result<&ServedModel, Problem> {
        match (self.lifecycle.state(), self.serving.get()) {
            (State::Ready | State::LameDuck, Some(serving)) => Ok(serving),
            (state, _) => Err(Problem::NotReady(state)),
        }
    }

    /// The model, if accepted requests can still be running.
    ///
    /// # Errors
    ///
    /// [`Problem::NotReady`] with the state that the server is in.
    pub fn running(&self) -> Result<&ServedModel, Problem> {
        match (self.lifecycle.state(), self.serving.get()) {
            (State::Ready | State::LameDuck | State::Draining, Some(serving)) => Ok(serving),
            (state, _) => Err(Problem::NotReady(state)),
        }
    }

    /// The model, in whatever state the server is: for looking at it when it has stopped.
    pub fn launched(&self) -> Option<&ServedModel> {
        self.serving.get()
    }

    /// Whether the server is ready, has work, and has ended no step for longer than the settings
    /// allow.
    pub fn is_stalled(&self) -> bool {
        let patience = self.settings.stalled_after;
        if let Some(upstream) = self.upstream() {
            return self.takes_requests().is_ok() && upstream.is_stalled(patience);
        }
        let serving = self.serving();
        serving.is_ok_and(|serving| serving.is_stalled(patience))
    }

    /// Says that the server is about to go: `/health/ready` fails from now on, and requests are taken as
    /// before. Returns since when it has been about to go.
    pub fn leave(&self) -> Instant {
        if self.lifecycle.advance(State::LameDuck) {
            info!("about to go: not ready any more, and requests are still taken");
        }
        *self.left.get_or_init(Instant::now)
    }

    /// Takes no more requests, lets the accepted ones finish for as long as the settings allow,
    /// then cancels the rest. Returns how many that were, once the engine has let go of them.
    ///
    /// Where it serves and the settings have a delay, it first [leaves](Self::leave) for so long.
    pub async fn drain(&self) -> usize {
        let delay = self.settings.drain_delay;
        let serves = self.serving.get().is_some() || self.upstream.get().is_some();
        if !delay.is_zero() && serves {
            let left = self.leave();
            // One that has failed takes nothing, so there is nothing to wait for.
            if self.lifecycle.state() == State::LameDuck {
                tokio::time::sleep_until(left + delay).await;
            }
        }
        self.lifecycle.advance(State::Draining);
        if let Some(upstream) = self.upstream() {
            return self.drain_gate(upstream).await;
        }
        let Some(serving) = self.serving.get() else {
            return 0;
        };
        let worker = serving.worker();
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

    async fn drain_gate(&self, upstream: &Upstream) -> usize {
        let gate = upstream.gate();
        gate.drain();
        let stats = gate.stats();
        info!(live = stats.waiting + stats.running, "draining");
        let patience = self.settings.drain_timeout;
        if tokio::time::timeout(patience, gate.drained()).await.is_ok() {
            return 0;
        }
        let stats = gate.stats();
        let cut = stats.waiting as usize + stats.running as usize;
        gate.cancel_all(CancelReason::Drain);
        warn!(cancelled = cut, "the drain timeout has passed");
        // Bounded, because an engine that hangs must not keep the process from ending.
        let _ = tokio::time::timeout(Duration::from_secs(5), gate.drained()).await;
        cut
    }
}
