//! What has to hold for any input: request bodies, headers, and the framing of any answer. `cargo fuzz`
//! runs the three functions on inputs that it makes up (see `fuzz/`), the tests here on mutations of
//! good ones from fixed seeds. The settings file has its own in the binary.

use axum::http::HeaderValue;
use serde_json::{Value, json};
use serve_core::{Class, TenantId};
use serve_http::EdgeSettings;
use serve_http::api::{ChatRequest, CompletionRequest};
use serve_http::auth::{Identity, KeyHash, Keys};
use serve_http::error::Problem;
use serve_http::text::MockText;

use crate::support::{LIMITS, Script, Server, chunks, post, serving, streamed_text};

/// A body is a request or a problem that can be told: a 400 with a message of bounded length.
pub(crate) fn bodies(data: &[u8]) {
    let chat = ChatRequest::parse(data).err();
    let completion = CompletionRequest::parse(data).err();
    for problem in [chat, completion].into_iter().flatten() {
        tellable(&problem);
    }
}

fn tellable(problem: &Problem) {
    assert_eq!(problem.kind().status, 400, "{problem}");
    let body = serde_json::to_vec(&problem.body());
    assert!(body.is_ok_and(|body| body.len() < 16 << 10), "{problem}");
}

/// Whatever the headers say, the answer is 200 or says what is wrong with them.
pub(crate) fn headers(data: &[u8]) {
    const NAMES: [&str; 7] = [
        "authorization",
        "content-type",
        "idempotency-key",
        "x-request-class",
        "x-request-id",
        "x-request-queue-timeout-ms",
        "x-request-timeout-ms",
    ];
    let mut request = post("/v1/completions", json!({"prompt": "x"}).to_string());
    for line in data.split(|&byte| byte == b'\n') {
        let [name, value @ ..] = line else { continue };
        let name = NAMES[usize::from(*name) % NAMES.len()];
        // What no HTTP parser lets through does not get here.
        if let Ok(value) = HeaderValue::from_bytes(value) {
            request.headers_mut().append(name, value);
        }
    }
    let identity = Identity {
        tenant: TenantId::new(1),
        class: Class::new(1),
    };
    let settings = EdgeSettings {
        keys: Keys::default().with(KeyHash::of("key"), identity),
        ..EdgeSettings::default()
    };
    block_on(async {
        let server = serving(Script::saying("a"), settings).await;
        let answer = server.send(request).await;
        let status = answer.status.as_u16();
        let expected = [200, 400, 401, 403, 415, 429, 503, 504];
        assert!(expected.contains(&status), "{status}: {}", answer.body);
        if status != 200 {
            assert!(
                answer.json()["error"]["code"].is_string(),
                "{}",
                answer.body
            );
        }
        let id = answer.headers["x-request-id"].as_bytes();
        assert!(id.iter().all(u8::is_ascii_graphic), "{id:?}");
    });
}

/// Whatever a model says, a strict reader of server-sent events reads the same text back that the
/// answer in one piece has.
pub(crate) fn framing(data: &[u8]) {
    let answer = &data[..data.len().min(64)];
    let tokens = answer.iter().map(|&byte| MockText::byte(byte)).collect();
    block_on(async {
        let server = serving(
            Script::tokens(tokens).within(LIMITS),
            EdgeSettings::default(),
        )
        .await;
        let whole = ask(&server, false).await;
        let whole: Value = serde_json::from_str(&whole).unwrap_or_default();
        let stream = ask(&server, true).await;
        assert_strict(&stream);
        let streamed = streamed_text(&chunks(&stream));
        assert_eq!(whole["choices"][0]["text"], streamed, "{answer:?}");
    });
}

