//! The server that is attacked: its process, plain requests, and what the system tells of it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serve_bench::experiments::servers::Signal;

use crate::child::Server;
use crate::metrics;
use crate::process::{cpu_time, peak_resident_mib};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long an answer may take before it is missing.
const ANSWER: Duration = Duration::from_secs(60);

/// Where the binary is.
pub(super) struct Serve(pub(super) PathBuf);

/// A running server.
pub(super) struct Target {
    server: Server,
    pub(super) address: SocketAddr,
}

impl Serve {
    /// Starts the mock as fast as it can be, with more settings.
    pub(super) fn mock(&self, settings: &[&str]) -> Result<Target, String> {
        self.start(&[&["--backend", "mock", "--mock-speed", "inf"], settings].concat())
    }

    /// Starts it with these settings, and a log of errors alone.
    pub(super) fn start(&self, settings: &[&str]) -> Result<Target, String> {
        let mut command = Command::new(&self.0);
        command.args(["--log", "error"]).args(settings);
        Target::of(&mut command, Stdio::null())
    }
}

impl Target {
    /// A server that is started with `command` and logs to `stderr`.
    pub(super) fn of(command: &mut Command, stderr: Stdio) -> Result<Self, String> {
        let server =
            Server::start_logging_to(command, stderr).map_err(|error| error.to_string())?;
        let address = server
            .address(PATIENCE)
            .map_err(|error| error.to_string())?;
        let address = address.trim_start_matches("http://").parse();
        let address = address.map_err(|error| format!("its address: {error}"))?;
        Ok(Self { server, address })
    }

    pub(super) fn pid(&self) -> u32 {
        self.server.pid()
    }

    pub(super) fn connect(&self) -> io::Result<TcpStream> {
        let socket = TcpStream::connect_timeout(&self.address, ANSWER)?;
        socket.set_read_timeout(Some(ANSWER))?;
        socket.set_write_timeout(Some(ANSWER))?;
        Ok(socket)
    }

    /// Sends bytes as they are and reads until the server closes or is silent for `patience`.
    pub(super) fn raw(&self, bytes: &[u8], patience: Duration) -> io::Result<String> {
        let mut socket = self.connect()?;
        socket.set_read_timeout(Some(patience))?;
        socket.write_all(bytes)?;
        let (mut answer, mut part) = (Vec::new(), [0; 4_096]);
        loop {
            match socket.read(&mut part) {
                Ok(0) => break,
                Ok(count) => answer.extend_from_slice(&part[..count]),
                Err(error) if is_silence(&error) => break,
                Err(error) if answer.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Status and body of a request on a connection of its own.
    pub(super) fn ask(&self, path: &str, body: &[u8]) -> io::Result<(u16, String)> {
        answered(self.sent(path, body)?)
    }

    /// A request that has been sent, and whose answer has not been read.
    pub(super) fn sent(&self, path: &str, body: &[u8]) -> io::Result<TcpStream> {
        let mut socket = self.connect()?;
        socket.write_all(head(path, body.len()).as_bytes())?;
        socket.write_all(body)?;
        Ok(socket)
    }

    pub(super) fn get(&self, path: &str) -> io::Result<(u16, String)> {
        let mut socket = self.connect()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes())?;
        answered(socket)
    }

    /// A metric without labels, or with exactly these.
    pub(super) fn metric(&self, name: &str) -> Result<f64, String> {
        let (_, text) = self
            .get("/metrics")
            .map_err(|error| format!("/metrics: {error}"))?;
        metrics::value(&text, name).ok_or_else(|| format!("there is no metric {name}"))
    }

    /// Waits until nothing is in flight any more, and the engine, a step later, holds nothing of it.
    pub(super) fn settled(&self, patience: Duration) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let requests = self.metric("serve_requests_in_flight")?;
            let blocks = self.metric("serve_kv_blocks{state=\"held\"}")?;
            if requests + blocks < 0.5 {
                return Ok(());
            }
            if start.elapsed() > patience {
                return Err(format!(
                    "{requests} requests are in flight and {blocks} blocks held {patience:?} after their \
                     clients have gone"
                ));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The most MiB that it has ever had resident.
    pub(super) fn peak_mib(&self) -> Result<f64, String> {
        peak_resident_mib(self.pid()).ok_or_else(|| "its memory is not known".to_owned())
    }

    /// Processor seconds that it uses in a second from now.
    pub(super) fn busy(&self) -> Result<f64, String> {
        let used =
            || cpu_time(self.pid()).ok_or_else(|| "its processor time is not known".to_owned());
        let before = used()?;
        thread::sleep(Duration::from_secs(1));
        Ok((used()? - before).as_secs_f64())
    }

    /// Files that it has open, and its threads.
    pub(super) fn held(&self) -> Result<(usize, usize), String> {
        let count = |what: &str| {
            let folder = fs::read_dir(format!("/proc/{}/{what}", self.pid()));
            folder
                .map(Iterator::count)
                .map_err(|error| error.to_string())
        };
        Ok((count("fd")?, count("task")?))
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) {
        self.server.signal(signal);
    }

    /// Asks it to end, and how it does.
    pub(super) fn stop(self) -> Result<ExitStatus, String> {
        self.server.stop().map_err(|error| error.to_string())
    }

    /// How it ends, once something has made it.
    pub(super) fn ended(mut self) -> Result<ExitStatus, String> {
        self.server.wait().map_err(|error| error.to_string())
    }

    /// Asks for its health again and again until what is returned is told to stop.
    pub(super) fn watch(&self) -> Watch {
        let (stop, address) = (Arc::new(AtomicBool::new(false)), self.address);
        let told = Arc::clone(&stop);
        let watching = thread::spawn(move || {
            let mut most = Duration::ZERO;
            while !told.load(Ordering::Relaxed) {
                let start = Instant::now();
                let asked = health(address);
                most = most.max(start.elapsed());
                asked.map_err(|error| format!("/health/live: {error}"))?;
                thread::sleep(Duration::from_millis(20));
            }
            Ok(most)
        });
        Watch { stop, watching }
    }
}

/// Health that is asked for meanwhile.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    watching: JoinHandle<Result<Duration, String>>,
}

impl Watch {
    /// Stops asking; the longest that an answer took.
    pub(super) fn longest(self) -> Result<Duration, String> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = self.watching.join();
        joined.unwrap_or_else(|_| Err("the watch panicked".to_owned()))
    }
}

/// The head of a request for text that ends its connection.
pub(super) fn head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n"
    )
}

/// Reads an answer to its end.
pub(super) fn answered(mut socket: TcpStream) -> io::Result<(u16, String)> {
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        // What has come is an answer, even if its connection was reset after it.
        Err(error) if answer.is_empty() => return Err(error),
        _ => {}
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    status
        .map(|status| (status, answer))
        .ok_or_else(|| io::Error::other("no answer came"))
}

fn health(address: SocketAddr) -> io::Result<()> {
    let mut socket = TcpStream::connect_timeout(&address, ANSWER)?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket
        .write_all(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    match answered(socket)? {
        (200, _) => Ok(()),
        (status, _) => Err(io::Error::other(format!("status {status}"))),
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
