//! `serve hash-key`: from an API key to what a settings file holds instead of it.

use std::io::{Write, stdin, stdout};

use serve_http::auth::KeyHash;

use crate::failure::Failure;

/// Shorter ones can be found by trying, hashed or not.
const BYTES_MIN: usize = 16;

/// Reads one line from stdin and prints its hash.
pub(crate) fn run() -> Result<(), Failure> {
    let mut line = String::new();
    stdin()
        .read_line(&mut line)
        .map_err(|error| Failure::Key(format!("stdin: {error}")))?;
    let hash = hash(line.trim_end_matches(['\n', '\r'])).map_err(Failure::Key)?;
    writeln!(stdout(), "{hash}").map_err(Failure::Runtime)
}

fn hash(key: &str) -> Result<KeyHash, String> {
    if key.len() < BYTES_MIN || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "the key must be one line of at least {BYTES_MIN} visible ASCII characters without \
             spaces; `openssl rand -hex 24` makes a good one"
        ));
    }
    Ok(KeyHash::of(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_can_be_guessed_or_not_be_sent_is_refused() {
        assert!(hash("0123456789abcdef").is_ok());
        for wrong in ["", "short", "0123456789abcde\u{e9}", "0123456789 abcdef"] {
            assert!(hash(wrong).is_err(), "{wrong:?}");
        }
    }
}
