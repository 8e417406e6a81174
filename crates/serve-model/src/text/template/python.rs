//! What chat templates expect of Python: `str()` of values, `json.dumps`, and methods of strings,
//! lists and dictionaries.

use std::io;

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State, Value};
use serde::Serialize;
use serde_json::Value as Json;
use serde_json::ser::{Formatter, Serializer};

/// Writes what `{{ value }}` shows, Python's `str()`; nothing for an undefined value.
pub(super) fn write_str(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Number => {
            out.write_str(&to_str(value)?)?;
        }
        _ => out.write_str(&value.to_string())?,
    }
    Ok(())
}

/// Python's `str()`.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Number => repr(value),
        _ => Ok(value.to_string()),
    }
}

/// Lists and dictionaries inside of each other at most: what is shown or becomes JSON is walked recursively.
const DEPTH_MAX: usize = 200;

/// Python's `repr()`.
fn repr(value: &Value) -> Result<String, Error> {
    check_depth(value, 0)?;
    repr_of(value)
}

/// Python has a limit on recursion as well.
fn check_depth(value: &Value, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(invalid(
            "lists and dictionaries are nested more than 200 deep",
        ));
    }
    match value.kind() {
        ValueKind::Map => {
            let mut keys = value.try_iter()?;
            keys.try_for_each(|key| check_depth(&value.get_item(&key)?, depth + 1))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let mut items = value.try_iter()?;
            items.try_for_each(|item| check_depth(&item, depth + 1))
        }
        _ => Ok(()),
    }
}

fn repr_of(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::String => repr_str(value.as_str().unwrap_or_default()),
        ValueKind::Map => {
            let keys = value.try_iter()?;
            let pairs = keys.map(|key| {
                Ok(format!(
                    "{}: {}",
                    repr_of(&key)?,
                    repr_of(&value.get_item(&key)?)?
                ))
            });
            format!(
                "{{{}}}",
                pairs.collect::<Result<Vec<_>, Error>>()?.join(", ")
            )
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| repr_of(&item));
            format!("[{}]", items.collect::<Result<Vec<_>, Error>>()?.join(", "))
        }
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), repr_float)
        }
        _ => value.to_string(),
    })
}

fn repr_str(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// The shortest digits that read back as `x`, with an exponent from 1e16 and below 1e-4.
fn repr_float(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return (if x > 0.0 { "inf" } else { "-inf" }).to_owned();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{x:?}"),
    }
}

/// The `length` filter: an undefined value has none, where minijinja refuses.
pub(super) fn len(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    let no_length = || {
        let message = format!("a value of type {} has no length", value.kind());
        Error::new(ErrorKind::InvalidOperation, message)
    };
    value.len().ok_or_else(no_length)
}

/// The `sequence` test: what has a length and items, which strings and dictionaries have too.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String | ValueKind::Seq | ValueKind::Map
    )
}

/// The `escape` filter, with the entities that Python's markupsafe writes.
pub(super) fn escape(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    for c in to_str(value)?.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// transformers' `tojson`: `json.dumps` without ASCII escapes by default, and never HTML-escaped.
#[expect(
    clippy::needless_pass_by_value,
    reason = "minijinja's filters take keyword arguments by value"
)]
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(invalid("tojson: the value is undefined"));
    }
    let named_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let named_indent: Option<Value> = kwargs.get("indent")?;
    let separators: Option<(String, String)> = separators(kwargs.get("separators")?)?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;

    check_depth(value, 0)?;
    let json_error = |error: serde_json::Error| invalid("tojson: no JSON").with_source(error);
    let mut json = serde_json::to_value(value).map_err(json_error)?;
    if sort_keys.unwrap_or_default() {
        json.sort_all_objects();
    }
    let indent = indentation(indent.or(named_indent))?;
    let item = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) =
        separators.unwrap_or_else(|| (item.to_owned(), ": ".to_owned()));
    let text = dumps(
        &json,
        PythonJson {
            indent,
            item_separator,
            key_separator,
            depth: 0,
            empty: true,
        },
    )
    .map_err(json_error)?;
    Ok(if ensure_ascii.or(named_ascii).unwrap_or_default() {
        escape_non_ascii(&text)
    } else {
        text
    })
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn separators(value: Option<Value>) -> Result<Option<(String, String)>, Error> {
    let Some(value) = value.filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    let items: Vec<Value> = value.try_iter()?.collect();
    match items.as_slice() {
        [item, key] => Ok(Some((item.to_string(), key.to_string()))),
        _ => Err(invalid("tojson: separators must be two strings")),
    }
}

