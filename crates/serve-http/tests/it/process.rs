//! The real binary as a child process.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

/// A running `serve`, killed when dropped.
pub(crate) struct Process {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Option<BufReader<ChildStderr>>,
    /// What has been read of its stderr.
    /// What was read of its stderr.
    pub(crate) logged: String,
    /// What it printed up to the banner's end.
    pub(crate) banner: String,
}

/// What is left of one that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
}

impl Process {
    /// Starts it with `args` on a free port and waits for the banner.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// The same with environment variables.
    pub(crate) fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn(&[&["--port", "0"], args].concat(), variables).banner()
    }

    /// The same with a stderr of one's own.
    pub(crate) fn start_logging_to(stderr: Stdio, args: &[&str]) -> Self {
        let args = [&["--port", "0"], args].concat();
        Self::spawn_with(&args, &[], Stdio::piped(), stderr).banner()
    }

    /// The same where so many files may be open.
    pub(crate) fn start_with_files(files: u32, args: &[&str]) -> Self {
        let script = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_serve"), "--port", "0"]);
        command.args(args);
        Self::run_command(command, &[], Stdio::piped(), Stdio::piped()).banner()
    }

    fn banner(mut self) -> Self {
        self.until_banner();
        self
    }

    /// Waits for the banner.
    pub(crate) fn until_banner(&mut self) {
        loop {
            let mut line = String::new();
            let stdout = self.stdout.as_mut().unwrap();
            let read = stdout.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended: {:?}", self.wait());
            self.banner.push_str(&line);
            if line.contains("try it:") {
                return;
            }
        }
    }

    /// Starts it with `args` and does not wait.
    pub(crate) fn spawn(args: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn_with(args, variables, Stdio::piped(), Stdio::piped())
    }

    /// The same with a stdout and a stderr of one's own.
    pub(crate) fn spawn_with(
        args: &[&str],
        variables: &[(&str, &str)],
        stdout: Stdio,
        stderr: Stdio,
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_serve"));
        command.args(args);
        Self::run_command(command, variables, stdout, stderr)
    }

    fn run_command(
        mut command: Command,
        variables: &[(&str, &str)],
        stdout: Stdio,
        stderr: Stdio,
    ) -> Self {
        // Variables of the shell that runs the tests must not reach the child.
        for (name, _) in std::env::vars() {
            if name.starts_with("SERVE_") || name.starts_with("HF_") {
                command.env_remove(name);
            }
        }
        command.envs(variables.iter().copied());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        let stderr = child.stderr.take().map(BufReader::new);
        Self {
            child,
            stdout,
            stderr,
            logged: String::new(),
            banner: String::new(),
        }
    }

    /// Runs it to its end, which it must reach by itself.
    pub(crate) fn run(args: &[&str]) -> Ended {
        Self::spawn(args, &[]).wait()
    }

    /// What `--version` of the same binary says.
    pub(crate) fn version(&self) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_serve"))
            .arg("--version")
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    /// `http://..` as the banner says.
    pub(crate) fn address(&self) -> String {
        let line = self.banner.lines().find(|line| line.contains("address"));
        let address = line.unwrap().split_whitespace().last();
        address.unwrap().to_owned()
    }

    /// Where health checks have an address of their own.
    pub(crate) fn health_address(&self) -> SocketAddr {
        let line = self.banner.lines().find(|line| line.contains("/health"));
        let url = line.unwrap().split_whitespace().last().unwrap();
        let address = url.trim_start_matches("http://");
        address.trim_end_matches("/health").parse().unwrap()
    }

    /// The most bytes that it has ever had resident.
    #[cfg(target_os = "linux")]
    pub(crate) fn peak_resident_bytes(&self) -> usize {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.unwrap().trim().trim_end_matches("kB").trim_end();
        kib.parse::<usize>().unwrap() << 10
    }

    pub(crate) fn url(&self, path: &str) -> String {
        self.address() + path
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let kill = Command::new("kill").args(["-s", name, &id]).status();
        assert!(kill.unwrap().success());
    }

    /// Waits for a line of its stderr with `text` in it.
    pub(crate) fn until_logged(&mut self, text: &str) {
        loop {
            let mut line = String::new();
            let read = self.stderr.as_mut().unwrap().read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended before {text:?}: {}", self.logged);
            self.logged.push_str(&line);
            if line.contains(text) {
                return;
            }
        }
    }

    /// Kills it, if it lives.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Takes away the reader of its stderr.
    pub(crate) fn drop_reader(&mut self) {
        self.stderr = None;
    }

    /// Waits for its end without reading what it writes.
    pub(crate) fn wait_unread(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn wait(&mut self) -> Ended {
        let mut stderr = std::mem::take(&mut self.logged);
        if let Some(mut pipe) = self.stderr.take() {
            pipe.read_to_string(&mut stderr).unwrap();
        }
        Ended {
            status: self.child.wait().unwrap(),
            stderr,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// From the least with which the binary begins, upwards: it serves, or says why not. Below that nothing of it runs, or it
/// says so too; whatever happens, it ends.
#[cfg(target_os = "linux")]
#[test]
fn with_too_little_address_space_it_says_so() {
    let limited = |kib: u64, arguments: &[&str]| {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("ulimit -v {kib}; exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_serve"))
            .args(arguments)
            .env_remove("SERVE_COMMIT");
        command
    };
    let says_its_version = |kib: &u64| {
        let output = limited(*kib, &["--version"]).output().unwrap();
        output.status.success()
    };
    // In small steps, as what does not fit lies elsewhere in each of them.
    let limits = || (0..).map(|step| 8_000 + 500 * step);
    let least = limits().find(says_its_version).unwrap();
    let mut refused = 0;
    for kib in (0..10).map(|step| least + 8_000 * step) {
        // A setting that does not hold, seen after the limit: what gets so far would have served.
        let wrong = [
            "--backend",
            "mock",
            "--host",
            "203.0.113.1",
            "--allow-anonymous",
            "--port",
            "0",
        ];
        let output = limited(kib, &wrong).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(3) if said.contains("of addresses, more than this process may have") => {
                refused += 1
            }
            Some(4) => {}
            code => panic!("{kib} KiB: {code:?} {:?} {said}", output.status),
        }
    }
    assert!(refused > 0, "the least of all is enough");
}
