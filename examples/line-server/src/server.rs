//! The protocol, and a server of it. A client sends a line such as `paid write a poem` and gets one back: `ok` and the answer, or
//! `no` and why. Each line waits for a permit of its own.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use examples_support::Occupancy;
use serve_core::Class;
use serve_sched::adapter::{Ask, AsyncDispatcher, Rejection};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;

pub(crate) const PAID: Class = Class::HIGHEST;
pub(crate) const FREE: Class = Class::new(1);
/// What the engine works at side by side.
pub(crate) const SLOTS: u32 = 4;
/// Tokens of an answer, and how long each of them takes.
const OUTPUT_TOKENS: u32 = 40;
const TOKEN: Duration = Duration::from_millis(1);
/// Bytes that a connection may send in all, and lines that it may send ahead.
const BYTES_MAX: u64 = 1 << 20;
const LINES_AHEAD_MAX: usize = 16;

/// A stand-in for an engine: it works at four requests at a time and keeps the others in a queue of its own.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) inside: Occupancy,
}

impl Engine {
    pub(crate) fn new() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(SLOTS as usize)),
            inside: Occupancy::default(),
        }
    }

    async fn generate(&self, prompt: &str) -> String {
        let _inside = self.inside.enter();
        // Nobody closes it.
        let _slot = self.slots.acquire().await;
        sleep(TOKEN * OUTPUT_TOKENS).await;
        prompt.to_uppercase()
    }
}

/// Serves connections until the future is dropped; what a connection cannot do is its own affair.
pub(crate) async fn serve(
    listener: TcpListener,
    front: AsyncDispatcher,
    engine: Engine,
) -> io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        let (front, engine) = (front.clone(), engine.clone());
        tokio::spawn(async move {
            let _ = connection(socket, &front, &engine).await;
        });
    }
}

/// Answers line after line. A client that closes its side has gone: the permit of what it waits for is
/// dropped with everything else here, and that cancels the request.
async fn connection(socket: TcpStream, front: &AsyncDispatcher, engine: &Engine) -> io::Result<()> {
    let (read, mut write) = socket.into_split();
    let mut lines = BufReader::new(read.take(BYTES_MAX)).lines();
    let mut ahead = VecDeque::new();
    loop {
        let line = match ahead.pop_front() {
            Some(line) => line,
            None => match lines.next_line().await? {
                Some(line) => line,
                None => return Ok(()),
            },
        };
        let said = tokio::select! {
            answer = answer(front, engine, &line) => match answer {
                Ok(text) => format!("ok {text}\n"),
                Err(rejection) => refusal(&rejection),
            },
            () = gone(&mut lines, &mut ahead) => return Ok(()),
        };
        write.write_all(said.as_bytes()).await?;
    }
}

/// The answer to a line, when it is its turn.
async fn answer(front: &AsyncDispatcher, engine: &Engine, line: &str) -> Result<String, Rejection> {
    let (class, prompt) = match line.split_once(' ') {
        Some(("paid", prompt)) => (PAID, prompt),
        Some(("free", prompt)) => (FREE, prompt),
        _ => (FREE, line),
    };
    let words = prompt.split_whitespace().count().max(1) as u32;
    let ask = Ask::new(words, OUTPUT_TOKENS).with_class(class);
    let mut permit = front.admit(ask).await?;
    let text = tokio::select! {
        rejection = permit.ended() => return Err(rejection),
        text = engine.generate(prompt) => text,
    };
    permit.finish();
    Ok(text)
}

/// `no`, the code of the reason, after how many seconds to come back if that is known, and the reason.
fn refusal(rejection: &Rejection) -> String {
    let again = rejection.retry_after_s();
    let again = again.map_or_else(String::new, |seconds| format!(" again in {seconds}"));
    format!("no {}{again}: {rejection}\n", rejection.code().name)
}

/// Is ready when the client has closed its side; what it sends before that is kept.
async fn gone(
    lines: &mut Lines<BufReader<tokio::io::Take<OwnedReadHalf>>>,
    ahead: &mut VecDeque<String>,
) {
    while ahead.len() < LINES_AHEAD_MAX {
        match lines.next_line().await {
            Ok(Some(line)) => ahead.push_back(line),
            Ok(None) | Err(_) => return,
        }
    }
    std::future::pending().await
}
