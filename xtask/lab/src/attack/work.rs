//! Bodies that are work before they are requests: long, odd, abandoned.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::target::{Serve, Target, answered};
use super::{Attack, Figures, figures, promise};

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

/// Of one server of the embedded model or the mock, at rest some 20 MiB: bodies of 8 MB that are read at
/// once are bounded by `bodies_bytes_max` (256 MiB), and what is made of them by two times their length on
/// each core.
const PEAK_MIB: f64 = 640.0;

/// How long a health check may take beside it on a busy machine of two cores; a probe of Kubernetes gives up
/// after one second.
const HEALTH: Duration = Duration::from_secs(1);

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "prompts-that-cannot-fit",
        promise: "8 prompts of 8 MB at once are refused before they are tokenised: 400, a bounded peak of memory, \
                  health within 1 s",
        run: cannot_fit,
    },
    Attack {
        name: "prompts-that-nearly-fit",
        promise: "32 prompts as long as bytes alone allow are refused or answered; memory and health stay bounded",
        run: nearly_fit,
    },
    Attack {
        name: "abandoned-megabytes",
        promise: "what 6 clients have sent and left, 6 MB each, is no work a second later",
        run: abandoned,
    },
    Attack {
        name: "a-million-empty-messages",
        promise: "4 chats of 280,000 empty messages stop no health check",
        run: empty_messages,
    },
    Attack {
        name: "megabytes-of-template-variables",
        promise: "4 chats with 4 MB for the template stop no health check",
        run: variables,
    },
    Attack {
        name: "malformed-bodies",
        promise: "each body that means nothing is 400 by name, also 8 MB of it",
        run: malformed,
    },
];

/// Sends bodies at once, and checks peak and health.
fn storm(
    target: &Target,
    path: &'static str,
    bodies: Vec<Vec<u8>>,
    accepted: &[u16],
) -> Result<Figures, String> {
    let watch = target.watch();
    let start = Instant::now();
    let statuses: Vec<io::Result<(u16, String)>> = thread::scope(|scope| {
        let ask = |body: Vec<u8>| scope.spawn(move || target.ask(path, &body));
        let asked: Vec<_> = bodies.into_iter().map(ask).collect();
        let joined = asked.into_iter().map(|it| it.join());
        joined
            .map(|it| it.unwrap_or_else(|_| Err(io::Error::other("panicked"))))
            .collect()
    });
    let took = start.elapsed();
    let longest = watch.longest()?;
    for status in &statuses {
        let (status, answer) = status
            .as_ref()
            .map_err(|error| format!("no answer: {error}"))?;
        promise(accepted.contains(status), || {
            format!("answered {status}: {:.200}", answer)
        })?;
    }
    let peak = target.peak_mib()?;
    promise(peak < PEAK_MIB, || {
        format!("{peak:.0} MiB were resident, {PEAK_MIB} are stated")
    })?;
    promise(longest < HEALTH, || {
        format!("/health/live took {longest:?}")
    })?;
    target.settled(Duration::from_secs(10))?;
    Ok(figures([
        ("answered_s", took.as_secs_f64()),
        ("peak_mib", peak),
        ("health_max_ms", longest.as_secs_f64() * 1e3),
    ]))
}

fn completion(text: &str) -> Vec<u8> {
    format!(r#"{{"prompt": "{text}", "max_tokens": 4}}"#).into_bytes()
}

fn cannot_fit(serve: &Serve) -> Result<Figures, String> {
    let texts = ["a".repeat(8_000_000), "a ".repeat(4_000_000)];
    let bodies = (0..8).map(|index| completion(&texts[index % 2])).collect();
    storm(&serve.start(&[])?, COMPLETION, bodies, &[400])
}

fn nearly_fit(serve: &Serve) -> Result<Figures, String> {
    let bodies = (0..32).map(|_| completion(&"a ".repeat(4_000))).collect();
    storm(&serve.start(&[])?, COMPLETION, bodies, &[200, 400, 429])
}

fn abandoned(serve: &Serve) -> Result<Figures, String> {
    let target = serve.start(&[])?;
    let body = completion(&"a ".repeat(3_000_000));
    for _ in 0..6 {
        let sent = target
            .sent(COMPLETION, &body)
            .map_err(|error| error.to_string())?;
        drop(sent);
    }
    thread::sleep(Duration::from_secs(1));
    let busy = target.busy()?;
    promise(busy < 0.3, || format!("it works on: {busy} s of a second"))?;
    target.settled(Duration::from_secs(2))?;
    let peak = target.peak_mib()?;
    promise(peak < PEAK_MIB, || format!("{peak:.0} MiB were resident"))?;
    Ok(figures([("busy_s_per_s", busy), ("peak_mib", peak)]))
}

fn empty_messages(serve: &Serve) -> Result<Figures, String> {
    let message = r#"{"role":"user","content":""}"#;
    let body = format!(r#"{{"messages": [{}]}}"#, vec![message; 280_000].join(","));
    let bodies = vec![body.into_bytes(); 4];
    storm(&serve.mock(&[])?, CHAT, bodies, &[200, 400, 429])
}

fn variables(serve: &Serve) -> Result<Figures, String> {
    let long = "x".repeat(4_000_000);
    let body = format!(
        r#"{{"messages": [{{"role": "user", "content": "x"}}], "max_tokens": 2,
            "chat_template_kwargs": {{"date_string": "{long}"}}}}"#
    );
    storm(
        &serve.mock(&[])?,
        CHAT,
        vec![body.into_bytes(); 4],
        &[200, 400, 429],
    )
}

fn malformed(serve: &Serve) -> Result<Figures, String> {
    let keys: String = (0..500_000)
        .map(|index| format!("\"k{index}\":0,"))
        .collect();
    let bodies: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"{".to_vec(),
        vec![b'['; 1_000_000],
        br#"{"prompt": "\ud800"}"#.to_vec(),
        b"{\"prompt\": \"\xff\xfe\"}".to_vec(),
        "\u{feff}{\"prompt\": \"x\"}".as_bytes().to_vec(),
        br#"{"prompt": "x"} {"prompt": "y"}"#.to_vec(),
        br#"{"prompt": "x", "temperature": 1e400}"#.to_vec(),
        br#"{"prompt": "x", "seed": 99999999999999999999999999}"#.to_vec(),
        format!("{{\"prompt\": \"x\", {keys} \"z\": 1}}").into_bytes(),
        format!(
            r#"{{"prompt": "x", "stop": [{}]}}"#,
            vec!["\"a\""; 1_000_000].join(",")
        )
        .into_bytes(),
        format!(r#"{{"prompt": [{}]}}"#, vec!["7"; 4_000_000].join(",")).into_bytes(),
        vec![b' '; 8_000_000],
    ];
    storm(&serve.mock(&[])?, COMPLETION, bodies, &[400])
}

/// A client that reads nothing of its answer until `after`.
pub(super) fn late(target: &Target, body: &[u8], after: Duration) -> io::Result<(u16, String)> {
    let socket = target.sent(COMPLETION, body)?;
    thread::sleep(after);
    answered(socket)
}
