//! The `serve-bench` binary as a person runs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serve_bench::store::folder::RunFolder;
use serve_bench::store::manifest::Source;
use serve_bench::store::record::{self, Outcome, Record};
use serve_bench::store::timeline;
use serve_bench::workload::Workload;
use serve_bench::workload::spec::Spec;

use crate::server::{Server, end, head, status, text};

async fn bench(args: Vec<String>) -> Output {
    let run = move || {
        Command::new(env!("CARGO_BIN_EXE_serve-bench"))
            .args(args)
            .output()
    };
    tokio::task::spawn_blocking(run).await.unwrap().unwrap()
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// A folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("serve-bench-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A workload file. However busy the machine is, its load counts as delivered.
fn spec(folder: &Path, text: &str) -> String {
    let patient =
        "[measure.delivery]\nrate_share_min = 0\nlag_p99_ms_max = 1e9\ngap_distance_max = 2\n";
    let path = folder.join("workload.toml");
    std::fs::write(&path, format!("{text}{patient}")).unwrap();
    path.display().to_string()
}

const TWO_CLIENTS: &str = "name = \"two\"\nrequests = 8\n[arrivals.closed]\nclients = 2\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_prints_tables_that_its_folder_gives_again() {
    let ok = vec![head(), text(5, "a"), text(5, "b"), end(2)];
    let refused = status("503 Busy", r#"{"error":{"message":"the queue is full"}}"#);
    let server = Server::start(vec![ok.clone(), refused, ok]).await;
    let folder = folder("run");
    let (spec, dir, url) = (spec(&folder, TWO_CLIENTS), folder.join("run"), server.url());
    let out = folder.join("rows.jsonl");
    let line = format!(
        "run {spec} --url {url} --seed 4 --dir {} --out {}",
        dir.display(),
        out.display()
    );
    let output = bench(words(&line)).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("with model scripted"), "{text}");
    let counts =
        "8 scheduled = 8 sent + 0 not sent; sent = 7 ok + 1 refused + 0 failed + 0 cancelled";
    assert!(text.contains(counts), "{text}");
    assert!(text.contains("the queue is full"), "{text}");
    assert!(text.contains("delivered  schedule lag p50 "), "{text}");

    let run = RunFolder::at(&dir).open().unwrap();
    assert_eq!(run.records.len(), 8);
    assert_eq!(record::read(&out).unwrap(), run.records);
    let samples = std::fs::read(RunFolder::at(&dir).timeline()).unwrap();
    let samples = timeline::read(samples.as_slice()).unwrap();
    assert!(samples.iter().all(|sample| sample.waiting == Some(3.0)) && !samples.is_empty());
    let layer = &run.manifest.workload;
    assert_eq!(
        (layer.name.as_str(), layer.seed, layer.requests),
        ("two", 4, 8)
    );
    let workload = Workload::new(Spec::parse("again", &layer.spec).unwrap(), &folder).unwrap();
    assert_eq!(
        workload.sha256(),
        layer.requests_sha256,
        "the manifest makes the same requests again"
    );
    assert!(run.manifest.artifact.command.args()[1..].contains(&"--seed".to_owned()));
    assert!(run.manifest.measurement.definitions.contains_key("TTFT"));
    let again = bench(words(&format!("analyse {}", dir.display()))).await;
    let again = String::from_utf8(again.stdout).unwrap();
    assert!(text.contains(&again), "{text}\n---\n{again}");

    let twice = bench(words(&line)).await;
    assert_eq!(twice.status.code(), Some(1));
    let error = String::from_utf8(twice.stderr).unwrap();
    assert!(error.contains("holds a run already"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_in_nothing_that_a_run_leaves() {
    let server = Server::start(vec![vec![head(), text(0, "a"), end(1)]]).await;
    let folder = folder("key");
    let (spec, url) = (spec(&folder, TWO_CLIENTS), server.url());
    for (number, key) in ["--api-key=sk-S3CR3T", "--api-key sk-S3CR3T"]
        .iter()
        .enumerate()
    {
        let dir = folder.join(number.to_string());
        let dir = dir.display();
        let mut printed = Vec::new();
        for line in [
            format!("run {spec} --url {url} {key} --dir {dir}"),
            format!("run {spec} --in-process {key} --dir {dir}/inner"),
            format!("report {dir}"),
            format!("analyse {dir} --json"),
        ] {
            let output = bench(words(&line)).await;
            assert!(output.status.success(), "{line}: {output:?}");
            printed.extend([output.stdout, output.stderr].concat());
        }
        let mut kept = String::from_utf8(printed).unwrap();
        for place in [
            folder.join(number.to_string()),
            folder.join(number.to_string()).join("inner"),
        ] {
            for file in std::fs::read_dir(place).unwrap() {
                let file = file.unwrap().path();
                if file.is_file() {
                    kept.push_str(&String::from_utf8_lossy(&std::fs::read(file).unwrap()));
                }
            }
        }
        assert!(!kept.contains("S3CR3T"), "{key}");
        assert!(kept.contains("--api-key"), "the command is kept without it");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_on_the_command_line_are_those_of_the_run_in_every_later_reading() {
    // No usage: what it says of tokens is that nobody counted them.
    let finish = (
        Duration::ZERO,
        r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}]}"#.to_owned() + "\n\n",
    );
    let server = Server::start(vec![vec![head(), text(20, "a"), text(20, "b"), finish]]).await;
    let folder = folder("limits");
    let class = format!(
        "{TWO_CLIENTS}[slo]\ne2e_ms = 1\n[[classes]]\nname = \"paid\"\nslo = {{ ttft_ms = 1 }}\n"
    );
    let (spec, url) = (spec(&folder, &class), server.url());
    let limits = "--slo-ttft-ms 60000 --slo-tpot-ms 30000";
    for (number, command) in [
        format!("run {spec} --url {url} {limits}"),
        format!("run {spec} --in-process --with mock_speed=20 {limits}"),
        format!("simulate {spec} {limits}"),
    ]
    .iter()
    .enumerate()
    {
        let dir = folder.join(number.to_string());
        let output = bench(words(&format!("{command} --dir {}", dir.display()))).await;
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(
            said.contains("kept TTFT <= 60s, TPOT <= 30s"),
            "{command}: {said}"
        );
        let again = bench(words(&format!("analyse {}", dir.display()))).await;
        let again = String::from_utf8(again.stdout).unwrap();
        assert!(said.contains(&again), "{said}\n---\n{again}");
        assert!(
            bench(words(&format!("report {}", dir.display())))
                .await
                .status
                .success()
        );
        let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
        assert!(
            page.contains("kept TTFT &lt;= 60s, TPOT &lt;= 30s"),
            "{command}"
        );
        let uncounted = "output tokens/s unknown (8 of 8 answers without a count)";
        assert_eq!(said.contains(uncounted), number == 0, "{said}");
        assert_eq!(
            said.contains("of 8 the TPOT is unknown"),
            number == 0,
            "{said}"
        );
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_in_this_process_is_a_run_like_any_other_and_says_what_it_is() {
    let folder = folder("in-process");
    let (spec, dir) = (spec(&folder, TWO_CLIENTS), folder.join("run"));
    let line = format!(
        "run {spec} --in-process --with max_batch=1 --with mock_speed=20 --dir {}",
        dir.display()
    );
    let output = bench(words(&line)).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("IN PROCESS"), "{text}");
    assert!(text.contains("in this process"), "{text}");
    let run = RunFolder::at(&dir).open().unwrap();
    assert_eq!(run.manifest.source, Source::InProcess);
    let config = run.manifest.runtime.config.unwrap();
    assert_eq!(
        (&config["max_batch"], &config["mock_speed"]),
        (&"1".into(), &"20".into())
    );
    assert_eq!(run.records.len(), 8);
    let ok = |row: &Record| row.outcome == Outcome::Ok && row.source == Source::InProcess;
    assert!(run.records.iter().all(ok));
    let samples = std::fs::read(RunFolder::at(&dir).timeline()).unwrap();
    let last = timeline::read(samples.as_slice()).unwrap().pop().unwrap();
    assert_eq!((last.in_flight, last.refused), (Some(0.0), Some(0.0)));
    assert!(
        last.steps > Some(0.0) && last.step_sequences == last.steps,
        "one at a time"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_client_was_late_is_void_by_exit_code_and_keeps_its_rows() {
    let server = Server::start(vec![vec![head(), text(0, "a"), end(1)]]).await;
    let folder = folder("void");
    // No client is on time to the nanosecond.
    let path = folder.join("strict.toml");
    let text = "requests = 20\n[arrivals.constant]\nrate_per_s = 200\n[measure.delivery]\nlag_p99_ms_max = 0\n";
    std::fs::write(&path, text).unwrap();
    let line = format!(
        "run {} --url {} --dir {}",
        path.display(),
        server.url(),
        folder.join("run").display()
    );
    let output = bench(words(&line)).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("VOID       the client sent late"), "{text}");
    assert_eq!(
        RunFolder::at(folder.join("run"))
            .open()
            .unwrap()
            .records
            .len(),
        20
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_nobody_reads_is_made_all_the_same() {
    let server = Server::start(vec![vec![head(), text(5, "a"), end(1)]]).await;
    let folder = folder("unread");
    let (spec, dir) = (spec(&folder, TWO_CLIENTS), folder.join("run"));
    let line = format!("run {spec} --url {} --dir {}", server.url(), dir.display());
    let mut child = Command::new(env!("CARGO_BIN_EXE_serve-bench"))
        .args(words(&line))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = tokio::task::spawn_blocking(move || child.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert_eq!(RunFolder::at(&dir).open().unwrap().records.len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_keeps_what_was_measured_and_has_a_row_for_what_was_not() {
    let server = Server::start(vec![vec![head(), text(0, "a"), end(1)]]).await;
    let folder = folder("interrupted");
    let arrivals = "requests = 1000\n[arrivals.constant]\nrate_per_s = 20\n";
    let (spec, dir) = (spec(&folder, arrivals), folder.join("run"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_serve-bench"))
        .args([
            "run",
            &spec,
            "--url",
            &server.url(),
            "--dir",
            &dir.display().to_string(),
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while server.bodies.lock().unwrap().len() < 5 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let pid = child.id().to_string();
    let sent = Command::new("sh")
        .args(["-c", "kill -INT \"$0\"", &pid])
        .status()
        .unwrap();
    assert!(sent.success());
    let status = tokio::task::spawn_blocking(move || child.wait())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(status.code(), Some(0), "five answers came whole");
    let run = RunFolder::at(&dir).open().unwrap();
    assert!(run.manifest.artifact.interrupted);
    assert_eq!(run.records.len(), 1_000);
    let count = |outcome| {
        run.records
            .iter()
            .filter(|row| row.outcome == outcome)
            .count()
    };
    assert!(count(Outcome::Ok) >= 4 && count(Outcome::NotSent) > 500);
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_is_shown_without_a_server_and_is_the_same_each_time() {
    let folder = folder("workload");
    let spec = spec(
        &folder,
        "requests = 3\n[arrivals.poisson]\nrate_per_s = 2\n",
    );
    let show = async |more: &str| {
        let output = bench(words(&format!("workload {spec}{more}"))).await;
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let text = show("").await;
    assert!(
        text.contains("3 requests, open loop, 2/s Poisson, seed 0"),
        "{text}"
    );
    assert!(text.contains("requests' sha256 "), "{text}");
    assert_eq!(show(" --json").await, show(" --json").await);
    assert_ne!(show(" --json").await, show(" --json --seed 1").await);
    assert_eq!(show(" --json --print 2").await.lines().count(), 2);
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_named() {
    for (line, code, part) in [
        ("run", 2, "<SPEC|--rate <PER_SECOND>|--clients <CLIENTS>>"),
        ("run --rate 1 --clients 1", 2, "cannot be used with"),
        ("run --clients 0", 1, "at least 1 client"),
        ("run --rate=-1", 1, "positive number"),
        ("run --clients 1 --requests 0", 1, "at least 1 request"),
        ("run /nowhere/w.toml", 1, "/nowhere/w.toml: No such file"),
        ("run /nowhere/w.toml --rate 1", 2, "cannot be used with"),
        ("run --clients 1 --url ftp://x", 1, "http://HOST:PORT"),
        (
            "run --clients 1 --url http://127.0.0.1:9",
            1,
            "is the server up?",
        ),
        (
            "run --clients 1 --prompts /nowhere/at-all",
            1,
            "/nowhere/at-all",
        ),
        ("analyse /nowhere/at-all", 1, "/nowhere/at-all"),
        (
            "run --clients 1 --with max_batch=2",
            1,
            "settings of --in-process",
        ),
        (
            "run --clients 1 --in-process --with max_batch=0",
            1,
            "invalid value '0' for '--max-batch <N>': a whole number from 1 up",
        ),
        (
            "run --clients 1 --in-process --url http://127.0.0.1:9",
            2,
            "cannot be used with",
        ),
    ] {
        let output = bench(words(line)).await;
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {error}");
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_one_good_answer_fails() {
    let server = Server::start(vec![status("500 Bad", "{}")]).await;
    let folder = folder("bad");
    let spec = spec(
        &folder,
        "requests = 3\n[arrivals.poisson]\nrate_per_s = 100\n",
    );
    let line = format!("run {spec} --url {}", server.url());
    let output = bench(words(&line)).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("0 ok + 0 refused + 3 failed"), "{text}");
    assert!(text.contains("first that went wrong: request"), "{text}");
    let line = format!("run {spec} --url {} --warmup-requests 2", server.url());
    let output = bench(words(&line)).await;
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("none of the 2 warm-up requests got an answer"),
        "{error}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}
