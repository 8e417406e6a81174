//! `serve hash-key`: from an API key to what a settings file holds instead of it.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write, stderr, stdin, stdout};

use serve_http::auth::KeyHash;

use crate::failure::Failure;

/// Shorter ones can be found by trying, hashed or not.
const BYTES_MIN: usize = 16;

/// Random bytes of a key that is made here.
const RANDOM_BYTES: usize = 24;

/// Makes a key, or reads one line from stdin, and prints its hash.
pub(crate) fn run(generate: bool) -> Result<(), Failure> {
    let wrong = |cause: String| Failure::Key(cause);
    let mut out = stdout();
    if generate {
        let key = generated().map_err(|error| wrong(format!("no random bytes: {error}")))?;
        let hash = KeyHash::of(&key);
        return writeln!(out, "key:    {key}\nsha256: {hash}").map_err(Failure::Runtime);
    }
    if stdin().is_terminal() {
        // Without an echo somebody may look on.
        let _ = write!(
            stderr(),
            "key (it is shown as you type; --generate makes one): "
        );
    }
    let mut line = String::new();
    stdin()
        .read_line(&mut line)
        .map_err(|error| wrong(format!("stdin: {error}")))?;
    let hash = hash(line.trim_end_matches(['\n', '\r'])).map_err(wrong)?;
    writeln!(out, "{hash}").map_err(Failure::Runtime)
}

/// A key of 192 random bits.
fn generated() -> io::Result<String> {
    let mut bytes = [0; RANDOM_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    Ok(format!("sk-{}", digits.collect::<String>()))
}

fn hash(key: &str) -> Result<KeyHash, String> {
    if key.len() < BYTES_MIN || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "the key must be one line of at least {BYTES_MIN} visible ASCII characters without \
             spaces; `serve hash-key --generate` makes one"
        ));
    }
    Ok(KeyHash::of(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_key_can_be_used_and_is_never_the_same() {
        let (one, other) = (generated().unwrap(), generated().unwrap());
        assert_ne!(one, other);
        assert!(hash(&one).is_ok());
    }

    #[test]
    fn a_key_that_can_be_guessed_or_not_be_sent_is_refused() {
        assert!(hash("0123456789abcdef").is_ok());
        for wrong in ["", "short", "0123456789abcde\u{e9}", "0123456789 abcdef"] {
            assert!(hash(wrong).is_err(), "{wrong:?}");
        }
    }
}
