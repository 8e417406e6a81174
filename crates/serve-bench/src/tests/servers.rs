//! Servers that are started for a measurement, or are there already.

use std::path::PathBuf;
use std::time::Duration;

use crate::experiments::servers::{Program, Server, ServerError, ServerSettings};

fn program(path: &str) -> Program {
    Program {
        path: PathBuf::from(path),
        load_timeout: Duration::from_secs(5),
    }
}

fn log(name: &str) -> PathBuf {
    super::scratch(name)
}

#[tokio::test]
async fn a_server_that_ends_at_once_is_quoted() {
    // A program that knows none of the flags.
    let settings: ServerSettings = "no_such_setting=1".parse().unwrap();
    let started = Server::start(&program("/bin/cat"), &settings, &log("ended.log")).await;
    let error = started.unwrap_err();
    assert!(matches!(error, ServerError::Ended { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("(no_such_setting=1)"), "{message}");
    assert!(message.contains("option"), "its own words: {message}");
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let missing = program("/nowhere/serve");
    let started = Server::start(&missing, &ServerSettings::default(), &log("missing.log")).await;
    let message = started.unwrap_err().to_string();
    assert!(message.starts_with("/nowhere/serve: "), "{message}");
}

#[tokio::test]
async fn nothing_is_known_of_a_server_that_shows_nothing() {
    let server = Server::attach("http://127.0.0.1:9/v1/").await;
    assert_eq!(server.url(), "http://127.0.0.1:9");
    assert!(server.effective().is_none());
}
