//! From settings to something that can be served.

mod mock;
#[cfg(feature = "model")]
mod model;
#[cfg(feature = "model")]
mod progress;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use serve_core::Limits;
use serve_http::Loaded;
use serve_http::worker::Rebuild;
use serve_sched::{Policies, Settings};

use crate::console::Console;
use crate::failure::Failure;
use crate::settings::{Backend, Cli};

/// A model and what a person wants to know of it.
pub(crate) struct Assembled {
    pub(crate) loaded: Loaded,
    pub(crate) description: Description,
}

/// What the banner says.
pub(crate) struct Description {
    pub(crate) limits: Limits,
    /// Name and value of each further line.
    pub(crate) lines: Vec<(&'static str, String)>,
    pub(crate) example: Example,
    /// What settings and model come to, for `GET /v1/config`.
    pub(crate) running: Value,
}

/// What the banner tells to try.
pub(crate) enum Example {
    /// A text to continue.
    Continue(&'static str),
    /// Something to say to the model.
    #[cfg(feature = "model")]
    Say(&'static str),
}

/// What limits come to, under the names of the settings, and how `model` is called.
fn running(model: &str, device: &str, limits: &Limits) -> Value {
    json!({
        "served_model_name": model,
        "device": device,
        "max_batch": limits.sequences_max,
        "step_tokens": limits.step_tokens_max,
        "context": limits.context_max,
        "kv_tokens": u64::from(limits.usable_blocks()) * u64::from(limits.block_size),
        "kv_block_tokens": limits.block_size,
    })
}

pub(crate) fn assemble(
    cli: &Cli,
    current: &Current,
    console: &Console,
) -> Result<Assembled, Failure> {
    match cli.backend {
        Backend::Mock => {
            console.line("the mock backend invents its answers");
            mock::assemble(cli, current)
        }
        #[cfg(feature = "model")]
        Backend::Model => model::assemble(cli, current, console),
    }
}

/// The settings of scheduler and policies that hold now: they can be read again while the server runs, and an
/// engine that is built anew is to have them.
#[derive(Clone, Debug)]
pub(crate) struct Current(Arc<Mutex<Settings>>);

impl Current {
    /// Those of the start.
    pub(crate) fn new(mut settings: Settings) -> Self {
        settings.hash_key = secret();
        Self(Arc::new(Mutex::new(settings)))
    }

    pub(crate) fn get(&self) -> Settings {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Others from now on, under the same secret.
    pub(crate) fn set(&self, mut settings: Settings) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        settings.hash_key = current.hash_key;
        *current = settings;
    }

    fn policies(&self) -> Result<Policies, Failure> {
        Ok(self.get().policies()?)
    }
}

/// Another one in each process, so that nobody can craft prompts that collide in the prefix cache.
fn secret() -> u128 {
    let half = |salt: u8| u128::from(RandomState::new().hash_one(salt));
    half(0) << 64 | half(1)
}

/// Makes backend and policies anew after a panic.
fn rebuild<B: serve_core::Backend + Send + 'static>(
    current: &Current,
    mut backend: impl FnMut() -> Result<B, String> + Send + 'static,
) -> Rebuild {
    let current = current.clone();
    Box::new(move || {
        let policies = current.policies().map_err(|error| error.to_string())?;
        Ok((Box::new(backend()?) as Box<_>, policies))
    })
}
