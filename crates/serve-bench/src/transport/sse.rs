//! Server-sent events, as far as a streamed completion needs them: `data` fields, several of which may
//! make one event, and the event's name. Source: the WHATWG HTML standard, "Server-sent events"; a lone carriage return as
//! a line end, which no server sends, is not understood.

/// Cuts a byte stream, in pieces of any size, into events.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    line: Vec<u8>,
    name: String,
    data: String,
    has_data: bool,
}

impl Decoder {
    /// Takes the next bytes and hands the name (empty where it has none) and the data of each event that they
    /// complete to `event`.
    pub(crate) fn push(&mut self, bytes: &[u8], mut event: impl FnMut(&str, &str)) {
        let mut pieces = bytes.split(|&byte| byte == b'\n');
        // The last piece has no line end yet.
        let rest = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            self.line.extend_from_slice(piece);
            self.end_line(&mut event);
        }
        self.line.extend_from_slice(rest);
    }

    fn end_line(&mut self, event: &mut impl FnMut(&str, &str)) {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        if line.is_empty() {
            if self.has_data {
                event(&self.name, &self.data);
            }
            self.name.clear();
            self.data.clear();
            self.has_data = false;
        } else if let Some(name) = field(line, b"event:") {
            self.name = String::from_utf8_lossy(name).into_owned();
        } else if let Some(data) = field(line, b"data:") {
            if self.has_data {
                self.data.push('\n');
            }
            self.data.push_str(&String::from_utf8_lossy(data));
            self.has_data = true;
        }
        // Comments and other fields (id, retry) do not matter to a completion.
        self.line.clear();
    }
}

/// The value of a line's field, without the space that may follow the colon.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(name)?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use serve_core::rng::Rng;

    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let mut decoder = Decoder::default();
        let mut events = Vec::new();
        for piece in pieces {
            decoder.push(piece, |_, data| events.push(data.to_owned()));
        }
        events
    }

    #[test]
    fn the_same_events_come_out_however_the_bytes_are_cut() {
        let stream =
            ": hello\r\nevent: x\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\ndata:é\n\ndata: [DONE]\n\n";
        let whole = events(&[stream.as_bytes()]);
        assert_eq!(whole, ["{\"a\":\n1}", "é", "[DONE]"]);
        for size in 1..stream.len() {
            let pieces = stream.as_bytes().chunks(size).collect::<Vec<_>>();
            assert_eq!(events(&pieces), whole, "pieces of {size}");
        }
    }

    #[test]
    fn an_event_without_its_blank_line_is_not_an_event() {
        assert!(events(&[b"data: cut off\n"]).is_empty());
        assert!(events(&[b"\n\n\n"]).is_empty());
    }

    #[test]
    fn a_name_is_of_its_own_event_alone() {
        let stream = "event: error\ndata: a\n\ndata: b\n\nevent: lost\n\ndata: c\nevent:late\n\n";
        for size in 1..=stream.len() {
            let (mut decoder, mut seen) = (Decoder::default(), String::new());
            for piece in stream.as_bytes().chunks(size) {
                decoder.push(piece, |name, data| {
                    seen.push_str(&format!("{name}={data} "))
                });
            }
            assert_eq!(seen, "error=a =b late=c ", "pieces of {size}");
        }
    }

    /// Random bytes of a stream, and the events that they are by construction.
    fn random_stream(rng: &mut Rng) -> (Vec<u8>, Vec<String>) {
        const TEXTS: [&str; 8] = [
            "",
            "{}",
            "[DONE]",
            " two",
            "data: x",
            "h\u{e9}\u{1f40e}",
            ":",
            "a\tb",
        ];
        let text = |rng: &mut Rng| TEXTS[rng.below(TEXTS.len() as u64) as usize];
        let (mut bytes, mut events) = (Vec::new(), Vec::new());
        for _ in 0..rng.below(6) {
            let mut data = Vec::new();
            for _ in 0..rng.below(5) {
                let end = if rng.below(2) == 0 { "\n" } else { "\r\n" };
                let value = text(rng);
                let line = match rng.below(5) {
                    0 => format!(": {value}"),
                    1 => format!("event: {value}"),
                    2 => format!("datum: {value}"),
                    // One space after the colon is no part of the data; a value's own is.
                    3 if !value.starts_with(' ') => {
                        data.push(value);
                        format!("data:{value}")
                    }
                    _ => {
                        data.push(value);
                        format!("data: {value}")
                    }
                };
                bytes.extend_from_slice(line.as_bytes());
                bytes.extend_from_slice(end.as_bytes());
            }
            bytes.push(b'\n');
            if !data.is_empty() {
                events.push(data.join("\n"));
            }
        }
        (bytes, events)
    }

    #[test]
    fn ten_thousand_random_streams_in_random_pieces_are_what_they_were_made_of() {
        let mut rng = Rng::new(20);
        for case in 0..10_000 {
            let (bytes, expected) = random_stream(&mut rng);
            let mut pieces = Vec::new();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (piece, more) =
                    rest.split_at(1 + rng.below(rest.len().min(17) as u64) as usize);
                pieces.push(piece);
                rest = more;
            }
            assert_eq!(
                events(&pieces),
                expected,
                "case {case}: {:?}",
                String::from_utf8_lossy(&bytes)
            );
        }
    }

    #[test]
    fn any_bytes_give_the_same_events_however_they_are_cut_and_never_a_panic() {
        let mut rng = Rng::new(21);
        for _ in 0..2_000 {
            let alphabet = b"data: \r\n\n\n:x\xff\xc3";
            let draw = |rng: &mut Rng| alphabet[rng.below(alphabet.len() as u64) as usize];
            let bytes = (0..rng.below(60))
                .map(|_| draw(&mut rng))
                .collect::<Vec<_>>();
            let bytewise = bytes.chunks(1).collect::<Vec<_>>();
            assert_eq!(events(&bytewise), events(&[&bytes]), "{bytes:?}");
        }
    }
}
