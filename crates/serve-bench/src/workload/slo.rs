//! What an answer must keep to be counted as goodput.

use serde::{Deserialize, Serialize};
use serve_core::Span;

/// Limits on one answer, all of which must hold; what is absent is not asked. In files, milliseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slo {
    /// Time to first token, from the scheduled send.
    #[serde(
        rename = "ttft_ms",
        with = "millis",
        skip_serializing_if = "Option::is_none"
    )]
    pub ttft: Option<Span>,
    /// Mean time for each further token. Does not apply to an answer of one token.
    #[serde(
        rename = "tpot_ms",
        with = "millis",
        skip_serializing_if = "Option::is_none"
    )]
    pub tpot: Option<Span>,
    /// Time to the end of the answer, from the scheduled send.
    #[serde(
        rename = "e2e_ms",
        with = "millis",
        skip_serializing_if = "Option::is_none"
    )]
    pub e2e: Option<Span>,
}

impl Slo {
    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An optional span as milliseconds.
mod millis {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
    use serve_core::Span;

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(
        span: &Option<Span>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(Span::as_millis_f64).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Span>, D::Error> {
        let Some(ms) = Option::<f64>::deserialize(deserializer)? else {
            return Ok(None);
        };
        if !(ms > 0.0 && ms.is_finite()) {
            let message =
                format!("{ms} is no limit; accepted is a positive number of milliseconds");
            return Err(de::Error::custom(message));
        }
        Ok(Some(Span::from_nanos((ms * 1e6).round() as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_milliseconds_in_files() {
        let slo: Slo = serde_json::from_str(r#"{"ttft_ms": 750, "tpot_ms": 0.5}"#).unwrap();
        assert_eq!(slo.ttft, Some(Span::from_millis(750)));
        assert_eq!(slo.tpot, Some(Span::from_micros(500)));
        assert_eq!(slo.e2e, None);
        let text = serde_json::to_string(&slo).unwrap();
        assert_eq!(serde_json::from_str::<Slo>(&text).unwrap(), slo);
        assert!(serde_json::from_str::<Slo>(r#"{"e2e_ms": 0}"#).is_err());
        assert!(serde_json::from_str::<Slo>(r#"{"e2e": 1}"#).is_err());
    }
}
