//! An HTTP/1.1 connection that does exactly what it is told: send these bytes, read so much, go away.
//!
//! It knows what the server under test sends (a body of known length or in chunks) and no more of
//! the protocol. It is lean, so that measuring takes little from what is measured.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A connection with what has been read of it and not been used.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
    body: Body,
}

/// How much of the present body is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// So many bytes.
    Length(usize),
    /// A chunk's head comes next.
    Chunk,
    /// The rest of a chunk with its line end.
    InChunk(usize),
    /// Nothing.
    Over,
}

impl Connection {
    /// Connects. A receive buffer of few bytes makes a client that does not read felt soon.
    ///
    /// # Errors
    ///
    /// When nobody accepts.
    pub(crate) async fn open(address: SocketAddr, receive_bytes: Option<u32>) -> io::Result<Self> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if let Some(bytes) = receive_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        let stream = socket.connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            unread: Vec::new(),
            body: Body::Over,
        })
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    ///
    /// When the other side has closed.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads the head of an answer and returns its status. Its body is to be read to the end before
    /// the next one.
    ///
    /// # Errors
    ///
    /// When the connection ends before, or what comes is no HTTP.
    pub(crate) async fn head(&mut self) -> io::Result<u16> {
        let end = loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                break end;
            }
            self.more().await?;
        };
        let head = String::from_utf8_lossy(&self.unread[..end]).to_ascii_lowercase();
        self.unread.drain(..end + 4);
        let field = |name: &str| {
            let line = head.lines().find(|line| line.starts_with(name))?;
            Some(line[name.len()..].trim().to_owned())
        };
        self.body = match (field("transfer-encoding:"), field("content-length:")) {
            (Some(_), _) => Body::Chunk,
            (None, Some(length)) => Body::Length(length.parse().map_err(|_| no_http())?),
            (None, None) => Body::Over,
        };
        let status = head.split_whitespace().nth(1);
        status
            .and_then(|code| code.parse().ok())
            .ok_or_else(no_http)
    }

    /// Appends the next part of the body to `out`, at least one byte; `false` when it is over.
    ///
    /// # Errors
    ///
    /// When the connection ends before the body does.
    pub(crate) async fn part(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        let before = out.len();
        loop {
            self.decode(out)?;
            if self.body == Body::Over {
                return Ok(out.len() > before);
            }
            if out.len() > before {
                return Ok(true);
            }
            self.more().await?;
        }
    }

    /// The whole body.
    ///
    /// # Errors
    ///
    /// When the connection ends before the body does.
    pub(crate) async fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        while self.part(&mut out).await? {}
        Ok(out)
    }

    /// Moves what has come of the body to `out`.
    fn decode(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let mut used = 0;
        loop {
            let rest = &self.unread[used..];
            match self.body {
                Body::Over => break,
                Body::Length(left) => {
                    let taken = left.min(rest.len());
                    out.extend_from_slice(&rest[..taken]);
                    used += taken;
                    self.body = match left - taken {
                        0 => Body::Over,
                        left => Body::Length(left),
                    };
                    if taken < left {
                        break;
                    }
                }
                Body::Chunk => {
                    let Some(end) = find(rest, b"\r\n") else {
                        break;
                    };
                    let size = std::str::from_utf8(&rest[..end]).ok();
                    let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
                    let size = size.ok_or_else(no_http)?;
                    if size == 0 && rest.len() < end + 4 {
                        break;
                    }
                    used += end + 2 + if size == 0 { 2 } else { 0 };
                    self.body = match size {
                        0 => Body::Over,
                        size => Body::InChunk(size + 2),
                    };
                }
                Body::InChunk(left) => {
                    let taken = left.min(rest.len());
                    // The line end belongs to the framing.
                    let data = taken.min(left.saturating_sub(2));
                    out.extend_from_slice(&rest[..data]);
                    used += taken;
                    self.body = match left - taken {
                        0 => Body::Chunk,
                        left => Body::InChunk(left),
                    };
                    if taken < left {
                        break;
                    }
                }
            }
        }
        self.unread.drain(..used);
        Ok(())
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.unread).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// A POST of JSON with further header lines, each with its line end.
pub(crate) fn post(path: &str, headers: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n{headers}\r\n"
    );
    (head + &body).into_bytes()
}

/// The data of each event of a stream that has been read whole.
pub(crate) fn events(body: &str) -> impl Iterator<Item = &str> {
    let frames = body.split("\n\n");
    frames.filter_map(|frame| frame.strip_prefix("data: "))
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn no_http() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP")
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// What a client reads from a server that writes these pieces.
    async fn read(pieces: &'static [&'static str]) -> io::Result<(u16, String)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            for piece in pieces {
                socket.write_all(piece.as_bytes()).await?;
                tokio::task::yield_now().await;
            }
            Ok::<_, io::Error>(())
        });
        let mut connection = Connection::open(address, None).await?;
        let status = connection.head().await?;
        let body = connection.rest().await?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    #[tokio::test]
    async fn a_body_is_read_however_it_is_cut() {
        let length = &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", "\r\nhe", "llo"];
        assert_eq!(read(length).await.unwrap(), (200, "hello".to_owned()));
        let chunked = &[
            "HTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\n\r\n3\r",
            "\nhel\r\n",
            "2\r\nlo\r\n0\r\n",
            "\r\n",
        ];
        assert_eq!(read(chunked).await.unwrap(), (503, "hello".to_owned()));
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_an_error() {
        let cut = &["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhe"];
        let error = read(cut).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
