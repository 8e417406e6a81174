//! What the machine around a server does to it: files, the log, signals; and clients that try keys.

use std::fs::{self, File};
use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serve_bench::experiments::servers::Signal;

use super::target::{Serve, Target, answered};
use super::{Attack, Figures, figures, promise};

const COMPLETION: &str = "/v1/completions";
const SHORT: &[u8] = br#"{"prompt": "x", "max_tokens": 2}"#;

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "no-descriptors",
        promise: "with 64 open files and 100 idle connections health is answered within 3 s, and what was dropped is \
                  counted",
        run: descriptors,
    },
    Attack {
        name: "a-log-on-a-full-disk",
        promise: "lines are lost and counted, and every answer is whole",
        run: full_disk,
    },
    Attack {
        name: "a-log-that-nobody-reads",
        promise: "600 answers are whole, and SIGTERM ends the server",
        run: stuck_reader,
    },
    Attack {
        name: "two-signals",
        promise: "the second signal ends a server that is at work, at once, with 130",
        run: two_signals,
    },
    Attack {
        name: "settings-read-again-under-load",
        promise: "20 SIGHUPs, half of them with a file that is wrong, cost none of 200 requests",
        run: reloads,
    },
    Attack {
        name: "keys-that-are-tried",
        promise: "each wrong key waits a second for its 401 and is counted; a right one waits for nobody",
        run: keys,
    },
];

/// A server whose log is at `info` and goes to `stderr`.
fn logging(serve: &Serve, stderr: Stdio, settings: &[&str]) -> Result<Target, String> {
    let mut command = Command::new(&serve.0);
    command
        .args(["--backend", "mock", "--mock-speed", "inf"])
        .args(settings);
    Target::of(&mut command, stderr)
}

fn whole(target: &Target, count: u32) -> Result<(), String> {
    for index in 0..count {
        let asked = target.ask(COMPLETION, SHORT);
        let (status, _) = asked.map_err(|error| format!("request {index}: {error}"))?;
        promise(status == 200, || {
            format!("request {index} was answered {status}")
        })?;
    }
    Ok(())
}

fn descriptors(serve: &Serve) -> Result<Figures, String> {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
        .arg(&serve.0);
    command.args(["--backend", "mock", "--mock-speed", "inf", "--log", "error"]);
    let target = Target::of(&mut command, Stdio::null())?;
    let idle: Vec<_> = (0..100).map(|_| target.connect()).collect();
    let start = Instant::now();
    while !matches!(target.get("/health"), Ok((200, _))) {
        let waited = start.elapsed();
        promise(waited < Duration::from_secs(3), || {
            format!("no health for {waited:?}")
        })?;
        thread::sleep(Duration::from_millis(20));
    }
    let waited = start.elapsed();
    drop(idle);
    let dropped = target.metric("serve_connections_dropped_total")?;
    Ok(figures([
        ("health_after_s", waited.as_secs_f64()),
        ("dropped", dropped),
    ]))
}

fn full_disk(serve: &Serve) -> Result<Figures, String> {
    let full = File::options().write(true).open("/dev/full");
    let full = full.map_err(|error| format!("/dev/full: {error}"))?;
    let target = logging(serve, full.into(), &[])?;
    whole(&target, 100)?;
    let start = Instant::now();
    let mut lost = 0.0;
    while lost < 100.0 && start.elapsed() < Duration::from_secs(5) {
        lost = target.metric("serve_log_lines_lost_total")?;
    }
    promise(lost >= 100.0, || {
        format!("{lost} lines are said to be lost, of 100 and more")
    })?;
    ended_well(target)?;
    Ok(figures([("lines_lost", lost)]))
}

fn stuck_reader(serve: &Serve) -> Result<Figures, String> {
    let (reader, writer) = io::pipe().map_err(|error| error.to_string())?;
    let target = logging(serve, writer.into(), &[])?;
    whole(&target, 600)?;
    let start = Instant::now();
    ended_well(target)?;
    drop(reader);
    Ok(figures([("ended_after_s", start.elapsed().as_secs_f64())]))
}

fn ended_well(target: Target) -> Result<(), String> {
    let status = target.stop()?;
    promise(status.success(), || {
        format!("after SIGTERM it ended with {status}")
    })
}