fn indentation(value: Option<Value>) -> Result<Option<String>, Error> {
    let Some(value) = value.filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    if let Some(text) = value.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let spaces = value.as_usize().filter(|&spaces| spaces <= 64);
    let spaces = spaces.ok_or_else(|| invalid("tojson: indent must be 0 to 64 or a string"))?;
    Ok(Some(" ".repeat(spaces)))
}

fn dumps(json: &Json, format: PythonJson) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    json.serialize(&mut Serializer::with_formatter(&mut bytes, format))?;
    // The serializer writes UTF-8 only.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn escape_non_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut units = [0; 2];
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

/// The layout of `json.dumps`.
struct PythonJson {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    depth: usize,
    /// Whether nothing has been written into the innermost list or object.
    empty: bool,
}

impl PythonJson {
    fn open<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty {
            self.new_line(out)?;
        }
        self.empty = false;
        out.write_all(bracket)
    }

    fn item<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item_separator.as_bytes())?;
        }
        self.empty = false;
        self.new_line(out)
    }

    fn new_line<W: ?Sized + io::Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else {
            return Ok(());
        };
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(indent.as_bytes()))
    }
}

impl Formatter for PythonJson {
    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(repr_float(value).as_bytes())
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key_separator.as_bytes())
    }
}

/// Python's methods: those that minijinja-contrib lacks or does otherwise, then its own.
pub(super) fn method(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = str_method(text, name, args)
    {
        return result;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

fn str_method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let one = || from_args::<(&str,)>(args).map(|(argument,)| argument);
    let tuple = |parts: [&str; 3]| Value::from(parts.map(Value::from).to_vec());
    Some(match name {
        // An empty string has no character of the kind.
        "islower" | "isupper" | "isspace" | "isdigit" | "isnumeric" | "isalnum" | "isalpha"
            if text.is_empty() =>
        {
            Ok(Value::from(false))
        }
        // Positions are counted in characters.
        "find" => one().map(|part| position(text, text.find(part))),
        "rfind" => one().map(|part| position(text, text.rfind(part))),
        "count" => one().map(|part| Value::from(text.matches(part).count())),
        "removeprefix" => one().map(|part| text.strip_prefix(part).unwrap_or(text).into()),
        "removesuffix" => one().map(|part| text.strip_suffix(part).unwrap_or(text).into()),
        "partition" => one().map(|part| match text.split_once(part) {
            Some((before, after)) => tuple([before, part, after]),
            None => tuple([text, "", ""]),
        }),
        "rpartition" => one().map(|part| match text.rsplit_once(part) {
            Some((before, after)) => tuple([before, part, after]),
            None => tuple(["", "", text]),
        }),
        "rsplit" => from_args::<(&str, Option<usize>)>(args).map(|(part, splits)| {
            let splits = splits.map_or(usize::MAX, |splits| splits.saturating_add(1));
            let mut parts: Vec<Value> = text.rsplitn(splits, part).map(Value::from).collect();
            parts.reverse();
            Value::from(parts)
        }),
        _ => return None,
    })
}

fn position(text: &str, bytes: Option<usize>) -> Value {
    bytes.map_or(Value::from(-1), |bytes| {
        Value::from(text[..bytes].chars().count())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        for (x, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (2.5, "2.5"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.234_567_890_123_456_8e17, "1.2345678901234568e+17"),
            (1e300, "1e+300"),
            (0.1 + 0.2, "0.30000000000000004"),
        ] {
            assert_eq!(repr_float(x), expected);
        }
    }
}
