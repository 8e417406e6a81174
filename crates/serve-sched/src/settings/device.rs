//! The settings of a device: the room that a scheduler finds on it, and how fast the mock is.

use std::num::NonZeroU32;

use serve_core::mock::{CostModel, MockConfig};

use super::{Row, Setting, SettingError, Settings};

/// Requests in one step at most.
pub const MAX_BATCH: Setting<NonZeroU32> = Setting::one_or_more(
    "max_batch",
    "Requests in one step at most; 1 turns batching off",
    NonZeroU32::MIN.saturating_add(15),
)
.in_group(MODEL);

/// Tokens in one step at most.
pub const STEP_TOKENS: Setting<NonZeroU32> = Setting::one_or_more(
    "step_tokens",
    "Tokens in one step at most, prompts cut to fit",
    NonZeroU32::MIN.saturating_add(511),
)
.in_group(MODEL);

/// Tokens of one request at most.
pub const CONTEXT: Setting<Option<NonZeroU32>> = Setting::one_or_more_or(
    "context",
    "Tokens of one request at most, prompt and answer together",
    "the model's own limit; random weights: 4096; mock: 2048",
)
.in_group(MODEL);

/// Tokens in the KV cache.
pub const KV_TOKENS: Setting<Option<NonZeroU32>> = Setting::one_or_more_or(
    "kv_tokens",
    "Tokens in the KV cache of all requests together",
    "a whole context for each of --max-batch requests, or what half of the free memory holds",
)
.in_group(MODEL);

const SPEED: Setting<Option<f64>> = Setting::factor_or(
    "mock_speed",
    "How much faster than the measured GPU the mock pretends to be; `inf` takes no time",
    "1",
)
.in_group(MOCK_GROUP);

const SEED: Setting<Option<u64>> =
    Setting::seed_or("mock_seed", "Fixes what the mock says", "0").in_group(MOCK_GROUP);

const DECODE_US: Setting<Vec<(u32, f64)>> = Setting::step_times_or(
    "mock_decode_us",
    "Step times of the mock by batch size, in microseconds, such as `1=16000,16=17760`; others are on \
     the line between",
    "those of the measured GPU",
)
.in_group(MOCK_GROUP);

const PREFILL_US: Setting<Option<f64>> = Setting::micros_or(
    "mock_prefill_us",
    "Microseconds that each prompt token adds to a step of the mock",
    "60",
)
.in_group(MOCK_GROUP);

const CONTEXT_US: Setting<Option<f64>> = Setting::micros_or(
    "mock_context_us",
    "Microseconds that each token of context adds to a step of the mock",
    "0",
)
.in_group(MOCK_GROUP);

const MODEL: &str = "Model";
const MOCK_GROUP: &str = "Mock";

/// What fits on the device.
pub(crate) const ROOM: &[&Row] = &[
    &MAX_BATCH.row,
    &STEP_TOKENS.row,
    &CONTEXT.row,
    &KV_TOKENS.row,
];

/// What the mock pretends. Only the mock has them.
pub const MOCK: &[&Row] = &[
    &SPEED.row,
    &SEED.row,
    &DECODE_US.row,
    &PREFILL_US.row,
    &CONTEXT_US.row,
];

impl Settings {
    /// The mock that the settings ask for: `base` with another room, step times and seed.
    ///
    /// # Errors
    ///
    /// [`SettingError`] for step times that are no function of the batch, and for a cache without room
    /// for a block.
    pub fn mock(&self, base: &MockConfig) -> Result<MockConfig, SettingError> {
        let micros = (self.get(&PREFILL_US), self.get(&CONTEXT_US));
        let cost = CostModel::default().with_micros(self.get(&DECODE_US), micros.0, micros.1);
        let cost = cost.map_err(|error| DECODE_US.row.wrong(error.to_string()))?;
        let number = |setting: &Setting<Option<NonZeroU32>>| self.get(setting).map(NonZeroU32::get);
        let config = MockConfig {
            cost: cost.faster(self.mock_speed()),
            seed: self.get(&SEED).unwrap_or(base.seed),
            ..base.clone()
        };
        let config = config.with_room(
            self.get(&MAX_BATCH).get(),
            self.get(&STEP_TOKENS).get(),
            number(&CONTEXT),
            number(&KV_TOKENS),
        );
        let limits = config.limits;
        limits.validate().map_err(|_| {
            let block = limits.block_size;
            KV_TOKENS
                .row
                .wrong(format!("it must be at least {block}, which is one block"))
        })?;
        Ok(config)
    }

    /// How much faster than the measured GPU the mock pretends to be.
    pub fn mock_speed(&self) -> f64 {
        self.get(&SPEED).unwrap_or(1.0)
    }

    /// Whether the mock has step times of its own.
    pub fn has_own_step_times(&self) -> bool {
        let rows = [&DECODE_US.row, &PREFILL_US.row, &CONTEXT_US.row];
        rows.iter().any(|row| self.is_given(row.name))
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{Span, StepLoad};

    use super::*;

    fn config(all: &[(&str, &str)]) -> Result<MockConfig, SettingError> {
        let mut settings = Settings::default();
        for (name, text) in all {
            settings.set_text(name, text)?;
        }
        settings.mock(&MockConfig::default())
    }

    #[test]
    fn what_the_help_says_of_the_mock_is_so() {
        let cost = CostModel::default();
        let micros = |span: Span| (span.as_nanos() / 1_000).to_string();
        let usual = |setting: &Setting<Option<f64>>| setting.row.usual.to_string();
        assert_eq!(usual(&PREFILL_US), micros(cost.prefill_per_token()));
        assert_eq!(usual(&CONTEXT_US), micros(cost.context_per_token()));
        assert_eq!(usual(&SPEED), Settings::default().mock_speed().to_string());
        assert_eq!(
            SEED.row.usual.to_string(),
            MockConfig::default().seed.to_string()
        );
        let room = config(&[]).unwrap().limits;
        let says = CONTEXT.row.usual.to_string();
        assert!(says.ends_with(&format!("mock: {}", room.context_max)));
    }

    #[test]
    fn room_and_step_times_are_those_of_the_settings() {
        let config = config(&[
            ("max_batch", "4"),
            ("kv_tokens", "160"),
            ("mock_decode_us", "1=100,4=200.5"),
            ("mock_prefill_us", "2"),
            ("mock_speed", "2"),
            ("mock_seed", "7"),
        ]);
        let config = config.unwrap();
        assert_eq!((config.limits.usable_blocks(), config.seed), (10, 7));
        assert_eq!(config.limits.sequences_max, 4);
        let load = StepLoad {
            segments: 4,
            prefill_tokens: 10,
            context_tokens: 0,
        };
        let nanos = (200_500 + 20_000) / 2;
        assert_eq!(config.cost.step(&load), Span::from_nanos(nanos));
    }

    #[test]
    fn a_device_that_cannot_be_names_the_setting() {
        let message = |all| config(all).unwrap_err().to_string();
        assert_eq!(
            message(&[("kv_tokens", "15")]),
            "--kv-tokens: it must be at least 16, which is one block"
        );
        let falls = message(&[("mock_decode_us", "2=5,1=3")]);
        assert!(falls.starts_with("--mock-decode-us: "), "{falls}");
        assert!(falls.contains("does not increase"), "{falls}");
    }
}
