//! Reads a JSON object parameter by parameter, so that each wrong one is answered by its name and
//! by what it accepts, and none is ignored.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::Problem;

/// A JSON object that is being read. `null` counts as absent, as clients send it for optional
/// parameters.
#[derive(Debug)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    path: String,
}

impl Fields {
    /// The body of a request.
    ///
    /// # Errors
    ///
    /// [`Problem::Syntax`] with line and column, or [`Problem::Type`] when it is no object.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, Problem> {
        let value = serde_json::from_slice(body).map_err(|error| syntax(&error))?;
        Self::of_value(value, String::new())
    }

    /// An object inside a body; `path` is where it lies: `messages[0]`.
    ///
    /// # Errors
    ///
    /// [`Problem::Type`] when it is no object.
    pub(crate) fn of_value(value: Value, path: String) -> Result<Self, Problem> {
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => {
                let param = if path.is_empty() { "the body" } else { &path };
                Err(wrong_type(param, "a JSON object", &other))
            }
        }
    }

    /// The full path of one of this object's parameters.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// Whether all that there was has been taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Takes a parameter of any type.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Whether a parameter that is not taken yet is this text.
    pub(crate) fn is(&self, name: &str, text: &str) -> bool {
        self.map.get(name).is_some_and(|value| value == text)
    }

    /// Takes a parameter that must be there.
    pub(crate) fn require(&mut self, name: &str, accepted: &'static str) -> Result<Value, Problem> {
        self.take(name).ok_or_else(|| Problem::Missing {
            param: self.path(name),
            accepted,
        })
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.path(name), "a string", &other)),
        }
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(&self.path(name), "true or false", &other)),
        }
    }

    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f64>, Problem> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(wrong_type(&self.path(name), "a number", &value)),
        }
    }

    pub(crate) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Problem> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let accepted = || format!("an integer from {} to {}", range.start(), range.end());
        if !value.is_number() {
            return Err(wrong_type(&self.path(name), &accepted(), &value));
        }
        match value.as_i64().filter(|integer| range.contains(integer)) {
            Some(integer) => Ok(Some(integer)),
            None => Err(wrong_value(&self.path(name), &accepted(), &value)),
        }
    }

    /// Takes an object of which nothing is read here.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(wrong_type(&self.path(name), "an object", &other)),
        }
    }

    /// All parameters have been read: what is left and not `null`, nobody knows.
    ///
    /// # Errors
    ///
    /// [`Problem::UnknownParameter`] with the first one's name.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        let mut left = self.map.iter().filter(|(_, value)| !value.is_null());
        match left.next() {
            None => Ok(()),
            Some((name, _)) => Err(Problem::UnknownParameter {
                param: self.path(name),
            }),
        }
    }
}

/// What is told of a body that is no JSON.
pub(crate) fn syntax(error: &serde_json::Error) -> Problem {
    Problem::Syntax {
        cause: cause_alone(error),
        line: error.line(),
        column: error.column(),
    }
}

pub(crate) fn wrong_type(param: &str, accepted: &str, given: &Value) -> Problem {
    Problem::Type {
        param: param.to_owned(),
        accepted: accepted.to_owned(),
        given: type_of(given).to_owned(),
    }
}

pub(crate) fn wrong_value(param: &str, accepted: &str, given: &Value) -> Problem {
    Problem::Value {
        param: param.to_owned(),
        accepted: accepted.to_owned(),
        given: shown(given),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A value as it may stand in a message: whole if short, else its beginning.
fn shown(value: &Value) -> String {
    const SHOWN_CHARS_MAX: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

/// `serde_json` appends the place to its message; the problem states it in fields of its own.
fn cause_alone(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: &str) -> Fields {
        Fields::of_body(body.as_bytes()).unwrap()
    }

    #[test]
    fn null_is_absent() {
        let mut fields = fields(r#"{"a": null, "unknown": null}"#);
        assert_eq!(fields.number("a"), Ok(None));
        assert_eq!(fields.finish(), Ok(()));
    }

    #[test]
    fn a_long_value_is_shown_shortened() {
        let long = format!(r#"{{"n": [{}0]}}"#, "1,".repeat(500));
        let value = fields(&long).take("n").unwrap();
        let problem = wrong_value("n", "short", &value).to_string();
        assert!(problem.len() < 120, "{problem}");
    }

    #[test]
    fn a_leftover_is_named_with_its_path() {
        let value: Value = serde_json::from_str(r#"{"colour": 1}"#).unwrap();
        let fields = Fields::of_value(value, "messages[3]".to_owned()).unwrap();
        let message = fields.finish().unwrap_err().to_string();
        assert_eq!(message, "messages[3].colour is not a known parameter");
    }
}
