//! Framing that two programs can read in two ways, clients that are slow, and clients that leave.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use super::target::{Serve, answered, head};
use super::work::late;
use super::{Attack, Figures, figures, promise};

const COMPLETION: &str = "/v1/completions";
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "ambiguous-framing",
        promise: "a request that can be read in two ways is refused, and nothing that follows it is run",
        run: framing,
    },
    Attack {
        name: "slow-heads-and-bodies",
        promise: "200 connections that send nothing and 50 that send half a body end at their limits; health is \
                  answered meanwhile",
        run: slow,
    },
    Attack {
        name: "early-answers",
        promise: "a client that is still sending 4 MB reads its 401, 404, 413 or 415",
        run: early,
    },
    Attack {
        name: "a-byte-too-many",
        promise: "a client that sent a byte too many and left is noticed, and its request cancelled",
        run: byte_too_many,
    },
    Attack {
        name: "hang-ups",
        promise: "of 2,000 clients that leave at any moment each is counted once, and nothing of them is left",
        run: hang_ups,
    },
    Attack {
        name: "readers-that-do-not-read",
        promise: "50 streams that nobody reads cost a bounded memory, and a slow reader of a whole answer gets it",
        run: unread,
    },
];

fn framing(serve: &Serve) -> Result<Figures, String> {
    let target = serve.mock(&[])?;
    let post =
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let hidden = "GET /hidden HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let length = hidden.len();
    // What is sent, and the statuses that may come; none is a connection that is closed.
    let table: Vec<(String, &[u16])> = vec![
        ("GET /health HTTP/1.1\r\n\r\n".to_owned(), &[400]),
        (
            "GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n".to_owned(),
            &[400],
        ),
        (
            "GET /health HTTP/1.1\r\nhost: evil.example\r\n\r\n".to_owned(),
            &[403],
        ),
        (
            format!("{post}content-length: 5\r\ncontent-length: 6\r\n\r\n{hidden}"),
            &[400],
        ),
        (format!("{post}content-length: +5\r\n\r\n{hidden}"), &[400]),
        (format!("{post}content-length: -1\r\n\r\n{hidden}"), &[400]),
        (
            format!("{post}content-length: 18446744073709551616\r\n\r\n{hidden}"),
            &[400],
        ),
        (
            format!("{post}content-length : {length}\r\n\r\n{hidden}"),
            &[400],
        ),
        (
            format!("{post}transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n{hidden}"),
            &[400, 501],
        ),
        (
            format!("{post}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}"),
            &[400, 501],
        ),
        (
            format!("{post}transfer-encoding: chunked\r\n\r\n-1\r\n{hidden}"),
            &[400],
        ),
        (
            format!("{post}transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{hidden}"),
            &[400],
        ),
        (
            format!("{post}content-encoding: gzip\r\ncontent-length: {length}\r\n\r\n{hidden}"),
            &[415],
        ),
        (
            format!("{post}expect: 200-maybe\r\ncontent-length: {length}\r\n\r\n{hidden}"),
            &[417],
        ),
        (
            format!(
                "{post}authorization: Bearer a\r\nauthorization: Bearer b\r\ncontent-length: 0\r\n\r\n"
            ),
            &[400],
        ),
        (
            format!(
                "GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n",
                "a".repeat(70_000)
            ),
            &[414, 431],
        ),
        (
            format!(
                "GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n",
                "a".repeat(1_000_000)
            ),
            &[431],
        ),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), &[400]),
        (
            "\x16\x03\x01\x02\x00\x01\x00\x01\u{fc}\x03\x03".to_owned(),
            &[400],
        ),
    ];
    let tried = table.len() as f64;
    for (sent, statuses) in table {
        let answer = match target.raw(sent.as_bytes(), PATIENCE) {
            Ok(answer) => answer,
            // It was closed while it was still being sent.
            Err(_) => continue,
        };
        let status = answer.get(9..12).and_then(|status| status.parse().ok());
        let shown: String = sent.chars().take(160).collect();
        let right = status.is_none_or(|status| statuses.contains(&status));
        promise(right, || {
            format!("{shown:?} was answered {status:?}, not {statuses:?}")
        })?;
        let answers = answer.matches("HTTP/1.1 ").count();
        promise(answers <= 1, || {
            format!("{shown:?} was answered {answers} times")
        })?;
    }
    Ok(figures([("tried", tried)]))
}

fn slow(serve: &Serve) -> Result<Figures, String> {
    let target = serve.mock(&["--header-timeout", "2", "--body-timeout", "2"])?;
    let failed = |error: std::io::Error| error.to_string();
    let mut silent = Vec::new();
    for index in 0..200 {
        let mut socket = target.connect().map_err(failed)?;
        if index % 2 == 1 {
            socket.write_all(b"GET /health HT").map_err(failed)?;
        }
        silent.push(socket);
    }
    let mut halves = Vec::new();
    for _ in 0..50 {
        let mut socket = target.connect().map_err(failed)?;
        socket
            .write_all(head(COMPLETION, 1_000).as_bytes())
            .map_err(failed)?;
        socket.write_all(b"{\"prompt\": ").map_err(failed)?;
        halves.push(socket);
    }
    let watch = target.watch();
    let start = Instant::now();
    for half in halves {
        let (status, _) = answered(half).map_err(failed)?;
        promise(status == 408, || {
            format!("half a body was answered {status}")
        })?;
    }
    for mut socket in silent {
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = socket.read_to_end(&mut rest);
    }
    let (took, longest) = (start.elapsed(), watch.longest()?);
    promise(took < Duration::from_secs(10), || {
        format!("they were held for {took:?}")
    })?;
    promise(longest < Duration::from_secs(1), || {
        format!("/health/live took {longest:?}")
    })?;
    let open = target.metric("serve_connections")?;
    promise(open <= 2.0, || format!("{open} connections are still open"))?;
    Ok(figures([
        ("held_s", took.as_secs_f64()),
        ("health_max_ms", longest.as_secs_f64() * 1e3),
    ]))
}

