//! Stop strings, found across token boundaries in text that arrives in pieces.

/// Watches a text for the first stop string to be completed, and holds back only what may still
/// become one.
///
/// Of two stop strings, the one that is *completed* first counts, and of those that end at the same
/// byte, the longest. So the result is the same however the text is cut into pieces.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// Watches for `stops`. An empty one would match everywhere and is left out.
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self {
            stops,
            held: String::new(),
        }
    }

    /// Whether nothing is watched for, so that every piece passes at once.
    pub fn is_idle(&self) -> bool {
        self.stops.is_empty()
    }

    /// Takes the next piece and appends to `out` what can no longer become part of a stop string.
    /// Returns whether a stop string was completed; its text is not in `out`, nor is what follows.
    ///
    /// O(piece x total length of the stop strings).
    pub fn push(&mut self, piece: &str, out: &mut String) -> bool {
        if self.stops.is_empty() {
            out.push_str(piece);
            return false;
        }
        let seen = self.held.len();
        self.held.push_str(piece);
        if let Some(start) = self.first_match(seen) {
            out.push_str(&self.held[..start]);
            self.held.clear();
            return true;
        }
        let keep = self.unfinished();
        out.extend(self.held.drain(..self.held.len() - keep));
        false
    }

    /// The text has ended: what was held back is no stop string after all.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Where the stop string begins that is completed first after byte `seen`.
    fn first_match(&self, seen: usize) -> Option<usize> {
        let text = self.held.as_bytes();
        (seen + 1..=text.len()).find_map(|end| {
            let lengths = self.stops.iter().filter_map(|stop| {
                let stop = stop.as_bytes();
                text[..end].ends_with(stop).then_some(stop.len())
            });
            lengths.max().map(|length| end - length)
        })
    }

    /// The length of the longest end of the held text that begins a stop string.
    fn unfinished(&self) -> usize {
        let text = self.held.as_bytes();
        let begun = |stop: &String| {
            let stop = stop.as_bytes();
            let longest = text.len().min(stop.len() - 1);
            (1..=longest)
                .rev()
                .find(|&length| text.ends_with(&stop[..length]))
                .unwrap_or(0)
        };
        // A stop string begins at a character, so the cut before it is one in the text as well.
        self.stops.iter().map(begun).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use serve_core::rng::Rng;

    use super::*;

    /// What comes out for each piece, and `|` where the text stopped.
    fn trace(stops: &[&str], pieces: &[&str]) -> Vec<String> {
        let mut matcher = StopMatcher::new(stops.iter().map(ToString::to_string).collect());
        let mut steps = Vec::new();
        for piece in pieces {
            let mut out = String::new();
            let stopped = matcher.push(piece, &mut out);
            if stopped {
                out.push('|');
                steps.push(out);
                return steps;
            }
            steps.push(out);
        }
        let mut out = String::new();
        matcher.finish(&mut out);
        steps.push(out);
        steps
    }

    #[test]
    fn text_without_stop_strings_passes_at_once() {
        assert_eq!(trace(&[], &["a", "b"]), ["a", "b", ""]);
        assert_eq!(trace(&["zz"], &["a", "b"]), ["a", "b", ""]);
    }

    #[test]
    fn only_what_may_be_a_stop_is_held_back() {
        assert_eq!(
            trace(&["END"], &["a E", "Nx", " EN"]),
            ["a ", "ENx", " ", "EN"]
        );
        assert_eq!(trace(&["END"], &["a E", "N", "D b"]), ["a ", "", "|"]);
    }

    #[test]
    fn a_stop_inside_one_piece_cuts_it() {
        assert_eq!(trace(&["\n"], &["one\ntwo"]), ["one|"]);
    }

    #[test]
    fn the_stop_that_is_completed_first_counts() {
        assert_eq!(trace(&["bc", "abcd"], &["xabcd"]), ["xa|"]);
        assert_eq!(trace(&["c", "abc"], &["xabc"]), ["x|"]);
    }

    #[test]
    fn stops_of_many_bytes_are_found_in_text_of_many_bytes() {
        assert_eq!(trace(&["。终"], &["你好。", "终x"]), ["你好", "|"]);
        // An ending that shares its first bytes with the stop is no beginning of it.
        assert_eq!(
            trace(&["é!"], &["caf", "è", "é", "!"]),
            ["caf", "è", "", "|"]
        );
    }

    #[test]
    fn the_result_does_not_depend_on_where_the_text_is_cut() {
        let mut rng = Rng::new(3);
        let stops = ["aba", "bb", "éa", "ba b"];
        for case in 0..2_000 {
            let alphabet = ['a', 'b', ' ', 'é'];
            let text: Vec<char> = (0..12).map(|_| alphabet[rng.below(4) as usize]).collect();
            let whole: String = text.iter().collect();
            let mut pieces = vec![String::new()];
            for &c in &text {
                if rng.below(2) == 0 {
                    pieces.push(String::new());
                }
                pieces.last_mut().unwrap().push(c);
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let cut = trace(&stops, &pieces).concat();
            assert_eq!(
                cut,
                trace(&stops, &[&whole]).concat(),
                "case {case}: {pieces:?}"
            );
        }
    }
}
