//! A hub on the loopback interface that speaks what the hub client needs, and misbehaves on demand.
//!
//! Weights are redirected to another path, as the real hub does to its object store.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;
use sha2::{Digest, Sha256};

/// The one model of the hub and its commit.
pub(crate) const MODEL: &str = "tiny-org/tiny.model-1";
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

const POINTER: &[u8] =
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 300000\n";

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Answer with this status.
    Status(u16),
    /// Break off after so many bytes of the body.
    CutAfter(usize),
    /// The same, without having said how long the body is.
    CutSilentlyAfter(usize),
    /// Send the whole file whatever part of it was asked for.
    IgnoreRange,
    /// Change the byte of this number.
    Flip(usize),
    /// Say nothing more after so many bytes of the body, until the client leaves.
    SilentAfter(usize),
    /// Answer 429 with this `Retry-After`.
    BusyFor(&'static str),
    /// Send what stands for a large file in a repository.
    Pointer,
    /// Send a few bytes at a time, until the client leaves.
    Trickle,
}

/// What the hub says that is not so, from now on.
#[derive(Clone, Debug)]
pub(crate) enum Lie {
    /// This ETag for every file.
    Etag(String),
    /// This commit.
    Commit(String),
    /// Weights are at another address; `loop` is where they were asked for.
    Store(String),
    /// No lie: the hash of the weights, in the list of files or as their ETag.
    Hashes { in_list: bool },
    /// The weights have so many bytes.
    Size(usize),
    /// The list of files does not end.
    EndlessList,
    /// No lie: the model has another name by now.
    Moved,
}

/// A running hub. Dropping it stops it.
pub(crate) struct StandInHub {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    endpoint: String,
    files: Vec<(String, Vec<u8>)>,
    token: Option<String>,
    stop: AtomicBool,
    requests: Mutex<Vec<Request>>,
    /// Faults to come, each for one request whose path contains the text.
    faults: Mutex<Vec<(&'static str, Fault)>>,
    lie: Mutex<Option<Lie>>,
}

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) authorization: Option<String>,
}

impl StandInHub {
    pub(crate) fn serve(files: &[(&str, &[u8])], token: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let files = files.iter();
        let shared = Arc::new(Shared {
            endpoint: format!("http://{}", listener.local_addr().unwrap()),
            files: files
                .map(|&(name, bytes)| (name.to_owned(), bytes.to_vec()))
                .collect(),
            token: token.map(str::to_owned),
            stop: AtomicBool::new(false),
            requests: Mutex::default(),
            faults: Mutex::default(),
            lie: Mutex::default(),
        });
        let server = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if server.stop.load(Ordering::Relaxed) {
                    break;
                }
                // A client that hangs up early is the client's business.
                let _ = stream.and_then(|stream| server.answer(stream));
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        self.shared.endpoint.clone()
    }

    /// Lets the next `times` requests whose path contains `part` fail.
    pub(crate) fn fail(&self, part: &'static str, fault: Fault, times: usize) {
        let faults = std::iter::repeat_n((part, fault), times);
        self.shared.faults.lock().unwrap().extend(faults);
    }

    /// From now on it does what it should.
    pub(crate) fn heal(&self) {
        self.shared.faults.lock().unwrap().clear();
    }

    pub(crate) fn lie(&self, lie: Lie) {
        *self.shared.lie.lock().unwrap() = Some(lie);
    }

    pub(crate) fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        self.shared.requests.lock().unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> &[u8] {
        self.shared.file(name).unwrap()
    }
}

