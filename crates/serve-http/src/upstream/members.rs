//! Where the members of a JSON object stand in its text.
//!
//! What passes through is not to be written anew: numbers keep their digits, texts their escapes, members their
//! order. So what is edited is put together from pieces of the text. It must have been read as JSON before; of
//! anything else this makes nonsense, and no panic.

use std::borrow::Cow;
use std::ops::Range;

/// One member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member<'a> {
    pub(super) name: Cow<'a, str>,
    /// From the quote that opens its name to the end of its value.
    pub(super) whole: Range<usize>,
    pub(super) value: Range<usize>,
}

/// The members of the object that is all of `text`, in their order; none if it is no object. O(n).
pub(super) fn members(text: &str) -> Option<Vec<Member<'_>>> {
    let mut scan = Scan {
        bytes: text.as_bytes(),
        at: 0,
    };
    scan.space();
    scan.take(b'{')?;
    let mut found = Vec::new();
    scan.space();
    if scan.take(b'}').is_some() {
        return Some(found);
    }
    loop {
        scan.space();
        let start = scan.at;
        scan.string()?;
        let name = name(text.get(start..scan.at)?)?;
        scan.space();
        scan.take(b':')?;
        scan.space();
        let value = scan.at;
        scan.value()?;
        found.push(Member {
            name,
            whole: start..scan.at,
            value: value..scan.at,
        });
        scan.space();
        match scan.take(b',') {
            Some(()) => {}
            None => return scan.take(b'}').map(|()| found),
        }
    }
}

/// What becomes of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    Keep,
    Drop,
    /// This JSON instead of its value.
    Value(String),
}

