//! Ids that nobody can compute from others of them: one who knows the id of a request can cancel it.

use std::hash::{BuildHasher, RandomState};

/// Ids made from numbers by SipHash under a key that the system gave this process and nobody is shown.
/// The same number is the same id, and different numbers are as good as never the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct SecretIds(RandomState);

impl SecretIds {
    /// The id of a number.
    pub(crate) fn of(&self, number: u64) -> u64 {
        self.0.hash_one(number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What was tried: from one id of one's own to all others, where ids were a reversible mixture of a
    /// number and a secret of 64 bits.
    #[test]
    fn one_id_does_not_tell_another() {
        use serve_core::rng::mix;
        let ids = SecretIds::default();
        let mine = ids.of(7);
        for other in 8..1_000_u64 {
            for guess in [
                mine ^ 7 ^ other,
                mine.wrapping_add(other - 7),
                mix(mine ^ mix(other)),
            ] {
                assert_ne!(ids.of(other), guess);
            }
        }
    }

    #[test]
    fn ids_differ_between_numbers_and_processes() {
        let (one, other) = (SecretIds::default(), SecretIds::default());
        let all: BTreeSet<u64> = (0..10_000).map(|number| one.of(number)).collect();
        assert_eq!(all.len(), 10_000);
        assert_ne!(one.of(1), other.of(1));
        assert_eq!(one.of(1), one.clone().of(1));
    }
}
