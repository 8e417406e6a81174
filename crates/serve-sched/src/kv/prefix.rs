//! The identity of a prefix: a keyed 128-bit hash of every token up to the end of a block.
//!
//! SipHash-2-4 with 128-bit output (Aumasson and Bernstein, *SipHash: a fast short-input PRF*, 2012,
//! and its reference code). The tokens of a block are not compared after the hash has matched: two
//! prefixes of 2^32 different ones share a hash with a probability below 2^-64, and with a secret
//! key a client cannot search for such a pair.

use serve_core::{TenantId, TokenId};

/// Identifies the tokens of a prefix and whom it may be shared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrefixHash(u128);

impl PrefixHash {
    /// The bits that a table uses to find a bucket.
    pub(super) fn bucket(self) -> u64 {
        self.0 as u64
    }
}

/// Hashes a request's tokens as they become known; may be read at any position.
#[derive(Clone, Copy, Debug)]
pub struct PrefixHasher {
    state: [u64; 4],
    words: u64,
}

impl PrefixHasher {
    /// A hasher at position 0. Hashes under different keys or extras are unrelated; `tenant` is the
    /// extra that keeps one tenant's prefixes from another's.
    pub fn new(key: u128, tenant: Option<TenantId>) -> Self {
        let mut hasher = Self::keyed(key);
        match tenant {
            Some(tenant) => hasher.word(1 << 32 | u64::from(tenant.get())),
            None => hasher.word(0),
        }
        hasher
    }

    /// Takes the next token.
    pub fn push(&mut self, token: TokenId) {
        self.word(u64::from(token.get()));
    }

    /// The hash of everything pushed so far.
    pub fn finish(&self) -> PrefixHash {
        let mut v = self.state;
        // The last word of a message holds its length in bytes, modulo 256.
        let length = (self.words * 8) << 56;
        v[3] ^= length;
        rounds::<2>(&mut v);
        v[0] ^= length;
        v[2] ^= 0xee;
        rounds::<4>(&mut v);
        let low = v[0] ^ v[1] ^ v[2] ^ v[3];
        v[1] ^= 0xdd;
        rounds::<4>(&mut v);
        let high = v[0] ^ v[1] ^ v[2] ^ v[3];
        PrefixHash(u128::from(high) << 64 | u128::from(low))
    }

    fn keyed(key: u128) -> Self {
        let (k0, k1) = (key as u64, (key >> 64) as u64);
        let state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self { state, words: 0 }
    }

    fn word(&mut self, word: u64) {
        self.state[3] ^= word;
        rounds::<2>(&mut self.state);
        self.state[0] ^= word;
        self.words = self.words.wrapping_add(1);
    }
}

fn rounds<const N: usize>(v: &mut [u64; 4]) {
    for _ in 0..N {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        // `vectors_sip128` of the reference code: key 00..0f, message 00 01 .. of 0 and 8 bytes.
        let key = u128::from_le_bytes(std::array::from_fn(|i| i as u8));
        let mut hasher = PrefixHasher::keyed(key);
        let hex = |hash: PrefixHash| -> String {
            let bytes = hash.0.to_le_bytes();
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(hex(hasher.finish()), "a3817f04ba25a8e66df67214c7550293");
        hasher.word(0x0706_0504_0302_0100);
        assert_eq!(hex(hasher.finish()), "3b62a9ba6258f5610f83e264f31497b4");
    }

    #[test]
    fn every_token_and_the_tenant_count() {
        let hash = |tenant, tokens: &[u32]| {
            let mut hasher = PrefixHasher::new(7, tenant);
            tokens.iter().for_each(|&t| hasher.push(TokenId::new(t)));
            hasher.finish()
        };
        let tenant = |id| Some(TenantId::new(id));
        assert_eq!(hash(None, &[1, 2]), hash(None, &[1, 2]));
        assert_ne!(hash(None, &[1, 2]), hash(None, &[2, 1]));
        assert_ne!(hash(None, &[1, 2]), hash(None, &[1, 2, 0]));
        assert_ne!(hash(tenant(0), &[1]), hash(None, &[1]));
        assert_ne!(hash(tenant(0), &[1]), hash(tenant(1), &[1]));
    }
}
