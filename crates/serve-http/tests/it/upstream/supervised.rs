//! Engines that the server starts: the real binary, in front of itself on the mock, and of scripts that do what has gone
//! wrong elsewhere. Whatever happens, nothing of an engine is left.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};

use super::CHAT;
use crate::process::Process;

const SERVE: &str = env!("CARGO_BIN_EXE_serve");

/// A server with an engine of its own, all of whose processes are known by a variable that they inherit.
struct Supervised {
    process: Process,
    mark: String,
    folder: PathBuf,
}

/// A folder of a test's own, and the mark of its processes.
fn mark(name: &str) -> (String, PathBuf) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::SeqCst);
    let mark = format!("{name}-{}-{count}", std::process::id());
    let folder = std::env::temp_dir().join(format!("serve-engine-{mark}"));
    fs::create_dir_all(&folder).unwrap();
    (mark, folder)
}

impl Supervised {
    /// Starts it with an engine that is `script` under `sh`: the port is `$1`, a folder of its own `$2`, and `$SERVE` the
    /// binary.
    fn spawn(name: &str, script: &str, args: &[&str]) -> Self {
        let (mark, folder) = mark(name);
        let command = format!("sh -c '{script}' sh {{port}} {}", folder.display());
        let args = [&["--port", "0", "--upstream-command", &command], args].concat();
        let variables = [
            ("ENGINE_TEST", mark.as_str()),
            ("SERVE", SERVE),
            ("RUST_BACKTRACE", "0"),
        ];
        Self {
            process: Process::spawn(&args, &variables),
            mark,
            folder,
        }
    }

    /// The same, once it serves.
    fn start(name: &str, script: &str, args: &[&str]) -> Self {
        let mut server = Self::spawn(name, script, args);
        server.process.until_banner();
        server
    }

    fn port(&self) -> u16 {
        let line = self
            .process
            .banner
            .lines()
            .find(|line| line.contains("engine "));
        let (_, rest) = line.unwrap().split_once("http://127.0.0.1:").unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    }

    /// Its processes, the engine's and whatever has come of it.
    fn alive(&self) -> Vec<(i32, String)> {
        alive(&self.mark)
    }

    /// Kills the engine's own process.
    fn kill_engine(&self) {
        self.kill(|line| {
            line.contains("--backend mock") && !line.contains("__engine") && !line.contains("sh -c")
        });
    }

