//! A measured number with its name and unit, or a word about the measurement: as text, or as one JSON object a
//! line, in which programs that measure tell each other what came of it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Something measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Figure {
    /// What it is, such as `decode_16`.
    pub name: String,
    /// How much, or which.
    pub value: Value,
    /// Of what, such as `ms`; `text` for what is no number.
    pub unit: String,
    /// Whatever else is said of it: the model, the batch, a label.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Figure {
    /// A measured number. What is not finite is null.
    pub fn new(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self {
            name: name.into(),
            value: json!(value),
            unit: unit.to_owned(),
            more: Map::new(),
        }
    }

    /// A word about the measurement.
    pub fn text(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            value: Value::String(value.into()),
            ..Self::new(name, 0.0, "text")
        }
    }

    /// The same with something else said of it.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }

    /// The number, where it is one.
    pub fn number(&self) -> Option<f64> {
        self.value.as_f64()
    }

    /// `{"name": .., "value": .., "unit": .., ..}`, or as aligned text name, value to a thousandth, unit and what
    /// else is said.
    pub fn line(&self, as_json: bool) -> String {
        if as_json {
            return json!(self).to_string();
        }
        let Self {
            name, value, unit, ..
        } = self;
        if let Value::String(text) = value {
            return format!("{name:<40} {text}");
        }
        let more = self
            .more
            .iter()
            .map(|(key, value)| format!("  {key} {}", short(value)));
        let more = more.collect::<String>();
        format!("{name:<40} {:>14} {unit}{more}", short(value))
    }

    /// Those in what a program printed: one JSON object a line; other lines are none.
    pub fn parse(output: &str) -> Vec<Self> {
        let lines = output.lines().filter(|line| line.starts_with('{'));
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }
}

/// A number to a thousandth, or a text without its quotation marks.
fn short(value: &Value) -> String {
    match (value, value.as_f64()) {
        (Value::String(text), _) => text.clone(),
        (_, Some(number)) if number.fract() == 0.0 => format!("{number:.0}"),
        (_, Some(number)) => format!("{number:.3}"),
        (other, None) => other.to_string(),
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
            r#"{"name":"rate","value":12.34567,"unit":"1/s"}"#
        );
        assert!(figure.line(false).ends_with("12.346 1/s"));
        assert!(
            Figure::new("count", 12.0, "1")
                .line(false)
                .ends_with(" 12 1")
        );
        let beside = Figure::new("rate", 1.0, "1/s").with("least", 0.25);
        assert!(beside.line(false).ends_with(" 1 1/s  least 0.250"));
        let commit = Figure::text("commit", "abc").with("of", "serve");
        assert_eq!(
            commit.line(true),
            r#"{"name":"commit","value":"abc","unit":"text","of":"serve"}"#
        );
        assert!(commit.line(false).ends_with(" abc"));
    }

    #[test]
    fn figures_are_found_among_other_lines_and_keep_what_else_they_say() {
        let output =
            "loading\n{\"name\":\"a\",\"value\":1.5,\"unit\":\"ms\",\"model\":\"m\"}\n{\"x\":1}\n";
        let figures = Figure::parse(output);
        assert_eq!(figures.len(), 1);
        let expected = Figure::new("a", 1.5, "ms").with("model", "m");
        assert_eq!(figures[0], expected);
        assert_eq!(Figure::parse(&expected.line(true)), [expected]);
    }
}