fn two_signals(serve: &Serve) -> Result<Figures, String> {
    let target = serve.start(&["--backend", "mock", "--mock-speed", "0.1"])?;
    let long = br#"{"prompt": "x", "max_tokens": 2000, "stream": true}"#;
    let held = target
        .sent(COMPLETION, long)
        .map_err(|error| error.to_string())?;
    target.signal(Signal::TERM);
    // Two that come together are one.
    thread::sleep(Duration::from_millis(300));
    target.signal(Signal::TERM);
    let start = Instant::now();
    let status = target.ended()?;
    let took = start.elapsed();
    drop(held);
    promise(status.code() == Some(130), || {
        format!("it ended with {status}")
    })?;
    promise(took < Duration::from_secs(2), || {
        format!("it took {took:?}")
    })?;
    Ok(figures([("ended_after_s", took.as_secs_f64())]))
}

fn reloads(serve: &Serve) -> Result<Figures, String> {
    let path = std::env::temp_dir().join(format!("attack-{}.toml", std::process::id()));
    let write = |text: &str| fs::write(&path, text).map_err(|error| error.to_string());
    let good = "tenant_requests_per_s = 1000000\n";
    write(good)?;
    let target = serve.mock(&["--config", &path.display().to_string()])?;
    let done = thread::scope(|scope| {
        let asking = scope.spawn(|| whole(&target, 200));
        for index in 0..20 {
            write(if index % 2 == 0 {
                good
            } else {
                "tenant_requests_per_s = \"x\"\n"
            })?;
            target.signal(Signal::HUP);
            thread::sleep(Duration::from_millis(10));
        }
        asking.join().unwrap_or_else(|_| Err("panicked".to_owned()))
    });
    // Left behind, it does no harm.
    let _ = fs::remove_file(&path);
    done?;
    ended_well(target)?;
    Ok(figures([("requests", 200.0), ("reloads", 20.0)]))
}

fn keys(serve: &Serve) -> Result<Figures, String> {
    let right = "sk-0123456789abcdef0123456789abcdef";
    let path = std::env::temp_dir().join(format!("attack-keys-{}.toml", std::process::id()));
    let hash = serve_http::auth::KeyHash::of(right);
    let text = format!("[[keys]]\nname = \"a\"\nsha256 = \"{hash}\"\n");
    fs::write(&path, text).map_err(|error| error.to_string())?;
    let target = serve.mock(&["--config", &path.display().to_string()])?;
    let _ = fs::remove_file(&path);
    let ask = |key: &str| -> Result<(u16, Duration), String> {
        let request = format!(
            "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
        );
        let start = Instant::now();
        let mut socket = target.connect().map_err(|error| error.to_string())?;
        io::Write::write_all(&mut socket, request.as_bytes()).map_err(|error| error.to_string())?;
        let (status, _) = answered(socket).map_err(|error| error.to_string())?;
        Ok((status, start.elapsed()))
    };
    let wrong = 64;
    let mut slowest_right = Duration::ZERO;
    thread::scope(|scope| {
        let ask = &ask;
        let tried: Vec<_> = (0..wrong)
            .map(|index| scope.spawn(move || ask(&format!("sk-{index}"))))
            .collect();
        for _ in 0..20 {
            let (status, took) = ask(right)?;
            promise(status == 200, || {
                format!("the right key was answered {status}")
            })?;
            slowest_right = slowest_right.max(took);
        }
        for tried in tried {
            let (status, took) = tried
                .join()
                .unwrap_or_else(|_| Err("panicked".to_owned()))?;
            promise(status == 401, || {
                format!("a wrong key was answered {status}")
            })?;
            promise(took >= Duration::from_secs(1), || {
                format!("a wrong key waited only {took:?}")
            })?;
        }
        Ok::<_, String>(())
    })?;
    let counted = target.metric("serve_wrong_keys_total")?;
    promise((counted - f64::from(wrong)).abs() < 0.5, || {
        format!("{counted} of {wrong} are counted")
    })?;
    promise(slowest_right < Duration::from_secs(1), || {
        format!("the right key took {slowest_right:?}")
    })?;
    Ok(figures([
        ("wrong_keys", counted),
        ("right_key_max_ms", slowest_right.as_secs_f64() * 1e3),
    ]))
}
