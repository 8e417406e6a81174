//! How large everything is going to be, and whether it fits.

use serve_core::Limits;

use super::error::LoadError;
use super::options::LoadOptions;
use crate::config::ModelConfig;
use crate::decode::KvShape;

/// Memory and limits of a model that is going to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) limits: Limits,
    pub(super) kv: KvShape,
    pub(super) kv_bytes: u64,
    pub(super) weights_bytes: u64,
}

/// The memory that weights and cache are going to be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Bytes that nobody has taken, where it can be known.
    pub(super) free: Option<u64>,
    /// Bytes of the weights.
    pub(super) weights_bytes: u64,
    /// Bytes of one number of a key or a value.
    pub(super) kv_element_bytes: usize,
    /// How much of what is free beside the weights the cache takes at most by itself, in percent.
    pub(super) kv_percent_max: u64,
}

/// Taken to be free where the system does not say.
const FREE_UNKNOWN_BYTES: u64 = 8 << 30;

impl Sizes {
    pub(super) fn of(
        config: &ModelConfig,
        options: &LoadOptions,
        room: &Room,
    ) -> Result<Self, LoadError> {
        let weights_bytes = room.weights_bytes;
        let context_max = options.context_max.unwrap_or(config.context_max);
        if context_max > config.context_max {
            return Err(LoadError::Context {
                asked: context_max,
                max: config.context_max,
            });
        }
        // Two blocks pass; their number is not known yet.
        let limits = Limits {
            sequences_max: options.sequences_max,
            step_tokens_max: options.step_tokens_max,
            context_max,
            block_size: options.block_size,
            blocks: 2,
        };
        limits.validate()?;
        let free = room.free.unwrap_or(FREE_UNKNOWN_BYTES);
        if weights_bytes > free {
            return Err(LoadError::WeightsTooLarge {
                bytes: weights_bytes,
                free,
            });
        }
        let kv = KvShape {
            layers: config.layers,
            heads: config.kv_heads,
            head_dim: config.head_dim,
            block_size: options.block_size as usize,
            blocks: 1,
        };
        let block_bytes = kv.elements() * room.kv_element_bytes as u64;
        let cache = Cache {
            block_bytes,
            free: free - weights_bytes,
            percent_max: room.kv_percent_max,
        };
        let blocks = usable_blocks(&limits, options.kv_tokens, &cache)? + 1;
        let kv_bytes = block_bytes * u64::from(blocks);
        // The angles of every position, which are computed once.
        let angles_bytes = u64::from(context_max) * (config.head_dim * size_of::<f32>()) as u64;
        let free = cache.free - kv_bytes;
        if angles_bytes > free {
            return Err(LoadError::ContextTooLarge {
                positions: context_max,
                bytes: angles_bytes,
                free,
            });
        }
        Ok(Self {
            limits: Limits { blocks, ..limits },
            kv: KvShape {
                blocks: blocks as usize,
                ..kv
            },
            kv_bytes,
            weights_bytes,
        })
    }
}

/// What there is for a cache.
struct Cache {
    block_bytes: u64,
    free: u64,
    percent_max: u64,
}

