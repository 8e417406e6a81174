//! Model folders that are not quite like the one inside the binary, served by the real one.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::process::Process;

/// A copy of the embedded model's folder, one of whose JSON files is changed.
fn changed(name: &str, file: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../serve-model/models/austen-2m");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("folder-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    for entry in std::fs::read_dir(original).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
    }
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let mut json = serde_json::from_str(&text).unwrap();
    change(&mut json);
    std::fs::write(folder.join(file), json.to_string()).unwrap();
    folder
}

async fn post(process: &Process, path: &str, body: &Value) -> (u16, Value) {
    let client = reqwest::Client::new();
    let answer = client.post(process.url(path)).json(body).send().await;
    let answer = answer.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test]
async fn a_completion_goes_on_where_its_prompt_ends() {
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    // The same words as those of the embedded model, put together as SentencePiece models do.
    let folder = changed("sentence-piece", "tokenizer.json", |tokenizer| {
        tokenizer["decoder"] = json!({"type": "Sequence", "decoders": [
            replace("Ġ", " "), replace("Ċ", "\n"), {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]});
    });
    let asked = json!({"prompt": "It is a truth universally acknowledged, that a young man", "max_tokens": 12,
        "temperature": 0, "logprobs": 0});
    let embedded = Process::start(&[]);
    let (_, expected) = post(&embedded, "/v1/completions", &asked).await;
    let expected = &expected["choices"][0];
    let text = expected["text"].as_str().unwrap();
    assert!(text.starts_with(' '), "{text:?}");

    let process = Process::start(&["--model", folder.to_str().unwrap()]);
    let (_, found) = post(&process, "/v1/completions", &asked).await;
    let found = &found["choices"][0];
    assert_eq!(found["text"], text);
    for part in ["tokens", "text_offset"] {
        assert_eq!(
            found["logprobs"][part], expected["logprobs"][part],
            "{part}"
        );
    }
    let tokens = found["logprobs"]["tokens"].as_array().unwrap();
    let joined: String = tokens.iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(joined, text);

    let mut stopped = asked.clone();
    stopped["stop"] = tokens[0].clone();
    let (_, found) = post(&process, "/v1/completions", &stopped).await;
    assert_eq!(found["choices"][0]["text"], "");
    assert_eq!(found["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn a_template_that_cannot_be_compiled_stops_chats_alone() {
    let folder = changed("template", "tokenizer_config.json", |config| {
        config["chat_template"] = json!("{% if %}");
    });
    let mut process = Process::start(&["--model", folder.to_str().unwrap()]);
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let (status, refused) = post(&process, "/v1/chat/completions", &chat).await;
    assert_eq!(status, 400, "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("has a syntax error in line 1"),
        "{message}"
    );
    let (status, _) = post(&process, "/v1/completions", &json!({"prompt": "A"})).await;
    assert_eq!(status, 200);
    process.signal("TERM");
    let stderr = process.wait().stderr;
    assert!(
        stderr.contains("chats are refused: the chat template"),
        "{stderr}"
    );
}

/// A template that is given holds for any model, also for one that has none that works; one that is wrong ends the
/// start by its name.
#[tokio::test]
async fn a_template_that_is_given_takes_the_place_of_the_models_own() {
    let broken = changed("given-template", "tokenizer_config.json", |config| {
        config["chat_template"] = json!("{% if %}");
    });
    let file = |name: &str, text: &str| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file(
        "good.jinja",
        "{% for message in messages %}{{ message.content }}{% endfor %}",
    );
    let text = "It is a truth universally acknowledged";
    let chat =
        json!({"messages": [{"role": "user", "content": text}], "max_tokens": 5, "temperature": 0});
    let completion = json!({"prompt": text, "max_tokens": 5, "temperature": 0});
    for model in ["austen-2m", broken.to_str().unwrap()] {
        let process = Process::start(&["--model", model, "--chat-template", &good]);
        let (status, answer) = post(&process, "/v1/chat/completions", &chat).await;
        assert_eq!(status, 200, "{answer}");
        let (_, expected) = post(&process, "/v1/completions", &completion).await;
        let said = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let goes_on = expected["choices"][0]["text"].as_str().unwrap();
        assert_eq!(said.trim_start(), goes_on.trim_start());
        let config = reqwest::get(process.url("/v1/config")).await.unwrap();
        let config: Value = config.json().await.unwrap();
        assert_eq!(config["chat_template"], good);
    }
    let endless = file(
        "endless.jinja",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    );
    let process = Process::start(&["--chat-template", &endless]);
    let (status, refused) = post(&process, "/v1/chat/completions", &chat).await;
    assert_eq!(status, 400, "{refused}");
    for (path, says) in [
        (
            file("wrong.jinja", "one\n{% if %}"),
            "has a syntax error in line 2",
        ),
        (
            "/nowhere/at-all.jinja".to_owned(),
            "it cannot be read: No such file",
        ),
        ("/dev/zero".to_owned(), "it is"),
    ] {
        let ended = Process::run(&["--port", "0", "--chat-template", &path]);
        assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
        let named = format!("--chat-template: {path}: ");
        assert_eq!(ended.stderr.matches(&path).count(), 1, "{}", ended.stderr);
        assert!(
            ended.stderr.contains(&named) && ended.stderr.contains(says),
            "{}",
            ended.stderr
        );
    }
    let ended = Process::run(&["--port", "0", "--backend", "mock", "--chat-template", &good]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
}
