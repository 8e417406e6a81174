//! How much memory the real binary may take while clients send megabytes, whole, malformed and abandoned: a small
//! version of `cargo xtask attack`, with a bound that follows from the settings.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::process::Process;

const MIB: usize = 1 << 20;
const BODY_BYTES_MAX: usize = 2 * MIB;
const BODIES_BYTES_MAX: usize = 8 * MIB;

/// What is made of a body is at most so many times its length: of `7,` in a list, two bytes, a value of 32, twice
/// while the list grows, and what the allocator keeps of it.
const MADE_OF_A_BODY: usize = 64;

/// Clients at once.
fn clients() -> usize {
    40 * cores()
}

/// As many long bodies are worked on at once as half of these.
fn cores() -> usize {
    thread::available_parallelism()
        .map_or(2, usize::from)
        .max(2)
}

/// What the settings allow beside what the server has at rest.
fn allowed() -> usize {
    // Of all clients together, what lies in buffers between socket and body.
    let buffers = clients() * (256 << 10);
    BODIES_BYTES_MAX + cores() / 2 * MADE_OF_A_BODY * BODY_BYTES_MAX + buffers
}

/// Bodies of nearly as many bytes as one may have, and what each is.
fn bodies() -> Vec<(&'static str, &'static str, String)> {
    const COMPLETION: &str = "/v1/completions";
    const CHAT: &str = "/v1/chat/completions";
    let room = BODY_BYTES_MAX - 200;
    let prompt = |text: &str, more: &str| {
        let text = text.repeat(room / text.len());
        format!(r#"{{"prompt": "{text}"{more}}}"#)
    };
    let list = |item: &str| vec![item; room / (item.len() + 1)].join(",");
    let keys: String = (0..room / 14).map(|n| format!("\"k{n:07}\":0,")).collect();
    let empty = list(r#"{"role":"user","content":""}"#);
    let long = "x".repeat(room);
    vec![
        ("one letter", COMPLETION, prompt("a", "")),
        ("words", COMPLETION, prompt(" a", "")),
        ("escapes", COMPLETION, prompt("\\u0041", "")),
        ("cut off", COMPLETION, prompt("a", ", ")),
        ("followed by more", COMPLETION, prompt("a", "} {")),
        ("nested", COMPLETION, "[".repeat(room)),
        (
            "tokens",
            COMPLETION,
            format!(r#"{{"prompt": [{}]}}"#, list("7")),
        ),
        (
            "stops",
            COMPLETION,
            format!(r#"{{"prompt": "x", "stop": [{}]}}"#, list("\"a\"")),
        ),
        (
            "unknown keys",
            COMPLETION,
            format!(r#"{{"prompt": "x", {keys} "z": 1}}"#),
        ),
        (
            "empty messages",
            CHAT,
            format!(r#"{{"messages": [{empty}]}}"#),
        ),
        (
            "a template's variables",
            CHAT,
            format!(
                r#"{{"messages": [{{"role": "user", "content": "x"}}], "max_tokens": 2,
                    "chat_template_kwargs": {{"a": "{long}"}}}}"#
            ),
        ),
    ]
}

/// Sends the head of a body, and so many bytes of it.
fn send(address: &str, path: &str, body: &[u8], bytes: usize) -> std::io::Result<TcpStream> {
    let mut socket = TcpStream::connect(address)?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes())?;
    socket.write_all(&body[..bytes])?;
    Ok(socket)
}

/// The status of an answer; none where the connection broke first.
fn answer(mut socket: TcpStream) -> Option<u16> {
    let mut text = Vec::new();
    // What has come counts, even if the connection was reset after it.
    let _ = socket.read_to_end(&mut text);
    String::from_utf8_lossy(&text).get(9..12)?.parse().ok()
}

/// All clients send the same body at once: of four, two wait for their answer, one leaves when it has sent
/// everything, and one half-way. Returns the answers of those that wait.
fn storm(address: &str, path: &str, body: &[u8]) -> Vec<Option<u16>> {
    thread::scope(|scope| {
        let client = |index: usize| {
            scope.spawn(move || {
                let bytes = if index % 4 == 3 {
                    body.len() / 2
                } else {
                    body.len()
                };
                // One that is told early, and closed upon, has an answer all the same.
                let socket = send(address, path, body, bytes).ok()?;
                (index % 4 < 2).then(|| answer(socket)).flatten()
            })
        };
        let clients: Vec<_> = (0..clients()).map(client).collect();
        let joined = clients.into_iter().map(|client| client.join().unwrap());
        let waited = joined.enumerate().filter(|(index, _)| index % 4 < 2);
        waited.map(|(_, answer)| answer).collect()
    })
}

/// The answer to a client that has come after the storm, and comes again while it is told that there is no room.
fn alone(address: &str, path: &str, body: &[u8]) -> Option<u16> {
    let told = || answer(send(address, path, body, body.len()).ok()?);
    let mut tried = (0..600).map(|_| {
        let told = told();
        if told == Some(429) {
            thread::sleep(Duration::from_millis(100));
        }
        told
    });
    tried.find(|told| *told != Some(429)).flatten()
}

#[test]
fn megabytes_whole_malformed_and_abandoned_stay_below_what_the_settings_allow() {
    let server = Process::start(&[
        "--backend=mock",
        "--mock-speed=inf",
        "--log=error",
        &format!("--body-bytes-max={BODY_BYTES_MAX}"),
        &format!("--bodies-bytes-max={BODIES_BYTES_MAX}"),
    ]);
    let address = server.address();
    let address = address.trim_start_matches("http://");
    let at_rest = server.peak_resident_bytes();
    for (what, path, body) in bodies() {
        let mut answers = storm(address, path, body.as_bytes());
        // Those who wait may all have come while the memory was others': one more, until there is room for it.
        answers.push(alone(address, path, body.as_bytes()));
        let told = |status: u16| answers.contains(&Some(status));
        let known = answers
            .iter()
            .flatten()
            .all(|status| [200, 400, 429].contains(status));
        assert!(known && (told(200) || told(400)), "{what}: {answers:?}");
        let taken = server.peak_resident_bytes() - at_rest;
        let allowed = allowed();
        eprintln!("{what}: {} of {} MiB", taken / MIB, allowed / MIB);
        assert!(
            taken < allowed,
            "{what}: {} MiB beside the {} at rest, and {} are allowed",
            taken / MIB,
            at_rest / MIB,
            allowed / MIB
        );
    }
}
