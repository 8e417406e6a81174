//! The framing of server-sent events: bytes as they come in, whole events out, each as soon as its blank line is
//! there. What an event says is read elsewhere.

use std::borrow::Cow;
use std::ops::Range;

use axum::body::Bytes;
use bytes::BytesMut;

/// Bytes of one event at most: an engine that never ends one must not fill the memory.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// An event has no end within the bytes that it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Cuts what an engine sends into events. A line ends with LF, CRLF or CR, as the HTML standard has it.
#[derive(Debug, Default)]
pub(super) struct Events {
    buffer: BytesMut,
    /// How much of it has been looked at.
    looked_at: usize,
    /// Whether the line that goes on there has anything in it.
    in_line: bool,
    /// Whether the byte before was a CR, to which an LF belongs.
    after_cr: bool,
}

impl Events {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next event that is whole, its blank line included.
    ///
    /// # Errors
    ///
    /// [`TooLong`], after which the rest cannot be read.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        while let Some(&byte) = self.buffer.get(self.looked_at) {
            self.looked_at += 1;
            let ends_line = match byte {
                b'\n' => !std::mem::take(&mut self.after_cr),
                b'\r' => {
                    self.after_cr = true;
                    true
                }
                _ => {
                    self.after_cr = false;
                    self.in_line = true;
                    false
                }
            };
            if ends_line && !std::mem::take(&mut self.in_line) {
                // The LF of its CRLF, if that is here already, so that the event stands as it was sent.
                if self.after_cr && self.buffer.get(self.looked_at) == Some(&b'\n') {
                    self.looked_at += 1;
                    self.after_cr = false;
                }
                let end = std::mem::take(&mut self.looked_at);
                return Ok(Some(self.buffer.split_to(end).freeze()));
            }
        }
        match self.buffer.len() > EVENT_BYTES_MAX {
            true => Err(TooLong),
            false => Ok(None),
        }
    }

    /// Whether there is the beginning of an event that has not ended.
    pub(super) fn is_amid(&self) -> bool {
        !self.buffer.iter().all(u8::is_ascii_whitespace)
    }
}

/// What the `data` lines of an event say, and where that stands if it is one line.
pub(super) fn data(event: &str) -> Option<(Cow<'_, str>, Option<Range<usize>>)> {
    let mut found: Option<(Cow<'_, str>, Option<Range<usize>>)> = None;
    let mut at = 0;
    for line in event.split(['\n', '\r']) {
        let start = at;
        at += line.len() + 1;
        let Some(value) = line.strip_prefix("data:") else {
            continue;
        };
        let value = value.strip_prefix(' ').unwrap_or(value);
        let end = start + line.len();
        found = Some(match found {
            None => (Cow::Borrowed(value), Some(end - value.len()..end)),
            Some((before, _)) => (Cow::Owned(format!("{before}\n{value}")), None),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use serve_core::rng::Rng;

    use super::*;

    fn cut(parts: &[&[u8]]) -> Vec<String> {
        let mut events = Events::default();
        let mut out = Vec::new();
        for part in parts {
            events.push(part);
            while let Some(event) = events.next().unwrap() {
                out.push(String::from_utf8(event.to_vec()).unwrap());
            }
        }
        out
    }

    fn said(event: &str) -> Option<String> {
        data(event).map(|(data, _)| data.into_owned())
    }

    /// However the bytes come in, and whichever way lines end.
    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let mut rng = Rng::new(9);
        for end in ["\n", "\r\n", "\r"] {
            let text = [
                "data: {\"a\":1}",
                "",
                ": ping",
                "",
                "event: x",
                "data: 1",
                "data:2",
                "",
                "data: [DONE]",
                "",
                "",
            ];
            let text = text.join(end);
            let whole: Vec<_> = cut(&[text.as_bytes()])
                .iter()
                .filter_map(|event| said(event))
                .collect();
            assert_eq!(whole, ["{\"a\":1}", "1\n2", "[DONE]"], "{end:?}");
            for _ in 0..300 {
                let mut rest = text.as_bytes();
                let mut parts = Vec::new();
                while !rest.is_empty() {
                    let n = 1 + rng.below(rest.len() as u64) as usize;
                    parts.push(&rest[..n]);
                    rest = &rest[n..];
                }
                let cut = cut(&parts);
                assert_eq!(cut.concat().trim_end(), text.trim_end(), "nothing is lost");
                let cut: Vec<_> = cut.iter().filter_map(|event| said(event)).collect();
                assert_eq!(cut, whole, "{parts:?}");
            }
        }
    }

    #[test]
    fn an_event_goes_out_with_its_last_byte_and_not_before() {
        let mut events = Events::default();
        events.push(b"data: 1\n");
        assert_eq!(events.next(), Ok(None));
        assert!(events.is_amid());
        events.push(b"\n");
        assert_eq!(events.next().unwrap().unwrap(), "data: 1\n\n");
        assert!(!events.is_amid());
    }

    #[test]
    fn an_event_without_an_end_does_not_fill_the_memory() {
        let mut events = Events::default();
        let part = vec![b'x'; 1 << 20];
        let pushed = (0..64).take_while(|_| {
            events.push(&part);
            events.next().is_ok()
        });
        assert_eq!(pushed.count(), 16);
    }

    #[test]
    fn where_a_single_line_of_data_stands() {
        for (event, value) in [
            ("data: ab\n\n", "ab"),
            ("id: 1\r\ndata:ä\r\n\r\n", "ä"),
            ("data:\n\n", ""),
        ] {
            let (said, place) = data(event).unwrap();
            assert_eq!((&*said, &event[place.unwrap()]), (value, value));
        }
        assert_eq!(data(": a comment\n\n"), None);
        assert_eq!(data("data: 1\ndata: 2\n\n").unwrap().1, None);
    }
}
