//! A command line as it may be kept and shown: without what is secret in it.
//!
//! A manifest is made to be committed and a report to be sent around, so neither can be built from a command line that
//! still holds a key. What is hidden goes by its name (`--api-key`, `HF_TOKEN=`, `Authorization:`) or by its place (the
//! user and the password of an address, and what follows its question mark). A path that only looks like one of these
//! is hidden too.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

/// What stands where a secret stood.
const HIDDEN: &str = "***";

/// The last words of names whose values are secret.
const SECRETS: [&str; 12] = [
    "key",
    "apikey",
    "token",
    "secret",
    "password",
    "passwd",
    "pwd",
    "auth",
    "authorization",
    "bearer",
    "cookie",
    "credentials",
];

/// The arguments of a program, the program first. Secrets are gone from it, also from one that an older file held.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(from = "Vec<String>")]
pub struct CommandLine(Vec<String>);

impl CommandLine {
    /// That of this process.
    pub fn of_this_process() -> Self {
        let args = std::env::args_os();
        args.map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    /// The arguments.
    pub fn args(&self) -> &[String] {
        &self.0
    }
}

impl From<Vec<String>> for CommandLine {
    fn from(args: Vec<String>) -> Self {
        args.into_iter().collect()
    }
}

impl FromIterator<String> for CommandLine {
    fn from_iter<T: IntoIterator<Item = String>>(args: T) -> Self {
        let mut names_a_secret = false;
        let args = args.into_iter().map(|arg| {
            let is_value =
                std::mem::replace(&mut names_a_secret, arg.starts_with('-') && is_secret(&arg));
            match is_value {
                true => HIDDEN.to_owned(),
                false => without_secrets(&arg),
            }
        });
        Self(args.collect())
    }
}

/// The arguments with spaces between them.
impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

/// A text without the values of names that are secret, and without who asks in its addresses.
pub(crate) fn without_secrets(text: &str) -> String {
    let address = |word: &str| without_credentials(word);
    let text = text.split(' ').map(address).collect::<Vec<_>>().join(" ");
    let separators = text.match_indices([':', '=', ' ']);
    for (at, _) in separators {
        let (name, value) = (&text[..at], &text[at + 1..]);
        // `https:` of an address is no name, whatever stands before it.
        if !value.is_empty() && !value.starts_with("//") && is_secret(name) {
            let space = if value.starts_with(' ') { " " } else { "" };
            return format!("{}{space}{HIDDEN}", &text[..=at]);
        }
    }
    text
}

/// An address as an older file may hold it.
pub(crate) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|address| without_secrets(&address))
}

/// An address without user, password and query.
fn without_credentials(word: &str) -> String {
    let scheme = word.find("://").map(|at| at + 3);
    if let (Some(start), Some(query)) = (scheme, word.find('?')) {
        // A password may hold a question mark, and a query an `@`.
        let sure = match word[query..].contains('@') {
            true => &word[..start],
            false => &word[..=query],
        };
        return format!("{}{HIDDEN}", without_user(sure, scheme));
    }
    without_user(word, scheme)
}

fn without_user(word: &str, scheme: Option<usize>) -> String {
    match word.rfind('@') {
        Some(at) if scheme.is_some() || word[..at].contains(':') => {
            let start = scheme.or_else(|| word[..at].find('=').map(|at| at + 1));
            format!(
                "{}{HIDDEN}{}",
                &word[..start.unwrap_or(0).min(at)],
                &word[at..]
            )
        }
        _ => word.to_owned(),
    }
}