impl Drop for StandInHub {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Wakes the thread up.
        let address = self.shared.endpoint.trim_start_matches("http://");
        let _ = TcpStream::connect(address);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Shared {
    fn file(&self, name: &str) -> Option<&[u8]> {
        let found = self.files.iter().find(|(file, _)| file == name);
        found.map(|(_, bytes)| bytes.as_slice())
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let request = read_request(&stream)?;
        self.requests.lock().unwrap().push(request.clone());
        let fault = {
            let mut faults = self.faults.lock().unwrap();
            let next = faults
                .iter()
                .position(|(part, _)| request.path.contains(part));
            next.map(|next| faults.remove(next).1)
        };
        if let Some(Fault::Status(status)) = fault {
            return respond(&mut stream, status, &[], b"");
        }
        if let Some(Fault::BusyFor(retry_after)) = fault {
            let header = [("Retry-After", retry_after.to_owned())];
            return respond(&mut stream, 429, &header, b"");
        }
        let allowed = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let public = request.path.starts_with("/store/");
        if !public && allowed.is_some() && request.authorization != allowed {
            return respond(&mut stream, 401, &[], b"");
        }
        self.route(&mut stream, &request, fault)
    }

    fn route(
        &self,
        stream: &mut TcpStream,
        request: &Request,
        fault: Option<Fault>,
    ) -> std::io::Result<()> {
        let lie = self.lie.lock().unwrap().clone();
        let path = request.path.as_str();
        let described = format!("/api/models/{MODEL}/revision/main?blobs=true");
        if path == described {
            if let Some(Fault::SilentAfter(_)) = fault {
                return silence(stream);
            }
            if let Some(Lie::Moved) = lie {
                let location = [("Location", "/moved".to_owned())];
                return respond(stream, 307, &location, b"");
            }
            return self.describe(stream, lie.as_ref());
        }
        if path == "/moved" {
            return self.describe(stream, None);
        }
        let resolved = path.strip_prefix(&format!("/{MODEL}/resolve/{COMMIT}/"));
        let stored = path.strip_prefix("/store/");
        let Some(name) = resolved.or(stored) else {
            return respond(stream, 404, &[], b"");
        };
        let Some(bytes) = self.file(name) else {
            return respond(stream, 404, &[], b"");
        };
        let etag = match &lie {
            Some(Lie::Etag(etag)) => etag.clone(),
            Some(Lie::Hashes { in_list: false }) => sha256(bytes),
            _ => format!("etag-of-{name}").replace('.', "-"),
        };
        let mut headers = vec![("X-Repo-Commit", COMMIT.to_owned())];
        if resolved.is_some() && name.ends_with(".safetensors") {
            headers.push(("X-Linked-Etag", format!("\"{etag}\"")));
            let location = match &lie {
                Some(Lie::Store(store)) if store == "loop" => path.to_owned(),
                Some(Lie::Store(store)) => format!("{store}/store/{name}"),
                _ => format!("{}/store/{name}", self.endpoint),
            };
            headers.push(("Location", location));
            return respond(stream, 302, &headers, b"");
        }
        headers.push(("ETag", format!("\"{etag}\"")));
        send_file(stream, request, headers, bytes, fault)
    }

    fn describe(&self, stream: &mut TcpStream, lie: Option<&Lie>) -> std::io::Result<()> {
        let entry = |(name, bytes): &(String, Vec<u8>)| {
            let mut entry = json!({"rfilename": name, "size": bytes.len()});
            match lie {
                Some(Lie::Hashes { in_list: true }) if name.ends_with(".safetensors") => {
                    entry["lfs"] = json!({"sha256": sha256(bytes), "size": bytes.len()});
                }
                Some(Lie::Size(size)) if name.ends_with(".safetensors") => {
                    entry["size"] = json!(size);
                }
                _ => {}
            }
            entry
        };
        let siblings: Vec<_> = self.files.iter().map(entry).collect();
        let commit = match lie {
            Some(Lie::Commit(commit)) => commit,
            _ => COMMIT,
        };
        let body = json!({"sha": commit, "siblings": siblings}).to_string();
        if let Some(Lie::EndlessList) = lie {
            head(stream, 200, &[], None)?;
            loop {
                stream.write_all(&[b' '; 1 << 16])?;
            }
        }
        respond(stream, 200, &[], body.as_bytes())
    }
}

fn sha256(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Waits until the client has left.
fn silence(stream: &mut TcpStream) -> std::io::Result<()> {
    std::io::copy(stream, &mut std::io::sink()).map(drop)
}

fn send_file(
    stream: &mut TcpStream,
    request: &Request,
    mut headers: Vec<(&str, String)>,
    bytes: &[u8],
    fault: Option<Fault>,
) -> std::io::Result<()> {
    let range = request
        .range
        .as_deref()
        .and_then(|range| range.strip_prefix("bytes="));
    let (start, end) = range
        .and_then(|range| range.split_once('-'))
        .unwrap_or(("0", ""));
    let start: usize = start.parse().unwrap();
    let end = end.parse().map_or(bytes.len(), |last: usize| last + 1);
    if let Some(Fault::Pointer) = fault {
        return respond(stream, 200, &headers, POINTER);
    }
    if let Some(Fault::IgnoreRange) = fault {
        return respond(stream, 200, &headers, bytes);
    }
    if start >= bytes.len() {
        return respond(stream, 416, &headers, b"");
    }
    let body = &bytes[start..end];
    headers.push((
        "Content-Range",
        format!("bytes {start}-{}/{}", end - 1, bytes.len()),
    ));
    match fault {
        Some(Fault::CutAfter(sent)) => {
            head(stream, 206, &headers, Some(body.len()))?;
            stream.write_all(&body[..sent])
        }
        Some(Fault::CutSilentlyAfter(sent)) => {
            head(stream, 206, &headers, None)?;
            stream.write_all(&body[..sent])
        }
        Some(Fault::Flip(index)) => {
            let mut body = body.to_vec();
            body[index - start] ^= 1;
            respond(stream, 206, &headers, &body)
        }
        Some(Fault::SilentAfter(0)) => silence(stream),
        Some(Fault::SilentAfter(sent)) => {
            head(stream, 206, &headers, Some(body.len()))?;
            stream.write_all(&body[..sent])?;
            silence(stream)
        }
        Some(Fault::Trickle) => {
            head(stream, 206, &headers, Some(body.len()))?;
            for bytes in body.chunks(10) {
                stream.write_all(bytes)?;
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        }
        _ => respond(stream, 206, &headers, body),
    }
}

fn read_request(stream: &TcpStream) -> std::io::Result<Request> {
    let mut request = Request::default();
    for (number, line) in BufReader::new(stream).lines().enumerate() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if number == 0 {
            request.path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        } else if let Some((name, value)) = line.split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "range" => request.range = Some(value.to_owned()),
                "authorization" => request.authorization = Some(value.to_owned()),
                _ => {}
            }
        }
    }
    Ok(request)
}

fn respond(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
) -> std::io::Result<()> {
    head(stream, status, headers, Some(body.len()))?;
    stream.write_all(body)
}

fn head(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    length: Option<usize>,
) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(length) = length {
        text.push_str(&format!("Content-Length: {length}\r\n"));
    }
    text.push_str("\r\n");
    stream.write_all(text.as_bytes())
}
