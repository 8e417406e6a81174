//! A measured number with its name and unit, or a word about the measurement, as text or as one JSON
//! object.

use serde_json::{Value, json};

/// Something measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// How much, or which.
    pub value: Value,
    /// Of what; `text` for what is no number.
    pub unit: &'static str,
}

impl Figure {
    /// A measured number, to a thousandth.
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        let rounded = (value * 1_000.0).round() / 1_000.0;
        let value = match rounded.fract() == 0.0 {
            true => json!(rounded as i64),
            false => json!(rounded),
        };
        Self {
            name: name.into(),
            value,
            unit,
        }
    }

    /// A word about the measurement.
    pub fn text(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: Value::String(value.into()),
            unit: "text",
        }
    }

    /// The number, where it is one.
    pub fn number(&self) -> Option<f64> {
        self.value.as_f64()
    }

    /// `{"name": .., "value": .., "unit": ..}`, or the same as aligned text.
    pub fn line(&self, as_json: bool) -> String {
        let Self { name, value, unit } = self;
        match (as_json, value) {
            (true, _) => json!({"name": name, "value": value, "unit": unit}).to_string(),
            (false, Value::String(text)) => format!("{name:<40} {text}"),
            (false, value) => format!("{name:<40} {value:>14} {unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_object_or_text() {
        let figure = Figure::new("rate", 12.345_67, "1/s");
        assert_eq!(
            figure.line(true),
            r#"{"name":"rate","value":12.346,"unit":"1/s"}"#
        );
        assert!(figure.line(false).ends_with("12.346 1/s"));
        let commit = Figure::text("commit", "abc");
        assert_eq!(
            commit.line(true),
            r#"{"name":"commit","value":"abc","unit":"text"}"#
        );
        assert!(commit.line(false).ends_with(" abc"));
    }
}
