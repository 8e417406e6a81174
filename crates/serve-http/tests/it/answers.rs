//! What a good request is answered with.

use serde_json::{Value, json};
use serve_core::TokenId;
use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_http::EdgeSettings;
use serve_http::text::{MockText, Text};

use crate::support::{
    Event, LIMITS, Script, Server, chunks, serving, streamed_text, tokens_in, user,
};

async fn saying(answer: &str) -> Server {
    serving(Script::saying(answer), EdgeSettings::default()).await
}

#[tokio::test]
async fn a_chat_in_one_body() {
    let server = saying("Hello, wörld").await;
    let body = json!({"model": "mock", "messages": user("hi")});
    let answer = server.post("/v1/chat/completions", body).await;
    assert_eq!(answer.status, 200);
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["model"], "mock");
    let choice = &body["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "Hello, wörld");
    assert_eq!(choice["finish_reason"], "stop");
    let prompt = tokens_in("user: hi\nassistant:");
    assert_eq!(body["usage"]["prompt_tokens"], prompt);
    assert_eq!(body["usage"]["completion_tokens"], 13);
    assert_eq!(body["usage"]["total_tokens"], prompt + 13);
    server.settled().await;
}

#[tokio::test]
async fn a_completion_in_one_body() {
    let server = saying("abcdef").await;
    let body = json!({"prompt": "x", "max_tokens": 4});
    let body = server.post("/v1/completions", body).await.json();
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["choices"][0]["text"], "abcd");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["usage"]["completion_tokens"], 4);
}

#[tokio::test]
async fn a_completion_is_sixteen_tokens_unless_told_otherwise() {
    let server = saying(&"a".repeat(40)).await;
    let body = server
        .post("/v1/completions", json!({"prompt": "x"}))
        .await
        .json();
    assert_eq!(body["usage"]["completion_tokens"], 16);
    let chat = json!({"messages": user("x")});
    let body = server.post("/v1/chat/completions", chat).await.json();
    assert_eq!(
        body["usage"]["completion_tokens"], 40,
        "a chat goes on to its end"
    );
}

#[tokio::test]
async fn the_first_chunk_of_a_chat_carries_role_and_text() {
    let server = saying("ab").await;
    let body = json!({"messages": user("hi"), "stream": true});
    let answer = server.post("/v1/chat/completions", body).await;
    assert_eq!(
        answer.headers["content-type"],
        "text/event-stream; charset=utf-8"
    );
    assert_eq!(answer.headers["cache-control"], "no-cache");
    let chunks = chunks(&answer.body);
    let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
    assert_eq!(
        choices[0]["delta"],
        json!({"role": "assistant", "content": "a"})
    );
    assert_eq!(choices[1]["delta"], json!({"content": "b"}));
    assert_eq!(choices[2]["delta"], json!({}));
    assert_eq!(choices[0]["finish_reason"], Value::Null);
    assert_eq!(choices[2]["finish_reason"], "stop");
    assert_eq!(choices.len(), 3);
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert!(chunk.get("usage").is_none(), "nobody asked for it");
    }
}

