//! The configuration of nginx that `docs/operations.md` gives: nginx takes it, and through it the real binary
//! answers. Where nginx, openssl or curl is not installed the test says that it was skipped.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crate::process::Process;

/// The whole of the page's block for nginx.
fn snippet() -> &'static str {
    let page = include_str!("../../../../docs/operations.md");
    let block = page.split_once("```nginx\n").unwrap().1;
    block.split_once("```").unwrap().0
}

/// A folder with a certificate, gone when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("serve-{}-nginx", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// The page's snippet as a whole configuration, with the ports and files of this test in place of its own.
    fn configure(&self, port: u16, serve: &str) {
        let folder = self.0.display();
        let mut snippet = snippet().to_owned();
        for (from, to) in [
            ("listen 443 ssl", format!("listen 127.0.0.1:{port} ssl")),
            ("server 127.0.0.1:8000", format!("server {serve}")),
            ("/etc/ssl/serve.pem", self.file("serve.pem")),
            ("/etc/ssl/serve.key", self.file("serve.key")),
        ] {
            assert_eq!(snippet.matches(from).count(), 1, "{from} in {snippet}");
            snippet = snippet.replace(from, &to);
        }
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|what| format!("{what}_temp_path {folder}/{what};\n"))
            .concat();
        let whole = format!(
            "daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\nerror_log {folder}/errors;\n\
             events {{}}\nhttp {{\naccess_log off;\n{temporary}{snippet}}}\n"
        );
        fs::write(self.0.join("nginx.conf"), whole).unwrap();
    }

    fn nginx(&self) -> Command {
        let mut command = Command::new("nginx");
        let (configuration, errors) = (self.file("nginx.conf"), self.file("errors"));
        command.args(["-c", &configuration, "-e", &errors]);
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// nginx itself; its workers go with it when it is told to end.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let id = self.0.id().to_string();
        let _ = Command::new("kill").args(["-s", "TERM", &id]).status();
        let _ = self.0.wait();
    }
}

fn curl(arguments: &[&str]) -> Output {
    let mut command = Command::new("curl");
    command.args(["--silent", "--insecure", "--include"]);
    command.args(arguments).output().unwrap()
}

#[test]
fn the_snippet_for_nginx_is_taken_and_serves() {
    let missing = ["nginx", "openssl", "curl"].into_iter().find(|program| {
        let look = format!("command -v {program}");
        let found = Command::new("sh").args(["-c", &look]).output();
        !found.is_ok_and(|found| found.status.success())
    });
    if let Some(missing) = missing {
        return println!("skipped: {missing} is not installed");
    }
    let folder = Folder::new();
    let (key, certificate) = (folder.file("serve.key"), folder.file("serve.pem"));
    let made = Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-keyout",
            &key,
            "-out",
            &certificate,
        ])
        .output();
    assert!(made.unwrap().status.success());
    // A step takes 160 ms.
    let serve = Process::start(&["--backend", "mock", "--mock-speed", "0.1"]);
    let address = serve.address();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    folder.configure(port, address.trim_start_matches("http://"));
    let tested = folder.nginx().arg("-t").output().unwrap();
    let said = String::from_utf8_lossy(&tested.stderr);
    assert!(tested.status.success(), "{said}");

    let nginx = folder.nginx().stderr(Stdio::null()).spawn().unwrap();
    let nginx = Proxy(nginx);
    let url = format!("https://localhost:{port}");
    let wait = ["--retry", "50", "--retry-connrefused", "--retry-delay", "0"];
    let models = curl(&[&wait[..], &[&format!("{url}/v1/models")]].concat());
    let text = String::from_utf8_lossy(&models.stdout);
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");

    let completions = format!("{url}/v1/completions");
    let ask = |more: &[&str], body: &str| {
        let json = ["--header", "content-type: application/json", "--data", body];
        curl(&[&json[..], more, &[&completions]].concat())
    };
    let whole = ask(&["--compressed"], r#"{"prompt": "x", "max_tokens": 2}"#);
    let text = String::from_utf8_lossy(&whole.stdout).to_lowercase();
    assert!(text.starts_with("http/1.1 200"), "{text}");
    assert!(text.contains("content-encoding: gzip"), "{text}");
    let wrong = ask(&[], r#"{"prompt": 1}"#);
    let text = String::from_utf8_lossy(&wrong.stdout);
    assert!(text.starts_with("HTTP/1.1 400"), "{text}");

    // Of a stream the first event is here while the last one is far from made.
    let mut stream = Command::new("curl")
        .args(["--silent", "--insecure", "--no-buffer", "--compressed"])
        .args(["--header", "content-type: application/json", "--data"])
        .arg(r#"{"prompt": "x", "max_tokens": 1000, "stream": true}"#)
        .arg(&completions)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(stream.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("data: {"), "{first}");
    let metrics = curl(&[&format!("{address}/metrics")]);
    let metrics = String::from_utf8_lossy(&metrics.stdout);
    assert!(
        metrics.contains("serve_requests_in_flight{class=\"paid\"} 1\n"),
        "{metrics}"
    );
    stream.kill().unwrap();
    stream.wait().unwrap();
    drop(nginx);
}