    fn kill(&self, is_it: impl Fn(&str) -> bool) {
        let processes = self.alive();
        let (process, _) = processes.iter().find(|(_, line)| is_it(line)).unwrap();
        let mut kill = std::process::Command::new("kill");
        assert!(
            kill.args(["-9", &process.to_string()])
                .status()
                .unwrap()
                .success()
        );
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let answer = reqwest::get(self.process.url(path)).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    async fn until_state(&self, state: &str) {
        let watchdog = Instant::now() + Duration::from_secs(120);
        while !self
            .get("/health/ready")
            .await
            .1
            .contains(&format!("\"{state}\""))
        {
            assert!(Instant::now() < watchdog, "never {state}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.process.kill();
        nothing_is_left(&self.mark);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn alive(mark: &str) -> Vec<(i32, String)> {
    let variable = format!("ENGINE_TEST={mark}\0");
    let processes = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let process: i32 = entry.file_name().to_str()?.parse().ok()?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let environment = String::from_utf8_lossy(&environment).into_owned() + "\0";
            environment.contains(&variable).then_some((process, line))
        });
    processes.collect()
}

fn nothing_is_left(mark: &str) {
    let watchdog = Instant::now() + Duration::from_secs(60);
    while !alive(mark).is_empty() {
        assert!(Instant::now() < watchdog, "they live: {:?}", alive(mark));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The mock, at ten times its speed.
const MOCK: &str = "exec \"$SERVE_BINARY\" --backend mock --port $1 --mock-speed 10";

/// What `script` is with the binary in it; variables that begin with SERVE_ do not reach an engine.
fn script(text: &str) -> String {
    text.replace("MOCK", MOCK).replace("$SERVE_BINARY", SERVE)
}

/// A child that forks, and one whose child leaves its group.
const FAMILY: &str = "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &); MOCK";

/// The arguments of an engine may hold its key.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_command_only_the_program_is_shown() {
    let server = Supervised::start("shown", &script(": sk-secret; MOCK"), &[]);
    let shown: Value = serde_json::from_str(&server.get("/v1/config").await.1).unwrap();
    assert_eq!(shown["upstream_command"], "sh");
    let told = [
        shown.to_string(),
        server.process.banner.clone(),
        server.process.logged.clone(),
    ];
    for told in told {
        assert!(!told.contains("sk-secret"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_engine_outlives_a_server_that_is_stopped() {
    let mut server = Supervised::start("stop", &script(FAMILY), &[]);
    let lines: Vec<String> = server.alive().into_iter().map(|(_, line)| line).collect();
    let sleeping = lines
        .iter()
        .filter(|line| line.starts_with("sleep"))
        .count();
    assert_eq!((sleeping, lines.len()), (3, 6), "{lines:?}");
    let port = server.port();
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3});
    let asked = reqwest::Client::new()
        .post(server.process.url(CHAT))
        .json(&body);
    let answer = asked.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    server.process.signal("TERM");
    let ended = server.process.wait();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(server.alive().is_empty(), "{:?}", server.alive());
    assert!(
        TcpStream::connect(("127.0.0.1", port)).is_err(),
        "the port is free"
    );
    // What the engine logs is in the server's log.
    assert!(ended.stderr.contains("engine: serve: "), "{}", ended.stderr);
}

/// The server has no time to clean up.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_engine_outlives_a_server_that_is_killed() {
    for (name, text) in [
        ("kill", FAMILY),
        ("kill-loading", "setsid sleep 1000 & sleep 1000 & wait"),
    ] {
        let loads = name == "kill-loading";
        let mut server = Supervised::spawn(name, &script(text), &[]);
        if loads {
            server.process.until_logged("does not serve yet");
        } else {
            server = Supervised::start(name, &script(text), &[]);
        }
        let watchdog = Instant::now() + Duration::from_secs(60);
        while server.alive().len() < 5 {
            assert!(Instant::now() < watchdog, "{:?}", server.alive());
        }
        server.process.signal("KILL");
        nothing_is_left(&server.mark);
    }
}

/// What answers on the port is another server, left behind by whatever was before; the engine never gets the port.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_on_the_port_is_not_taken_for_the_engine() {
    let text = "echo $1 > $2/port; while ! test -e $2/go; do sleep 0.05; done; MOCK";
    let mut server = Supervised::spawn("stranger", &script(text), &[]);
    let file = server.folder.join("port");
    let port: u16 = loop {
        match fs::read_to_string(&file)
            .ok()
            .and_then(|text| text.trim().parse().ok())
        {
            Some(port) => break port,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    // It would answer all that is asked.
    let stranger = TcpListener::bind(("127.0.0.1", port)).unwrap();
    server.process.until_logged("another process that listens");
    drop(stranger);
    fs::write(server.folder.join("go"), "").unwrap();
    server.process.until_banner();
    assert_eq!(server.port(), port);
    assert_eq!(server.get("/health").await.0, 200);
}

/// Its end goes before any time-out, and it is not tried for ever.
#[test]
fn an_engine_that_dies_while_it_loads_is_not_waited_for() {
    for (text, says) in [
        ("echo no such model >&2; exit 7", "exit status: 7"),
        ("kill -9 $$", "exit status: 137"),
    ] {
        let mut server = Supervised::spawn("dies", &script(text), &[]);
        let ended = server.process.wait();
        assert_eq!(ended.status.code(), Some(3), "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
        assert_eq!(
            ended.stderr.matches("the engine is started").count(),
            6,
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains("given up"), "{}", ended.stderr);
    }
    let command = "/nowhere/llama-server --port {port}";
    let mut process = Process::spawn(&["--port", "0", "--upstream-command", command], &[]);
    let ended = process.wait();
    assert_eq!(ended.status.code(), Some(3));
    assert!(
        ended
            .stderr
            .contains("/nowhere/llama-server cannot be run: No such file"),
        "{}",
        ended.stderr
    );
}

/// One that takes too long is killed, with all that it has started, and then started again.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_loads_for_too_long_is_killed_and_started_again() {
    let text = "if test -e $2/again; then MOCK; fi; touch $2/again; sleep 1000 & sleep 1000";
    let server = Supervised::start("slow", &script(text), &["--upstream-start-timeout", "6"]);
    let lines: Vec<String> = server.alive().into_iter().map(|(_, line)| line).collect();
    assert!(
        !lines.iter().any(|line| line.starts_with("sleep")),
        "{lines:?}"
    );
    assert_eq!(
        lines.len(),
        3,
        "the server, the monitor and the engine: {lines:?}"
    );
    let metrics = server.get("/metrics").await.1;
    assert!(
        metrics.contains("serve_upstream_restarts_total 1\n"),
        "{metrics}"
    );
}

/// Also one that is started again: that an engine before it served, and served again, says nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn each_engine_has_its_own_time_to_load() {
    let text = "test -e $2/stop && exec sleep 1000; while ! test -e $2/stop; do rm -f $2/go; \
        $SERVE_BINARY --backend mock --port $1 --mock-speed 10; \
        until test -e $2/go; do sleep 0.05; done; done";
    let mut server = Supervised::start("again", &script(text), &["--upstream-start-timeout", "6"]);
    // Gone and back without an end of the whole.
    server.kill_engine();
    server.process.until_logged("does not serve any more");
    fs::write(server.folder.join("go"), "").unwrap();
    server.process.until_logged("the engine serves again");
    fs::write(server.folder.join("stop"), "").unwrap();
    server.kill_engine();
    fs::write(server.folder.join("go"), "").unwrap();
    server.process.until_logged("made no token within");
}

/// A load that takes long and says a lot is waited for; a pipe that nobody read would be full after 64 KiB.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_loads_for_long_and_logs_a_megabyte_comes_up() {
    let flood = "head -c 1000000 /dev/zero | tr \"\\0\" x";
    let text = format!("{flood}; {flood} >&2; yes progress | head -n 20000; sleep 2; MOCK");
    let server = Supervised::start("loud", &script(&text), &["--log", "warn"]);
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_start_at_once_have_ports_of_their_own() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let spawned: Vec<_> = names
        .iter()
        .map(|name| Supervised::spawn(name, &script("MOCK"), &[]))
        .collect();
    let mut ports = BTreeSet::new();
    let mut restarts = 0;
    for mut server in spawned {
        server.process.until_banner();
        ports.insert(server.port());
        let metrics = server.get("/metrics").await.1;
        restarts += u32::from(!metrics.contains("serve_upstream_restarts_total 0\n"));
    }
    assert_eq!((ports.len(), restarts), (8, 0));
}

/// A stream of many tokens, begun.
async fn streaming(server: &Supervised) -> impl StreamExt<Item = String> + Unpin {
    let body = json!({"prompt": "x", "max_tokens": 60, "stream": true, "ignore_eos": true});
    let asked = reqwest::Client::new().post(server.process.url("/v1/completions"));
    let answer = asked.json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let text = answer.bytes_stream();
    let mut text = text
        .map(|bytes| String::from_utf8(bytes.unwrap().to_vec()).unwrap())
        .boxed();
    text.next().await.unwrap();
    text
}

/// As vLLM does by default. It is told when nobody is with it any more.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_aborts_at_sigterm_cuts_nobody_off() {
    let text = "trap \"kill -9 \\$!\" TERM; $SERVE_BINARY --backend mock --port $1 --mock-speed 0.5 & wait";
    let mut server = Supervised::start("abort", &script(text), &[]);
    let text = streaming(&server).await;
    server.process.signal("TERM");
    let text: String = text.collect().await;
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let ended = server.process.wait();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(server.alive().is_empty());
}

/// One that ends at nothing is killed.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_does_not_obey_is_killed() {
    let text =
        "trap \"\" TERM INT; $SERVE_BINARY --backend mock --port $1 & while true; do sleep 1; done";
    let mut server = Supervised::start("deaf", &script(text), &[]);
    server.process.signal("TERM");
    let ended = server.process.wait();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stderr.contains("and is killed"), "{}", ended.stderr);
    assert!(server.alive().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_crashes_is_told_in_the_stream_and_started_again() {
    let text = "exec $SERVE_BINARY --backend mock --port $1 --mock-speed 0.5";
    let mut server = Supervised::start("crash", &script(text), &[]);
    let port = server.port();
    for crashes in 1..=2 {
        let stream = streaming(&server).await;
        server.kill_engine();
        let text: String = stream.collect().await;
        let last = text.trim_end().rsplit("data: ").next().unwrap();
        let error: Value = serde_json::from_str(last).unwrap();
        assert_eq!(error["error"]["code"], "backend_error", "{text}");
        server.process.until_logged("the engine serves again");
        // Answered in between, so that it is not given up.
        let body = json!({"prompt": "x", "max_tokens": 1});
        let asked = reqwest::Client::new()
            .post(server.process.url("/v1/completions"))
            .json(&body);
        let answer = asked.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
        let metrics = server.get("/metrics").await.1;
        for line in [
            format!("serve_upstream_restarts_total {crashes}"),
            format!("serve_requests_ended_total{{class=\"paid\",end=\"failed\"}} {crashes}"),
            format!("serve_requests_ended_total{{class=\"paid\",end=\"finished\"}} {crashes}"),
            "serve_requests_in_flight{class=\"paid\"} 0".to_owned(),
            "serve_requests_running 0".to_owned(),
        ] {
            assert!(metrics.contains(&format!("{line}\n")), "{line}: {metrics}");
        }
    }
    assert_eq!(server.port(), port, "where it was");
}

/// What stands between is killed: the engine goes with it, and both are started again.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_does_not_outlive_its_monitor() {
    let mut server = Supervised::start("monitor", &script("MOCK"), &[]);
    server.kill(|line| line.contains("__engine-monitor"));
    server.process.until_logged("the engine serves again");
    assert_eq!(server.alive().len(), 3, "{:?}", server.alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_ends_too_often_is_given_up_and_the_server_says_so() {
    let text = "test -e $2/again && exit 1; touch $2/again; MOCK";
    let server = Supervised::start("given-up", &script(text), &[]);
    server.kill_engine();
    server.until_state("failed").await;
    assert_eq!(server.get("/health/live").await.0, 503);
    let body = json!({"prompt": "x"});
    let asked = reqwest::Client::new()
        .post(server.process.url("/v1/completions"))
        .json(&body);
    let answer: Value = asked.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["error"]["code"], "engine_stopped");
}

#[test]
fn a_command_that_cannot_be_is_a_wrong_setting() {
    for (args, says) in [
        (
            &["--upstream-command", "vllm serve x"][..],
            "--upstream-command: it must hold {port}",
        ),
        (
            &["--upstream-command", "a '{port}"],
            "--upstream-command: a quote is not closed",
        ),
        (
            &["--upstream-command", "a {port}", "--upstream", "http://h"],
            "--upstream-command: --upstream says",
        ),
        (
            &["--upstream-start-timeout", "5"],
            "--upstream-start-timeout: it needs --upstream-command",
        ),
        (
            &["--upstream", "https://h"],
            "TLS is another program's work",
        ),
    ] {
        let ended = Process::run(args);
        assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{says}: {}", ended.stderr);
    }
}
