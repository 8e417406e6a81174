//! The identity of a prefix: a keyed 128-bit hash of every token up to the end of a block.
//!
//! SipHash-2-4 with 128-bit output (Aumasson and Bernstein, *SipHash: a fast short-input PRF*, 2012,
//! and its reference code), of one word for the tenant and then four bytes for each token. The tokens of a block are not compared after the hash has matched: two
//! prefixes of 2^32 different ones share a hash with a probability below 2^-64, and with a secret
//! key a client cannot search for such a pair.

use std::num::NonZeroU128;

use serve_core::{TenantId, TokenId};

/// Identifies the tokens of a prefix and whom it may be shared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrefixHash(NonZeroU128);

impl PrefixHash {
    /// Half of the bits, by which a table finds a bucket.
    pub(crate) fn bucket(self) -> u64 {
        self.0.get() as u64
    }
}

/// Hashes a request's tokens as they become known; may be read at any position.
#[derive(Clone, Copy, Debug)]
pub struct PrefixHasher {
    state: [u64; 4],
    words: u64,
    /// The token that waits for another one to fill a word.
    half: Option<u32>,
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
        match self.half.take() {
            Some(first) => self.word(u64::from(token.get()) << 32 | u64::from(first)),
            None => self.half = Some(token.get()),
        }
    }

    /// Takes the next tokens.
    pub fn extend(&mut self, mut tokens: &[TokenId]) {
        if let (Some(_), Some((&first, rest))) = (self.half, tokens.split_first()) {
            self.push(first);
            tokens = rest;
        }
        let pairs = tokens.chunks_exact(2);
        let last = pairs.remainder();
        for pair in pairs {
            self.word(u64::from(pair[1].get()) << 32 | u64::from(pair[0].get()));
        }
        last.iter().for_each(|&token| self.push(token));
    }

    /// The hash of everything pushed so far.
    pub fn finish(&self) -> PrefixHash {
        let mut v = self.state;
        // The last word of a message holds what fills no word, and its length in bytes, modulo 256.
        let rest = self.half.map_or(0, |token| 4 << 56 | u64::from(token));
        let last = ((self.words * 8) << 56) + rest;
        v[3] ^= last;
        rounds::<2>(&mut v);
        v[0] ^= last;
        v[2] ^= 0xee;
        rounds::<4>(&mut v);
        let low = v[0] ^ v[1] ^ v[2] ^ v[3];
        v[1] ^= 0xdd;
        rounds::<4>(&mut v);
        let high = v[0] ^ v[1] ^ v[2] ^ v[3];
        let hash = u128::from(high) << 64 | u128::from(low);
        // One hash of 2^128 is taken for its neighbour, so that an absent one needs no room.
        PrefixHash(NonZeroU128::new(hash).unwrap_or(NonZeroU128::MIN))
    }

    fn keyed(key: u128) -> Self {
        let (k0, k1) = (key as u64, (key >> 64) as u64);
        let state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self {
            state,
            words: 0,
            half: None,
        }
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
        // `vectors_sip128` of the reference code: key 00..0f, message 00 01 .. of 0, 4, 8 and 12 bytes.
        let key = u128::from_le_bytes(std::array::from_fn(|i| i as u8));
        let mut hasher = PrefixHasher::keyed(key);
        let hex = |hash: PrefixHash| -> String {
            let bytes = hash.0.get().to_le_bytes();
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(hex(hasher.finish()), "a3817f04ba25a8e66df67214c7550293");
        hasher.push(TokenId::new(0x0302_0100));
        assert_eq!(hex(hasher.finish()), "f88164c12d9c8faf7d0f6e7c7bcd5579");
        hasher.push(TokenId::new(0x0706_0504));
        assert_eq!(hex(hasher.finish()), "3b62a9ba6258f5610f83e264f31497b4");
        hasher.push(TokenId::new(0x0b0a_0908));
        assert_eq!(hex(hasher.finish()), "d626b266905ef35882634df68532c125");
    }

    #[test]
    fn tokens_may_come_in_any_pieces() {
        let tokens: Vec<_> = (5..12).map(TokenId::new).collect();
        let mut one_by_one = PrefixHasher::new(7, None);
        tokens.iter().for_each(|&token| one_by_one.push(token));
        for cut in 0..=tokens.len() {
            for other in cut..=tokens.len() {
                let mut pieces = PrefixHasher::new(7, None);
                pieces.extend(&tokens[..cut]);
                pieces.extend(&tokens[cut..other]);
                pieces.extend(&tokens[other..]);
                assert_eq!(pieces.finish(), one_by_one.finish(), "{cut}, {other}");
            }
        }
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
