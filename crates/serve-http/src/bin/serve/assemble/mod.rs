//! From settings to something that can be served.

mod mock;
#[cfg(feature = "model")]
mod model;
#[cfg(feature = "model")]
mod progress;

use std::hash::{BuildHasher, RandomState};

use serve_core::Limits;
use serve_http::Loaded;
use serve_http::worker::Rebuild;
use serve_sched::Policies;

use crate::console::Console;
use crate::failure::Failure;
use crate::settings::{Backend, Cli, Tenants};

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
}

/// What the banner tells to try.
pub(crate) enum Example {
    /// A text to continue.
    Continue(&'static str),
    /// Something to say to the model.
    #[cfg(feature = "model")]
    Say(&'static str),
}

pub(crate) fn assemble(cli: &Cli, console: &Console) -> Result<Assembled, Failure> {
    match cli.backend {
        Backend::Mock => {
            console.line("the mock backend invents its answers");
            mock::assemble(cli)
        }
        #[cfg(feature = "model")]
        Backend::Model => model::assemble(cli, console),
    }
}

/// The policies that the settings ask for.
fn policies(cli: &Cli) -> Result<Policies, Failure> {
    let known = Tenants::of(cli)?;
    let tenants = known.list.iter().map(|tenant| tenant.settings.clone());
    let mut settings = cli.settings().clone().with_tenants(tenants.collect());
    settings.groups = known.group_shares().collect();
    settings.hash_key = secret();
    Ok(settings.policies()?)
}

/// Another one in each process, so that nobody can craft prompts that collide in the prefix cache.
fn secret() -> u128 {
    let half = |salt: u8| u128::from(RandomState::new().hash_one(salt));
    half(0) << 64 | half(1)
}

/// Makes backend and policies anew after a panic.
fn rebuild<B: serve_core::Backend + Send + 'static>(
    cli: &Cli,
    mut backend: impl FnMut() -> Result<B, String> + Send + 'static,
) -> Rebuild {
    let cli = cli.clone();
    Box::new(move || {
        let policies = policies(&cli).map_err(|error| error.to_string())?;
        Ok((Box::new(backend()?) as Box<_>, policies))
    })
}
