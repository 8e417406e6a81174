//! Who asks: API keys, known by their hashes only, and what each of them stands for.
//!
//! A key is a long random text, so one round of SHA-256 is enough: there is nothing to guess. The
//! hash of what a client sends is compared with every known one, each in constant time, so that
//! neither a key nor its place in the list can be found by measuring.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use serve_core::{Class, TenantId};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

use crate::error::Problem;

/// The SHA-256 of an API key: what a settings file may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash([u8; 32]);

/// A text that is no hash.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("it must be the 64 hexadecimal digits that `serve hash-key` prints")]
pub struct InvalidHash;

impl KeyHash {
    /// The hash of a key.
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Kept out of logs, as hashes of weak keys can be searched for.
impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

impl FromStr for KeyHash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<Self, InvalidHash> {
        let mut hash = [0; 32];
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if text.len() != 2 * hash.len() || !is_hex {
            return Err(InvalidHash);
        }
        for (index, byte) in hash.iter_mut().enumerate() {
            let digits = &text[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| InvalidHash)?;
        }
        Ok(Self(hash))
    }
}

/// Whom a request is accounted to, and the highest class that it may ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The tenant.
    pub tenant: TenantId,
    /// Its highest class.
    pub class: Class,
}

/// The keys that are let in. None at all lets everybody in, as the anonymous tenant and in any
/// class.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<Key>);

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    /// What the log calls it.
    pub(crate) name: Arc<str>,
    /// What the log calls its tenant.
    pub(crate) tenant: Arc<str>,
    hash: KeyHash,
    pub(crate) identity: Identity,
}

impl Keys {
    /// Lets a key in that has no name.
    #[must_use]
    pub fn with(self, hash: KeyHash, identity: Identity) -> Self {
        self.with_named("", "", hash, identity)
    }

    /// Lets a key in that is called `name` in the log, and its tenant `tenant`.
    #[must_use]
    pub fn with_named(
        mut self,
        name: &str,
        tenant: &str,
        hash: KeyHash,
        identity: Identity,
    ) -> Self {
        self.0.push(Key {
            name: name.into(),
            tenant: tenant.into(),
            hash,
            identity,
        });
        self
    }

    /// Whether everybody is let in.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose request this is, by its `Authorization` header.
    ///
    /// # Errors
    ///
    /// [`Problem::Unauthorized`] or [`Problem::WrongKey`] when keys are configured and the header holds none of
    /// them.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Identity, Problem> {
        let key = self.find(headers)?;
        Ok(key.map(|key| key.identity).unwrap_or_default())
    }

    /// The key of a request, or none where everybody is let in.
    ///
    /// # Errors
    ///
    /// As [`identify`](Self::identify).
    pub(crate) fn find(&self, headers: &HeaderMap) -> Result<Option<&Key>, Problem> {
        if self.is_empty() {
            return Ok(None);
        }
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Err(Problem::Unauthorized("the Authorization header is missing"));
        };
        let Some(key) = value.to_str().ok().and_then(bearer) else {
            return Err(Problem::Unauthorized(
                "the Authorization header does not read `Bearer KEY`",
            ));
        };
        let asked = KeyHash::of(key);
        let mut found = None;
        for known in &self.0 {
            if bool::from(known.hash.0.ct_eq(&asked.0)) {
                found = Some(known);
            }
        }
        found.map(Some).ok_or(Problem::WrongKey)
    }
}

/// The key in `Bearer KEY`; the scheme's case does not matter (RFC 9110, section 11.1).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(authorization: &'static str) -> HeaderMap {
        let value = HeaderValue::from_static(authorization);
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    }

    #[test]
    fn the_hash_is_the_standard_one_and_reads_back() {
        // The SHA-256 of "abc" in FIPS 180-4.
        let shown = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyHash::of("abc").to_string(), shown);
        assert_eq!(shown.parse(), Ok(KeyHash::of("abc")));
        for wrong in ["", "ba78", &shown.replace('a', "g"), &format!("{shown}00")] {
            assert_eq!(wrong.parse::<KeyHash>(), Err(InvalidHash), "{wrong}");
        }
    }

    #[test]
    fn each_key_stands_for_its_own_tenant() {
        let identity = |tenant, class| Identity {
            tenant: TenantId::new(tenant),
            class: Class::new(class),
        };
        let keys = Keys::default()
            .with(KeyHash::of("one"), identity(1, 0))
            .with(KeyHash::of("two"), identity(2, 1));
        assert_eq!(keys.identify(&headers("Bearer one")), Ok(identity(1, 0)));
        assert_eq!(keys.identify(&headers("bearer  two")), Ok(identity(2, 1)));
        for wrong in ["Bearer three", "Bearer", "Bearer ", "Basic one", "one"] {
            assert!(keys.identify(&headers(wrong)).is_err(), "{wrong}");
        }
        assert!(keys.identify(&HeaderMap::new()).is_err());
    }

    #[test]
    fn without_keys_everybody_is_the_anonymous_tenant() {
        let everybody = Keys::default();
        assert_eq!(
            everybody.identify(&HeaderMap::new()),
            Ok(Identity::default())
        );
        assert_eq!(
            everybody.identify(&headers("Bearer x")),
            Ok(Identity::default())
        );
    }
}
