//! The KV cache as the scheduler sees it: which blocks exist, who holds them, and which of them
//! still contain a prefix that somebody may reuse. No token's KV is here; that is the device's.

mod pool;
mod prefix;

use crate::settings::{Row, Setting, Settings};

pub use pool::{BlockPool, PoolStats};
pub use prefix::{PrefixHash, PrefixHasher};

const WATERMARK_BLOCKS: Setting<Option<u32>> = Setting::count_or(
    "watermark_blocks",
    "KV blocks that a request joining a batch leaves free",
    "one in a hundred",
);

const PREFIX_CACHE: Setting<bool> = Setting::switch(
    "prefix_cache",
    "Whether the KV of prompts is kept for later ones that begin alike",
    true,
);

const PREFIX_SHARED: Setting<bool> = Setting::switch(
    "prefix_shared",
    "Whether tenants share the prefix cache, at the price that one can find out by its first-token time \
     what another has asked",
    false,
);

/// The settings of [`KvSettings`].
pub(crate) const CACHE: &[&Row] = &[&WATERMARK_BLOCKS.row, &PREFIX_CACHE.row, &PREFIX_SHARED.row];

/// How the block pool is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSettings {
    /// Whether full blocks are kept after their request has ended and given to later requests that
    /// begin with the same tokens.
    pub reuse_prefixes: bool,
    /// Whether a prefix is reused within its tenant only. Sharing across tenants lets one tenant
    /// measure, by its first-token time, whether another has sent a prompt.
    pub isolate_tenants: bool,
    /// Blocks that a request joining a running batch must leave available, so that those already
    /// running can grow for a while; `None` is one in a hundred. A request that would run alone
    /// ignores it. It must be less than the blocks that there are.
    pub watermark_blocks: Option<u32>,
    /// Keys the prefix hash. A deployment whose tenants may craft collisions sets a secret.
    pub hash_key: u128,
}

impl Default for KvSettings {
    fn default() -> Self {
        Self::of(&Settings::default())
    }
}

impl KvSettings {
    /// As the settings say.
    pub fn of(settings: &Settings) -> Self {
        Self {
            reuse_prefixes: settings.get(&PREFIX_CACHE),
            isolate_tenants: !settings.get(&PREFIX_SHARED),
            watermark_blocks: settings.get(&WATERMARK_BLOCKS),
            hash_key: settings.hash_key,
        }
    }
}
