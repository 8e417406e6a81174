//! As much of an HTTP client as the example needs: one request on one connection, which is closed when
//! the future is dropped.

use std::io;
use std::net::SocketAddr;

use examples_support::Told;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Asks, and reads the answer to its end.
pub(crate) async fn ask(address: SocketAddr, tier: &str) -> Told {
    match exchange(address, tier).await {
        Ok(text) if text.starts_with("HTTP/1.1 429 ") => Told::Refusal,
        // The last chunk of a stream is empty.
        Ok(text) if text.starts_with("HTTP/1.1 200 ") && text.ends_with("\r\n0\r\n\r\n") => {
            Told::Answer
        }
        _ => Told::Nothing,
    }
}

async fn exchange(address: SocketAddr, tier: &str) -> io::Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    let request = format!(
        "POST /generate HTTP/1.1\r\nhost: {address}\r\nx-tier: {tier}\r\n\
         content-length: 0\r\nconnection: close\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    socket.read_to_string(&mut text).await?;
    Ok(text)
}