async fn ask(server: &Server, stream: bool) -> String {
    let body = json!({"prompt": "x", "max_tokens": 64, "stream": stream});
    let answer = server.post("/v1/completions", body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// Only `data` fields of one line each, with a blank line after each (WHATWG HTML, section 9.2).
fn assert_strict(stream: &str) {
    assert!(!stream.contains('\r'), "{stream:?}");
    let mut lines = stream.split('\n');
    while let Some(line) = lines.next() {
        if line.is_empty() {
            assert_eq!(lines.next(), None, "{stream:?}");
            return;
        }
        assert!(line.starts_with("data: "), "{line:?}");
        assert_eq!(lines.next(), Some(""), "{stream:?}");
    }
}

fn block_on(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(future),
        Err(error) => panic!("no runtime: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use serve_core::rng::Rng;

    use super::*;

    /// Runs `check` on mutations of `seeds`.
    fn mutated(seed: u64, cases: u32, seeds: &[&str], check: impl Fn(&[u8])) {
        const PIECES: [&str; 12] = [
            "{", "}", "[", "]", "\"", ",", ":", "\\u0000", "1e999", "null", "\n", "\u{2028}",
        ];
        let mut rng = Rng::new(seed);
        for text in seeds {
            check(text.as_bytes());
        }
        for _ in 0..cases {
            let mut data = seeds[rng.below(seeds.len() as u64) as usize]
                .as_bytes()
                .to_vec();
            for _ in 0..=rng.below(5) {
                let at = rng.below(data.len() as u64 + 1) as usize;
                match rng.below(5) {
                    0 if at < data.len() => data[at] = rng.below(256) as u8,
                    1 if at < data.len() => drop(data.remove(at)),
                    2 => data.truncate(at),
                    3 => {
                        let other = seeds[rng.below(seeds.len() as u64) as usize].as_bytes();
                        let cut = rng.below(other.len() as u64 + 1) as usize;
                        data.truncate(at);
                        data.extend_from_slice(&other[cut..]);
                    }
                    _ => {
                        let piece = PIECES[rng.below(12) as usize];
                        data.splice(at..at, piece.bytes());
                    }
                }
            }
            check(&data);
        }
    }

    #[test]
    fn any_body_is_a_request_or_a_problem_that_can_be_told() {
        let seeds = [
            r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"messages":[{"role":"system","content":[{"type":"text","text":"a"}]},{"role":"tool","content":"x","name":"n"}],"max_tokens":5}"#,
            r#"{"prompt":"x","max_tokens":3,"stop":["a","b"],"temperature":0.5,"top_p":0.9,"top_k":-1,"seed":-7,"min_p":0.1}"#,
            r#"{"prompt":[1,2,3],"timeout_ms":5,"queue_timeout_ms":9,"request_class":"free","ignore_eos":true,"n":1,"logit_bias":{}}"#,
        ];
        mutated(1, 20_000, &seeds, bodies);
        bodies(format!("{{\"{}\":1,\"prompt\":\"x\"}}", "k".repeat(100_000)).as_bytes());
        bodies(format!("{{\"prompt\":\"x\",\"stop\":\"{}\"}}", "k".repeat(100_000)).as_bytes());
        bodies(format!("{{\"prompt\":\"x\",\"seed\":{}}}", "9".repeat(100_000)).as_bytes());
        bodies("[".repeat(100_000).as_bytes());
    }

    #[test]
    fn any_headers_get_an_answer() {
        let seeds = [
            "aBearer key\nd\ne60000\nb",
            "\u{7}Bearer key\n\u{1}application/json\n\u{2}abc\n\u{3}free\n\u{4}id\n\u{5}50\n\u{6}60000",
            "\u{7}bearer key\n\u{2}abc\n\u{2}abd",
            "\u{7}Bearer key\n\u{3}paid",
        ];
        mutated(2, 600, &seeds, headers);
    }

    #[test]
    fn any_answer_is_framed_so_that_it_reads_back() {
        let seeds = [
            "plain words",
            "two\n\nlines\r\n\rdata: [DONE]\n\n",
            "\u{feff}caf\u{e9} \u{2028}\u{2029}\u{85} \u{1f600}",
            "\"quotes\" \\ {\"json\": [1]}",
        ];
        mutated(3, 600, &seeds, framing);
    }
}