/// The object with its members edited and others after them; each that is kept is as it stood.
pub(super) fn edited<'a>(
    text: &str,
    members: &[Member<'a>],
    edit: impl Fn(&Member<'a>) -> Edit,
    more: &[(&str, String)],
) -> String {
    let grown: usize = more
        .iter()
        .map(|(name, value)| name.len() + value.len() + 4)
        .sum();
    let mut out = String::with_capacity(text.len() + grown + 64);
    out.push('{');
    let mut push = |parts: &[&str]| {
        if out.len() > 1 {
            out.push(',');
        }
        parts.iter().for_each(|part| out.push_str(part));
    };
    for member in members {
        let part = |range: Range<usize>| text.get(range).unwrap_or_default();
        match edit(member) {
            Edit::Keep => push(&[part(member.whole.clone())]),
            Edit::Drop => {}
            Edit::Value(value) => {
                push(&[part(member.whole.start..member.value.start), &value]);
            }
        }
    }
    for (name, value) in more {
        push(&["\"", name, "\":", value]);
    }
    out.push('}');
    out
}

/// A name without its quotes and escapes.
fn name(quoted: &str) -> Option<Cow<'_, str>> {
    let inner = quoted.get(1..quoted.len().checked_sub(1)?)?;
    match inner.contains('\\') {
        false => Some(Cow::Borrowed(inner)),
        true => serde_json::from_str(quoted).ok().map(Cow::Owned),
    }
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek() == Some(byte)).then(|| self.at += 1)
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            let byte = self.peek()?;
            self.at += 1;
            match byte {
                b'"' => return Some(()),
                // What is escaped is at least one byte, and no end of the text.
                b'\\' => self.at += 1,
                _ => {}
            }
        }
    }

    fn value(&mut self) -> Option<()> {
        match self.peek()? {
            b'"' => self.string(),
            b'{' | b'[' => self.nested(),
            _ => {
                while self.peek().is_some_and(|byte| {
                    !matches!(byte, b',' | b'}' | b']') && !byte.is_ascii_whitespace()
                }) {
                    self.at += 1;
                }
                Some(())
            }
        }
    }

    fn nested(&mut self) -> Option<()> {
        let mut depth = 0_u32;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.checked_sub(1)?,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};
    use serve_core::rng::Rng;

    use super::*;

    fn read(text: &str) -> Vec<(String, Value)> {
        let found = members(text).unwrap();
        let member = |member: Member<'_>| {
            let value = serde_json::from_str(&text[member.value]).unwrap();
            (member.name.into_owned(), value)
        };
        found.into_iter().map(member).collect()
    }

    fn any(rng: &mut Rng, depth: u32) -> Value {
        let texts = [
            "",
            "a",
            "\"",
            "\\",
            "\\\"}],:{",
            "\u{1}\n",
            "ä世🎉",
            "model",
        ];
        let text = |rng: &mut Rng| texts[rng.below(texts.len() as u64) as usize].to_owned();
        match rng.below(if depth == 0 { 5 } else { 7 }) {
            0 => Value::Null,
            1 => Value::Bool(true),
            2 => (rng.below(1_000) as f64 / -8.0).into(),
            3 => 7.into(),
            4 => text(rng).into(),
            5 => (0..rng.below(4)).map(|_| any(rng, depth - 1)).collect(),
            _ => {
                let member = |n| (format!("{}{n}", text(rng)), any(rng, depth - 1));
                Value::Object((0..4).map(member).collect())
            }
        }
    }

    fn object(rng: &mut Rng) -> Map<String, Value> {
        let n = rng.below(6);
        (0..n).map(|n| (format!("\"{n}\\"), any(rng, 3))).collect()
    }

    #[test]
    fn what_is_found_is_what_a_parser_finds() {
        let mut rng = Rng::new(3);
        for _ in 0..2_000 {
            let object = object(&mut rng);
            let pairs: Vec<(String, Value)> = object.clone().into_iter().collect();
            for text in [
                serde_json::to_string(&object).unwrap(),
                serde_json::to_string_pretty(&object).unwrap(),
                format!(" \r\n{} \t", serde_json::to_string(&object).unwrap()),
            ] {
                assert_eq!(read(&text), pairs, "{text}");
            }
        }
    }

    #[test]
    fn what_is_edited_is_edited_and_the_rest_is_as_it_stood() {
        let mut rng = Rng::new(4);
        for _ in 0..2_000 {
            let mut expected = object(&mut rng);
            let text = serde_json::to_string_pretty(&expected).unwrap();
            let found = members(&text).unwrap();
            let edits: Vec<Edit> = found
                .iter()
                .map(|_| match rng.below(3) {
                    0 => Edit::Keep,
                    1 => Edit::Drop,
                    _ => Edit::Value("[1.50]".to_owned()),
                })
                .collect();
            let edit = |member: &Member<'_>| {
                edits[found.iter().position(|it| it == member).unwrap()].clone()
            };
            let out = edited(&text, &found, edit, &[("more", "1e2".to_owned())]);
            for (member, edit) in found.iter().zip(&edits) {
                match edit {
                    Edit::Keep => assert!(out.contains(&text[member.whole.clone()])),
                    Edit::Drop => drop(expected.shift_remove(&*member.name)),
                    Edit::Value(_) => {
                        expected.insert(member.name.to_string(), serde_json::json!([1.5]));
                    }
                }
            }
            expected.insert("more".to_owned(), serde_json::json!(100.0));
            let out: Map<String, Value> = serde_json::from_str(&out).unwrap();
            assert_eq!(out, expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_no_panic() {
        let mut rng = Rng::new(5);
        for _ in 0..20_000 {
            let text = serde_json::to_string(&object(&mut rng)).unwrap();
            let mut bytes = text.into_bytes();
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => bytes.truncate(at),
                1 => bytes[at] = b"{}[]\"\\,: "[rng.below(9) as usize],
                _ => drop(bytes.remove(at)),
            }
            if let Ok(text) = String::from_utf8(bytes)
                && let Some(found) = members(&text)
            {
                edited(&text, &found, |_| Edit::Keep, &[]);
            }
        }
        assert_eq!(members("[1]"), None);
        assert_eq!(members("{\"a\":1"), None);
    }
}
