//! Log-probabilities of an answer's tokens, and how each endpoint writes them.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::endpoint::Endpoint;

/// One token of an answer, for a client that asks for log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredToken {
    /// The token.
    pub own: Score,
    /// The most likely tokens in its place, in descending order; it may be one of them.
    pub most_likely: Vec<Score>,
    /// Characters of the answer's text before the token's own.
    pub text_offset: usize,
}

/// What a token stands for, and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The bytes of its text, which need not be whole characters.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// What stands for a probability of nothing, as JSON has no infinity. OpenAI and vLLM have it as well.
const LEAST: f32 = -9_999.0;

impl Score {
    fn logprob(&self) -> f32 {
        self.logprob.max(LEAST)
    }

    /// The token as a string: what is no character of UTF-8 is written as `\xe4`.
    fn name(&self, prefix: &str) -> String {
        let mut name = String::new();
        for chunk in self.bytes.utf8_chunks() {
            name.push_str(chunk.valid());
            for byte in chunk.invalid() {
                name.push_str(&format!("\\x{byte:02x}"));
            }
        }
        match std::str::from_utf8(&self.bytes) {
            Ok(_) => name,
            Err(_) => format!("{prefix}{name}"),
        }
    }

    /// As the endpoint for completions has it, where there are no bytes beside it.
    fn text_name(&self) -> String {
        self.name("bytes:")
    }
}

/// The `logprobs` of a choice.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum LogprobsBody<'a> {
    Chat {
        content: Vec<ChatToken<'a>>,
        refusal: Option<()>,
    },
    Completion {
        tokens: Vec<String>,
        token_logprobs: Vec<f32>,
        top_logprobs: Vec<TopLogprobs<'a>>,
        text_offset: Vec<usize>,
    },
}

impl<'a> LogprobsBody<'a> {
    pub(super) fn of(endpoint: Endpoint, tokens: &'a [ScoredToken]) -> Self {
        match endpoint {
            Endpoint::Chat => Self::Chat {
                content: tokens.iter().map(ChatToken::of).collect(),
                refusal: None,
            },
            Endpoint::Completion => Self::Completion {
                tokens: tokens.iter().map(|token| token.own.text_name()).collect(),
                token_logprobs: tokens.iter().map(|token| token.own.logprob()).collect(),
                top_logprobs: tokens.iter().map(TopLogprobs).collect(),
                text_offset: tokens.iter().map(|token| token.text_offset).collect(),
            },
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ChatToken<'a> {
    #[serde(flatten)]
    own: ChatScore<'a>,
    top_logprobs: Vec<ChatScore<'a>>,
}

#[derive(Debug, Serialize)]
struct ChatScore<'a> {
    token: String,
    logprob: f32,
    bytes: &'a [u8],
}

impl<'a> ChatToken<'a> {
    fn of(token: &'a ScoredToken) -> Self {
        Self {
            own: ChatScore::of(&token.own),
            top_logprobs: token.most_likely.iter().map(ChatScore::of).collect(),
        }
    }
}

impl<'a> ChatScore<'a> {
    fn of(score: &'a Score) -> Self {
        Self {
            token: score.name(""),
            logprob: score.logprob(),
            bytes: &score.bytes,
        }
    }
}

/// A map from token to log-probability: the most likely ones, and the token itself in any case. Of
/// tokens with the same text the most likely one counts.
#[derive(Debug)]
pub(super) struct TopLogprobs<'a>(&'a ScoredToken);

impl Serialize for TopLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ScoredToken {
            own, most_likely, ..
        } = self.0;
        let mut names: Vec<String> = Vec::with_capacity(most_likely.len() + 1);
        let mut map = serializer.serialize_map(None)?;
        for score in most_likely.iter().chain([own]) {
            let name = score.text_name();
            if !names.contains(&name) {
                map.serialize_entry(&name, &score.logprob())?;
                names.push(name);
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn score(bytes: &[u8], logprob: f32) -> Score {
        Score {
            bytes: bytes.to_vec(),
            logprob,
        }
    }

    fn tokens() -> Vec<ScoredToken> {
        let whole = ScoredToken {
            own: score(b" a\"", -0.5),
            most_likely: vec![score(b"b", -0.25), score(b" a\"", -0.5), score(b"b", -3.0)],
            text_offset: 4,
        };
        let part = ScoredToken {
            own: score(b" \xe4\xb8", f32::NEG_INFINITY),
            most_likely: vec![score(b"c", 0.0)],
            text_offset: 7,
        };
        vec![whole, part]
    }

    fn written(endpoint: Endpoint) -> serde_json::Value {
        serde_json::to_value(LogprobsBody::of(endpoint, &tokens())).unwrap()
    }

    #[test]
    fn a_chat_has_bytes_beside_each_token() {
        let content = &written(Endpoint::Chat)["content"];
        assert_eq!(content[0]["token"], " a\"");
        assert_eq!(content[0]["logprob"], -0.5);
        assert_eq!(content[0]["bytes"], json!([32, 97, 34]));
        assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 3);
        let first = json!({"token": "b", "logprob": -0.25, "bytes": [98]});
        assert_eq!(content[0]["top_logprobs"][0], first);
        assert_eq!(content[1]["token"], " \\xe4\\xb8");
        assert_eq!(content[1]["bytes"], json!([32, 0xe4, 0xb8]));
        assert_eq!(content[1]["logprob"], -9_999.0);
    }

    #[test]
    fn a_completion_has_four_lists_and_no_name_twice() {
        let written = written(Endpoint::Completion);
        assert_eq!(written["tokens"], json!([" a\"", "bytes: \\xe4\\xb8"]));
        assert_eq!(written["token_logprobs"], json!([-0.5, -9_999.0]));
        assert_eq!(written["text_offset"], json!([4, 7]));
        let text = serde_json::to_string(&LogprobsBody::of(Endpoint::Completion, &tokens()));
        assert_eq!(text.unwrap().matches("\"b\":").count(), 1);
        assert_eq!(
            written["top_logprobs"][0],
            json!({"b": -0.25, " a\"": -0.5})
        );
        // The token itself is there, also where it is not among the most likely.
        let second = json!({"c": 0.0, "bytes: \\xe4\\xb8": -9_999.0});
        assert_eq!(written["top_logprobs"][1], second);
    }
}
