//! A measured number with its name and unit, as text or as one JSON object.

use serde_json::json;

/// A measured number.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// How much it was.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
}

impl Figure {
    /// A measured number.
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
        }
    }

    /// `{"name": .., "value": .., "unit": ..}`, or the same as aligned text.
    pub fn line(&self, as_json: bool) -> String {
        let Self { name, value, unit } = self;
        // A thousandth is more than any of these measurements can tell.
        let value = (value * 1_000.0).round() / 1_000.0;
        match as_json {
            true => json!({"name": name, "value": value, "unit": unit}).to_string(),
            false => format!("{name:<40} {value:>14} {unit}"),
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
    }
}
