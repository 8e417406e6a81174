//! The KV cache as the scheduler sees it: which blocks exist, who holds them, and which of them
//! still contain a prefix that somebody may reuse. No token's KV is here; that is the device's.

mod pool;
mod prefix;

pub use pool::{BlockPool, PoolStats};
pub use prefix::{PrefixHash, PrefixHasher};

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
        Self {
            reuse_prefixes: true,
            isolate_tenants: true,
            watermark_blocks: None,
            hash_key: 0,
        }
    }
}
