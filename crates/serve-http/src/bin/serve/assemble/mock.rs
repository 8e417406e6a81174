//! The mock: a device with the timing of a measured GPU and a text of invented words.

use std::sync::Arc;

use serve_core::mock::{Mock, MockConfig};
use serve_http::Loaded;
use serve_http::text::MockText;

use super::{Assembled, Current, Description, Example, rebuild, running};
use crate::failure::Failure;
use crate::settings::Cli;

pub(super) fn assemble(cli: &Cli, current: &Current) -> Result<Assembled, Failure> {
    let settings = cli.settings();
    let speed = settings.mock_speed();
    let config = settings.mock(&MockConfig {
        vocabulary: MockText::WORDS,
        ..MockConfig::default()
    })?;
    let limits = config.limits;
    let name = cli.served_model_name.clone();
    let name = name.unwrap_or_else(|| "mock".to_owned());
    let running = running(&name, "mock", &limits);
    let kv_tokens = u64::from(limits.usable_blocks()) * u64::from(limits.block_size);
    Ok(Assembled {
        loaded: Loaded {
            name,
            text: Arc::new(MockText::new()),
            backend: Box::new(Mock::new(config.clone())),
            policies: current.policies()?,
            rebuild: Some(rebuild(current, move || Ok(Mock::new(config.clone())))),
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
            running,
        },
    })
}