fn early(serve: &Serve) -> Result<Figures, String> {
    let target = serve.mock(&["--body-bytes-max", "1MB"])?;
    let body = vec![b' '; 4_000_000];
    let json = "content-type: application/json\r\n";
    let mut read = 0.0;
    for (path, header, expected) in [
        ("/v1/nothing", json, 404),
        (COMPLETION, json, 413),
        (COMPLETION, "content-type: text/plain\r\n", 415),
        (
            COMPLETION,
            "content-type: application/json\r\ncontent-encoding: br\r\n",
            415,
        ),
    ] {
        for _ in 0..10 {
            let mut socket = target.connect().map_err(|error| error.to_string())?;
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\n{header}connection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            // A client that sends all before it reads: what is not taken in would break its connection.
            let sent = socket
                .write_all(head.as_bytes())
                .and_then(|()| socket.write_all(&body));
            sent.map_err(|error| format!("{path} with {expected}: sending broke: {error}"))?;
            let (status, _) =
                answered(socket).map_err(|error| format!("{expected} was lost: {error}"))?;
            promise(status == expected, || {
                format!("{path} was answered {status}, not {expected}")
            })?;
            read += 1.0;
        }
    }
    Ok(figures([("answers_read", read)]))
}

fn byte_too_many(serve: &Serve) -> Result<Figures, String> {
    let target = serve.start(&["--backend", "mock", "--mock-speed", "0.1"])?;
    let body = br#"{"prompt": "x", "max_tokens": 2000, "stream": true}"#;
    for extra in [&b"\n"[..], b"\r\n", b"x", b"GET / HTTP/1.1\r\n"] {
        let mut socket = target
            .sent(COMPLETION, body)
            .map_err(|error| error.to_string())?;
        socket.write_all(extra).map_err(|error| error.to_string())?;
        thread::sleep(Duration::from_millis(300));
        drop(socket);
    }
    let start = Instant::now();
    target.settled(Duration::from_secs(5))?;
    Ok(figures([("settled_s", start.elapsed().as_secs_f64())]))
}

fn hang_ups(serve: &Serve) -> Result<Figures, String> {
    let target = serve.start(&["--backend", "mock", "--mock-speed", "5"])?;
    let whole = br#"{"prompt": "x", "max_tokens": 50, "stream": true}"#;
    thread::scope(|scope| {
        for part in 0..8_u64 {
            let target = &target;
            scope.spawn(move || {
                for index in 0..250_u64 {
                    // Leaves after so many bytes of the request, or so long into the answer.
                    let moment = (part * 250 + index) * 7_919 % 400;
                    let request = [head(COMPLETION, whole.len()).as_bytes(), whole].concat();
                    let sent = request.len().min(1 + moment as usize);
                    let Ok(mut socket) = target.connect() else {
                        continue;
                    };
                    if socket.write_all(&request[..sent]).is_ok() && sent == request.len() {
                        thread::sleep(Duration::from_micros(moment * 50));
                    }
                }
            });
        }
    });
    target.settled(Duration::from_secs(20))?;
    let (arrived, mut ended) = (target.metric("serve_requests_arrived_total")?, 0.0);
    for end in ["finished", "refused", "cancelled", "failed"] {
        ended += target.metric(&format!("serve_requests_ended_total{{end=\"{end}\"}}"))?;
    }
    let exact = (arrived - ended).abs() < 0.5;
    promise(exact, || {
        format!("{arrived} have arrived and {ended} ended")
    })?;
    Ok(figures([("arrived", arrived), ("ended", ended)]))
}

fn unread(serve: &Serve) -> Result<Figures, String> {
    let target = serve.mock(&[
        "--context",
        "100000",
        "--kv-tokens",
        "6000000",
        "--max-batch",
        "64",
    ])?;
    let long = br#"{"prompt": "x", "max_tokens": 90000, "stream": true}"#;
    let mut held = Vec::new();
    for _ in 0..50 {
        held.push(
            target
                .sent(COMPLETION, long)
                .map_err(|error| error.to_string())?,
        );
    }
    let short = br#"{"prompt": "x", "max_tokens": 50}"#;
    let (status, _) =
        late(&target, short, Duration::from_secs(3)).map_err(|error| error.to_string())?;
    promise(status == 200, || {
        format!("a slow reader was answered {status}")
    })?;
    let peak = target.peak_mib()?;
    promise(peak < 256.0, || {
        format!("{peak:.0} MiB were resident, 256 are stated")
    })?;
    drop(held);
    target.settled(Duration::from_secs(40))?;
    Ok(figures([("peak_mib", peak)]))
}
