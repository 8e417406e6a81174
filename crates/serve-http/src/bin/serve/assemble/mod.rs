//! From settings to something that can be served: the mock here, a real model in `model`.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use serve_core::Limits;
use serve_core::mock::{Mock, MockConfig};
use serve_http::Loaded;
use serve_http::text::MockText;
use serve_http::worker::Rebuild;
use serve_sched::Policies;

use crate::cli::{Backend, Cli};
use crate::console::Console;
use crate::failure::Failure;
use crate::tenants::Tenants;

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
            mock(cli)
        }
        #[cfg(feature = "model")]
        Backend::Model => crate::model::assemble(cli, console),
    }
}

/// The policies that the settings ask for.
pub(crate) fn policies(cli: &Cli) -> Result<Policies, Failure> {
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
pub(crate) fn rebuild<B: serve_core::Backend + Send + 'static>(
    cli: &Cli,
    mut backend: impl FnMut() -> Result<B, String> + Send + 'static,
) -> Rebuild {
    let cli = cli.clone();
    Box::new(move || {
        let policies = policies(&cli).map_err(|error| error.to_string())?;
        Ok((Box::new(backend()?) as Box<_>, policies))
    })
}

fn mock(cli: &Cli) -> Result<Assembled, Failure> {
    let settings = cli.settings();
    let speed = settings.mock_speed();
    let config = settings.mock(&MockConfig {
        vocabulary: MockText::WORDS,
        ..MockConfig::default()
    })?;
    let limits = config.limits;
    let name = cli.served_model_name.clone();
    let kv_tokens = u64::from(limits.usable_blocks()) * u64::from(limits.block_size);
    Ok(Assembled {
        loaded: Loaded {
            name: name.unwrap_or_else(|| "mock".to_owned()),
            text: Arc::new(MockText::new()),
            backend: Box::new(Mock::new(config.clone())),
            policies: policies(cli)?,
            rebuild: Some(rebuild(cli, move || Ok(Mock::new(config.clone())))),
        },
        description: Description {
            limits,
            lines: vec![
                (
                    "device",
                    match settings.has_own_step_times() {
                        false => {
                            format!("mock: the timing of a measured GPU, {speed} times as fast")
                        }
                        true => format!("mock: the timing of its settings, {speed} times as fast"),
                    },
                ),
                (
                    "memory",
                    format!("no weights, KV cache of {kv_tokens} pretended tokens"),
                ),
            ],
            example: Example::Continue("Once upon a time"),
        },
    })
}
