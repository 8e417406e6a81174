//! Typed access to the keys of a JSON object, with errors that name the key.

use serde_json::{Map, Value};

use super::ConfigError;

/// Typed access to the keys of a JSON object, with errors that name the key.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Keys<'a> {
    /// The value, where it is there and not null.
    pub(super) fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn wrong<T>(
        key: &'static str,
        accepted: &'static str,
        found: &Value,
    ) -> Result<T, ConfigError> {
        Err(ConfigError::Value {
            key,
            accepted,
            found: found.to_string(),
        })
    }

    pub(super) fn optional_size(self, key: &'static str) -> Result<Option<usize>, ConfigError> {
        // Products of three sizes then still fit in 64 bits.
        const MAX: u64 = 1 << 21;
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(size) if (1..=MAX).contains(&size) => Ok(Some(size as usize)),
            _ => Self::wrong(key, "a whole number from 1 to 2097152", value),
        }
    }

    pub(super) fn size(self, key: &'static str) -> Result<usize, ConfigError> {
        self.optional_size(key)?.ok_or(ConfigError::Missing { key })
    }

    pub(super) fn number(self, key: &'static str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Self::wrong(key, "a number", value),
        }
    }

    pub(super) fn positive(self, key: &'static str) -> Result<Option<f64>, ConfigError> {
        // The arithmetic is in f32; with room for products.
        match self.number(key)? {
            Some(number) if (1e-30..=1e30).contains(&number) => Ok(Some(number)),
            None => Ok(None),
            Some(number) => Self::wrong(
                key,
                "a positive number from 1e-30 to 1e30",
                &Value::from(number),
            ),
        }
    }

    pub(super) fn flag(self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => Self::wrong(key, "true or false", value),
        }
    }

    pub(super) fn object(self, key: &'static str) -> Result<Option<Keys<'a>>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_object() {
            Some(map) => Ok(Some(Keys(map))),
            None => Self::wrong(key, "an object", value),
        }
    }
}