#[tokio::test]
async fn an_empty_chat_still_names_the_role() {
    let server = saying("").await;
    let body = json!({"messages": user("hi"), "stream": true});
    let answer = server.post("/v1/chat/completions", body).await;
    let chunks = chunks(&answer.body);
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert_eq!(chunks[1]["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn usage_comes_last_and_only_when_asked_for() {
    let server = saying("abc").await;
    let body = json!({"prompt": "x", "stream": true, "stream_options": {"include_usage": true}});
    let chunks = chunks(&server.post("/v1/completions", body).await.body);
    let (last, before) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["prompt_tokens"], 1);
    assert_eq!(last["usage"]["completion_tokens"], 3);
    assert!(before.iter().all(|chunk| chunk["usage"] == Value::Null));
    assert_eq!(streamed_text(before), "abc");
}

#[tokio::test]
async fn usage_is_in_every_chunk_where_that_is_asked_for() {
    let server = saying("abc").await;
    for (path, ask) in [
        ("/v1/completions", json!({"prompt": "x"})),
        ("/v1/chat/completions", json!({"messages": user("x")})),
    ] {
        let mut body = ask;
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let chunks = chunks(&server.post(path, body.clone()).await.body);
        let tokens = chunks
            .iter()
            .map(|chunk| &chunk["usage"]["completion_tokens"]);
        assert_eq!(tokens.collect::<Vec<_>>(), [1, 2, 3, 3, 3], "{path}");
        for usage in chunks.iter().map(|chunk| &chunk["usage"]) {
            let of = |name: &str| usage[name].as_u64().unwrap();
            let sum = of("prompt_tokens") + of("completion_tokens");
            assert_eq!(of("total_tokens"), sum, "{usage}");
        }
        let (last, _) = chunks.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        // Alone it asks for nothing, as in vLLM.
        body["stream_options"] = json!({"continuous_usage_stats": true});
        let answer = server.post(path, body).await;
        assert!(!answer.body.contains("usage"));
    }
}

#[tokio::test]
async fn a_character_of_many_tokens_is_never_split() {
    let text = "naïve 🎉 世界";
    let server = saying(text).await;
    let body = json!({"prompt": "x", "max_tokens": 100, "stream": true});
    let chunks = chunks(&server.post("/v1/completions", body).await.body);
    assert_eq!(streamed_text(&chunks), text);
    let pieces = chunks
        .iter()
        .filter(|chunk| chunk["choices"][0]["text"] != "");
    assert_eq!(
        pieces.count(),
        text.chars().count(),
        "one chunk for each character"
    );
}

#[tokio::test]
async fn a_character_that_is_cut_off_is_replaced() {
    let server = saying("aé").await;
    let body = json!({"prompt": "x", "max_tokens": 2});
    let body = server.post("/v1/completions", body).await.json();
    assert_eq!(body["choices"][0]["text"], "a\u{FFFD}");
}

#[tokio::test]
async fn a_stop_string_across_tokens_ends_the_answer_before_it() {
    let server = saying("one two THE END three").await;
    for stream in [false, true] {
        let body = json!({"messages": user("x"), "stop": ["nope", "THE END"], "stream": stream});
        let answer = server.post("/v1/chat/completions", body).await;
        let (text, finish) = if stream {
            let chunks = chunks(&answer.body);
            let finish = chunks.last().unwrap()["choices"][0]["finish_reason"].clone();
            (streamed_text(&chunks), finish)
        } else {
            let body = answer.json();
            assert_eq!(body["usage"]["completion_tokens"], 15);
            let choice = &body["choices"][0];
            let text = choice["message"]["content"].as_str().unwrap().to_owned();
            (text, choice["finish_reason"].clone())
        };
        assert_eq!(text, "one two ");
        assert_eq!(finish, "stop");
        server.settled().await;
    }
}

#[tokio::test]
async fn the_beginning_of_a_stop_string_at_the_end_is_text() {
    let server = saying("so it is EN").await;
    let body = json!({"messages": user("x"), "stop": "END"});
    let body = server.post("/v1/chat/completions", body).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "so it is EN");
}

/// No text ever shows `<end>`: as a stop string it means the token, whatever else ends an answer.
#[tokio::test]
async fn a_stop_string_that_is_markup_means_the_token() {
    let server = serving(Script::saying("abc"), EdgeSettings::default()).await;
    for stop in [json!("<end>"), json!(["nope", "<end>"])] {
        for stream in [false, true] {
            let body = json!({
                "prompt": "x", "max_tokens": 9, "ignore_eos": true, "stop": stop, "stream": stream
            });
            let answer = server.post("/v1/completions", body).await;
            let (text, finish) = match stream {
                true => {
                    let chunks = chunks(&answer.body);
                    let finish = chunks
                        .iter()
                        .find_map(|it| it["choices"][0]["finish_reason"].as_str());
                    (streamed_text(&chunks), finish.unwrap().to_owned())
                }
                false => {
                    let choice = answer.json()["choices"][0].clone();
                    let finish = choice["finish_reason"].as_str().unwrap().to_owned();
                    (choice["text"].as_str().unwrap().to_owned(), finish)
                }
            };
            assert_eq!((&*text, &*finish), ("abc", "stop"), "{stop} {stream}");
        }
    }
}

