//! `serve --model ORG/NAME`: fetched from a hub with what it prints on the way, then from the cache.

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as UrlPath, Request};
use axum::http::{Response, StatusCode, header};
use axum::routing::get;
use serde_json::json;

use crate::process::Process;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one model, `novels/austen`.
fn hub(files: Vec<(String, Vec<u8>)>) -> Router {
    let files = Arc::new(files);
    let siblings = files.iter();
    let siblings = siblings.map(|(name, bytes)| json!({"rfilename": name, "size": bytes.len()}));
    let described = json!({"sha": COMMIT, "siblings": siblings.collect::<Vec<_>>()}).to_string();
    let file = move |UrlPath(name): UrlPath<String>, request: Request| {
        let files = Arc::clone(&files);
        async move {
            let bytes = files.iter().find(|(file, _)| *file == name);
            bytes
                .map(|(name, bytes)| part(name, bytes, &request))
                .ok_or(StatusCode::NOT_FOUND)
        }
    };
    Router::new()
        .route(
            "/api/models/novels/austen/revision/main",
            get(async || described),
        )
        .route(
            &format!("/novels/austen/resolve/{COMMIT}/{{name}}"),
            get(file),
        )
}

/// The part of a file that is asked for.
fn part(name: &str, bytes: &[u8], request: &Request) -> Response<Body> {
    let range = request
        .headers()
        .get(header::RANGE)
        .unwrap()
        .to_str()
        .unwrap();
    let (start, end) = range
        .strip_prefix("bytes=")
        .unwrap()
        .split_once('-')
        .unwrap();
    let start: usize = start.parse().unwrap();
    let end = end
        .parse()
        .map_or(bytes.len(), |last: usize| last + 1)
        .min(bytes.len());
    Response::builder()
        .status(StatusCode::PARTIAL_CONTENT)
        .header("X-Repo-Commit", COMMIT)
        .header(header::ETAG, format!("\"etag-{}\"", name.replace('.', "-")))
        .header(
            header::CONTENT_RANGE,
            format!("bytes {start}-{}/{}", end - 1, bytes.len()),
        )
        .body(Body::from(bytes[start..end].to_vec()))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_on_the_hub_is_fetched_once() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../serve-model/models/austen-2m");
    let paths = std::fs::read_dir(folder).unwrap();
    let paths = paths.map(|file| file.unwrap().path());
    let files = paths.filter(|path| path.is_file()).map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read(path).unwrap())
    });
    let hub = hub(files.collect());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let running = tokio::spawn(async { axum::serve(listener, hub).await });

    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub-home");
    let _ = std::fs::remove_dir_all(&home);
    let variables = [
        ("HF_HOME", home.to_str().unwrap()),
        ("HF_ENDPOINT", &endpoint),
    ];
    let args = ["--model", "novels/austen", "--log", "warn"];
    let start = async || {
        let mut process = Process::start_with(&args, &variables);
        let list = reqwest::get(process.url("/v1/models")).await.unwrap();
        let list: serde_json::Value = list.json().await.unwrap();
        assert_eq!(list["data"][0]["id"], "novels/austen");
        process.signal("TERM");
        process.wait().stderr
    };
    let stderr = start().await;
    assert!(
        stderr.contains("fetching novels/austen (main) from http://"),
        "{stderr}"
    );
    assert!(
        stderr.contains("model.safetensors: 100% of 3.8 MiB"),
        "{stderr}"
    );
    running.abort();
    let _ = running.await;
    let stderr = start().await;
    assert!(
        !stderr.contains("model.safetensors: "),
        "nothing is fetched again: {stderr}"
    );

    let unknown = ["--model", "novels/bronte", "--port", "0"];
    let ended = Process::spawn(
        &unknown,
        &[("HF_HOME", variables[0].1), ("HF_HUB_OFFLINE", "1")],
    )
    .wait();
    assert_eq!(ended.status.code(), Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("novels/bronte"), "{}", ended.stderr);
}