/// Whether a text ends with a name whose value is secret. The last word of a name says what the value is: an
/// `api_key_file` is a path, a `first_token_budget` a number.
fn is_secret(text: &str) -> bool {
    let text = text.trim_end_matches(['"', '\'']);
    let word = text.rsplit(|c: char| !c.is_ascii_alphanumeric()).next();
    let word = word.unwrap_or_default().to_ascii_lowercase();
    let camel = |secret: &str| {
        ["api", "access", "auth"]
            .iter()
            .any(|before| word == format!("{before}{secret}"))
    };
    SECRETS.contains(&word.as_str()) || SECRETS.iter().any(|secret| camel(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &[&str]) -> String {
        let args = line.iter().map(|arg| (*arg).to_owned());
        args.collect::<CommandLine>().to_string()
    }

    #[test]
    fn no_way_to_give_a_secret_is_kept() {
        for line in [
            &["--api-key", "sk-S3CR3T"][..],
            &["--api-key=sk-S3CR3T"],
            &["--api-key", "--sk-S3CR3T"],
            &["--API_KEY=sk-S3CR3T"],
            &["--with", "hf_token=sk-S3CR3T"],
            &["--with=api-key=sk-S3CR3T"],
            &["HF_TOKEN=sk-S3CR3T"],
            &["--hf-token", "sk-S3CR3T"],
            &["-H", "Authorization: Bearer sk-S3CR3T"],
            &["-H", "authorization:Bearer sk-S3CR3T"],
            &["--header=x-api-key: sk-S3CR3T"],
            &["--header", "Cookie: id=sk-S3CR3T"],
            &["Bearer sk-S3CR3T"],
            &["--extra", r#"{"api_key": "sk-S3CR3T"}"#],
            &["--extra", r#"{"apiKey":"sk-S3CR3T"}"#],
            &["--url", "http://user:sk-S3CR3T@host:8000/v1"],
            &["--url=https://user:sk-S3CR3T@host"],
            &["--url=http://sk-S3CR3T@host"],
            &["--url", "http://user:a@sk-S3CR3T@host"],
            &["--url", "http://user:a/sk-S3CR3T@host"],
            &["--url", "user:sk-S3CR3T@host:8000"],
            &["--url=user:sk-S3CR3T@host:8000"],
            &["--url", "http://host/v1?key=sk-S3CR3T"],
            &["--url", "http://host?sig=sk-S3CR3T&mail=a@b&x=sk-S3CR3T"],
            &["--url", "http://user:sk-S3CR3T?sk-S3CR3T@host"],
            &["http://a:b@one,http://c:sk-S3CR3T@two"],
        ] {
            let shown = shown(line);
            assert!(!shown.contains("S3CR3T"), "{line:?}: {shown}");
            assert!(shown.contains(HIDDEN), "{line:?}: {shown}");
            let stored = serde_json::to_string(&line).unwrap();
            let read: CommandLine = serde_json::from_str(&stored).unwrap();
            assert_eq!(
                read.to_string(),
                shown,
                "an older manifest is read like a new one"
            );
        }
    }

    #[test]
    fn everything_else_is_kept() {
        for line in [
            &[
                "serve-bench",
                "run",
                "--rate",
                "4",
                "--max-tokens",
                "64",
                "--dir",
                "runs/a b",
            ][..],
            &[
                "--url",
                "http://127.0.0.1:8000/v1",
                "--model",
                "org/model:latest",
            ],
            &[
                "--with",
                "first_token_budget=500",
                "--with",
                "keys=light,flood",
            ],
            &[
                "--with",
                "api_key_file=keys.toml",
                "--slo-ttft-ms=750",
                "--pass",
                "0.99",
            ],
            &[
                "--model",
                "\u{6a21}\u{578b}",
                "--with",
                "\u{e9}=1",
                "\u{e9}",
            ],
            &["--api-key"],
            &["--api-key="],
        ] {
            assert_eq!(shown(line), line.join(" "));
        }
        let around = shown(&[
            "run",
            "--api-key",
            "x",
            "--url",
            "http://u:p@host:80/v1",
            "--seed",
            "4",
        ]);
        assert_eq!(
            around,
            "run --api-key *** --url http://***@host:80/v1 --seed 4"
        );
    }
}