#[tokio::test]
async fn a_stop_token_is_no_text_and_may_be_ignored() {
    let server = saying("ab").await;
    let body = json!({"prompt": "x", "max_tokens": 5});
    let body = server.post("/v1/completions", body).await.json();
    assert_eq!(body["usage"]["completion_tokens"], 2);
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let body = json!({"prompt": "x", "max_tokens": 5, "ignore_eos": true});
    let body = server.post("/v1/completions", body).await.json();
    assert_eq!(body["usage"]["completion_tokens"], 5);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn all_forms_of_a_prompt_mean_the_same() {
    let server = saying("a").await;
    let ids = MockText::new().encode(" bade!").unwrap();
    let ids: Vec<u32> = ids.iter().map(|id| id.get()).collect();
    for prompt in [json!(" bade!"), json!([" bade!"]), json!(ids)] {
        let body = json!({"prompt": prompt});
        let body = server.post("/v1/completions", body).await.json();
        assert_eq!(body["usage"]["prompt_tokens"], 2);
    }
}

#[tokio::test]
async fn text_parts_and_every_role_are_read() {
    let server = saying("a").await;
    let messages = json!([
        {"role": "developer", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "y", "refusal": null, "tool_calls": null},
        {"role": "tool", "content": "z", "tool_call_id": "call_1"},
        {"role": "user", "content": "w", "name": "Ann"},
    ]);
    let answer = server
        .post("/v1/chat/completions", json!({"messages": messages}))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let rendered = "system: x\nuser: a\nb\nassistant: y\ntool: z\nuser: w\nassistant:";
    assert_eq!(answer.json()["usage"]["prompt_tokens"], tokens_in(rendered));
}

#[tokio::test]
async fn parameters_that_change_nothing_are_accepted() {
    let server = saying("a").await;
    let body = json!({
        "model": "mock", "messages": user("x"), "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0,
        "logit_bias": {}, "logprobs": false, "tools": [], "tool_choice": "none", "user": "u-1",
        "metadata": {"a": "b"}, "store": false, "response_format": {"type": "text"}, "stop": null,
        "temperature": null, "max_tokens": 5, "max_completion_tokens": 5, "top_k": -1, "min_p": 0,
        "seed": -7, "service_tier": "auto", "parallel_tool_calls": true, "chat_template_kwargs": {},
    });
    let answer = server.post("/v1/chat/completions", body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[tokio::test]
async fn a_backend_error_is_a_server_error_and_the_next_request_runs() {
    let (script, gate) = Script::saying("abc").gated();
    gate.send(crate::support::Word::Run).unwrap();
    gate.send(crate::support::Word::Run).unwrap();
    let server = serving(script, EdgeSettings::default()).await;
    gate.send(crate::support::Word::Fail).unwrap();
    let body = json!({"prompt": "x"});
    let answer = server.post("/v1/completions", body.clone()).await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.json()["error"]["code"], "backend_error");
    drop(gate);
    let answer = server.post("/v1/completions", body).await;
    assert_eq!(answer.json()["choices"][0]["text"], "abc");
    server.settled().await;
}

#[tokio::test]
async fn an_error_in_mid_stream_is_an_event_and_the_last_one() {
    let (script, gate) = Script::saying("abc").gated();
    for _ in 0..4 {
        gate.send(crate::support::Word::Run).unwrap();
    }
    gate.send(crate::support::Word::Fail).unwrap();
    let server = serving(script, EdgeSettings::default()).await;
    let answer = server
        .post("/v1/completions", json!({"prompt": "x", "stream": true}))
        .await;
    assert_eq!(answer.status, 200, "the stream had begun");
    let events = answer.events();
    assert_eq!(events.len(), 3, "{}", answer.body);
    let Event::Data(last) = &events[2] else {
        panic!("{}", answer.body)
    };
    assert_eq!(last["error"]["code"], "backend_error");
}

#[tokio::test]
async fn the_mock_backend_writes_the_same_words_for_the_same_request() {
    let config = MockConfig {
        limits: LIMITS,
        cost: CostModel::free(),
        vocabulary: MockText::WORDS,
        ..MockConfig::default()
    };
    let mut texts = Vec::new();
    for _ in 0..2 {
        let server = serving(Mock::new(config.clone()), EdgeSettings::default()).await;
        let body = json!({"prompt": "x", "max_tokens": 8, "stream": true});
        let chunks = chunks(&server.post("/v1/completions", body).await.body);
        texts.push(streamed_text(&chunks));
        server.settled().await;
    }
    assert_eq!(texts[0], texts[1]);
    assert_eq!(tokens_in(&texts[0]), 8);
}

#[tokio::test]
async fn many_at_once_are_all_answered() {
    let server = serving(
        Script::tokens((0..20).map(TokenId::new).collect()),
        EdgeSettings::default(),
    )
    .await;
    let body = json!({"prompt": "x", "max_tokens": 20, "stream": true});
    let all = (0..40).map(|_| server.post("/v1/completions", body.clone()));
    let answers = futures::future::join_all(all).await;
    let texts: Vec<String> = answers
        .iter()
        .map(|answer| streamed_text(&chunks(&answer.body)))
        .collect();
    assert!(
        texts
            .iter()
            .all(|text| *text == texts[0] && tokens_in(text) == 20)
    );
    server.settled().await;
}

#[tokio::test]
async fn models_are_listed_with_what_they_hold() {
    let server = saying("a").await;
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "mock");
    for name in ["context_length", "max_model_len"] {
        assert_eq!(list["data"][0][name], LIMITS.context_max);
    }
    assert_eq!(server.get("/v1/models/mock").await.json(), list["data"][0]);
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let server = saying("a").await;
    let fresh = server.get("/nowhere").await;
    assert!(
        fresh.headers["x-request-id"]
            .to_str()
            .unwrap()
            .starts_with("req-")
    );
    let request = |id: &str| {
        let request = axum::http::Request::get("/health").header("x-request-id", id);
        request.body(axum::body::Body::empty()).unwrap()
    };
    let echoed = server.send(request("mine-42")).await;
    assert_eq!(echoed.headers["x-request-id"], "mine-42");
    let replaced = server.send(request("two words")).await;
    assert_ne!(replaced.headers["x-request-id"], "two words");
}

#[tokio::test]
async fn the_page_is_one_file_with_no_foreign_parts() {
    let server = saying("a").await;
    let page = server.get("/").await;
    assert_eq!(page.status, 200);
    assert!(
        page.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/html")
    );
    assert!(!page.body.contains("http://") && !page.body.contains("https://"));
}