fn usable_blocks(limits: &Limits, kv_tokens: Option<u64>, cache: &Cache) -> Result<u32, LoadError> {
    let (block_bytes, free) = (cache.block_bytes, cache.free);
    let block_size = u64::from(limits.block_size);
    let too_large = |tokens: u64| LoadError::KvTooLarge {
        tokens,
        bytes: tokens.div_ceil(block_size).saturating_mul(block_bytes),
        free,
    };
    // One block more than is usable: the null block.
    let fits = |blocks: u64| {
        let bytes = (blocks + 1).saturating_mul(block_bytes);
        bytes <= free && blocks < u64::from(u32::MAX)
    };
    let blocks = match kv_tokens {
        Some(tokens) if tokens < block_size => {
            return Err(LoadError::KvTooSmall {
                tokens,
                block_size: limits.block_size,
            });
        }
        Some(tokens) => {
            let blocks = tokens / block_size;
            if !fits(blocks) {
                return Err(too_large(tokens));
            }
            blocks
        }
        None => {
            let per_sequence = u64::from(limits.blocks_for(limits.context_max));
            let wanted = per_sequence * u64::from(limits.sequences_max);
            let affordable = (free / 100 * cache.percent_max / block_bytes).saturating_sub(1);
            let blocks = wanted.min(affordable).min(u64::from(u32::MAX) - 1);
            if blocks == 0 {
                return Err(too_large(wanted.saturating_mul(block_size)));
            }
            blocks
        }
    };
    Ok(blocks as u32) // checked above
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(change: impl FnOnce(&mut LoadOptions), free: u64) -> Result<Sizes, LoadError> {
        let config = include_str!("../../models/austen-2m/config.json");
        let config = ModelConfig::parse(config).unwrap();
        let mut options = LoadOptions::default();
        change(&mut options);
        let weights_bytes = crate::weights::parameters(&config) * 4;
        let room = Room {
            free: Some(free),
            weights_bytes,
            kv_element_bytes: 4,
            kv_percent_max: 50,
        };
        Sizes::of(&config, &options, &room)
    }

    const PLENTY: u64 = 8 << 30;
    /// 4 layers, 2 heads of 32, keys and values, f32.
    const POSITION_BYTES: u64 = 4 * 2 * 32 * 2 * 4;

    #[test]
    fn by_default_every_sequence_can_fill_its_context() {
        let sizes = sizes(|_| (), PLENTY).unwrap();
        assert_eq!(sizes.limits.blocks, 16 * 512 / 16 + 1);
        assert_eq!(sizes.kv_bytes, (16 * 512 + 16) * POSITION_BYTES);
        assert_eq!(sizes.weights_bytes, 1_969_088 * 4);
    }

    #[test]
    fn the_default_takes_half_of_what_is_free_at_most() {
        let weights = 1_969_088 * 4;
        let sizes = sizes(|_| (), weights + 100 * 16 * POSITION_BYTES).unwrap();
        assert_eq!(sizes.limits.blocks, 50);
    }

    #[test]
    fn a_context_whose_angles_do_not_fit_is_refused() {
        let mut config = ModelConfig::parse(include_str!("../../models/austen-2m/config.json"));
        let config = config.as_mut().unwrap();
        config.context_max = u32::MAX;
        let room = |free| Room {
            free: Some(free),
            weights_bytes: 1_000,
            kv_element_bytes: 4,
            kv_percent_max: 50,
        };
        let of = |free| Sizes::of(config, &LoadOptions::default(), &room(free));
        // 32 numbers of 4 bytes for each position, beside a cache that takes the half.
        let needs = u64::from(u32::MAX) * 128;
        assert_eq!(
            of(2 * needs - 1_000_000_000).unwrap_err().to_string(),
            "a context of 4294967295 positions needs 512.0 GiB for its angles and 511.5 GiB are free beside the weights \
             and the KV pool; lower context_max"
        );
        assert!(of(2 * needs + 1_000_000_000).is_ok());
    }

    #[test]
    fn an_impossible_size_names_the_option() {
        let refusal = |change: fn(&mut LoadOptions), free| sizes(change, free).unwrap_err();
        let cases = [
            (
                refusal(|o| o.kv_tokens = Some(1 << 40), PLENTY),
                "a KV pool of 1099511627776 positions needs 2097152.0 GiB and 8.0 GiB are free",
            ),
            (refusal(|o| o.kv_tokens = Some(u64::MAX), PLENTY), "needs"),
            (
                refusal(|o| o.kv_tokens = Some(15), PLENTY),
                "kv_tokens is 15; it must be at least 16",
            ),
            (
                refusal(|o| o.context_max = Some(513), PLENTY),
                "context_max is 513 and the model was made for at most 512",
            ),
            (
                refusal(|o| o.block_size = 0, PLENTY),
                "block_size is 0; it must be at least 1",
            ),
            (
                refusal(|_| (), 1 << 20),
                "the weights need 7.5 MiB in memory and 1.0 MiB are free",
            ),
            (
                refusal(|_| (), 1_969_088 * 4 + 100),
                "a KV pool of 8192 positions needs 16.0 MiB and 100 B are free",
            ),
        ];
        for (error, part) in cases {
            let message = error.to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
